// TensorFile is an open file of tensors whose header has been read and checked: what safetensors and GGUF files have in
// common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/files/file.h"
#include "models/weights/stored_types.h"

namespace tessera::models {

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

std::string ShapeText(const std::vector<int64_t>& shape);  // "[4, 2]"

// Owns the open file. Movable; const methods are thread-safe.
class TensorFile {
 public:
  const std::string& name() const { return file_.name(); }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* Find(std::string_view tensor) const;             // null if there is none
  const std::string& header_digest() const { return header_digest_; }  // SHA-256 of the header, hexadecimal

  // Fills `out` with the tensor's bytes from `offset` on. `tensor` must be one of tensors(), or a part of one. Returns
  // OutOfRange if the range exceeds the tensor, DataLoss if the file has become shorter.
  absl::Status Read(const StoredTensor& tensor, uint64_t offset, std::span<std::byte> out) const;

 protected:
  TensorFile(base::ReadOnlyFile file, std::vector<StoredTensor> tensors, std::string header_digest);

 private:
  base::ReadOnlyFile file_;
  std::vector<StoredTensor> tensors_;
  std::string header_digest_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace tessera::models
