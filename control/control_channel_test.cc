#include "control/control_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "base/file_descriptor.h"
#include "control/command_wire.h"
#include "control/message_stream.h"
#include "tessera/internal/control.pb.h"
#include "tests/support/listening_socket.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera::control {
namespace {

using internal::Command;
using internal::Reply;
using ::testing::HasSubstr;

// Answers everything, and writes down what it was asked.
class RecordingHandler : public CommandHandler {
 public:
  absl::StatusOr<ModelDescription> Describe(const std::string& model) override {
    Record("describe " + model);
    if (model == "throws") throw std::runtime_error("bad\nsecond line");
    if (model == "exhausted") throw std::bad_alloc();
    if (model == "latin") return absl::InvalidArgumentError("tensor 'caf\xE9'");
    return ModelDescription{.family = "caf\xE9", .size_multiple = 8};
  }
  absl::StatusOr<Loaded> Load(const LoadParameters& parameters) override {
    Record("load " + parameters.model);
    load_ = parameters;
    return Loaded{};
  }
  absl::StatusOr<JobStarted> StartJob(uint64_t job, const JobParameters& parameters) override {
    Record(absl::StrCat("start ", job));
    job_ = parameters;
    return JobStarted{.height = parameters.height, .width = parameters.width};
  }
  absl::StatusOr<Stepping> Step(absl::Span<const uint64_t> jobs) override {
    const int step = ++steps_;
    Record(absl::StrCat("step ", jobs[0]));
    return [this, step]() -> absl::StatusOr<Stepped> {
      if (!ahead_) return Stepped{.completed = 1};
      step_may_end_.WaitForNotificationWithTimeout(absl::Seconds(60));
      Record(absl::StrCat("done ", step));
      if (step == 3) return absl::DataLossError("the latents are no longer finite");
      return Stepped{.completed = step};
    };
  }
  absl::StatusOr<Decoding> Decode(uint64_t job) override {
    Record(absl::StrCat("decode ", job));
    return [this](RowSink rows) -> absl::StatusOr<Decoded> {
      if (beside_) picture_may_come_.WaitForNotificationWithTimeout(absl::Seconds(60));
      Record("pixels");
      const std::vector<uint8_t> image(size_t{1000} * 700 * 3, 1);
      if (absl::Status status = rows(0, image); !status.ok()) return status;
      return Decoded{.height = 700, .width = 1000};
    };
  }
  absl::StatusOr<LatentValues> Latents(uint64_t job) override {
    Record(absl::StrCat("latents ", job));
    return LatentValues{.shape = {1, 2, 2}, .values = {0.5, -1, 1e300, 4}};
  }
  absl::StatusOr<LatentValues> Predict(uint64_t job, const LatentValues& latents,
                                       absl::Span<const uint64_t> beside) override {
    Record(absl::StrCat("predict ", job, " from ", absl::StrJoin(latents.values, " "), " beside ",
                        absl::StrJoin(beside, " ")));
    return latents;
  }
  absl::Status EndJob(uint64_t job) override {
    Record(absl::StrCat("end ", job));
    return absl::OkStatus();
  }

  absl::StatusOr<TrainingStarted> StartTraining(const TrainingStart& start) override {
    Record(absl::StrCat("train by ", start.config, " from ", start.checkpoint));
    return TrainingStarted{
        .step = 7, .trained_parameters = 8, .samples = 9, .checkpoint = start.checkpoint, .warnings = {"caf\xE9"}};
  }
  absl::StatusOr<SamplesPrepared> PrepareSamples(int64_t most) override {
    Record(absl::StrCat("prepare ", most));
    return SamplesPrepared{
        .prepared = 3, .samples = 9, .cached_pictures = 2, .cached_captions = 1, .warnings = {"caf\xE9"}};
  }
  absl::StatusOr<Trained> Train() override {
    return Trained{.step = 8, .loss = 0.5, .gradient_norm = 2, .learning_rate = 1e-4, .seconds = 3, .skipped = true};
  }
  absl::StatusOr<TrainingSaved> SaveTraining(bool exports) override {
    Record(exports ? "save and export" : "save");
    return TrainingSaved{.checkpoint = "caf\xE9", .exported = "model", .seconds = 1, .warnings = {"slow"}};
  }

  absl::StatusOr<TrainingSaved> ExportTraining(const std::string& path) override {
    Record(absl::StrCat("export to ", path));
    return TrainingSaved{.exported = path};
  }

  bool decodes_beside_steps() const override { return beside_; }
  bool steps_ahead() const override { return ahead_; }

  // From here on steps are issued, and done when they are let.
  void StepAhead() { ahead_ = true; }
  void LetStepsEnd() { step_may_end_.Notify(); }

  // From here on pictures are made beside other commands, when they are let.
  void DecodeBesideSteps() { beside_ = true; }
  void LetPicturesCome() { picture_may_come_.Notify(); }

