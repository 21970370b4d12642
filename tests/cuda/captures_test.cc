// Tests captures of the real CUDA plug-in on the fake CUDA: the effects of other threads, and the state after a failed
// capture.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <thread>

#include "kernels/device_runtimes.h"
#include "runtime/device/device.h"
#include "runtime/device/host_memory.h"

namespace tessera {
namespace {

class CudaCaptures : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<at::Device> device = runtime::OpenDevice("cuda:0");
    ASSERT_TRUE(device.ok()) << device.status();
    numbers_ = at::ones({16}, at::TensorOptions(at::kFloat).device(*device));
  }

  const kernels::DeviceRuntime& cuda() const { return kernels::DeviceRuntimeOf(at::kCUDA); }

  void ExpectCopiesToTheHost() {
    for (int i = 0; i < 3; ++i) EXPECT_NO_THROW((void)runtime::ToHost(numbers_));
  }

  // Device bytes that LibTorch still holds after it has released its unused memory.
  int64_t BytesAfterRelease() const {
    EXPECT_NO_THROW(cuda().release_cache(0));
    const std::optional<kernels::DeviceMemory> memory = runtime::ReadDeviceMemory(numbers_.device());
    EXPECT_TRUE(memory.has_value());
    return memory ? memory->used + memory->cached : -1;
  }

  at::Tensor numbers_;
};

TEST_F(CudaCaptures, PageLockedMemoryThatAnotherThreadFreesMeanwhileIsOfUseAgain) {
  at::Tensor first = runtime::ToHost(numbers_), second = runtime::ToHost(numbers_);
  ASSERT_TRUE(cuda().begin_capture(0));
  numbers_.add_(1);
  std::thread([&] { first = at::Tensor(); }).join();
  second = at::Tensor();  // by the capturing thread
  kernels::DeviceGraph* const graph = cuda().end_capture(0);
  ASSERT_NE(graph, nullptr);
  ExpectCopiesToTheHost();
  cuda().launch(*graph);
  cuda().destroy_graph(graph);
}

// This happens after a reload, or when the last graph was evicted.
TEST_F(CudaCaptures, AGraphCanBeMadeAfterAllOthersAreGone) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(cuda().begin_capture(0));
    numbers_.add(1);
    kernels::DeviceGraph* const graph = cuda().end_capture(0);
    ASSERT_NE(graph, nullptr);
    cuda().launch(*graph);
    cuda().destroy_graph(graph);
  }
}

// FAKE_CUDA_FAIL makes the first capture fail. After it the memory pools must be unchanged: another graph can be
// captured, and new allocations belong to no graph.
TEST_F(CudaCaptures, LeaveAWorkerAsItWasWhereTheyFail) {
  if (std::getenv("FAKE_CUDA_FAIL") == nullptr) return;  // tests/cuda/CMakeLists.txt runs it with every call that may
  const auto capture = [this]() -> kernels::DeviceGraph* {
    if (!cuda().begin_capture(0)) return nullptr;
    numbers_.add(1);
    return cuda().end_capture(0);
  };
  const int64_t before = BytesAfterRelease();
  ASSERT_EQ(capture(), nullptr);
  EXPECT_NO_THROW((void)runtime::ToHost(numbers_.add(1)));
  EXPECT_EQ(BytesAfterRelease(), before) << "the memory of the failed capture is kept";
  kernels::DeviceGraph* const graph = capture();
  ASSERT_NE(graph, nullptr);
  EXPECT_NO_THROW(cuda().launch(*graph));
  cuda().destroy_graph(graph);
  EXPECT_NO_THROW(cuda().release_cache(0));
}

}  // namespace
}  // namespace tessera
