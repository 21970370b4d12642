// The files that a command writes: checked before the work begins, whole or not there at all.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/image/image_file.h"
#include "server/image/name_pattern.h"

namespace tessera::client {

class OutputFiles {
 public:
  // INVALID_ARGUMENT for a pattern or an extension that is not valid.
  static absl::StatusOr<OutputFiles> Create(const std::string& pattern, bool overwrite);

  // What the file of an image is to be called. Without `overwrite`, never the name of a file that exists.
  absl::StatusOr<std::string> NameFor(const server::NameValues& values) const;

  // That files can be made in the folder of `path`, which is made when the first one is; until then, in the nearest one
  // above it that exists.
  static absl::Status CheckFolder(const std::string& path);

  server::ImageFormat format() const { return format_; }

  // Encodes and writes; returns the path, which is another than `path` when that has come to exist meanwhile.
  struct Written {
    std::string path;
    size_t bytes = 0;
  };
  absl::StatusOr<Written> Write(const std::string& path, const control::Image& image,
                                const std::string& parameters) const;

  // Writes an image that has been encoded elsewhere.
  absl::StatusOr<Written> WriteEncoded(const std::string& path, const std::string& bytes) const;

 private:
  OutputFiles(std::string pattern, server::ImageFormat format, bool overwrite)
      : pattern_(std::move(pattern)), format_(format), overwrite_(overwrite) {}

  std::string pattern_;
  server::ImageFormat format_;
  bool overwrite_;
};

// The preview of one image: a PNG beside it, replaced as the image grows, removed when this goes.
class PreviewFile {
 public:
  explicit PreviewFile(const std::string& image_path);
  ~PreviewFile();

  PreviewFile(const PreviewFile&) = delete;
  PreviewFile& operator=(const PreviewFile&) = delete;

  absl::Status Write(const control::Image& image);
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  bool written_ = false;
};

}  // namespace tessera::client
