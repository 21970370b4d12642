#include "client/cli/exit_code.h"

#include <gtest/gtest.h>

namespace tessera::client {
namespace {

TEST(ExitCodeTest, ReportsTheWorkersEndAndInterruptionsInEveryStageOfTheWork) {
  for (const Stage stage : {Stage::kOptions, Stage::kModel, Stage::kJob}) {
    EXPECT_EQ(ExitCodeFor(stage, absl::UnavailableError("")), ExitCode::kWorker);
    EXPECT_EQ(ExitCodeFor(stage, absl::CancelledError("")), ExitCode::kInterrupted);
    EXPECT_EQ(ExitCodeFor(stage, absl::ResourceExhaustedError("")), ExitCode::kDevice);
  }
}

TEST(ExitCodeTest, DistinguishesAFullDiskFromExhaustedMemory) {
  EXPECT_EQ(ExitCodeFor(Stage::kOutput, absl::ResourceExhaustedError("")), ExitCode::kOutput);
  EXPECT_EQ(ExitCodeFor(Stage::kOutput, absl::UnavailableError("")), ExitCode::kOutput);
}

TEST(ExitCodeTest, DistinguishesAnInvalidValueFromABrokenModelByTheStage) {
  const absl::Status status = absl::InvalidArgumentError("");
  EXPECT_EQ(ExitCodeFor(Stage::kOptions, status), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeFor(Stage::kModel, status), ExitCode::kModel);
  EXPECT_EQ(ExitCodeFor(Stage::kJob, status), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeFor(Stage::kJob, absl::InternalError("")), ExitCode::kInternal);
}

}  // namespace
}  // namespace tessera::client
