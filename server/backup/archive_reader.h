// ArchiveReader reads the archive of a backup once, from its beginning to its end, and believes nothing in it. One
// thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/backup/backup_manifest.h"
#include "server/backup/tar.h"

namespace tessera::server {

class ArchiveReader final {
 public:
  // Reads at most `count` bytes; fewer than 1 only at the end.
  using Source = std::function<absl::StatusOr<std::string>(size_t count)>;

  explicit ArchiveReader(Source source) : source_(std::move(source)) {}

  // Returns the next file, whose bytes ReadFile must read; nullopt after the last one, when the manifest was read and
  // every file agreed with it. INVALID_ARGUMENT: the archive is truncated, damaged or hostile.
  absl::StatusOr<std::optional<TarEntry>> Next();

  // Passes the bytes of the file that Next returned to `take`, in pieces. Errors of `take`.
  absl::Status ReadFile(absl::FunctionRef<absl::Status(std::string_view)> take);

  // Valid after the last file.
  const BackupManifest& manifest() const { return manifest_; }

 private:
  absl::StatusOr<std::string> ReadExactly(size_t count);
  absl::Status ReadManifest(uint64_t bytes);
  absl::Status CheckEnd();

  const Source source_;
  std::optional<TarEntry> current_;
  std::map<std::string, BackedUpFile> files_;  // read so far
  BackupManifest manifest_;
};

}  // namespace tessera::server
