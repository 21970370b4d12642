#include "tests/golden_runner/block_state_bytes.h"

#include <cstring>

namespace tessera::golden {
namespace {

void Append(std::string& bytes, int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); }

void Append(std::string& bytes, const at::Tensor& tensor) {
  Append(bytes, static_cast<int64_t>(tensor.defined() ? tensor.scalar_type() : at::ScalarType::Undefined));
  if (!tensor.defined()) return;
  Append(bytes, tensor.dim());
  for (const int64_t size : tensor.sizes()) Append(bytes, size);
  const at::Tensor host = tensor.cpu().contiguous();
  bytes.append(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
}

class Reader {
 public:
  explicit Reader(const std::string& bytes) : next_(bytes.data()) {}

  int64_t Integer() {
    int64_t value;
    Copy(&value, sizeof(value));
    return value;
  }

  at::Tensor Tensor() {
    const auto type = static_cast<at::ScalarType>(Integer());
    if (type == at::ScalarType::Undefined) return {};
    std::vector<int64_t> sizes(static_cast<size_t>(Integer()));
    for (int64_t& size : sizes) size = Integer();
    at::Tensor tensor = at::empty(sizes, type);
    Copy(tensor.mutable_data_ptr(), tensor.nbytes());
    return tensor;
  }

 private:
  void Copy(void* to, size_t size) {
    std::memcpy(to, next_, size);
    next_ += size;
  }

  const char* next_;
};

}  // namespace

std::string ToBytes(const models::BlockState& state) {
  std::string bytes;
  Append(bytes, state.image);
  Append(bytes, state.text);
  Append(bytes, static_cast<int64_t>(state.skips.size()));
  for (const auto& [block, skip] : state.skips) {
    Append(bytes, int64_t{block});
    Append(bytes, skip);
  }
  return bytes;
}

models::BlockState FromBytes(const std::string& bytes) {
  Reader reader(bytes);
  models::BlockState state{.image = reader.Tensor(), .text = reader.Tensor()};
  for (int64_t left = reader.Integer(); left > 0; --left) {
    const int block = static_cast<int>(reader.Integer());
    state.skips[block] = reader.Tensor();
  }
  return state;
}

}  // namespace tessera::golden
