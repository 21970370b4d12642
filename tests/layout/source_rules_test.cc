#include "tests/layout/source_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::layout {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const SourceTree& Repository() {
  static const auto* tree = new SourceTree(ReadSourceTree("."));
  return *tree;
}

TEST(Repository, IsWhatTheTestReads) {
  EXPECT_GT(Repository().size(), 50u);
  EXPECT_TRUE(Repository().contains("tests/layout/source_rules_test.cc"));
  EXPECT_FALSE(Repository().contains("build/release/CMakeCache.txt"));
}

TEST(Repository, FollowsTheDirectionsOfItsFolders) { EXPECT_THAT(CheckIncludes(Repository()), IsEmpty()); }

TEST(Repository, HasNoCycleBetweenFolders) { EXPECT_THAT(CheckCycles(Repository()), IsEmpty()); }

TEST(Repository, ReachesFewFilesFromAHeaderOfTheControlRoom) { EXPECT_THAT(CheckFanIn(Repository()), IsEmpty()); }

TEST(Repository, DeclaresInTheNamespacesOfItsRooms) { EXPECT_THAT(CheckNamespaces(Repository()), IsEmpty()); }

TEST(Repository, HasNoFunctionThatShouldBeTwo) { EXPECT_THAT(CheckFunctions(Repository()), IsEmpty()); }

TEST(Repository, HasFewFilesOutsideTheFoldersOfARoom) { EXPECT_THAT(CheckTopLevels(Repository()), IsEmpty()); }

TEST(Repository, HasFewTestPrograms) { EXPECT_THAT(CheckTestPrograms(Repository()), IsEmpty()); }

TEST(Repository, NamesNoPlaceOnAMachine) { EXPECT_THAT(CheckMachinePaths(Repository()), IsEmpty()); }

TEST(Repository, HasATestForEachPlantedBug) { EXPECT_THAT(CheckPlantedBugs(Repository()), IsEmpty()); }

TEST(Repository, HasNoTestThatSleepsOrBoundsTheTimeThatPasses) { EXPECT_THAT(CheckSleeps(Repository()), IsEmpty()); }

TEST(Repository, CountsProcessorsInOnePlace) { EXPECT_THAT(CheckProcessorCounts(Repository()), IsEmpty()); }

TEST(Repository, IsWrittenInPlainEnglish) { EXPECT_THAT(CheckDialect(Repository()), IsEmpty()); }

TEST(Repository, NamesOnlyCodeThatExists) { EXPECT_THAT(CheckNames(Repository()), IsEmpty()); }

// A rule that reports nothing proves nothing: each is shown a tree that breaks it.

TEST(PlantedBugRule, ReportsABugThatNoTestPlants) {
  const SourceTree tree = {{"models/a.cc", {"if (Planted(\"known\")) x = 0;", "if (Planted(\"forgotten\")) x = 1;"}},
                           {"models/a_planted_test.cc", {"const PlantedBug planted(\"known\");"}}};
  EXPECT_THAT(CheckPlantedBugs(tree), ElementsAre("models/a.cc:2: no test plants forgotten"));
}

TEST(TestProgramRule, CountsTheProgramsOfEveryFolder) {
  const std::vector<std::string> programs(35, "  tessera_tests(a_test SOURCES a_test.cc)");
  SourceTree tree = {{"a/CMakeLists.txt", programs}, {"b/CMakeLists.txt", programs}, {"b/a.cmake", programs}};
  tree["c/CMakeLists.txt"] = {"# tessera_test(NAME)", "tessera_test_program(a)",
                              "tessera_library(tessera_tests SOURCES a.cc)"};
  EXPECT_THAT(CheckTestPrograms(tree), IsEmpty());
  tree["c/CMakeLists.txt"].push_back("tessera_test(c_test SOURCES c_test.cc)");
  EXPECT_THAT(CheckTestPrograms(tree),
              ElementsAre(HasSubstr("the CMakeLists.txt files make 71 test programs, more than 70")));
}

