// OutputFiles names and writes a command's files. They are checked before the work begins and written completely or not
// at all.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/image/image_format.h"
#include "server/image/name_pattern.h"

namespace tessera::control {
struct Frames;
}

namespace tessera::client {

class OutputFiles {
 public:
  // INVALID_ARGUMENT for an invalid pattern or extension.
  static absl::StatusOr<OutputFiles> Create(const std::string& pattern, bool overwrite);

  // Returns the file name of an image. Without `overwrite`, it is never the name of an existing file.
  absl::StatusOr<std::string> NameFor(const server::NameValues& values) const;

  // Checks that files can be created in the folder of `path`. If the folder does not exist, it is created with the
  // first file, and the nearest existing parent is checked instead.
  static absl::Status CheckFolder(const std::string& path);

  server::ImageFormat format() const { return format_; }

  // Encodes and writes an image. The returned path differs from `path` if a file of that name was created meanwhile.
  struct Written {
    std::string path;
    size_t bytes = 0;
  };
  absl::StatusOr<Written> Write(const std::string& path, const control::Frames& image,
                                const std::string& parameters) const;

  // Writes an image that is already encoded.
  absl::StatusOr<Written> WriteEncoded(const std::string& path, const std::string& bytes) const;

 private:
  OutputFiles(std::string pattern, server::ImageFormat format, bool overwrite)
      : pattern_(std::move(pattern)), format_(format), overwrite_(overwrite) {}

  std::string pattern_;
  server::ImageFormat format_;
  bool overwrite_;
};

// PreviewFile is the preview of one image: a PNG in the same folder that each preview replaces and the destructor
// removes.
class PreviewFile {
 public:
  explicit PreviewFile(const std::string& image_path);
  ~PreviewFile();

  PreviewFile(const PreviewFile&) = delete;
  PreviewFile& operator=(const PreviewFile&) = delete;

  absl::Status Write(const control::Frames& image);
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  bool written_ = false;
};

}  // namespace tessera::client
