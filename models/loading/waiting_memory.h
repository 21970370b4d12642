// WaitingMemory allocates the memory of the host in which weights wait for a device. The memory is pinned, so that the
// device reads it without the host's help, until the system refuses to pin more of it: then that and all later memory
// is pageable, and copies from it are slower.
//
// LibTorch rounds each pinned allocation up to a power of two, so tensors are cut from large chunks. Small models get
// small chunks: at most a quarter of what was allocated before, and at most 256 MiB, is left over.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "models/loading/waiting_chunks.h"

namespace tessera::models {

// The tensors share the chunks and may outlive this object. Used by the thread that loads.
class WaitingMemory {
 public:
  // Returns a tensor without values, in the order of its dimensions and aligned for a device's copies.
  at::Tensor Allocate(at::IntArrayRef shape, at::ScalarType dtype);

  // Whether all memory so far is pinned.
  bool is_pinned() const { return is_pinned_; }
  int64_t bytes() const { return bytes_; }                    // of all chunks
  int64_t pageable_bytes() const { return pageable_bytes_; }  // of those that are not pinned

 private:
  void AddChunk(int64_t bytes);

  at::Tensor chunk_;  // the last one, as bytes
  int64_t used_ = 0;  // bytes of it
  int64_t bytes_ = 0, pageable_bytes_ = 0;
  bool is_pinned_ = true;
};

}  // namespace tessera::models
