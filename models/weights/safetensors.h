// SafetensorsFile reads one safetensors file: 8 bytes little-endian header length, a JSON header, then the tensors'
// bytes without gaps. Every value in the header is checked against the file's size before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/file.h"

namespace tessera::models {

enum class StoredType {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kQ4_0,  // blocks of GGUF from here on (kernels/quantized/quant_type.h); no safetensors file has them
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
};

// The smallest unit of a tensor's bytes: so many values in so many bytes. One value for all types but GGUF's blocks.
struct StoredBlock {
  int64_t values, bytes;
};
StoredBlock StoredBlockOf(StoredType type);

int64_t StoredTypeSize(StoredType type);      // bytes of one element; 0 for blocks of several
std::string StoredTypeName(StoredType type);  // as spelled in the file: "F32", "BF16", "Q4_K", …

// Shapes have been checked: no size is negative, and the product of the non-zero sizes times the element size fits into
// 63 bits. The last size of a tensor in blocks is a multiple of the block's values.
struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offsets from the start of the file
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  int64_t elements() const {
    const StoredBlock block = StoredBlockOf(type);
    return static_cast<int64_t>(bytes()) / block.bytes * block.values;
  }
};

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

// Owns the open file. Movable; const methods are thread-safe.
class SafetensorsFile {
 public:
  // Reads and checks the header. Errors use `name` in place of the path.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path, const std::string& name);

  const std::string& name() const { return file_.name(); }
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const StoredTensor* Find(std::string_view tensor) const;             // null if there is none
  const std::string& header_digest() const { return header_digest_; }  // SHA-256 of the header text, hexadecimal

  // Fills `out` with the tensor's bytes from `offset` on. `tensor` must be one of tensors(). Returns OutOfRange if the
  // range exceeds the tensor, DataLoss if the file has become shorter.
  absl::Status Read(const StoredTensor& tensor, uint64_t offset, std::span<std::byte> out) const;

 private:
  SafetensorsFile(base::ReadOnlyFile file, SafetensorsHeader header, std::string header_digest);

  base::ReadOnlyFile file_;
  SafetensorsHeader header_;
  std::string header_digest_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace tessera::models
