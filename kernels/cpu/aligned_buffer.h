// AlignedBuffer owns uninitialised memory aligned to 64 bytes, as the kernels require.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace tessera::kernels::cpu {

class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t bytes)
      : bytes_(static_cast<char*>(::operator new (static_cast<size_t>(bytes), std::align_val_t{64}))) {}
  ~AlignedBuffer() { ::operator delete (bytes_, std::align_val_t{64}); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  void* get() const { return bytes_; }

 private:
  char* bytes_;
};

}  // namespace tessera::kernels::cpu
