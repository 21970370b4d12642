#include "control/control_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "tests/support/control_channel_fixture.h"

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

TEST_F(ControlChannelTest, AnswersInTheOrderOfTheLogUnderTheNumbersOfTheLog) {
  Session session(socket_path());
  session.Send(1, StartCommand(5));
  session.Send(2, StepCommand({5}));
  session.Send(3, StepCommand({5}));
  EXPECT_TRUE(session.Receive().has_started());
  EXPECT_EQ(session.Receive().sequence(), 2u);
  EXPECT_EQ(session.Receive().sequence(), 3u);
}

TEST_F(ControlChannelTest, EndsTheStreamOfAControllerThatSkipsANumber) {
  Session session(socket_path());
  session.Send(2, StartCommand(5));
  const Reply reply = session.Receive();
  EXPECT_EQ(CodeOf(reply), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(reply.error().message(), HasSubstr("command 2 came where 1 was due"));
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
  EXPECT_TRUE(Session(socket_path()).Ask(DescribeCommand("m")).has_description());
}

TEST_F(ControlChannelTest, TakesAControllerThatComesRightAfterAnotherHasGone) {
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Session(socket_path()).Ask(DescribeCommand("m")).has_description()) << i;
}

TEST_F(ControlChannelTest, RefusesACommandOfNoKindAndGoesOn) {
  Session session(socket_path());
  EXPECT_EQ(CodeOf(session.Ask({})), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(session.Ask(DescribeCommand("m")).has_description());
}

TEST_F(ControlChannelTest, RefusesASecondControllerWhileThereIsOne) {
  Session session(socket_path());
  session.Ask(DescribeCommand("m"));
  Session second(socket_path());
  second.Send(1, DescribeCommand("n"));
  EXPECT_EQ(second.CountToTheEnd(), 0);
  EXPECT_TRUE(session.Ask(DescribeCommand("m")).has_description());
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("describe m", "describe m"));
}

TEST_F(ControlChannelTest, EndsTheJobsOfAControllerThatGoesAndTakesAnother) {
  Session(socket_path()).Ask(StartCommand(5));
  Stop();
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "end 5"));
}

TEST_F(ControlChannelTest, ReportsAnExceptionWithoutWhatFollowsItsFirstLine) {
  const Reply reply = Session(socket_path()).Ask(DescribeCommand("throws"));
  EXPECT_EQ(CodeOf(reply), absl::StatusCode::kInternal);
  EXPECT_EQ(reply.error().message(), "bad");
}

TEST_F(ControlChannelTest, ReportsExhaustedMemoryAsSuch) {
  const Reply reply = Session(socket_path()).Ask(DescribeCommand("exhausted"));
  EXPECT_EQ(CodeOf(reply), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(reply.error().message(), HasSubstr("out of memory"));
}

TEST_F(ControlChannelTest, DeliversTextThatIsNotUtf8InReadableForm) {
  Session session(socket_path());
  EXPECT_EQ(session.Ask(DescribeCommand("latin")).error().message(), "tensor 'caf?'");
  EXPECT_EQ(session.Ask(DescribeCommand("m")).description().family(), "caf?");
}

TEST_F(ControlChannelTest, TakesAModelsPathThatIsNotUtf8) {
  EXPECT_TRUE(Session(socket_path()).Ask(DescribeCommand("caf\xE9")).has_description());
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("describe caf\xE9"));
}

