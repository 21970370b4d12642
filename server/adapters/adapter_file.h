// What can be known of an adapter's file without a model: that it is a whole safetensors file of an adapter's size.
// Whether its tensors fit a model is the workers' to say.
//
// An adapter is a file or a folder (models/adapters/plan/adapter_files.h). Its digest is that of the bytes of its
// tensors and its configuration, as workers compute it (models/adapters/adapter.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::server {

// A rank of 256 on every layer of the largest models stays below it.
inline constexpr uint64_t kMaxAdapterBytes = uint64_t{16} << 30;
inline constexpr uint64_t kMaxAdapterHeaderBytes = uint64_t{16} << 20;

// What the adapter is, once it was read whole.
struct AdapterFile {
  std::string digest;  // SHA-256, 64 hexadecimal digits
  uint64_t bytes = 0;  // of all its files

  bool operator==(const AdapterFile&) const = default;
};

// Whether the folder at `path` is an adapter.
bool IsAdapterFolder(const std::string& path);

// Reads the adapter at `path`; `name` stands for it in errors. INVALID_ARGUMENT for what is no safetensors file
// whose tensors cover it exactly, or is larger than kMaxAdapterBytes; else as base::ReadOnlyFile.
absl::StatusOr<AdapterFile> CheckAdapterFile(const std::string& path, const std::string& name);

// The same for the bytes that are copied on the way, to a new file or folder at `copy` which its owner alone can read.
// What is checked is what was copied, whatever becomes of the adapter. The copy is not durable; after an error there is
// none.
// RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE for another trouble of it.
absl::StatusOr<AdapterFile> CopyAdapterFile(const std::string& path, const std::string& name, const std::string& copy);

}  // namespace tessera::server
