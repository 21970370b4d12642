#include "models/loading/host_allocator.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/loading/weight_memory.h"

namespace tessera::models {
namespace {

class HostAllocatorTest : public ::testing::Test {
 protected:
  HostAllocatorTest() {
    KeepFreedMemory();
    UseHostAllocator();
  }
};

TEST_F(HostAllocatorTest, TensorsBeginOnBoundariesOf64Bytes) {
  for (const int64_t count : {1, 15, 16, 1000, 1 << 20}) {
    const at::Tensor tensor = at::full({count}, 7, at::kFloat);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0u) << count;
    EXPECT_TRUE((tensor.clone() == 7).all().item<bool>()) << count;
  }
  EXPECT_EQ(at::empty({0}).numel(), 0);
}

// As activations do: each is freed before the next one is made, while something small stays that was made meanwhile.
TEST_F(HostAllocatorTest, ATensorTakesThePlaceOfAFreedOneOfItsSize) {
  constexpr int64_t kFloats = 1 << 20;
  std::vector<std::unique_ptr<char[]>> small;
  const size_t before = mallinfo2().arena;
  for (int i = 0; i < 32; ++i) {
    const at::Tensor large = at::empty({kFloats}, at::kFloat);
    small.push_back(std::make_unique<char[]>(2000));
  }
  EXPECT_LT(mallinfo2().arena - before, 4 * kFloats * sizeof(float));
}

// As oneDNN's temporaries are.
TEST_F(HostAllocatorTest, FreesByTheAddressAlone) {
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  const size_t before = mallinfo2().uordblks;
  void* const data = allocator->raw_allocate(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
  EXPECT_GT(mallinfo2().uordblks, before);
  allocator->raw_deallocate(data);
  EXPECT_EQ(mallinfo2().uordblks, before);
  EXPECT_NO_THROW(at::gelu(at::ones({64, 64})));
}

TEST_F(HostAllocatorTest, SaysWhenMemoryIsUsedUp) {
  for (const int64_t bytes : {int64_t{1} << 60, INT64_MAX}) {
    try {
      at::empty({bytes}, at::kByte);
      ADD_FAILURE() << bytes;
    } catch (const c10::Error& error) {
      EXPECT_THAT(std::string(error.what_without_backtrace()), ::testing::HasSubstr("can't allocate memory")) << bytes;
    }
  }
}

}  // namespace
}  // namespace tessera::models