TEST_F(ControlChannelTest, CarriesOutTheCommandsOfATrainingRun) {
  Session session(socket_path());
  Command command;
  ToWire(TrainingStart{.config = "steps: 3", .checkpoint = "caf\xE9"}, command.mutable_start_training());
  const absl::StatusOr<TrainingStarted> started = FromWire(session.Ask(command).training_started());
  ASSERT_TRUE(started.ok());
  EXPECT_EQ(started->step, 7);
  EXPECT_EQ(started->trained_parameters, 8);
  EXPECT_EQ(started->samples, 9);
  EXPECT_EQ(started->checkpoint, "caf\xE9");
  EXPECT_THAT(started->warnings, ::testing::ElementsAre("caf?"));
  command.mutable_prepare_samples()->set_most(0);
  EXPECT_EQ(CodeOf(session.Ask(command)), absl::StatusCode::kInvalidArgument);
  command.mutable_prepare_samples()->set_most(4);
  const absl::StatusOr<SamplesPrepared> prepared = FromWire(session.Ask(command).prepared());
  ASSERT_TRUE(prepared.ok());
  EXPECT_EQ(prepared->prepared, 3);
  EXPECT_EQ(prepared->samples, 9);
  EXPECT_EQ(prepared->cached_pictures, 2);
  EXPECT_EQ(prepared->cached_captions, 1);
  EXPECT_THAT(prepared->warnings, ::testing::ElementsAre("caf?"));
  command.mutable_train();
  const Trained trained = FromWire(session.Ask(command).trained());
  EXPECT_EQ(trained.step, 8);
  EXPECT_EQ(trained.loss, 0.5);
  EXPECT_EQ(trained.gradient_norm, 2);
  EXPECT_EQ(trained.learning_rate, 1e-4);
  EXPECT_EQ(trained.seconds, 3);
  EXPECT_TRUE(trained.skipped);
  command.mutable_save_training()->set_exports(true);
  const TrainingSaved saved = FromWire(session.Ask(command).saved());
  EXPECT_EQ(saved.checkpoint, "caf\xE9");
  EXPECT_EQ(saved.exported, "model");
  EXPECT_EQ(saved.seconds, 1);
  EXPECT_THAT(saved.warnings, ::testing::ElementsAre("slow"));
  for (const std::string& path : {std::string(), std::string("a\0b", 3), std::string(300000, 'a')}) {
    command.mutable_export_training()->set_path(path);
    EXPECT_EQ(CodeOf(session.Ask(command)), absl::StatusCode::kInvalidArgument);
  }
  command.mutable_export_training()->set_path("caf\xE9.safetensors");
  EXPECT_EQ(FromWire(session.Ask(command).saved()).exported, "caf\xE9.safetensors");
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("train by steps: 3 from caf\xE9", "prepare 4", "save and export",
                                                       "export to caf\xE9.safetensors"));
}

TEST_F(ControlChannelTest, SaysThatAHandlerDoesNotTrain) {
  Command command;
  command.mutable_evaluate_training();
  EXPECT_EQ(CodeOf(Session(socket_path()).Ask(command)), absl::StatusCode::kUnimplemented);
}

