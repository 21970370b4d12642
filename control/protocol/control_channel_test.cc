#include "control/protocol/control_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/files/file_descriptor.h"
#include "control/protocol/commands.h"
#include "tests/support/control_channel_fixture.h"

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

TEST_F(ControlChannelTest, AnswersInTheOrderOfTheLogUnderTheNumbersOfTheLog) {
  Session session(socket_path());
  session.Send(1, StartCommand(5));
  session.Send(2, StepCommand({5}));
  session.Send(3, StepCommand({5}));
  EXPECT_TRUE(Answers<StartJob>(session.Receive()));
  EXPECT_EQ(session.Receive().sequence, 2u);
  EXPECT_EQ(session.Receive().sequence, 3u);
}

TEST_F(ControlChannelTest, EndsTheStreamOfAControllerThatSkipsANumber) {
  Session session(socket_path());
  session.Send(2, StartCommand(5));
  const ReplyFrame reply = session.Receive();
  EXPECT_EQ(CodeOf(reply), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(reply), HasSubstr("expected command 1, got 2"));
  EXPECT_EQ(session.CountToTheEnd(), 0);
  EXPECT_TRUE(handler_.calls().empty());
}

TEST_F(ControlChannelTest, EndsTheStreamOfAControllerThatSendsNoMessagesAndTakesAnother) {
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(16, '\xFF'), std::string(1, '\0')}) {
    base::FileDescriptor connection = ConnectWhenListening(socket_path());
    ASSERT_EQ(send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    shutdown(connection.get(), SHUT_WR);
    char byte;
    while (read(connection.get(), &byte, 1) > 0) {
    }
  }
  EXPECT_TRUE(Answers<DescribeModel>(Session(socket_path()).Ask(DescribeCommand("m"))));
}

TEST_F(ControlChannelTest, TakesAControllerThatComesRightAfterAnotherHasGone) {
  for (int i = 0; i < 200; ++i)
    ASSERT_TRUE(Answers<DescribeModel>(Session(socket_path()).Ask(DescribeCommand("m")))) << i;
}

TEST_F(ControlChannelTest, RefusesACommandOfNoKindAndGoesOn) {
  Session session(socket_path());
  for (const uint32_t number : {kMostCommandsOfList - 1, 4 * kMostCommandsOfList, ~uint32_t{0}}) {
    EXPECT_EQ(CodeOf(session.AskFields(number, "")), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(Answers<DescribeModel>(session.Ask(DescribeCommand("m"))));
}

TEST_F(ControlChannelTest, RefusesASecondControllerWhileThereIsOne) {
  Session session(socket_path());
  session.Ask(DescribeCommand("m"));
  Session second(socket_path());
  second.Send(1, DescribeCommand("n"));
  EXPECT_EQ(second.CountToTheEnd(), 0);
  EXPECT_TRUE(Answers<DescribeModel>(session.Ask(DescribeCommand("m"))));
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("describe m", "describe m"));
}

TEST_F(ControlChannelTest, EndsTheJobsOfAControllerThatGoesAndTakesAnother) {
  Session(socket_path()).Ask(StartCommand(5));
  Stop();
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "end 5"));
}

TEST_F(ControlChannelTest, ReportsAnExceptionWithoutWhatFollowsItsFirstLine) {
  const ReplyFrame reply = Session(socket_path()).Ask(DescribeCommand("throws"));
  EXPECT_EQ(CodeOf(reply), absl::StatusCode::kInternal);
  EXPECT_EQ(MessageOf(reply), "bad");
}

TEST_F(ControlChannelTest, ReportsExhaustedMemoryAsSuch) {
  const ReplyFrame reply = Session(socket_path()).Ask(DescribeCommand("exhausted"));
  EXPECT_EQ(CodeOf(reply), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(reply), HasSubstr("out of memory"));
}

TEST_F(ControlChannelTest, DeliversTextThatIsNotUtf8InReadableForm) {
  Session session(socket_path());
  EXPECT_EQ(MessageOf(session.Ask(DescribeCommand("latin"))), "tensor 'caf?'");
  EXPECT_EQ(ReplyOf<DescribeModel>(session.Ask(DescribeCommand("m"))).family, "caf?");
}

