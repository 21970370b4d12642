#include "models/weights/tensor_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"

namespace tessera::models {

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

TensorFile::TensorFile(base::ReadOnlyFile file, std::vector<StoredTensor> tensors, std::string header_digest)
    : file_(std::move(file)), tensors_(std::move(tensors)), header_digest_(std::move(header_digest)) {
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const StoredTensor* TensorFile::Find(std::string_view tensor) const {
  const auto found = by_name_.find(tensor);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

absl::Status TensorFile::Read(const StoredTensor& tensor, uint64_t offset, std::span<std::byte> out) const {
  if (offset > tensor.bytes() || out.size() > tensor.bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat(name(), ": tensor ", base::Quote(tensor.name), " has ", tensor.bytes(),
                                              " bytes; ", out.size(), " from byte ", offset, " on were requested"));
  }
  return file_.Read(tensor.begin + offset, out);
}

}  // namespace tessera::models