TEST_F(ControlChannelTest, RefusesParametersOutOfRangeBeforeTheHandlerSeesThem) {
  Session session(socket_path());
  using Change = void (*)(internal::JobParameters&);
  for (const Change change : std::initializer_list<Change>{
           [](internal::JobParameters& p) { p.set_height(0); },
           [](internal::JobParameters& p) { p.set_width(-8); },
           [](internal::JobParameters& p) { p.set_width(1 << 30); },
           [](internal::JobParameters& p) { p.set_steps(0); },
           [](internal::JobParameters& p) { p.set_guidance_scale(std::nan("")); },
           [](internal::JobParameters& p) { p.set_max_sequence_length(-1); },
           [](internal::JobParameters& p) { p.set_prompt(std::string(1, '\0')); },
           [](internal::JobParameters& p) { p.set_negative_prompt(std::string(300000, 'a')); },
           [](internal::JobParameters& p) { p.set_prompt_2(std::string(1, '\0')); },
           [](internal::JobParameters& p) { p.set_negative_prompt_3(std::string(300000, 'a')); },
           [](internal::JobParameters& p) { p.set_true_cfg_scale(std::nan("")); },
           [](internal::JobParameters& p) { p.set_true_cfg_scale(-1); },
           [](internal::JobParameters& p) { p.set_guidance_rescale(1.5); },
           [](internal::JobParameters& p) { p.set_clip_skip(-1); },
           [](internal::JobParameters& p) { p.set_clip_skip(1 << 30); },
           [](internal::JobParameters& p) { p.add_skip_layers(-1); },
           [](internal::JobParameters& p) { p.add_skip_layers(1024); },
           [](internal::JobParameters& p) {
             p.add_skip_layers(3);
             p.add_skip_layers(3);
           },
           [](internal::JobParameters& p) { p.mutable_skip_layers()->Resize(1025, 0); },
           [](internal::JobParameters& p) { p.set_skip_layer_scale(INFINITY); },
           [](internal::JobParameters& p) { p.set_skip_layer_stop(1.5); },
           [](internal::JobParameters& p) { p.set_skip_layer_start(0.5); },
           [](internal::JobParameters& p) { p.set_original_height(-1); },
           [](internal::JobParameters& p) { p.set_original_width(1 << 17); },
           [](internal::JobParameters& p) { p.set_crop_top(-1); },
           [](internal::JobParameters& p) { p.set_crop_left(1 << 17); },
       }) {
    Command command = StartCommand(1);
    change(*command.mutable_start_job()->mutable_parameters());
    EXPECT_EQ(CodeOf(session.Ask(std::move(command))), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(CodeOf(session.Ask(StartCommand(0))), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(handler_.calls().empty());
}

TEST_F(ControlChannelTest, TellsAnEmptyNegativePromptFromNone) {
  Session session(socket_path());
  session.Ask(StartCommand(1));
  EXPECT_EQ(handler_.job().negative_prompt, std::nullopt);
  Command command = StartCommand(2);
  command.mutable_start_job()->mutable_parameters()->set_negative_prompt("");
  session.Ask(std::move(command));
  EXPECT_EQ(handler_.job().negative_prompt, "");
}

TEST_F(ControlChannelTest, TakesTheDefaultsOfOptionsThatDoNotCome) {
  Session session(socket_path());
  EXPECT_TRUE(session.Ask(StartCommand(1)).has_started());
  EXPECT_EQ(handler_.job().options, PromptOptions());
}

TEST_F(ControlChannelTest, RefusesAPlacementThatDoesNotExistAndACacheWithoutBound) {
  Session session(socket_path());
  using Change = void (*)(internal::Load&);
  for (const Change change : std::initializer_list<Change>{
           [](internal::Load& load) { load.set_text_encoders(static_cast<internal::Placement>(3)); },
           [](internal::Load& load) { load.set_text_encoders(static_cast<internal::Placement>(-1)); },
           [](internal::Load& load) { load.set_autoencoder(static_cast<internal::Placement>(1 << 20)); },
           [](internal::Load& load) { load.set_prompt_cache_bytes((uint64_t{1} << 40) + 1); },
       }) {
    Command command = LoadCommand();
    change(*command.mutable_load());
    EXPECT_EQ(CodeOf(session.Ask(std::move(command))), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(handler_.calls().empty());
}

TEST_F(ControlChannelTest, RefusesADtypeThatDoesNotExistWithTheValidOnes) {
  Session session(socket_path());
  Command command = LoadCommand();
  command.mutable_load()->set_dtype("fp8");
  const Reply reply = session.Ask(std::move(command));
  EXPECT_EQ(CodeOf(reply), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(reply.error().message(), HasSubstr("valid values are fp64, fp32, bf16"));
  EXPECT_TRUE(handler_.calls().empty());
}

TEST_F(ControlChannelTest, TakesEveryOffloadAndRefusesOthersWithTheValidOnes) {
  Session session(socket_path());
  for (const auto& [sent, taken] : {std::pair{"", Offload::kAuto},
                                    {"auto", Offload::kAuto},
                                    {"never", Offload::kNever},
                                    {"always", Offload::kAlways}}) {
    Command command = LoadCommand();
    command.mutable_load()->set_offload(sent);
    EXPECT_TRUE(session.Ask(std::move(command)).has_loaded());
    EXPECT_EQ(handler_.load().offload, taken);
  }
  Command command = LoadCommand();
  command.mutable_load()->set_offload("sometimes");
  EXPECT_THAT(session.Ask(std::move(command)).error().message(), HasSubstr("valid values are auto, never, always"));
}

TEST_F(ControlChannelTest, TakesEveryPlacement) {
  Session session(socket_path());
  for (const auto& [sent, taken] : {std::pair{internal::PLACEMENT_RANK0, ComponentPlacement::kRank0},
                                    {internal::PLACEMENT_CPU, ComponentPlacement::kCpu},
                                    {internal::PLACEMENT_UNLOADED, ComponentPlacement::kUnloaded}}) {
    Command command = LoadCommand();
    command.mutable_load()->set_autoencoder(sent);
    EXPECT_TRUE(session.Ask(std::move(command)).has_loaded());
    EXPECT_EQ(handler_.load().autoencoder, taken);
    EXPECT_EQ(handler_.load().text_encoders, ComponentPlacement::kRank0);
  }
}

TEST_F(ControlChannelTest, RefusesStepsOfJobsThatAreUnknownRepeatedOrNone) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  EXPECT_EQ(CodeOf(session.Ask(StartCommand(5))), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(CodeOf(session.Ask(StepCommand({6}))), absl::StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(session.Ask(StepCommand({5, 5}))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(session.Ask(StepCommand({}))), absl::StatusCode::kInvalidArgument);
  for (const int32_t count : {-1, kMaxStepsTogether + 1}) {
    Command command = StepCommand({5});
    command.mutable_step()->set_count(count);
    EXPECT_EQ(CodeOf(session.Ask(command)), absl::StatusCode::kInvalidArgument) << count;
  }
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5"));
}

TEST_F(ControlChannelTest, SendsAnImageInWholeRowsOfAtMostAMebibyte) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  Reply reply = session.Ask(DecodeCommand(5));
  int32_t rows = 0;
  for (; reply.has_rows(); reply = session.Receive()) {
    EXPECT_EQ(reply.rows().first(), rows);
    EXPECT_LE(reply.rows().rgb().size(), size_t{1} << 20);
    EXPECT_EQ(reply.rows().rgb().size() % 3000, 0u);
    rows += static_cast<int32_t>(reply.rows().rgb().size() / 3000);
  }
  EXPECT_EQ(rows, 700);
  EXPECT_TRUE(reply.has_decoded());
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
  EXPECT_TRUE(session.Ask(DescribeCommand("m")).has_description());
}

}  // namespace
}  // namespace tessera::control