TEST_F(ControlChannelTest, TakesAModelsPathThatIsNotUtf8) {
  EXPECT_TRUE(Answers<DescribeModel>(Session(socket_path()).Ask(DescribeCommand("caf\xE9"))));
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("describe caf\xE9"));
}

TEST_F(ControlChannelTest, CarriesOutTheCommandsOfATrainingRun) {
  Session session(socket_path());
  const auto started =
      ReplyOf<TrainingStart>(session.Ask(TrainingStart{.config = "steps: 3", .checkpoint = "caf\xE9"}));
  EXPECT_EQ(started.step, 7);
  EXPECT_EQ(started.trained_parameters, 8);
  EXPECT_EQ(started.samples, 9);
  EXPECT_EQ(started.checkpoint, "caf\xE9");
  EXPECT_THAT(started.warnings, ::testing::ElementsAre("caf?"));
  EXPECT_EQ(CodeOf(session.Ask(PrepareSamples{.most = 0})), absl::StatusCode::kInvalidArgument);
  const auto prepared = ReplyOf<PrepareSamples>(session.Ask(PrepareSamples{.most = 4}));
  EXPECT_EQ(prepared.prepared, 3);
  EXPECT_EQ(prepared.samples, 9);
  EXPECT_EQ(prepared.cached_pictures, 2);
  EXPECT_EQ(prepared.cached_captions, 1);
  EXPECT_THAT(prepared.warnings, ::testing::ElementsAre("caf?"));
  const auto trained = ReplyOf<TrainStep>(session.Ask(TrainStep()));
  EXPECT_EQ(trained.step, 8);
  EXPECT_EQ(trained.loss, 0.5);
  EXPECT_EQ(trained.gradient_norm, 2);
  EXPECT_EQ(trained.learning_rate, 1e-4);
  EXPECT_EQ(trained.seconds, 3);
  EXPECT_TRUE(trained.skipped);
  const auto saved = ReplyOf<SaveTraining>(session.Ask(SaveTraining{.exports = true}));
  EXPECT_EQ(saved.checkpoint, "caf\xE9");
  EXPECT_EQ(saved.exported, "model");
  EXPECT_EQ(saved.seconds, 1);
  EXPECT_THAT(saved.warnings, ::testing::ElementsAre("slow"));
  for (const std::string& path : {std::string(), std::string("a\0b", 3), std::string(300000, 'a')}) {
    EXPECT_EQ(CodeOf(session.Ask(ExportTraining{.path = path})), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(ReplyOf<ExportTraining>(session.Ask(ExportTraining{.path = "caf\xE9.safetensors"})).exported,
            "caf\xE9.safetensors");
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("train by steps: 3 from caf\xE9", "prepare 4", "save and export",
                                                       "export to caf\xE9.safetensors"));
}

TEST_F(ControlChannelTest, SaysThatAHandlerDoesNotTrain) {
  EXPECT_EQ(CodeOf(Session(socket_path()).Ask(EvaluateTraining())), absl::StatusCode::kUnimplemented);
}

TEST_F(ControlChannelTest, RefusesParametersOutOfRangeBeforeTheHandlerSeesThem) {
  Session session(socket_path());
  using Change = void (*)(JobParameters&);
  for (const Change change : std::initializer_list<Change>{
           [](JobParameters& p) { p.height = 0; },
           [](JobParameters& p) { p.width = -8; },
           [](JobParameters& p) { p.width = 1 << 30; },
           [](JobParameters& p) { p.steps = 0; },
           [](JobParameters& p) { p.guidance_scale = std::nan(""); },
           [](JobParameters& p) { p.max_sequence_length = -1; },
           [](JobParameters& p) { p.prompt = std::string(1, '\0'); },
           [](JobParameters& p) { p.negative_prompt = std::string(300000, 'a'); },
           [](JobParameters& p) { p.options.prompt_2 = std::string(1, '\0'); },
           [](JobParameters& p) { p.options.negative_prompt_3 = std::string(300000, 'a'); },
           [](JobParameters& p) { p.options.true_cfg_scale = std::nan(""); },
           [](JobParameters& p) { p.options.true_cfg_scale = -1; },
           [](JobParameters& p) { p.options.guidance_rescale = 1.5; },
           [](JobParameters& p) { p.options.clip_skip = -1; },
           [](JobParameters& p) { p.options.clip_skip = 1 << 30; },
           [](JobParameters& p) { p.options.skip_layers.layers = {-1}; },
           [](JobParameters& p) { p.options.skip_layers.layers = {1024}; },
           [](JobParameters& p) {
             p.options.skip_layers.layers = {3, 3};
           },
           [](JobParameters& p) { p.options.skip_layers.layers.resize(1025); },
           [](JobParameters& p) { p.options.skip_layers.scale = INFINITY; },
           [](JobParameters& p) { p.options.skip_layers.stop = 1.5; },
           [](JobParameters& p) { p.options.skip_layers.start = 0.5; },
           [](JobParameters& p) { p.options.original_size.height = -1; },
           [](JobParameters& p) { p.options.original_size.width = 1 << 17; },
           [](JobParameters& p) { p.options.original_size.crop_top = -1; },
           [](JobParameters& p) { p.options.original_size.crop_left = 1 << 17; },
           [](JobParameters& p) { p.noise = static_cast<NoiseKind>(2); },
       }) {
    StartJob command = StartCommand(1);
    change(command.parameters);
    EXPECT_EQ(CodeOf(session.Ask(command)), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(CodeOf(session.Ask(StartCommand(0))), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(handler_.calls().empty());
}

TEST_F(ControlChannelTest, DistinguishesAnEmptyNegativePromptFromNone) {
  Session session(socket_path());
  session.Ask(StartCommand(1));
  EXPECT_EQ(handler_.job().negative_prompt, std::nullopt);
  StartJob command = StartCommand(2);
  command.parameters.negative_prompt = "";
  session.Ask(command);
  EXPECT_EQ(handler_.job().negative_prompt, "");
}

TEST_F(ControlChannelTest, RefusesAPlacementThatDoesNotExistAndACacheWithoutBound) {
  Session session(socket_path());
  using Change = void (*)(LoadParameters&);
  for (const Change change : std::initializer_list<Change>{
           [](LoadParameters& load) { load.placement.text_encoders = static_cast<ComponentPlacement>(5); },
           [](LoadParameters& load) { load.placement.autoencoder = static_cast<AutoencoderPlacement>(3); },
           [](LoadParameters& load) { load.placement.memory_limit = "12 apples"; },
           [](LoadParameters& load) { load.placement.memory_limit = "500MiB"; },
           [](LoadParameters& load) { load.prompt_cache_bytes = (uint64_t{1} << 40) + 1; },
       }) {
    LoadModel command = LoadCommand();
    change(command.parameters);
    EXPECT_EQ(CodeOf(session.Ask(command)), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(handler_.calls().empty());
}

TEST_F(ControlChannelTest, RefusesWordsThatDoNotExistWithTheValidOnes) {
  Session session(socket_path());
  LoadModel command = LoadCommand();
  command.parameters.dtype = static_cast<Dtype>(3);
  EXPECT_THAT(MessageOf(session.Ask(command)), HasSubstr("valid values are fp64, fp32, bf16"));
  command = LoadCommand();
  command.parameters.placement.offload = static_cast<Offload>(3);
  EXPECT_THAT(MessageOf(session.Ask(command)), HasSubstr("valid values are auto, never, always"));
  EXPECT_TRUE(handler_.calls().empty());
}

TEST_F(ControlChannelTest, RefusesFieldsThatAreNoCommandAndGoesOn) {
  Session session(socket_path());
  const std::string fields = base::EncodeFields(StartCommand(1));
  for (const std::string& wrong : {std::string(), fields.substr(0, fields.size() - 1), fields + "x"}) {
    EXPECT_EQ(CodeOf(session.AskFields(kCommandNumber<StartJob>, wrong)), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(Answers<StartJob>(session.AskFields(kCommandNumber<StartJob>, fields)));
}

TEST_F(ControlChannelTest, RefusesStepsOfJobsThatAreUnknownRepeatedOrNone) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  EXPECT_EQ(CodeOf(session.Ask(StartCommand(5))), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(CodeOf(session.Ask(StepCommand({6}))), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(session.Ask(StepCommand({5, 5}))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(session.Ask(StepCommand({}))), absl::StatusCode::kInvalidArgument);
  for (const int32_t count : {-1, 0, kMaxStepsTogether + 1}) {
    EXPECT_EQ(CodeOf(session.Ask(MakeSteps{.jobs = {5}, .count = count})), absl::StatusCode::kInvalidArgument) << count;
  }
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5"));
}

TEST_F(ControlChannelTest, SendsAnImageInWholeRowsOfAtMostAMebibyte) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  ReplyFrame reply = session.Ask(DecodeCommand(5));
  int32_t count = 0;
  for (; reply.kind == ReplyKind::kPart; reply = session.Receive()) {
    Rows rows;
    ASSERT_TRUE(base::DecodeFields(reply.fields, rows).ok());
    EXPECT_EQ(rows.first, count);
    EXPECT_LE(rows.bytes.size(), size_t{1} << 20);
    EXPECT_EQ(rows.bytes.size() % 3000, 0u);
    count += static_cast<int32_t>(rows.bytes.size() / 3000);
  }
  EXPECT_EQ(count, 700);
  EXPECT_TRUE(Answers<DecodeJob>(reply));
}

TEST_F(ControlChannelTest, SendsTheRowsOfAllFramesWithAllChannels) {
  Session session(socket_path());
  handler_.StartJobsAs({.frames = 2, .channels = 4});
  EXPECT_TRUE(Answers<StartJob>(session.Ask(StartCommand(5))));
  ReplyFrame reply = session.Ask(DecodeCommand(5));
  size_t bytes = 0;
  for (; reply.kind == ReplyKind::kPart; reply = session.Receive()) {
    Rows rows;
    ASSERT_TRUE(base::DecodeFields(reply.fields, rows).ok());
    EXPECT_EQ(static_cast<size_t>(rows.first), bytes / 4000);
    bytes += rows.bytes.size();
  }
  EXPECT_EQ(bytes, 2u * 700 * 1000 * 4);
  EXPECT_TRUE(Answers<DecodeJob>(reply));
}

TEST_F(ControlChannelTest, RefusesAPictureOfAnotherShapeThanItsJobWasStartedWith) {
  Session session(socket_path());
  handler_.StartJobsAs({.frames = 2});
  session.Ask(StartCommand(5));
  handler_.decoded_frames = 1;
  ReplyFrame reply = session.Ask(DecodeCommand(5));
  while (reply.kind == ReplyKind::kPart) reply = session.Receive();
  EXPECT_EQ(CodeOf(reply), absl::StatusCode::kInternal);
}

TEST_F(ControlChannelTest, StartsNoJobWithAReplyThatNoneCanHave) {
  Session session(socket_path());
  uint64_t job = 5;
  for (const JobStarted& started : std::initializer_list<JobStarted>{{.frames = 0},
                                                                     {.frames = kMaxFrames + 1},
                                                                     {.channels = 0},
                                                                     {.channels = kMaxChannels + 1},
                                                                     {.first_step = -1},
                                                                     {.first_step = kMaxSteps + 1}}) {
    handler_.StartJobsAs(started);
    EXPECT_EQ(CodeOf(session.Ask(StartCommand(++job))), absl::StatusCode::kInternal);
  }
}

TEST_F(ControlChannelTest, KeepsTheSocketInAFolderThatOnlyItsOwnerCanEnter) {
  Session session(socket_path());
  session.Ask(DescribeCommand("m"));
  struct stat about;
  ASSERT_EQ(stat(socket_path().substr(0, socket_path().rfind('/')).c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0700u);
}

TEST_F(ControlChannelTest, GivesUpWhenNoControllerComes) {
  Stop();
  Serve(absl::Milliseconds(20));
  EXPECT_EQ(Join().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ControlChannelTest, RefusesAFolderThatExists) {
  Session session(socket_path());
  session.Ask(DescribeCommand("m"));
  EXPECT_EQ(ServeControlChannel(handler_, {.socket_path = socket_path()}).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Answers<DescribeModel>(session.Ask(DescribeCommand("m"))));
}

}  // namespace
}  // namespace tessera::control
