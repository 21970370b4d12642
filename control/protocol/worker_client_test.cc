#include "control/protocol/worker_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "base/files/file_descriptor.h"
#include "control/protocol/frames.h"
#include "control/protocol/job_commands.h"
#include "control/protocol/message_stream.h"
#include "control/protocol/model_commands.h"

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

// A worker that serves one client by a script instead of the protocol.
class ScriptedWorker final {
 public:
  explicit ScriptedWorker(std::function<void(MessageStream&)> script) {
    std::array<int, 2> ends;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    client_ = ends[0];
    thread_ = std::thread([script = std::move(script), end = ends[1]] {
      MessageStream stream(base::FileDescriptor(end), size_t{1} << 20);
      script(stream);
    });
  }

  // The client must end before this.
  ~ScriptedWorker() { thread_.join(); }

  std::unique_ptr<WorkerClient> Client(absl::Duration timeout = absl::Seconds(60)) const {
    return std::make_unique<WorkerClient>(WorkerClient::Options{
        .socket = client_, .timeout = timeout, .ending = [] { return std::string("the worker was told to go"); }});
  }

 private:
  int client_ = -1;
  std::thread thread_;
};

template <class Command>
void Answer(MessageStream& stream, uint64_t sequence, const typename Command::Reply& reply) {
  stream.Write(base::EncodeFields(
      ReplyFrame{.sequence = sequence, .command = kCommandNumber<Command>, .fields = base::EncodeFields(reply)}));
}

void AnswerStepped(MessageStream& stream, uint64_t sequence, int32_t completed) {
  Answer<MakeSteps>(stream, sequence, {.steps = {{.completed = completed}}});
}

CommandFrame ReadOne(MessageStream& stream) {
  std::string message;
  CommandFrame command;
  stream.Read(message);
  EXPECT_TRUE(base::DecodeFields(message, command).ok());
  return command;
}

// Replies to the next command with an error.
void AnswerError(MessageStream& stream, const ErrorReply& error) {
  const CommandFrame command = ReadOne(stream);
  stream.Write(base::EncodeFields(ReplyFrame{.sequence = command.sequence,
                                             .command = command.command,
                                             .kind = ReplyKind::kError,
                                             .fields = base::EncodeFields(error)}));
}

// Reads until the client disconnects.
void Drain(MessageStream& stream) {
  std::string message;
  while (stream.Read(message) == MessageStream::Event::kMessage) {
  }
}

TEST(WorkerClientTest, NumbersCommandsFromOneInTheOrderInWhichTheyAreSent) {
  std::vector<uint64_t> sequences;
  ScriptedWorker worker([&](MessageStream& stream) {
    for (int i = 0; i < 3; ++i) {
      sequences.push_back(ReadOne(stream).sequence);
      Answer<EndJob>(stream, sequences.back(), {});
    }
  });
  const auto client = worker.Client();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client->Call(EndJob{.job = 1}).ok());
  EXPECT_THAT(sequences, ::testing::ElementsAre(1, 2, 3));
}