TEST(ProcessorCountRule, ReportsACountThatKnowsNoContainer) {
  const SourceTree tree = {{"server/a.cc", {"", "int n = std::thread::hardware_concurrency();"}},
                           {"runtime/b.cc", {"sysconf(_SC_NPROCESSORS_ONLN);"}},
                           {"bench/c.cc", {"sysconf(_SC_NPROCESSORS_ONLN);"}},
                           {"base/machine/machine_processors.cc", {"sched_getaffinity(0, n, &set);"}}};
  EXPECT_THAT(CheckProcessorCounts(tree),
              ElementsAre(HasSubstr("runtime/b.cc:1: _SC_NPROCESSORS_ONLN knows no control group"),
                          HasSubstr("server/a.cc:2: hardware_concurrency knows no control group")));
}

TEST(SleepRule, ReportsSleepsAndUpperBoundsOfTests) {
  const std::string sleep = "sleep";  // in two pieces, or this file would break the rule
  const SourceTree tree = {{"server/a_test.cc",
                            {"  absl::Sleep"
                             "For(absl::Seconds(1));",
                             "  std::this_thread::" + sleep + "_for(1s);",
                             std::string("  EXPECT_") + "LT(absl::Now() - began, absl::Seconds(2));"}},
                           {"tests/a.cc", {"u" + sleep + "(1);"}},
                           {"tests/a.sh", {"  " + sleep + " 0.1"}}};
  EXPECT_THAT(CheckSleeps(tree), ElementsAre(HasSubstr("server/a_test.cc:1: sleeps"), HasSubstr("a_test.cc:2: sleeps"),
                                             HasSubstr("a_test.cc:3: bounds"), HasSubstr("tests/a.cc:1: sleeps"),
                                             HasSubstr("tests/a.sh:1: sleeps")));
}

TEST(SleepRule, AllowsTheWaitOfTestsTheProductAndTimesOfOwnClocks) {
  const SourceTree tree = {
      {"tests/support/wait_until.h",
       {"    absl::Sleep"
        "For(absl::Milliseconds(2));"}},
      {"server/a.cc",
       {"absl::Sleep"
        "For(kPause);"}},
      {"tests/a.cc",
       {"EXPECT_LT(outcome.started - outcome.enqueued, absl::Seconds(4));", "real->xSleep(real, microseconds);"}}};
  EXPECT_THAT(CheckSleeps(tree), IsEmpty());
}

TEST(IncludeRules, ReportTheFrontEndReachingIntoTheWorker) {
  const SourceTree tree = {{"server/a.cc", {"#include <string>", "#include \"runtime/engine/engine.h\""}}};
  EXPECT_THAT(CheckIncludes(tree),
              ElementsAre(HasSubstr("server/a.cc:2: server/ must not include runtime/engine/engine.h")));
}

