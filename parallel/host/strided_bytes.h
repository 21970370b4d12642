// The bytes of a strided tensor in row-major order, read or written piece by piece without a contiguous copy.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tessera::parallel {

class StridedBytes {
 public:
  static constexpr int kMaxDims = 8;

  StridedBytes() = default;

  // Strides in elements; at most kMaxDims sizes.
  StridedBytes(void* base, std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t element_bytes)
      : base_(static_cast<std::byte*>(base)), run_(element_bytes) {
    int64_t elements = 1;
    for (const int64_t size : sizes) elements *= size;
    bytes_ = elements * element_bytes;
    int64_t stride = 1;  // that continues the run
    size_t inner = sizes.size();
    for (; inner > 0; --inner) {
      if (sizes[inner - 1] == 1) continue;
      if (strides[inner - 1] != stride) break;
      stride *= sizes[inner - 1];
      run_ *= sizes[inner - 1];
    }
    for (size_t i = inner; i > 0; --i) {
      if (sizes[i - 1] == 1) continue;
      sizes_[dims_] = sizes[i - 1];
      steps_[dims_] = strides[i - 1] * element_bytes;
      ++dims_;
    }
  }

  int64_t bytes() const { return bytes_; }

  // Bytes that lie side by side.
  int64_t run() const { return run_; }

  // The next `count` bytes, to or from `buffer`.
  void Read(std::byte* buffer, int64_t count) {
    Walk(count, [&buffer](std::byte* piece, int64_t size) {
      std::memcpy(buffer, piece, size);
      buffer += size;
    });
  }
  void Write(const std::byte* buffer, int64_t count) {
    Walk(count, [&buffer](std::byte* piece, int64_t size) {
      std::memcpy(piece, buffer, size);
      buffer += size;
    });
  }

 private:
  template <typename Copy>
  void Walk(int64_t count, Copy copy) {
    while (count > 0) {
      const int64_t size = std::min(count, run_ - in_run_);
      copy(base_ + in_run_, size);
      count -= size;
      in_run_ += size;
      if (in_run_ == run_) NextRun();
    }
  }

  void NextRun() {
    in_run_ = 0;
    for (int i = 0; i < dims_; ++i) {
      base_ += steps_[i];
      if (++index_[i] < sizes_[i]) return;
      base_ -= steps_[i] * sizes_[i];
      index_[i] = 0;
    }
  }

  std::byte* base_ = nullptr;
  int64_t run_ = 0, in_run_ = 0, bytes_ = 0;
  int dims_ = 0;  // outside of the run, innermost first
  std::array<int64_t, kMaxDims> sizes_ = {}, steps_ = {}, index_ = {};
};

}  // namespace tessera::parallel