TEST(WorkerClientTest, GivesEachStepItsOwnReplyWhenTheyComeInAnotherOrder) {
  ScriptedWorker worker([](MessageStream& stream) {
    const uint64_t first = ReadOne(stream).sequence;
    const uint64_t second = ReadOne(stream).sequence;
    AnswerStepped(stream, second, 22);
    AnswerStepped(stream, first, 11);
    Drain(stream);
  });
  const auto client = worker.Client();
  const absl::StatusOr<uint64_t> first = client->SendSteps({1}, 1);
  const absl::StatusOr<uint64_t> second = client->SendSteps({1}, 1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(client->WaitForSteps(*first)->back().completed, 11);
  EXPECT_EQ(client->WaitForSteps(*second)->back().completed, 22);
}

TEST(WorkerClientTest, RefusesAThirdStepUntilOneOfTwoIsAnswered) {
  ScriptedWorker worker([](MessageStream& stream) {
    AnswerStepped(stream, ReadOne(stream).sequence, 1);
    Drain(stream);
  });
  const auto client = worker.Client();
  const absl::StatusOr<uint64_t> first = client->SendSteps({1}, 1);
  ASSERT_TRUE(client->SendSteps({1}, 1).ok());
  EXPECT_EQ(client->SendSteps({1}, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(client->WaitForSteps(*first).ok());
  EXPECT_TRUE(client->SendSteps({1}, 1).ok());
}

TEST(WorkerClientTest, SeveralStepsOfOneCommandAreAnsweredAtOnce) {
  int32_t asked = 0;
  ScriptedWorker worker([&](MessageStream& stream) {
    const CommandFrame frame = ReadOne(stream);
    MakeSteps command;
    EXPECT_TRUE(base::DecodeFields(frame.fields, command).ok());
    asked = command.count;
    Answer<MakeSteps>(stream, frame.sequence, {.steps = {{.completed = 1}, {.completed = 2}, {.completed = 3}}});
    Drain(stream);
  });
  const auto client = worker.Client();
  const absl::StatusOr<std::vector<Stepped>> steps = client->WaitForSteps(*client->SendSteps({1}, 3));
  ASSERT_TRUE(steps.ok());
  EXPECT_EQ(asked, 3);
  ASSERT_EQ(steps->size(), 3u);
  for (int32_t step = 0; step < 3; ++step) EXPECT_EQ((*steps)[static_cast<size_t>(step)].completed, step + 1);
}

TEST(WorkerClientTest, GivesTheCodeAndMessageOfTheWorkersError) {
  ScriptedWorker worker([](MessageStream& stream) {
    AnswerError(stream, ErrorReplyOf(absl::ResourceExhaustedError("no memory")));
    Drain(stream);
  });
  EXPECT_EQ(worker.Client()->Call(LoadModel{.parameters = {.model = "m"}}).status(),
            absl::ResourceExhaustedError("no memory"));
}

TEST(WorkerClientTest, GivesTheFieldOfTheWorkersError) {
  ScriptedWorker worker([](MessageStream& stream) {
    AnswerError(stream, ErrorReplyOf(base::ErrorOfField("steps", " is 9; take fewer steps")));
    Drain(stream);
  });
  const absl::Status error = worker.Client()->Call(StartJob{.job = 1}).status();
  EXPECT_EQ(error, base::ErrorOfField("steps", " is 9; take fewer steps"));
  EXPECT_EQ(base::FieldOf(error), "steps");
}

TEST(WorkerClientTest, TurnsAnErrorCodeThatDoesNotExistIntoUnknown) {
  for (const int code : {0, -1, 17, 1 << 30}) {
    ScriptedWorker worker([code](MessageStream& stream) {
      AnswerError(stream, {.code = code});
      Drain(stream);
    });
    EXPECT_EQ(worker.Client()->Call(DescribeModel{.model = "m"}).status().code(), absl::StatusCode::kUnknown) << code;
  }
}

TEST(WorkerClientTest, IsUnavailableAfterAReplyToACommandThatWasNeverSent) {
  ScriptedWorker worker([](MessageStream& stream) {
    ReadOne(stream);
    AnswerStepped(stream, 99, 1);
    Drain(stream);
  });
  const absl::Status status = worker.Client()->Call(EndJob{.job = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a reply to command 99"));
}

TEST(WorkerClientTest, IsUnavailableAfterWhatIsNoReply) {
  ScriptedWorker worker([](MessageStream& stream) {
    ReadOne(stream);
    stream.Write("no reply");
    Drain(stream);
  });
  const absl::Status status = worker.Client()->Call(EndJob{.job = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a malformed message"));
}

TEST(WorkerClientTest, IsUnavailableAfterAReplyOfTheWrongKind) {
  ScriptedWorker worker([](MessageStream& stream) {
    AnswerStepped(stream, ReadOne(stream).sequence, 1);
    Drain(stream);
  });
  const absl::Status status = worker.Client()->Call(LoadModel{.parameters = {.model = "m"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("wrong kind"));
}

TEST(WorkerClientTest, SaysHowTheWorkerEndedWhenItsStreamHas) {
  ScriptedWorker worker([](MessageStream& stream) { ReadOne(stream); });
  EXPECT_EQ(worker.Client()->Call(EndJob{.job = 1}).status(), absl::UnavailableError("the worker was told to go"));
}

TEST(WorkerClientTest, IsUnavailableWhenNoAnswerComesInTime) {
  ScriptedWorker worker(Drain);
  const absl::Status status = worker.Client(absl::Milliseconds(20))->Call(EndJob{.job = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("did not answer within 20ms"));
}

ModelDescription ValidDescription() {
  return {
      .size_multiple = 16, .min_size = 16, .max_size = 1024, .max_steps = 10, .max_sequence_length = 512, .blocks = 24};
}

absl::Status StatusOfDescription(const ModelDescription& description) {
  ScriptedWorker worker([&](MessageStream& stream) {
    Answer<DescribeModel>(stream, ReadOne(stream).sequence, description);
    Drain(stream);
  });
  return worker.Client()->Call(DescribeModel{.model = "m"}).status();
}

TEST(WorkerClientTest, RefusesADescriptionThatNoModelCanHave) {
  EXPECT_TRUE(StatusOfDescription(ValidDescription()).ok());
  using Change = void (*)(ModelDescription&);
  for (const Change change : std::initializer_list<Change>{
           [](ModelDescription& d) { d.size_multiple = 0; },
           [](ModelDescription& d) { d.min_size = 0; },
           [](ModelDescription& d) { d.max_size = 15; },
           [](ModelDescription& d) { d.max_size = 1 << 20; },
           [](ModelDescription& d) { d.size_multiple = 2048; },  // no multiple is in the range
           [](ModelDescription& d) { d.max_steps = 0; },
           [](ModelDescription& d) { d.max_sequence_length = -1; },
           [](ModelDescription& d) { d.max_sequence_length = 1 << 20; },
           [](ModelDescription& d) { d.blocks = -1; },
           [](ModelDescription& d) { d.blocks = 1 << 20; },
       }) {
    ModelDescription description = ValidDescription();
    change(description);
    EXPECT_EQ(StatusOfDescription(description).code(), absl::StatusCode::kUnavailable);
  }
}

struct SentRows {
  int32_t first;
  size_t bytes;
};

// The status of a decoding whose replies are these rows and then `decoded`.
absl::Status DecodeStatus(const std::vector<SentRows>& rows, const Decoded& decoded = {.height = 3, .width = 2},
                          const JobStarted& started = {.height = 3, .width = 2}) {
  ScriptedWorker worker([&](MessageStream& stream) {
    const uint64_t sequence = ReadOne(stream).sequence;
    for (const SentRows& sent : rows) {
      const Rows part = {.first = sent.first, .bytes = std::string(sent.bytes, 'x')};
      stream.Write(base::EncodeFields(ReplyFrame{.sequence = sequence,
                                                 .command = kCommandNumber<DecodeJob>,
                                                 .kind = ReplyKind::kPart,
                                                 .fields = base::EncodeFields(part)}));
    }
    Answer<DecodeJob>(stream, sequence, decoded);
    Drain(stream);
  });
  const std::unique_ptr<WorkerClient> client = worker.Client();
  const absl::StatusOr<DecodedPicture> picture = client->WaitForDecode(client->Send(DecodeJob{.job = 1}), started);
  if (!picture.ok()) return picture.status();
  EXPECT_TRUE(picture->image.has_shape_of(ShapeOf(started)));
  EXPECT_EQ(picture->image.bytes.size(), picture->image.rows() * picture->image.row_bytes());
  return absl::OkStatus();
}

TEST(WorkerClientTest, PutsRowsTogetherThatFollowEachOther) {
  EXPECT_TRUE(DecodeStatus({{0, 18}}).ok());
  EXPECT_TRUE(DecodeStatus({{0, 6}, {1, 12}}).ok());
}

TEST(WorkerClientTest, PutsTheRowsOfAllFramesTogetherWithAllChannels) {
  const JobStarted started = {.height = 3, .width = 2, .frames = 2, .channels = 4};
  const Decoded decoded = {.height = 3, .width = 2, .frames = 2, .channels = 4};
  EXPECT_TRUE(DecodeStatus({{0, 48}}, decoded, started).ok());
  EXPECT_TRUE(DecodeStatus({{0, 8}, {1, 24}, {4, 16}}, decoded, started).ok());  // a part with rows of both frames
  EXPECT_EQ(DecodeStatus({{0, 24}}, decoded, started).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecodeStatus({{0, 24}, {0, 24}}, decoded, started).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecodeStatus({{0, 36}}, decoded, started).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecodeStatus({{0, 48}}, {.height = 3, .width = 2, .frames = 2}, started).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecodeStatus({{0, 48}}, {.height = 3, .width = 2, .channels = 4}, started).code(),
            absl::StatusCode::kUnavailable);
}

// The status of a StartJob with this reply.
absl::Status StatusOfStart(const JobStarted& started) {
  ScriptedWorker worker([&](MessageStream& stream) {
    Answer<StartJob>(stream, ReadOne(stream).sequence, started);
    Drain(stream);
  });
  return worker.Client()->Call(StartJob{.job = 1}).status();
}

TEST(WorkerClientTest, RefusesAJobThatNoWorkerCanStart) {
  const JobStarted valid = {.height = 8, .width = 8, .frames = kMaxFrames, .channels = kMaxChannels, .steps = 1};
  EXPECT_TRUE(StatusOfStart(valid).ok());
  using Change = void (*)(JobStarted&);
  for (const Change change : std::initializer_list<Change>{
           [](JobStarted& s) { s.height = 0; },
           [](JobStarted& s) { s.width = kMaxImageSide + 1; },
           [](JobStarted& s) { s.frames = 0; },
           [](JobStarted& s) { s.frames = kMaxFrames + 1; },
           [](JobStarted& s) { s.channels = 0; },
           [](JobStarted& s) { s.channels = kMaxChannels + 1; },
           [](JobStarted& s) { s.height = s.width = kMaxImageSide; },  // more bytes than a picture has
           [](JobStarted& s) { s.steps = 0; },
           [](JobStarted& s) { s.steps = kMaxSteps + 1; },
           [](JobStarted& s) { s.first_step = -1; },
       }) {
    JobStarted started = valid;
    change(started);
    EXPECT_EQ(StatusOfStart(started).code(), absl::StatusCode::kUnavailable);
  }
}

TEST(WorkerClientTest, RefusesRowsThatOverlapOrAreMissingOrTooManyOrBroken) {
  EXPECT_EQ(DecodeStatus({{0, 12}, {1, 6}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecodeStatus({{0, 6}, {2, 6}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecodeStatus({{0, 12}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecodeStatus({{0, 24}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecodeStatus({{0, 7}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DecodeStatus({{0, 0}}).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tessera::control
