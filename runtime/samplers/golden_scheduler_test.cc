#include "runtime/samplers/golden_scheduler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/weights/file.h"

namespace tessera {
namespace {

constexpr char kRoot[] = "tests/golden/";

struct Case {
  std::string file;
  Json entry;
};

std::vector<Case> SchedulerCases() {
  std::vector<Case> cases;
  const absl::StatusOr<std::string> text = ReadWholeFile(std::string(kRoot) + "cases.json", "cases.json", 64 << 20);
  if (!text.ok()) return cases;
  const absl::StatusOr<Json> manifest = ParseJson(*text, "cases.json");
  if (!manifest.ok() || manifest->Find("cases") == nullptr) return cases;
  for (const Json& entry : manifest->Find("cases")->items()) {
    if (*entry.Find("kind")->AsString() == "scheduler") cases.push_back({*entry.Find("file")->AsString(), entry});
  }
  return cases;
}

class GoldenSchedulerTest : public testing::TestWithParam<Case> {
 protected:
  void Run(at::ScalarType dtype) {
    const Case& golden = GetParam();
    const absl::StatusOr<GoldenSchedulerResult> result = RunGoldenScheduler(
        *golden.entry.Find("arguments"), *golden.entry.Find("tolerance"), kRoot + golden.file, dtype);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->passed()) << result->where << " is " << result->error << " off; " << result->tolerance
                                  << " is allowed";
    // Four lengths, of each at least a timestep and a sample a step in two ways.
    EXPECT_GE(result->comparisons, 4 * (4 + 20 + 28 + 50));
    RecordProperty("worst", result->where);
    RecordProperty("error", std::to_string(result->error));
  }
};

TEST_P(GoldenSchedulerTest, SinglePrecisionAgreesWithTheReference) { Run(at::kFloat); }

TEST_P(GoldenSchedulerTest, DoublePrecisionAgreesWithTheReference) { Run(at::kDouble); }

INSTANTIATE_TEST_SUITE_P(AllSchedulers, GoldenSchedulerTest, testing::ValuesIn(SchedulerCases()), [](const auto& info) {
  const std::string& file = info.param.file;  // schedulers/<name>.safetensors
  return file.substr(11, file.size() - 11 - 12);
});

TEST(GoldenSchedulerCasesTest, AllThirtyNineCasesAreFound) { EXPECT_EQ(SchedulerCases().size(), 39u); }

TEST(GoldenSchedulerCasesTest, AMissingFileIsAnError) {
  const Case golden = SchedulerCases().front();
  const absl::StatusOr<GoldenSchedulerResult> result = RunGoldenScheduler(
      *golden.entry.Find("arguments"), *golden.entry.Find("tolerance"), "tests/golden/absent.safetensors", at::kFloat);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tessera
