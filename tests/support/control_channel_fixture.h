// Runs a control channel in a thread with a handler that records its commands, and a controller that can break the
// protocol.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
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
#include "control/protocol/command_handler.h"
#include "control/protocol/commands.h"
#include "control/protocol/control_channel.h"
#include "control/protocol/frames.h"
#include "control/protocol/message_stream.h"
#include "tests/support/listening_socket.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera::control {

// Answers every command and records it.
class RecordingHandler : public CommandHandler {
 public:
  absl::StatusOr<ModelDescription> Describe(const std::string& model, const control::ComponentFiles&) override {
    Record("describe " + model);
    if (model == "throws") throw std::runtime_error("bad\nsecond line");
    if (model == "exhausted") throw std::bad_alloc();
    if (model == "latin") return absl::InvalidArgumentError("tensor 'caf\xE9'");
    return ModelDescription{.family = "caf\xE9", .size_multiple = 8, .max_size = 8, .max_steps = 1};
  }
  absl::StatusOr<Loaded> Load(const LoadParameters& parameters) override {
    Record("load " + parameters.model);
    load_ = parameters;
    return Loaded{};
  }
  absl::StatusOr<JobStarted> StartJob(uint64_t job, const JobParameters& parameters) override {
    Record(absl::StrCat("start ", job));
    job_ = parameters;
    started_.height = parameters.height;
    started_.width = parameters.width;
    started_.steps = parameters.steps;
    return started_;
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
      if (concurrent_) picture_may_come_.WaitForNotificationWithTimeout(absl::Seconds(60));
      Record("pixels");
      const std::vector<uint8_t> image(size_t{1000} * 700 * started_.frames * started_.channels, 1);
      if (absl::Status status = rows(0, image); !status.ok()) return status;
      return Decoded{.height = 700, .width = 1000, .frames = decoded_frames, .channels = started_.channels};
    };
  }
  absl::StatusOr<LatentValues> Latents(uint64_t job) override {
    Record(absl::StrCat("latents ", job));
    return LatentValues{.shape = {1, 2, 2}, .values = {0.5, -1, 1e300, 4}};
  }
  absl::StatusOr<LatentValues> Predict(uint64_t job, const LatentValues& latents,
                                       absl::Span<const uint64_t> batch) override {
    Record(absl::StrCat("predict ", job, " from ", absl::StrJoin(latents.values, " "), " with ",
                        absl::StrJoin(batch, " ")));
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

  bool decodes_during_steps() const override { return concurrent_; }
  bool steps_ahead() const override { return ahead_; }

  // From now on steps run ahead: they are issued at once and complete only when the test allows it.
  void StepAhead() { ahead_ = true; }
  void LetStepsEnd() { step_may_end_.Notify(); }

  // From now on images are decoded in parallel with other commands, and complete only when the test allows it.
  void DecodeDuringSteps() { concurrent_ = true; }
  void LetPicturesCome() { picture_may_come_.Notify(); }

  std::vector<std::string> calls() {
    std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
  }

  // The next jobs start with this reply, of their size.
  void StartJobsAs(const JobStarted& started) {
    started_ = started;
    decoded_frames = started.frames;
  }
  int32_t decoded_frames = 1;  // in the reply to DecodeJob

  // Return the fields of the last command. Read them only after that command has been answered.
  const LoadParameters& load() const { return load_; }
  const JobParameters& job() const { return job_; }

 private:
  void Record(std::string call) {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
  }

  std::mutex mutex_;
  std::vector<std::string> calls_;
  bool concurrent_ = false, ahead_ = false;
  int steps_ = 0;
  absl::Notification picture_may_come_, step_may_end_;
  JobStarted started_;
  LoadParameters load_;
  JobParameters job_;
};

class Session;

// A channel in a thread, with its own folder. It outlives its controllers, so the test process does too.
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

// A controller that may break the protocol.
class Session {
 public:
  explicit Session(const std::string& socket_path) : stream_(ConnectWhenListening(socket_path), kMaxFrameBytes) {}

  template <class Command>
  void Send(uint64_t sequence, const Command& command) {
    stream_.Write(EncodeCommand(sequence, command));
  }

  ReplyFrame Receive() {
    std::string message;
    EXPECT_EQ(stream_.Read(message), MessageStream::Event::kMessage);
    ReplyFrame reply;
    EXPECT_TRUE(base::DecodeFields(message, reply).ok());
    return reply;
  }

  template <class Command>
  ReplyFrame Ask(const Command& command) {
    Send(++sequence_, command);
    return Receive();
  }
  ReplyFrame AskFields(uint32_t command, const std::string& fields) {
    stream_.Write(base::EncodeFields(CommandFrame{.sequence = ++sequence_, .command = command, .fields = fields}));
    return Receive();
  }

  // Returns the number of replies until the worker ends the stream.
  int CountToTheEnd() {
    std::string message;
    int replies = 0;
    while (stream_.Read(message) == MessageStream::Event::kMessage) ++replies;
    return replies;
  }

 private:
  MessageStream stream_;
  uint64_t sequence_ = 0;
};

inline DescribeModel DescribeCommand(const std::string& model) { return {.model = model}; }
inline LoadModel LoadCommand() { return {.parameters = {.model = "m"}}; }
inline StartJob StartCommand(uint64_t job) {
  return {.job = job, .parameters = {.height = 700, .width = 1000, .steps = 2}};
}
inline MakeSteps StepCommand(const std::vector<uint64_t>& jobs) { return {.jobs = jobs}; }
inline DecodeJob DecodeCommand(uint64_t job) { return {.job = job}; }

// Returns whether `reply` completes a command of that type without an error.
template <class Command>
bool Answers(const ReplyFrame& reply) {
  return reply.kind == ReplyKind::kDone && reply.command == kCommandNumber<Command>;
}

// Returns the decoded reply to a command of that type. Fails the test if `reply` is of another kind.
template <class Command>
typename Command::Reply ReplyOf(const ReplyFrame& reply) {
  typename Command::Reply decoded;
  EXPECT_TRUE(Answers<Command>(reply));
  EXPECT_TRUE(base::DecodeFields(reply.fields, decoded).ok());
  return decoded;
}

inline absl::Status ErrorOf(const ReplyFrame& reply) {
  if (reply.kind != ReplyKind::kError) return absl::OkStatus();
  ErrorReply error;
  EXPECT_TRUE(base::DecodeFields(reply.fields, error).ok());
  return StatusOf(error);
}
inline std::string MessageOf(const ReplyFrame& reply) { return std::string(ErrorOf(reply).message()); }
inline absl::StatusCode CodeOf(const ReplyFrame& reply) { return ErrorOf(reply).code(); }

// A new controller is refused until the jobs of its predecessor have ended.
inline void ControlChannelTest::Stop() {
  WaitUntil("a shutdown that is taken", [this] {
    Session session(socket_path());
    session.Send(1, Shutdown());
    return session.CountToTheEnd() == 1;
  });
  EXPECT_TRUE(Join().ok());
}

}  // namespace tessera::control
