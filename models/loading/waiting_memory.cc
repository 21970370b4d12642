#include "models/loading/waiting_memory.h"

#include <c10/util/Exception.h>

namespace tessera::models {

void WaitingMemory::AddChunk(int64_t bytes) {
  used_ = 0;
  if (is_pinned_) {
    const int64_t chunk = WaitingChunkBytes(bytes, bytes_);
    try {
      chunk_ = at::empty({chunk}, at::TensorOptions(at::kByte).pinned_memory(true));
      bytes_ += chunk;
      return;
    } catch (const c10::Error&) {
      is_pinned_ = false;
    }
  }
  chunk_ = at::empty({std::max(bytes, std::min(bytes_ / 4, kMostChunkBytes))}, at::kByte);
  bytes_ += chunk_.numel();
  pageable_bytes_ += chunk_.numel();
}

at::Tensor WaitingMemory::Allocate(at::IntArrayRef shape, at::ScalarType dtype) {
  const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype));
  if (!chunk_.defined() || used_ + bytes > chunk_.numel()) AddChunk(bytes);
  at::Tensor tensor = chunk_.narrow(0, used_, bytes).view(dtype).view(shape);
  used_ += (bytes + kWaitingAlignment - 1) / kWaitingAlignment * kWaitingAlignment;
  return tensor;
}

}  // namespace tessera::models
