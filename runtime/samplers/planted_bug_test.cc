// Built twice, each time with another bug planted in the samplers: the golden cases must notice it.
#include <gtest/gtest.h>

#include <string>

#include "models/weights/file.h"
#include "runtime/samplers/golden_scheduler.h"

namespace tessera {
namespace {

#if !defined(TESSERA_PLANT_SAMPLER_HISTORY) && !defined(TESSERA_PLANT_TIMESTEP_OFF_BY_ONE)
#error "this test needs a planted bug"
#endif

TEST(PlantedBugTest, TheGoldenCaseFailsFarBeyondItsTolerance) {
  const std::string file = "schedulers/dpm_order2.safetensors";
  const absl::StatusOr<std::string> text = ReadWholeFile("tests/golden/cases.json", "cases.json", 64 << 20);
  ASSERT_TRUE(text.ok());
  const absl::StatusOr<Json> manifest = ParseJson(*text, "cases.json");
  ASSERT_TRUE(manifest.ok());
  for (const Json& entry : manifest->Find("cases")->items()) {
    if (*entry.Find("file")->AsString() != file) continue;
    const absl::StatusOr<GoldenSchedulerResult> result =
        RunGoldenScheduler(*entry.Find("arguments"), *entry.Find("tolerance"), "tests/golden/" + file, at::kDouble);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->passed());
    EXPECT_GT(result->error, 100 * result->tolerance) << result->where;
    EXPECT_GT(result->error, 1e-3) << result->where;
    return;
  }
  FAIL() << file << " is not in the manifest";
}

}  // namespace
}  // namespace tessera
