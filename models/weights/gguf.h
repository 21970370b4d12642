// GgufFile reads one GGUF file (versions 2 and 3, little-endian; ggml's specification of the format): typed metadata, a
// table of tensors, then their bytes from a multiple of general.alignment on. Every value of the header is checked
// against the file's size before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/files/file.h"
#include "models/weights/tensor_file.h"

namespace tessera::models {

// A value of the metadata. All whole numbers are int64_t, except those of 2^63 and above, which are doubles; lists of
// booleans are lists of 0 and 1.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;
using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

struct GgufHeader {
  std::vector<StoredTensor> tensors;  // in the order of their bytes; shapes as PyTorch has them, rows first
  GgufMetadata metadata;
  uint64_t bytes = 0;  // of the header
};

inline constexpr uint64_t kMaxGgufHeaderBytes = uint64_t{1} << 28;
inline constexpr uint64_t kMaxGgufListItems = uint64_t{1} << 24;

// Whether a file with this beginning claims to be GGUF.
bool IsGguf(std::string_view first_bytes);

// Parses the header at the beginning of `bytes`, which are the first bytes of a file of file_size bytes. Returns
// OutOfRange if the header is longer than `bytes` but the file may hold it; Unimplemented, naming the tensor and the
// type, for a type that is not read; else InvalidArgument, naming the file and what is wrong. Fails for a part of a
// split file.
absl::StatusOr<GgufHeader> ParseGgufHeader(std::string_view bytes, uint64_t file_size, const std::string& file_name);

// Movable; const methods are thread-safe.
class GgufFile final : public TensorFile {
 public:
  // Reads and checks the header. Errors use `name` in place of the path.
  static absl::StatusOr<GgufFile> Open(const std::string& path, const std::string& name);

  const GgufMetadata& metadata() const { return metadata_; }

  // Returns a value of the metadata, or null if there is none of that name and type.
  template <typename T>
  const T* Metadata(std::string_view key) const {
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? nullptr : std::get_if<T>(&found->second);
  }

 private:
  GgufFile(base::ReadOnlyFile file, GgufHeader header, std::string header_digest)
      : TensorFile(std::move(file), std::move(header.tensors), std::move(header_digest)),
        metadata_(std::move(header.metadata)) {}

  GgufMetadata metadata_;
};

}  // namespace tessera::models