  std::vector<std::string> calls() {
    std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
  }

  // What the last command said; read after it has been answered.
  const LoadParameters& load() const { return load_; }
  const JobParameters& job() const { return job_; }

 private:
  void Record(std::string call) {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
  }

  std::mutex mutex_;
  std::vector<std::string> calls_;
  bool beside_ = false, ahead_ = false;
  int steps_ = 0;
  absl::Notification picture_may_come_, step_may_end_;
  LoadParameters load_;
  JobParameters job_;
};

class Session;

// A channel in a thread, with a folder of its own. It outlives its controllers, so that the test's process does too.
class ControlChannelTest : public ::testing::Test {
 protected:
  ControlChannelTest() { Serve(absl::Seconds(60)); }

  ~ControlChannelTest() override {
    if (thread_.joinable()) Stop();
    EXPECT_TRUE(std::filesystem::is_empty(parent_.path())) << "something was left behind";
  }

  void Serve(absl::Duration timeout) {
    thread_ = std::thread([this, timeout] {
      result_ = ServeControlChannel(
          handler_,
          {.socket_path = socket_path(), .orphan_grace_period = absl::Seconds(60), .first_controller = timeout});
    });
  }

  absl::Status Join() {
    thread_.join();
    return result_;
  }

  void Stop();
  std::string socket_path() const { return parent_ / "folder/socket"; }

  RecordingHandler handler_;

 private:
  TestFolder parent_;
  absl::Status result_;
  std::thread thread_;
};

// A controller without manners.
class Session {
 public:
  explicit Session(const std::string& socket_path) : stream_(ConnectWhenListening(socket_path), size_t{4} << 20) {}

  void Send(uint64_t sequence, Command command) {
    command.set_sequence(sequence);
    stream_.Write(command);
  }

  Reply Receive() {
    Reply reply;
    EXPECT_EQ(stream_.Read(reply), MessageStream::Event::kMessage);
    return reply;
  }

  Reply Ask(Command command) {
    Send(++sequence_, std::move(command));
    return Receive();
  }

  // How many replies come until the worker ends the stream.
  int CountToTheEnd() {
    Reply reply;
    int replies = 0;
    while (stream_.Read(reply) == MessageStream::Event::kMessage) ++replies;
    return replies;
  }

 private:
  MessageStream stream_;
  uint64_t sequence_ = 0;
};

Command DescribeCommand(const std::string& model) {
  Command command;
  command.mutable_describe()->set_model(model);
  return command;
}

Command StartCommand(uint64_t job) {
  Command command;
  command.mutable_start_job()->set_job(job);
  internal::JobParameters* parameters = command.mutable_start_job()->mutable_parameters();
  parameters->set_height(700);
  parameters->set_width(1000);
  parameters->set_steps(2);
  return command;
}

Command StepCommand(const std::vector<uint64_t>& jobs) {
  Command command;
  command.mutable_step()->mutable_jobs()->Assign(jobs.begin(), jobs.end());
  return command;
}

Command ShutdownCommand() {
  Command command;
  command.mutable_shutdown();
  return command;
}

absl::StatusCode CodeOf(const Reply& reply) {
  return reply.has_error() ? static_cast<absl::StatusCode>(reply.error().code()) : absl::StatusCode::kOk;
}

// A new controller is refused until the jobs of the one before it have ended.
void ControlChannelTest::Stop() {
  WaitUntil("a shutdown that is taken", [this] {
    Session session(socket_path());
    session.Send(1, ShutdownCommand());
    return session.CountToTheEnd() == 1;
  });
  EXPECT_TRUE(Join().ok());
}

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

Command LoadCommand() {
  Command command;
  command.mutable_load()->set_model("m");
  return command;
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

Command DecodeCommand(uint64_t job) {
  Command command;
  command.mutable_decode()->set_job(job);
  return command;
}

// A channel whose handler makes pictures beside steps.
class DecodingBesideStepsTest : public ControlChannelTest {
 protected:
  DecodingBesideStepsTest() {
    Stop();
    handler_.DecodeBesideSteps();
    Serve(absl::Seconds(60));
  }
};

TEST_F(DecodingBesideStepsTest, AnswersWhatComesAfterAPictureBeforeIt) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Ask(StartCommand(6));
  session.Send(3, DecodeCommand(5));
  session.Send(4, StepCommand({5, 6}));
  Command end;
  end.mutable_end_job()->set_job(5);
  session.Send(5, end);
  EXPECT_EQ(session.Receive().sequence(), 4u);
  EXPECT_EQ(session.Receive().sequence(), 5u);
  handler_.LetPicturesCome();
  Reply reply = session.Receive();
  for (; reply.has_rows(); reply = session.Receive()) EXPECT_EQ(reply.sequence(), 3u);
  EXPECT_TRUE(reply.has_decoded());
  EXPECT_EQ(reply.sequence(), 3u);
}

TEST_F(DecodingBesideStepsTest, LoadsAfterThePicture) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Send(2, DecodeCommand(5));
  session.Send(3, LoadCommand());
  handler_.LetPicturesCome();
  Reply reply = session.Receive();
  for (; reply.has_rows(); reply = session.Receive()) EXPECT_EQ(reply.sequence(), 2u);
  EXPECT_TRUE(reply.has_decoded());
  EXPECT_TRUE(session.Receive().has_loaded());
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "decode 5", "pixels", "load m"));
}

