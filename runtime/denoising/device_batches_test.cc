// A picture depends only on its request on a device too, although the device's products round depending on the shapes
// of their inputs.
#include "tests/support/device_batches.h"

#include <gtest/gtest.h>

namespace tessera::runtime {
namespace {

class DeviceBatchesTest : public testing::TestWithParam<const char*> {};

TEST_P(DeviceBatchesTest, AnImageOfABatchIsThatOfItsRequestAlone) {
  const LayoutRuns runs(GetParam());
  std::vector<parallel::Layout> layouts = runs.Valid({"cfg=2", "ulysses=2", "tensor=2", "pipe=2", "cfg=2,ring=2"});
  layouts.emplace_back();  // one rank
  for (const parallel::Layout& layout : layouts) {
    EXPECT_TRUE(
        at::equal(LatentsOnDevice(runs, layout, /*together=*/true), LatentsOnDevice(runs, layout, /*together=*/false)))
        << parallel::LayoutText(layout);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DeviceBatchesTest, testing::Values("dit", "flux_dev", "hunyuan11", "pixart_alpha"),
                         [](const auto& info) { return info.param; });

// The same holds for steps patch by patch if no text is cut with the image.
TEST(DevicePatchesTest, AnImageOfABatchIsThatOfItsRequestAlone) {
  for (const char* model : {"dit", "pixart_alpha"}) {
    const LayoutRuns runs(model);
    for (const parallel::Layout& layout : runs.Valid({"pipe=2,patches=2,warmup=1", "ulysses=2,patches=2,warmup=1"})) {
      EXPECT_TRUE(at::equal(LatentsOnDevice(runs, layout, /*together=*/true),
                            LatentsOnDevice(runs, layout, /*together=*/false)))
          << model << " " << parallel::LayoutText(layout);
    }
  }
}

}  // namespace
}  // namespace tessera::runtime
