// Between the steps of a stream the host only issues work: it never waits for the device, and copies nothing from
// memory that the device cannot read directly, on any layout.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "runtime/device/host_memory.h"
#include "runtime/device/mark.h"
#include "tests/support/pretend_device.h"
#include "tests/support/steady_waits.h"

namespace tessera::runtime {
namespace {

class DeviceWaitsTest : public testing::TestWithParam<const char*> {};

TEST_P(DeviceWaitsTest, ASteadyStepWaitsForNothing) {
  const LayoutRuns runs(GetParam());
  std::vector<parallel::Layout> layouts =
      runs.Valid({"cfg=2", "ulysses=2", "ring=2", "tensor=2", "pipe=2", "ring=2,ulysses=2", "cfg=2,tensor=2",
                  "pipe=2,patches=3,warmup=1", "cfg=2,pipe=2,ulysses=2,patches=2,warmup=1"});
  layouts.emplace_back();  // one rank
  EXPECT_GE(layouts.size(), 7u);
  for (const parallel::Layout& layout : layouts) {
    EXPECT_EQ(SteadyWaits(runs, layout), HostWaits{}) << parallel::LayoutText(layout);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DeviceWaitsTest,
                         testing::Values("dit", "flux_dev", "hunyuan11", "pixart_alpha", "flux2_klein_base",
                                         "qwen_image", "sd3", "sd35", "z_image_base"),
                         [](const auto& info) { return info.param; });

// Tests what the counter counts.
TEST(PretendDeviceTest, CountsWhatAGpuWouldWaitFor) {
  const at::Tensor x = ToDevice(at::arange(6, at::kDouble), kPretendDevice);
  const auto of = [](const std::function<void()>& what) {
    const HostWaits before = PretendDeviceWaits();
    what();
    return PretendDeviceWaits() - before;
  };
  EXPECT_EQ(of([&] { (void)(x * 2 + x).sum(); }), (HostWaits{}));
  EXPECT_EQ(of([&] { (void)ToDevice(at::ones({3}), kPretendDevice); }), (HostWaits{}));
  EXPECT_EQ(of([&] { (void)ToHost(x); }), (HostWaits{}));
  EXPECT_EQ(of([&] { (void)Mark(kPretendDevice).IsReached(); }), (HostWaits{}));
  EXPECT_EQ(of([&] { (void)x.sum().item<double>(); }), (HostWaits{.waits = 1}));
  EXPECT_EQ(of([&] { (void)at::equal(x, x); }), (HostWaits{.waits = 1}));
  EXPECT_EQ(of([&] { Mark(kPretendDevice).Wait(); }), (HostWaits{.waits = 1}));
  EXPECT_EQ(of([&] { (void)x.cpu(); }), (HostWaits{.waits = 1, .pageable_copies = 1}));
  EXPECT_EQ(of([&] { (void)at::ones({3}).to(kPretendDevice); }), (HostWaits{.waits = 1, .pageable_copies = 1}));
  EXPECT_EQ(of([&] { (void)at::ones({3}).to(kPretendDevice, /*non_blocking=*/true); }),
            (HostWaits{.waits = 1, .pageable_copies = 1}));
}

TEST(MarkTest, ReportsTheTimeBetweenTwoPlaces) {
  for (const at::Device device : {at::Device(at::kCPU), kPretendDevice}) {
    const Mark first(device), second(device);
    EXPECT_TRUE(second.IsReached());
    second.Wait();
    EXPECT_GE(second.SecondsSince(first), 0);
    EXPECT_LT(second.SecondsSince(first), 60);
  }
}

TEST(HostMemoryTest, ValuesArriveOnTheDeviceAndBack) {
  const at::Tensor values = at::arange(12, at::kFloat).view({3, 4});
  for (const at::Device device : {at::Device(at::kCPU), kPretendDevice}) {
    const at::Tensor there = ToDevice(values, device);
    EXPECT_EQ(there.device(), device);
    const at::Tensor back = ToHost(there);
    Mark(device).Wait();
    EXPECT_TRUE(back.is_cpu());
    EXPECT_TRUE(at::equal(back, values));
  }
}

}  // namespace
}  // namespace tessera::runtime
