// SafetensorsFile reads one safetensors file: 8 bytes little-endian header length, a JSON header, then the tensors'
// bytes without gaps. Every value in the header is checked against the file's size before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/files/file.h"
#include "models/weights/tensor_file.h"

namespace tessera::models {

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // in the order of their bytes in the file
  std::map<std::string, std::string> metadata;
};

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Returns the header's length from the first 8 bytes of a file of that size; `prefix` may be shorter if the file is.
absl::StatusOr<uint64_t> ParseSafetensorsHeaderLength(std::string_view prefix, uint64_t file_size,
                                                      const std::string& file_name);

// Parses a header. `header` is the JSON text that follows the 8 length bytes of a file of file_size bytes. Returns
// InvalidArgument, naming the file and the tensor, unless the tensors cover the rest of the file exactly once.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header, uint64_t file_size,
                                                         const std::string& file_name);

// Movable; const methods are thread-safe.
class SafetensorsFile final : public TensorFile {
 public:
  // Reads and checks the header. Errors use `name` in place of the path.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path, const std::string& name);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile(base::ReadOnlyFile file, SafetensorsHeader header, std::string header_digest)
      : TensorFile(std::move(file), std::move(header.tensors), std::move(header_digest)),
        metadata_(std::move(header.metadata)) {}

  std::map<std::string, std::string> metadata_;
};

}  // namespace tessera::models
