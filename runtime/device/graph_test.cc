// Tests graphs through a device's table on the pretended device, which has the guarantees of a GPU's driver.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "kernels/device_runtimes.h"
#include "runtime/device/device.h"
#include "runtime/device/host_memory.h"
#include "runtime/device/mark.h"
#include "tests/support/pretend_device.h"

namespace tessera::runtime {
namespace {

const kernels::DeviceRuntime& Runtime() { return kernels::DeviceRuntimeOf(kPretendDevice.type()); }

struct Destroy {
  void operator()(kernels::DeviceGraph* graph) const { Runtime().destroy_graph(graph); }
};
using Graph = std::unique_ptr<kernels::DeviceGraph, Destroy>;

Graph Capture(const std::function<void()>& work) {
  EXPECT_TRUE(Runtime().begin_capture(0));
  work();
  return Graph(Runtime().end_capture(0));
}

at::Tensor OnDevice(const at::Tensor& values) { return ToDevice(values, kPretendDevice); }

bool Is(const at::Tensor& x, std::initializer_list<double> values) {
  return at::equal(ToHost(x), at::tensor(at::ArrayRef<double>(values)));
}

class GraphTest : public testing::Test {
 protected:
  const c10::InferenceMode no_gradients_;
};

TEST_F(GraphTest, IsDoneAtEachLaunchAndNotBefore) {
  const at::Tensor x = OnDevice(at::tensor({1.0, 2.0}));
  at::Tensor y;
  const Graph graph = Capture([&] { y = x * 2 + 1; });
  ASSERT_NE(graph, nullptr);
  EXPECT_TRUE(at::isnan(ToHost(y)).all().item<bool>());
  Runtime().launch(*graph);
  EXPECT_TRUE(Is(y, {3, 5}));
  x.copy_(OnDevice(at::tensor({10.0, 20.0})));
  const int64_t calls = PretendDeviceCalls();
  Runtime().launch(*graph);
  EXPECT_TRUE(Is(y, {21, 41}));
  EXPECT_EQ(PretendDeviceCalls(), calls) << "the operators were issued one by one";
}

TEST_F(GraphTest, WritesIntoWhatWasThereBefore) {
  at::Tensor sum = OnDevice(at::tensor({1.0, 1.0}));
  const at::Tensor copy = OnDevice(at::zeros({2}, at::kDouble));
  const Graph graph = Capture([&] {
    sum.add_(1);
    copy.copy_(sum);
  });
  EXPECT_TRUE(Is(sum, {1, 1}));
  Runtime().launch(*graph);
  Runtime().launch(*graph);
  EXPECT_TRUE(Is(sum, {3, 3}));
  EXPECT_TRUE(Is(copy, {3, 3}));
}

TEST_F(GraphTest, HoldsNumbersOfTheHostAsTheyWere) {
  const at::Tensor x = OnDevice(at::tensor({1.0, 2.0}));
  const at::Tensor factor = at::full({}, 3.0, at::kDouble);
  at::Tensor y;
  const Graph graph = Capture([&] { y = x * factor; });
  factor.fill_(100);
  Runtime().launch(*graph);
  EXPECT_TRUE(Is(y, {3, 6}));
}

TEST_F(GraphTest, DoesNotReadWhatWasFreed) {
  at::Tensor x = OnDevice(at::tensor({1.0, 2.0})), y;
  const Graph graph = Capture([&] { y = x + x; });
  Runtime().launch(*graph);
  x = OnDevice(at::tensor({1.0, 2.0}));
  EXPECT_THROW(Runtime().launch(*graph), c10::Error);
}

TEST_F(GraphTest, KeepsWhatWasAllocatedMeanwhileAsLongAsItLives) {
  const at::Tensor x = OnDevice(at::ones({8}, at::kDouble));
  const int64_t before = PretendDeviceBytes();
  at::Tensor y;
  Graph graph = Capture([&] { y = (x + 1) * 2; });
  EXPECT_EQ(PretendDeviceBytes(), before + 2 * 64);
  EXPECT_EQ(Runtime().graph_bytes(*graph), 2 * 64);
  graph.reset();
  EXPECT_EQ(PretendDeviceBytes(), before + 64);
  y.reset();
  EXPECT_EQ(PretendDeviceBytes(), before);
}

TEST_F(GraphTest, HoldsNoWaitForTheDevice) {
  const at::Tensor x = OnDevice(at::ones({2}, at::kDouble)), host = at::ones({2}, at::kDouble);
  const std::function<void()> waits[] = {[&] { (void)x.sum().item<double>(); }, [&] { (void)x.cpu(); },
                                         [&] { (void)host.to(kPretendDevice); }, [] { Mark(kPretendDevice).Wait(); }};
  for (const std::function<void()>& work : waits) {
    EXPECT_EQ(Capture([&] { EXPECT_THROW(work(), c10::Error); }), nullptr);
    EXPECT_TRUE(Is(x + x, {2, 2})) << "work is done again";
  }
}

TEST(PretendMemoryTest, CountsWhatIsKeptForTensorsToCome) {
  EXPECT_FALSE(ReadDeviceMemory(kPretendDevice).has_value());
  ReleaseDeviceMemory(kPretendDevice);
  SizePretendDevice(1 << 20);
  at::Tensor x = OnDevice(at::ones({8}, at::kDouble));
  const int64_t used = PretendDeviceBytes();
  const auto is = [](const kernels::DeviceMemory& memory, int64_t used, int64_t cached) {
    return memory.total == 1 << 20 && memory.used == used && memory.cached == cached &&
           memory.free == memory.total - used - cached;
  };
  EXPECT_TRUE(is(*ReadDeviceMemory(kPretendDevice), used, 0));
  x.reset();
  EXPECT_TRUE(is(*ReadDeviceMemory(kPretendDevice), used - 64, 64));
  ReleaseDeviceMemory(kPretendDevice);
  EXPECT_TRUE(is(*ReadDeviceMemory(kPretendDevice), used - 64, 0));
  SizePretendDevice(0);
}

}  // namespace
}  // namespace tessera::runtime
