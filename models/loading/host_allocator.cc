#include "models/loading/host_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdlib>

namespace tessera::models {
namespace {

constexpr uintptr_t kAlignment = 64;  // a line of a cache, and the widest vector register

// Before the data is the address of the chunk that holds both: parts of LibTorch free by the address of the data alone.
void Free(void* data) {
  if (data != nullptr) std::free(static_cast<void**>(data)[-1]);
}

class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &Free, c10::Device(c10::DeviceType::CPU)};
    void* const chunk = bytes > SIZE_MAX - kAlignment ? nullptr : std::malloc(bytes + kAlignment);
    TORCH_CHECK(chunk != nullptr, "can't allocate memory: a tensor of ", bytes, " bytes");
    // Malloc's own boundaries are of 16 bytes, so the next one of ours has room for the address before it.
    const uintptr_t at = (reinterpret_cast<uintptr_t>(chunk) / kAlignment + 1) * kAlignment;
    void* const data = reinterpret_cast<void*>(at);
    static_cast<void**>(data)[-1] = chunk;
    return {data, data, &Free, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void UseHostAllocator() {
  static HostAllocator allocator;
  c10::SetCPUAllocator(&allocator);
}

}  // namespace tessera::models
