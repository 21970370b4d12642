// Checks what remains after each kind of failure: an exit code, a message, no process and no file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "tests/front/command_line_fixture.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class FailureTest : public CommandLineTest {
 protected:
  // Runs a `generate` that must fail with `exit_code` and leave no file. Returns its error output.
  std::string ErrorOf(int exit_code, std::vector<std::string> arguments, const std::string& script = "") {
    arguments.insert(arguments.begin(), {"generate", "--seed=1"});
    const Result result = Run(arguments, script);
    EXPECT_EQ(result.exit_code, exit_code) << result.errors;
    EXPECT_THAT(Files(), IsEmpty());
    return result.errors;
  }
};

TEST_F(FailureTest, InvalidValuesEndWithCode2AndNameTheField) {
  EXPECT_THAT(ErrorOf(2, {"x", "--size", "65x64"}), HasSubstr("width is 65"));
  EXPECT_THAT(ErrorOf(2, {"x", "--size", "0x64"}), HasSubstr("width is 0"));
  EXPECT_THAT(ErrorOf(2, {"x", "--size", "big"}), HasSubstr("size is 'big'"));
  EXPECT_THAT(ErrorOf(2, {"x", "--height", "-8"}), HasSubstr("height is -8"));
  EXPECT_THAT(ErrorOf(2, {"x", "--width", "99999999999999999999"}), HasSubstr("the nearest is 2048"));
  EXPECT_THAT(ErrorOf(2, {"x", "--steps", "0"}), HasSubstr("steps is 0; valid values are 1 to 1000"));
  EXPECT_THAT(ErrorOf(2, {"x", "--steps", "many"}), HasSubstr("steps is 'many'"));
  EXPECT_THAT(ErrorOf(2, {"x", "--guidance", "nan"}), HasSubstr("guidance is nan"));
  EXPECT_THAT(ErrorOf(2, {"x", "--guidance", "-inf"}), HasSubstr("guidance is -inf"));
  EXPECT_THAT(ErrorOf(2, {"x", "--sampler", "eular"}), HasSubstr("did you mean 'euler'?"));
  EXPECT_THAT(ErrorOf(2, {"x", "--noise", "pink"}), HasSubstr("noise 'pink'"));
  EXPECT_THAT(ErrorOf(2, {"x", "--dtype", "fp16"}), HasSubstr("dtype 'fp16'"));
  EXPECT_THAT(ErrorOf(2, {"x", "--device", "tpu"}), HasSubstr("device is 'tpu'"));
  EXPECT_THAT(ErrorOf(2, {"x", "--threads", "-1"}), HasSubstr("threads is -1"));
  EXPECT_THAT(ErrorOf(2, {"x", "-n", "0"}), HasSubstr("count is 0"));
  EXPECT_THAT(ErrorOf(2, {"x <lora:style:0.8>"}), HasSubstr("prompt has '<lora:style:0.8>': the adapter 'style'"));
  EXPECT_THAT(ErrorOf(2, {"x", "--negative", "<lora:style>"}), HasSubstr("negative prompt has '<lora:style>'"));
  EXPECT_THAT(ErrorOf(2, {"x", "--preview", "0"}), HasSubstr("preview is 0"));
  EXPECT_THAT(ErrorOf(2, {"x", "--binning"}), HasSubstr("no table of sizes"));
  EXPECT_THAT(ErrorOf(2, {"x", "--steps", ""}), HasSubstr("--steps"));
  EXPECT_THAT(ErrorOf(2, {"x", "--bogus"}), HasSubstr("--bogus"));
  EXPECT_THAT(ErrorOf(2, {"x", "-o", "a.bmp"}), HasSubstr(".bmp"));
  EXPECT_THAT(ErrorOf(2, {"x", "-o", "{what}.png"}), HasSubstr("{what}"));
  EXPECT_THAT(ErrorOf(2, {}), HasSubstr("prompt"));
}

TEST_F(FailureTest, PromptsThatCannotBeReadEndWithCode2) {
  EXPECT_THAT(ErrorOf(2, {std::string(100000, 'a')}), HasSubstr("prompt has 100000 bytes"));
  EXPECT_THAT(ErrorOf(2, {"a\xFF"}), HasSubstr("byte 0xff at offset 1"));
}

