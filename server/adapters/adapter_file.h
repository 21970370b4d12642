// Checks an adapter's file without a model: it must be a complete safetensors file of an adapter's size. Workers check
// whether its tensors fit a model.
//
// An adapter is a file or a folder (models/adapters/plan/adapter_files.h). Its digest covers the bytes of its tensors
// and its configuration, as workers compute it (models/adapters/adapter.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/content/content_store.h"

namespace tessera::server {

// A rank of 256 on every layer of the largest models stays below this bound.
inline constexpr uint64_t kMaxAdapterBytes = uint64_t{16} << 30;
inline constexpr uint64_t kMaxAdapterHeaderBytes = uint64_t{16} << 20;

// Properties of an adapter that was read completely.
struct AdapterFile {
  std::string digest;  // SHA-256, 64 hexadecimal digits
  uint64_t bytes = 0;  // of all its files

  bool operator==(const AdapterFile&) const = default;
};

// Returns whether the folder at `path` is an adapter.
bool IsAdapterFolder(const std::string& path);

// Reads the adapter at `path`; errors call it `name`. INVALID_ARGUMENT if it is not a safetensors file whose tensors
// cover it exactly, or is larger than kMaxAdapterBytes; otherwise errors of base::ReadOnlyFile.
absl::StatusOr<AdapterFile> CheckAdapterFile(const std::string& path, const std::string& name);

// Reads and checks the adapter while copying it to `copy`. The check holds for the copied bytes, even if the adapter
// changes meanwhile. Errors of CheckAdapterFile and of ContentWriter::Append.
absl::Status CopyAdapterFile(const std::string& path, const std::string& name, ContentWriter& copy);

}  // namespace tessera::server