TEST_F(DecodingBesideStepsTest, CountsThePictureBeforeItSaysHowFarItGot) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Send(2, DecodeCommand(5));
  Command resume;
  resume.mutable_resume();
  session.Send(3, resume);
  handler_.LetPicturesCome();
  Reply reply = session.Receive();
  for (; reply.sequence() == 2; reply = session.Receive()) {
  }
  EXPECT_EQ(reply.resumed().commands(), 2u);
}

TEST_F(DecodingBesideStepsTest, FinishesThePictureOfAControllerThatHasGone) {
  {
    Session session(socket_path());
    session.Ask(StartCommand(5));
    session.Send(2, DecodeCommand(5));
    WaitUntil("the picture is begun", [&] { return handler_.calls().back() == "decode 5"; });
  }
  handler_.LetPicturesCome();
  WaitUntil("its job has ended", [&] { return handler_.calls().back() == "end 5"; });
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "decode 5", "pixels", "end 5"));
}

// A channel whose handler issues steps and does not wait for them.
class StepsAheadTest : public ControlChannelTest {
 protected:
  StepsAheadTest() {
    Stop();
    handler_.StepAhead();
    Serve(absl::Seconds(60));
  }
};

TEST_F(StepsAheadTest, IssuesTheNextStepAndWhatFollowsWhileOneRuns) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Send(2, StepCommand({5}));
  session.Send(3, StepCommand({5}));
  session.Send(4, StartCommand(6));
  EXPECT_EQ(session.Receive().sequence(), 4u);
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "step 5", "step 5", "start 6"));
  handler_.LetStepsEnd();
  for (const uint64_t sequence : {2, 3}) {
    const Reply reply = session.Receive();
    EXPECT_EQ(reply.sequence(), sequence);
    EXPECT_EQ(reply.stepped().completed(), static_cast<int>(sequence) - 1);
  }
}

TEST_F(StepsAheadTest, IssuesAllStepsOfACommandAndAnswersThemAtOnce) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  Command command = StepCommand({5});
  command.mutable_step()->set_count(2);
  session.Send(2, command);
  session.Send(3, StartCommand(6));
  EXPECT_EQ(session.Receive().sequence(), 3u);
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "step 5", "step 5", "start 6"));
  handler_.LetStepsEnd();
  const Reply reply = session.Receive();
  EXPECT_EQ(reply.stepped().completed(), 2);
  ASSERT_EQ(reply.stepped().earlier_size(), 1);
  EXPECT_EQ(reply.stepped().earlier(0).completed(), 1);
}

TEST_F(StepsAheadTest, AnswersAStepThatNothingFollows) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Send(2, StepCommand({5}));
  handler_.LetStepsEnd();
  EXPECT_TRUE(session.Receive().has_stepped());
}

TEST_F(StepsAheadTest, WhatGoesWrongInAStepIsItsAnswer) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  handler_.LetStepsEnd();
  EXPECT_EQ(CodeOf(session.Ask(StepCommand({6}))), absl::StatusCode::kNotFound);
  session.Ask(StepCommand({5}));
  session.Ask(StepCommand({5}));
  EXPECT_EQ(CodeOf(session.Ask(StepCommand({5}))), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(session.Ask(StepCommand({5})).has_stepped());
}

TEST_F(StepsAheadTest, LoadsAndSaysHowFarItGotOnlyBehindEveryStep) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Send(2, StepCommand({5}));
  session.Send(3, LoadCommand());
  Command resume;
  resume.mutable_resume();
  session.Send(4, resume);
  handler_.LetStepsEnd();
  EXPECT_TRUE(session.Receive().has_stepped());
  EXPECT_TRUE(session.Receive().has_loaded());
  EXPECT_EQ(session.Receive().resumed().commands(), 3u);
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "step 5", "done 1", "load m"));
}

TEST_F(StepsAheadTest, FinishesTheStepOfAControllerThatHasGone) {
  {
    Session session(socket_path());
    session.Ask(StartCommand(5));
    session.Send(2, StepCommand({5}));
    WaitUntil("the step is issued", [&] { return handler_.calls().back() == "step 5"; });
  }
  handler_.LetStepsEnd();
  WaitUntil("its job has ended", [&] { return handler_.calls().back() == "end 5"; });
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "step 5", "done 1", "end 5"));
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