TEST_F(FailureTest, AModelThatCannotBeReadEndsWithCode3) {
  EXPECT_THAT(ErrorOf(3, {"x", "-m", "/nonexistent"}), HasSubstr("/nonexistent"));
  EXPECT_THAT(ErrorOf(3, {"x", "-m", WorkFolder()}), HasSubstr("model_index.json"));
  EXPECT_THAT(ErrorOf(3, {"x", "-m", "tinny", "--models-dir", ModelsFolder()}), HasSubstr("did you mean 'tiny'?"));
  EXPECT_THAT(ErrorOf(3, {"x"}, "describe=error"), HasSubstr("describe fails"));
  EXPECT_THAT(ErrorOf(3, {"x"}, "load=error"), HasSubstr("load fails"));
}

TEST_F(FailureTest, ADeviceOrMemoryThatIsMissingEndsWithCode4) {
  EXPECT_THAT(ErrorOf(4, {"x", "--device", "cuda"}, "no-device"), HasSubstr("device 'cuda' is not available"));
  EXPECT_THAT(ErrorOf(4, {"x"}, "load=exhausted"), HasSubstr("out of memory"));
  EXPECT_THAT(ErrorOf(4, {"x"}, "step2=exhausted"), HasSubstr("out of memory"));
  EXPECT_THAT(ErrorOf(4, {"x"}, "decode=exhausted"), HasSubstr("out of memory"));
}

TEST_F(FailureTest, AnOutputFolderThatCannotBeWrittenOrMadeEndsWithCode5BeforeAWorkerStarts) {
  // If a worker were started, the exit code would be 6.
  EXPECT_THAT(ErrorOf(5, {"x", "-o", "/proc/a.png"}, "exit=1"), HasSubstr("output folder '/proc' cannot be written"));
  EXPECT_THAT(ErrorOf(5, {"x", "-o", "/proc/missing/a.png"}, "exit=1"),
              HasSubstr("output folder '/proc' cannot be written"));
}

TEST_F(FailureTest, NoOutputFolderIsMadeWhereThereIsNoImage) {
  ErrorOf(6, {"x", "-o", "missing/below/a.png"}, "exit=3");
  EXPECT_THAT(Files(), Not(Contains(HasSubstr("missing"))));
}

TEST_F(FailureTest, AnOutputFolderThatIsAFileEndsWithCode5) {
  Write("file", "");
  const Result result = Run({"generate", "x", "-o", "file/a.png"}, "exit=1");
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.errors, HasSubstr("is not a folder"));
}

TEST_F(FailureTest, AnImageThatDoesNotFitOnTheDiskEndsWithCode5AndLeavesNoPartOfIt) {
  largest_file_ = 9000;  // enough for standard error and the workers' shared memory, which are files as well
  EXPECT_THAT(ErrorOf(5, {"x", "--size", "2048x2048", "-o", "a.jpg"}), HasSubstr("\"a.jpg\": the file is larger"));
}

TEST_F(FailureTest, AnErrorOfTheWorkersCodeEndsWithCode1WithoutItsStack) {
  EXPECT_THAT(ErrorOf(1, {"x"}, "step3=throw"), AllOf(HasSubstr("step3 throws"), Not(HasSubstr("frame"))));
}

TEST_F(FailureTest, AWorkerThatCannotBeStartedEndsWithCode6) {
  EXPECT_THAT(ErrorOf(6, {"x"}, "exit=3"),
              AllOf(HasSubstr("ended with exit code 3"), HasSubstr("exits as its script says")));
}

TEST_F(FailureTest, AWorkerThatDiesEndsWithCode6AndTheNameOfWhatItDid) {
  EXPECT_THAT(ErrorOf(6, {"x"}, "describe=die"), HasSubstr("while the model was being read: the worker was killed"));
  EXPECT_THAT(ErrorOf(6, {"x"}, "load=die"), HasSubstr("while the model was being loaded"));
  EXPECT_THAT(ErrorOf(6, {"x"}, "start=die"), HasSubstr("while the prompt was being encoded"));
  EXPECT_THAT(ErrorOf(6, {"x"}, "step3=die"),
              HasSubstr("while step 3 of 6 was running: the worker was killed by signal 9"));
  EXPECT_THAT(ErrorOf(6, {"x"}, "decode=die"), HasSubstr("while the image was being decoded"));
}

