#include "tests/layout/source_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const SourceTree& Repository() {
  static const auto* tree = new SourceTree(ReadSourceTree("."));
  return *tree;
}

std::vector<std::string> Lines(int count) { return std::vector<std::string>(count, "// line"); }

TEST(Repository, IsWhatTheTestReads) {
  EXPECT_GT(Repository().size(), 50u);
  EXPECT_TRUE(Repository().contains("tests/layout/source_rules_test.cc"));
  EXPECT_FALSE(Repository().contains("build/release/CMakeCache.txt"));
}

TEST(Repository, FollowsTheDirectionsOfItsFolders) { EXPECT_THAT(CheckIncludes(Repository()), IsEmpty()); }

TEST(Repository, HasNoFileThatShouldBeTwo) { EXPECT_THAT(CheckLengths(Repository()), IsEmpty()); }

TEST(Repository, NamesNoPlaceOnSomebodysMachine) { EXPECT_THAT(CheckMachinePaths(Repository()), IsEmpty()); }

// A rule that reports nothing proves nothing: each is shown a tree that breaks it.

TEST(IncludeRules, ReportTheFrontEndReachingIntoTheWorker) {
  const SourceTree tree = {{"server/a.cc", {"#include <string>", "#include \"runtime/engine.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("server/a.cc:2: server/ must not include runtime/engine.h")));
}

TEST(IncludeRules, ReportTheServerReachingUpToTheClient) {
  const SourceTree tree = {{"server/a.h", {"  #  include \"client/main.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("server/ must not include client/main.h")));
}

TEST(IncludeRules, ReportParallelCodeThatKnowsModels) {
  const SourceTree tree = {{"parallel/a.cc", {"#include \"models/linear.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("parallel/ must not include models/linear.h")));
}

TEST(IncludeRules, ReportModelsThatKnowTheRuntime) {
  const SourceTree tree = {{"models/pixart/a.cc", {"#include \"runtime/denoiser.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("models/ must not include runtime/denoiser.h")));
}

TEST(IncludeRules, ReportKernelsThatKnowParallelCode) {
  const SourceTree tree = {{"kernels/a.cc", {"#include \"parallel/mesh.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("kernels/ must not include parallel/mesh.h")));
}

TEST(IncludeRules, ReportProductCodeThatIncludesTests) {
  const SourceTree tree = {{"models/a.cc", {"#include \"tests/golden/case.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("models/ must not include tests/golden/case.h")));
}

TEST(IncludeRules, ReportLibTorchInTheFrontEnd) {
  const SourceTree tree = {{"client/a.cc", {"#include <ATen/ATen.h>"}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("LibTorch must not be included here")));
}

TEST(IncludeRules, ReportLibTorchThatComesByADetour) {
  const SourceTree tree = {{"server/a.cc", {"#include \"runtime/commands.h\""}},
                           {"runtime/commands.h", {"#include \"models/tensor.h\""}},
                           {"models/tensor.h", {"#include <c10/core/Device.h>"}}};
  EXPECT_THAT(CheckIncludes(tree),
              ElementsAre(HasSubstr("server/a.cc → runtime/commands.h → models/tensor.h → c10/core/Device.h")));
}

TEST(IncludeRules, ReportLibTorchBesideGrpcInTheControlChannel) {
  const SourceTree tree = {
      {"runtime/control_channel.cc", {"#include <grpcpp/grpcpp.h>", "#include <torch/library.h>"}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("runtime/control_channel.cc → torch/library.h")));
}

TEST(IncludeRules, ReportGrpcElsewhereInTheWorker) {
  const SourceTree tree = {{"runtime/engine.cc", {"#include \"tessera/internal/control.grpc.pb.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("only runtime/control_channel.* includes gRPC")));
}

TEST(IncludeRules, ReportTheHeaderThatIncludesAllOfLibTorch) {
  const SourceTree tree = {{"tests/a_test.cc", {"#include <torch/torch.h>"}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("torch/torch.h costs 15 s a file")));
}

TEST(IncludeRules, ReportPathsRelativeToTheFile) {
  const SourceTree tree = {{"models/a.cc", {"#include \"../kernels/ops.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("name it from the root")));
}

TEST(IncludeRules, AllowWhatTheDirectionsAllow) {
  const SourceTree tree = {
      {"client/a.cc", {"#include \"server/supervisor.h\"", "#include <grpcpp/grpcpp.h>"}},
      {"server/supervisor.h", {"#include \"runtime/commands.h\"", "#include \"tessera/internal/control.pb.h\""}},
      {"runtime/commands.h", {"#include <string>"}},
      {"runtime/engine.cc", {"#include \"models/linear.h\"", "#include <ATen/ATen.h>"}},
      {"models/linear_test.cc", {"#include \"tests/golden_runner/golden_case.h\""}},
      {"models/linear.h", {"#include \"parallel/functional.h\"", "#include \"kernels/ops.h\""}},
      {"tests/parallel/a_test.cc", {"#include \"models/linear.h\"", "#include \"parallel/functional.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), IsEmpty());
}

TEST(LengthRule, ReportsTheFirstLineTooMany) {
  EXPECT_THAT(CheckLengths({{"models/a.cc", Lines(500)}}), IsEmpty());
  EXPECT_THAT(CheckLengths({{"models/a.cc", Lines(501)}}), ElementsAre(HasSubstr("models/a.cc:501")));
}

// The places are put together here, or this file would break the rule itself.
TEST(MachinePathRule, ReportsFoldersOfPeopleAndBuildServices) {
  for (const std::string place : {"home", "root", "Users", "work", "workspace", "builds", "mnt"}) {
    const SourceTree tree = {{"docs/a.md", {"see `/" + place + "/x/y`"}}};
    EXPECT_THAT(CheckMachinePaths(tree), ElementsAre(HasSubstr("docs/a.md:1"))) << place;
  }
}

TEST(MachinePathRule, AllowsPathsOfTheSystemAndOfTheRepository) {
  const SourceTree tree = {
      {"docs/a.md", {"/usr/bin/env", "models/work/a.h", "$HOME/work/x", "a/home/b", "/v1/images"}}};
  EXPECT_THAT(CheckMachinePaths(tree), IsEmpty());
}

}  // namespace
}  // namespace tessera::layout