TEST(IncludeRules, ReportTheServerReachingUpToTheClient) {
  const SourceTree tree = {{"server/a.h", {"  #  include \"client/cli/main.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("server/ must not include client/cli/main.h")));
}

TEST(IncludeRules, ReportTheClientLibraryThatKnowsTheServerOrTheCommandLine) {
  const SourceTree tree = {
      {"client/sdk/a.cc",
       {"#include \"server/api/job.h\"", "#include \"client/cli/command.h\"", "#include \"base/a.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("client/sdk/ must not include server/api/job.h"),
                                               HasSubstr("client/sdk/ must not include client/cli/command.h")));
}

TEST(IncludeRules, ReportParallelCodeThatKnowsModels) {
  const SourceTree tree = {{"parallel/a.cc", {"#include \"models/layers/linear.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("parallel/ must not include models/layers/linear.h")));
}

TEST(IncludeRules, ReportModelsThatKnowTheRuntime) {
  const SourceTree tree = {{"models/pixart/a.cc", {"#include \"runtime/denoising/denoiser.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("models/ must not include runtime/denoising/denoiser.h")));
}

TEST(IncludeRules, ReportKernelsThatKnowParallelCode) {
  const SourceTree tree = {{"kernels/a.cc", {"#include \"parallel/plan/mesh.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("kernels/ must not include parallel/plan/mesh.h")));
}

TEST(IncludeRules, ReportProductCodeThatIncludesTests) {
  const SourceTree tree = {{"models/a.cc", {"#include \"tests/golden/case.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("models/ must not include tests/golden/case.h")));
}

TEST(IncludeRules, ReportTheControlRoomThatKnowsEitherProgram) {
  for (const std::string header :
       {"server/image/png.h", "runtime/engine/engine.h", "models/a.h", "parallel/host/a.h"}) {
    const SourceTree tree = {{"control/a.h", {"#include \"" + header + "\""}}};
    EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("control/ must not include " + header)));
  }
}

TEST(IncludeRules, ReportTheGroundFloorThatKnowsARoomAboveIt) {
  const SourceTree tree = {
      {"base/a.cc", {"#include \"control/protocol/commands.h\"", "#include \"parallel/plan/mesh.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("base/ must not include control/protocol/commands.h"),
                                               HasSubstr("base/ must not include parallel/plan/mesh.h")));
}

TEST(IncludeRules, ReportTheFrontEndThatReachesTensorsInParallelCode) {
  const SourceTree tree = {
      {"server/a.cc", {"#include \"parallel/plan/mesh.h\"", "#include \"parallel/communicator.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("server/ must not include parallel/communicator.h")));
}

TEST(IncludeRules, ReportLibTorchInTheFrontEnd) {
  const SourceTree tree = {{"client/a.cc", {"#include <ATen/ATen.h>"}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("LibTorch must not be included here")));
}

TEST(IncludeRules, ReportLibTorchThatComesByADetour) {
  const SourceTree tree = {{"server/a.cc", {"#include \"control/protocol/commands.h\""}},
                           {"control/protocol/commands.h", {"#include \"models/tensor.h\""}},
                           {"models/tensor.h", {"#include <c10/core/Device.h>"}}};
  EXPECT_THAT(
      CheckIncludes(tree),
      ElementsAre(HasSubstr("control/ must not include models/tensor.h"),
                  HasSubstr("control/protocol/commands.h → models/tensor.h → c10/core/Device.h"),
                  HasSubstr("server/a.cc → control/protocol/commands.h → models/tensor.h → c10/core/Device.h")));
}

TEST(IncludeRules, ReportLibTorchAndProtobufInTheParametersOfJobs) {
  const SourceTree tree = {
      {"control/parameters/message_fields.h", {"#include <google/protobuf/message.h>", "#include <torch/library.h>"}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("control/parameters/message_fields.h → torch/library.h")));
}

TEST(IncludeRules, ReportProtobufElsewhereInTheWorker) {
  const SourceTree tree = {{"runtime/engine/engine.cc", {"#include \"tessera/internal/job_parameters.pb.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), ElementsAre(HasSubstr("only the parameters of jobs include protobuf")));
}

TEST(IncludeRules, ReportGrpcInTheWorker) {
  const SourceTree tree = {{"control/protocol/control_channel.cc", {"#include <grpcpp/grpcpp.h>"}},
                           {"control/protocol/worker_client.cc", {"#include \"tessera/internal/node.grpc.pb.h\""}}};
  EXPECT_THAT(CheckIncludes(tree),
              ElementsAre(HasSubstr("gRPC is the front end's alone"), HasSubstr("gRPC is the front end's alone")));
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
      {"server/supervisor.h",
       {"#include \"control/protocol/commands.h\"", "#include \"tessera/internal/job_parameters.pb.h\""}},
      {"control/protocol/commands.h", {"#include <string>"}},
      {"runtime/engine/engine.cc", {"#include \"models/layers/linear.h\"", "#include <ATen/ATen.h>"}},
      {"models/layers/linear_test.cc", {"#include \"tests/golden_runner/golden_case.h\""}},
      {"models/layers/linear.h", {"#include \"parallel/functional.h\"", "#include \"kernels/ops.h\""}},
      {"tests/parallel/a_test.cc", {"#include \"models/layers/linear.h\"", "#include \"parallel/functional.h\""}}};
  EXPECT_THAT(CheckIncludes(tree), IsEmpty());
}

TEST(CycleRule, ReportsFoldersThatIncludeEachOther) {
  const SourceTree tree = {{"models/a.cc", {"#include <string>", "#include \"models/layers/b.h\""}},
                           {"models/core.h", {}},
                           {"models/layers/b.h", {"#include \"models/core.h\""}},
                           {"base/a.h", {}}};
  EXPECT_THAT(CheckCycles(tree), ElementsAre("models/, models/layers/ include each other in a cycle: models/a.cc:2 "
                                             "includes models/layers/b.h, models/layers/b.h:1 includes models/core.h"));
}

TEST(CycleRule, ReportsEachFolderOfALongCycleOnce) {
  const SourceTree tree = {{"server/a/a.h", {"#include \"server/b/b.h\""}},
                           {"server/b/b.h", {"#include \"server/d/d.h\""}},
                           {"server/b/other.h", {"#include \"server/c/c.inc\""}},
                           {"server/c/c.inc", {"#include \"server/a/a.h\""}},
                           {"server/d/d.h", {}}};
  EXPECT_THAT(CheckCycles(tree), ElementsAre(AllOf(HasSubstr("server/a/, server/b/, server/c/ include each other"),
                                                   HasSubstr("server/b/other.h:1 includes server/c/c.inc"))));
}

TEST(CycleRule, AllowsTestsAndFoldersInAnOrder) {
  const SourceTree tree = {{"models/a.cc", {"#include \"models/layers/b.h\"", "#include \"models/a.h\""}},
                           {"models/a.h", {}},
                           {"models/layers/b.h", {"#include \"models/none.h\""}},
                           {"models/layers/b_test.cc", {"#include \"models/a.h\""}}};
  EXPECT_THAT(CheckCycles(tree), IsEmpty());
}

TEST(FanInRule, ReportsAHeaderThatOneFileTooManyReaches) {
  SourceTree tree = {{"control/wide.h", {}},
                     {"base/wide.h", {}},
                     {"server/a.h", {"#include \"control/wide.h\"", "#include \"base/wide.h\""}}};
  for (int i = 0; i < 150; ++i) tree["server/" + std::to_string(i) + ".cc"] = {"#include \"server/a.h\""};
  EXPECT_THAT(CheckFanIn(tree), IsEmpty());
  tree["tests/front/one_test.cc"] = {"#include \"control/wide.h\""};
  EXPECT_THAT(CheckFanIn(tree), ElementsAre(HasSubstr("control/wide.h:1: 151 .cc files")));
}

TEST(NamespaceRule, ReportsDeclarationsInTheNamespaceOfAnotherRoomOrOfNone) {
  EXPECT_THAT(CheckNamespaces({{"base/a.h", {"namespace tessera::base {"}},
                               {"kernels/cpu/a.h", {"namespace tessera::kernels::cpu {"}},
                               {"server/a.h", {"namespace tessera::base {", "namespace tessera::server {"}},
                               {"client/sdk/include/tessera/a.h", {"namespace tessera {"}},
                               {"tests/a.h", {"namespace tessera {"}}}),
              IsEmpty());
  EXPECT_THAT(CheckNamespaces({{"base/a.h", {"namespace tessera {"}}}),
              ElementsAre(HasSubstr("tessera::base"), HasSubstr("it declares in tessera, not in tessera::base")));
  EXPECT_THAT(CheckNamespaces({{"server/a.h", {"namespace tessera::base {"}}}),
              ElementsAre(HasSubstr("server/a.h:1: it declares nothing in its own namespace, tessera::server")));
}

TEST(FunctionRule, ReportsTheFirstLineTooMany) {
  const auto tree = [](const std::string& file, const std::string& head, int count) {
    std::vector<std::string> lines = {"namespace tessera {", head};
    lines.insert(lines.end(), count, "    more();");
    lines.insert(lines.end(), {head.starts_with(' ') ? "  }" : "}", "}  // namespace tessera"});
    return SourceTree{{file, lines}};
  };
  for (const std::string head : {"void Run() {", "  absl::Status Run(int x) const override {", "  Run() : x_(F()) {"}) {
    EXPECT_THAT(CheckFunctions(tree("models/a.cc", head, 80)), IsEmpty());
    EXPECT_THAT(CheckFunctions(tree("models/a.cc", head, 81)),
                ElementsAre(HasSubstr("models/a.cc:2: a function of 81")));
    EXPECT_THAT(CheckFunctions(tree("models/a_test.cc", head, 81)), IsEmpty());
  }
}

TEST(TopLevelRule, ReportsTheFirstFileTooMany) {
  SourceTree tree;
  for (int i = 0; i < 12; ++i) tree["models/" + std::to_string(i) + ".h"] = {};
  tree["models/flux/a.h"] = {};
  EXPECT_THAT(CheckTopLevels(tree), IsEmpty());
  tree["models/more.h"] = {};
  EXPECT_THAT(CheckTopLevels(tree), ElementsAre(HasSubstr("models/ has 13 files")));
  EXPECT_THAT(CheckTopLevels({{"base/CMakeLists.txt", {}}, {"base/a/a.h", {}}}), IsEmpty());
  EXPECT_THAT(CheckTopLevels({{"control/CMakeLists.txt", {}}, {"control/a.h", {}}}),
              ElementsAre(HasSubstr("control/ has 2 files at its top, more than 1")));
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

TEST(DialectRule, ReportsCommentsAndDocumentsWithTheirFiles) {
  const SourceTree tree = {{"models/a.cc", {"int x = 0;  // Tells whoever asks."}},
                           {"server/b_test.cc", {"// A lock of its", "// own."}},
                           {"docs/a.md", {"Nobody reads it."}},
                           {"README.md", {"The ring is of no more use."}}};
  EXPECT_THAT(
      CheckDialect(tree),
      ElementsAre(AllOf(HasSubstr("models/a.cc:1: comments have"), HasSubstr("models/a.cc (2), server/b_test.cc (1)")),
                  AllOf(HasSubstr("docs/a.md:1: documents have"), HasSubstr("docs/a.md (1), README.md (1)"))));
}

TEST(DialectRule, ReportsCommentsOfScriptsAndStyleSheets) {
  for (const SourceTree& tree :
       std::vector<SourceTree>{{{"scripts/a.py", {"x = 1  # behind"}}},
                               {{"scripts/a.py", {"def f():", "  \"\"\"Tells", "  it.\"\"\""}}},
                               {{"scripts/a.py", {"x = f(\"\"\"", "\"\"\")", "# Behind it."}}},
                               {{"run-tests.sh", {"# Tells it."}}},
                               {{"server/web/a.js", {"f();  // Nobody."}}},
                               {{"server/web/a.css", {"/* a", "   beside it */"}}}}) {
    EXPECT_THAT(CheckDialect(tree), ElementsAre(HasSubstr(":1: comments of scripts have"))) << tree.begin()->first;
  }
}

TEST(DialectRule, ReportsTextsOfTheProgramsAndNotOfTests) {
  const std::vector<std::string> lines = {"Fail(\"the \\\"peer\\\" tells nothing \"", "     \"beside it\");"};
  EXPECT_THAT(CheckDialect({{"server/a.cc", lines}}),
              ElementsAre(AllOf(HasSubstr("server/a.cc:1: texts of the programs have"), HasSubstr("server/a.cc (2)"))));
  EXPECT_THAT(CheckDialect({{"server/a_test.cc", lines}, {"tests/front/a.cc", lines}}), IsEmpty());
}

TEST(DialectRule, CountsInAThousandWords) {
  std::vector<std::string> lines(1000, "// word");
  lines.push_back("// Behind it.");
  EXPECT_THAT(CheckDialect({{"models/a.cc", lines}}), IsEmpty());
  lines.insert(lines.end(), 20, "// Behind it.");
  EXPECT_THAT(CheckDialect({{"models/a.cc", lines}}), ElementsAre(HasSubstr("models/a.cc:1: comments have 20.15")));
}

TEST(DialectRule, CountsNoCodeAndNoOtherDocuments) {
  const SourceTree tree = {
      {"models/a_test.cc",
       {"const char* told = \"// nobody\";", "const char* raw = R\"(", "// behind", ")\";",
        "char c = '\"'; int beside = 1'000;  // A plain comment."}},
      {"models/a.cc", {"char c = '\"'; int beside = 1;  // A plain comment."}},
      {"docs/a.md", {"```", "legal", "```", "    tell", "Plain."}},
      {"tests/golden/README.md", {"Nobody mends it."}},
      {"scripts/a.py", {"whoever = \"\"\"", "# nobody", "\"\"\"", "a[\"told\"] = whoever#whoever"}},
      {"scripts/a.txt", {"# whoever // whoever"}},
      {"server/web/a.js", {"const told = \"http://beside\";"}}};
  EXPECT_THAT(CheckDialect(tree), IsEmpty());
}

// A tree in which the names of `comment` and `document` are looked up.
SourceTree TreeThatNames(const std::string& comment, const std::string& document) {
  return {{"models/step_plan.h", {"struct StepPlan : public Plan {", "  int state;", "  int next_ = 0;", "};"}},
          {"models/plan.h", {"class Plan {", "  void MakeRoom();", "};"}},
          {"server/a.cc", {"bool finite = absl::InternalError(Word) && DenoiseJob();", "// " + comment}},
          {"docs/a.md", {document}}};
}

TEST(NameRule, ReportsWhatCommentsNameAndNoCodeHas) {
  for (const std::string name : {"StepPlan::finite", "Gone::state", "MadeUpName()", "gone_", "MakeRooms::x"}) {
    const std::string reported = name.substr(0, name.find('('));
    EXPECT_THAT(CheckNames(TreeThatNames("See " + name + ": it is.", "")),
                ElementsAre("server/a.cc:2: names " + reported + ", which no code has"));
  }
  for (const std::string path : {"models/gone.h", "docs/api.md", "models/old/step_plan.h"}) {
    EXPECT_THAT(CheckNames(TreeThatNames("A field (" + path + ").", "")),
                ElementsAre("server/a.cc:2: names " + path + ", which is no file"));
  }
}

TEST(NameRule, ReportsWhatDocumentsNameAndNoCodeHas) {
  for (const std::string name : {"StepPlan::finite", "MadeUpName(x, 1)", "gone_", "StepPlan.MadeUpName"}) {
    EXPECT_THAT(CheckNames(TreeThatNames("", "The warnings (`" + name + "`).")),
                ElementsAre(AllOf(HasSubstr("docs/a.md:1: names "), HasSubstr(", which no code has"))));
  }
  EXPECT_THAT(CheckNames(TreeThatNames("", "In `models/step_plan.{h,cc}`.")),
              ElementsAre("docs/a.md:1: names models/step_plan.cc, which is no file"));
}

TEST(NameRule, AllowsNamesOfTheTreeAndOfOthers) {
  const std::string names =
      "StepPlan::state StepPlan::MakeRoom StepPlans MakeRoom() next_ models/plan.h std::span<int> absl::StatusOr "
      "InternalError Internal at::Tensor PipeFusion GPU https://models/gone.h build/gone.h models/*.h x/models/gone.h";
  EXPECT_THAT(CheckNames(TreeThatNames(names, "")), IsEmpty());
  EXPECT_THAT(
      CheckNames(TreeThatNames("", "`StepPlan::state`, `MakeRoom(1)`, `models/plan.h`, MadeUpName, `a MadeUpName`")),
      IsEmpty());
}

}  // namespace
}  // namespace tessera::layout
