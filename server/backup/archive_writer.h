// ArchiveWriter writes a backup as a tar archive, whose last entry is the manifest. One thread at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/backup/backup_manifest.h"

namespace tessera::server {

class ArchiveWriter final {
 public:
  // Receives the bytes of the archive in order; an error of it ends the backup.
  using Sink = std::function<absl::Status(std::string_view)>;

  explicit ArchiveWriter(Sink sink) : sink_(std::move(sink)) {}

  // Adds the regular file at `path` under a valid name (CheckBackedUpName) that was not added before. NOT_FOUND: there
  // is no such file, and nothing was added. DATA_LOSS: it became shorter meanwhile. Errors of the sink. After any error
  // other than NOT_FOUND, nothing more may be added.
  absl::Status AddFile(const std::string& name, const std::string& path);

  bool Has(const std::string& name) const { return manifest_.files.contains(name); }

  // What was added so far. The caller fills in all fields but `files`.
  BackupManifest& manifest() { return manifest_; }

  // Adds the manifest and the end of the archive.
  absl::Status Finish();

 private:
  absl::Status Write(std::string_view bytes) { return sink_(bytes); }

  const Sink sink_;
  BackupManifest manifest_;
};

}  // namespace tessera::server