TEST_F(FailureTest, AWorkerThatDoesNotAnswerEndsWithCode6) {
  EXPECT_THAT(ErrorOf(6, {"x", "--command-timeout", "5"}, "step2=hang"),
              AllOf(HasSubstr("while step 2 of 6 was running"), HasSubstr("did not answer within 5s")));
}

TEST_F(FailureTest, AWorkerKilledFromOutsideEndsWithCode6NamingTheStep) {
  const auto child = Start({"generate", "x", "--json"}, "step3=hang");
  ASSERT_TRUE(child->WaitForOutput("\"step\":2"));
  kill(WorkerPid(), SIGKILL);
  EXPECT_EQ(child->Wait(), 6);
  EXPECT_THAT(child->errors(), HasSubstr("while step 3 of 6 was running: the worker was killed by signal 9"));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(FailureTest, ErrorsAreJsonEventsToo) {
  const Result result = Run({"generate", "x", "--json", "--steps", "0"});
  const std::vector<boost::json::object> events = Events(result.output);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().at("event").as_string(), "error");
  EXPECT_EQ(events.back().at("exit_code").as_int64(), 2);
  EXPECT_THAT(events.back().at("message").as_string().c_str(), HasSubstr("steps is 0"));
}

class InterruptTest : public CommandLineTest, public ::testing::WithParamInterface<int> {};

TEST_P(InterruptTest, StopsAStepUnderWayAndLeavesNothing) {
  const auto child = Start({"generate", "x", "--json"}, "step3=hang");
  ASSERT_TRUE(child->WaitForOutput("\"step\":2"));
  child->Signal(GetParam());
  EXPECT_EQ(child->Wait(), 130);
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_THAT(Workers(), IsEmpty());
  EXPECT_EQ(Events(child->output()).back().at("exit_code").as_int64(), 130);
}

INSTANTIATE_TEST_SUITE_P(Signals, InterruptTest, ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST_F(FailureTest, AnInterruptionKeepsTheImagesThatAreDone) {
  Write("../permits", std::string(20, '.'));  // three images have 18 steps
  const auto child = Start({"generate", "x", "--seed", "1", "-n", "1000", "--json"},
                           absl::StrCat("permits=", WorkFolder(), "/../permits"));
  ASSERT_TRUE(child->WaitForOutput("\"event\":\"image\""));
  child->Signal(SIGINT);
  EXPECT_EQ(child->Wait(), 130);
  size_t reported = 0;
  for (const boost::json::object& event : Events(child->output())) reported += event.at("event") == "image";
  EXPECT_EQ(Files().size(), reported);
  EXPECT_LT(reported, 1000u);
}

TEST_F(FailureTest, AnInterruptionStopsAModelThatIsBeingLoaded) {
  const auto child = Start({"generate", "x", "--json"}, "load=hang");
  ASSERT_TRUE(child->WaitForOutput("warning"));
  child->Signal(SIGINT);
  EXPECT_EQ(child->Wait(), 130);
}

TEST_F(FailureTest, AnInterruptionStopsAWorkerThatDoesNotListenYet) {
  const auto child = Start({"generate", "x"}, "mute");
  WorkerPid();
  child->Signal(SIGINT);
  EXPECT_EQ(child->Wait(), 130);
}

TEST_F(FailureTest, KillingTheCommandEndsItsWorkerAndLeavesNoSocket) {
  const auto child = Start({"generate", "x", "--json"}, "step3=hang");
  ASSERT_TRUE(child->WaitForOutput("\"step\":2"));
  const pid_t worker = WorkerPid();
  child->Signal(SIGKILL);
  EXPECT_EQ(child->Wait(), 1000 + SIGKILL);
  EXPECT_TRUE(WaitUntilGone(worker));
  EXPECT_EQ(SocketFolders(), 0u);
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(FailureTest, KillingTheCommandBeforeItsWorkerListensEndsTheWorker) {
  const auto child = Start({"generate", "x"}, "mute");
  const pid_t worker = WorkerPid();
  child->Signal(SIGKILL);
  child->Wait();
  EXPECT_TRUE(WaitUntilGone(worker));
}

}  // namespace
}  // namespace tessera
