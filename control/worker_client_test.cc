#include "control/worker_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/file_descriptor.h"
#include "control/command_wire.h"
#include "control/message_stream.h"
#include "tessera/internal/control.pb.h"

namespace tessera::control {
namespace {

using internal::Command;
using internal::Reply;
using ::testing::HasSubstr;

// A worker that follows a script instead of the protocol, for one client.
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

  // The client ends before.
  ~ScriptedWorker() { thread_.join(); }

  std::unique_ptr<WorkerClient> Client(absl::Duration timeout = absl::Seconds(60)) const {
    return std::make_unique<WorkerClient>(WorkerClient::Options{
        .socket = client_, .timeout = timeout, .ending = [] { return std::string("the worker was told to go"); }});
  }

 private:
  int client_ = -1;
  std::thread thread_;
};

Reply SteppedReply(uint64_t sequence, int32_t completed) {
  Reply reply;
  reply.set_sequence(sequence);
  reply.mutable_stepped()->set_completed(completed);
  return reply;
}

Command ReadOne(MessageStream& stream) {
  Command command;
  stream.Read(command);
  return command;
}

// Reads until the client goes.
void Drain(MessageStream& stream) {
  Command command;
  while (stream.Read(command) == MessageStream::Event::kMessage) {
  }
}

TEST(WorkerClientTest, NumbersCommandsFromOneInTheOrderInWhichTheyAreSent) {
  std::vector<uint64_t> sequences;
  ScriptedWorker worker([&](MessageStream& stream) {
    for (int i = 0; i < 3; ++i) {
      const Command command = ReadOne(stream);
      sequences.push_back(command.sequence());
      Reply reply;
      reply.set_sequence(command.sequence());
      reply.mutable_ended();
      stream.Write(reply);
    }
  });
  const auto client = worker.Client();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client->EndJob(1).ok());
  EXPECT_THAT(sequences, ::testing::ElementsAre(1, 2, 3));
}

TEST(WorkerClientTest, GivesEachStepItsOwnReplyWhenTheyComeInAnotherOrder) {
  ScriptedWorker worker([](MessageStream& stream) {
    const uint64_t first = ReadOne(stream).sequence();
    const uint64_t second = ReadOne(stream).sequence();
    stream.Write(SteppedReply(second, 22));
    stream.Write(SteppedReply(first, 11));
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
    stream.Write(SteppedReply(ReadOne(stream).sequence(), 1));
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
    const Command command = ReadOne(stream);
    asked = command.step().count();
    Reply reply = SteppedReply(command.sequence(), 3);
    for (const int32_t completed : {1, 2}) reply.mutable_stepped()->add_earlier()->set_completed(completed);
    stream.Write(reply);
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
    Reply reply;
    reply.set_sequence(ReadOne(stream).sequence());
    reply.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
    reply.mutable_error()->set_message("no memory");
    stream.Write(reply);
    Drain(stream);
  });
  EXPECT_EQ(worker.Client()->Load({.model = "m"}).status(), absl::ResourceExhaustedError("no memory"));
}

TEST(WorkerClientTest, GivesTheFieldOfTheWorkersError) {
  ScriptedWorker worker([](MessageStream& stream) {
    Reply reply;
    reply.set_sequence(ReadOne(stream).sequence());
    ToWire(base::ErrorOfField("steps", " is 9; take fewer steps"), reply.mutable_error());
    stream.Write(reply);
    Drain(stream);
  });
  const absl::Status error = worker.Client()->StartJob(1, {}).status();
  EXPECT_EQ(error, base::ErrorOfField("steps", " is 9; take fewer steps"));
  EXPECT_EQ(base::FieldOf(error), "steps");
}

TEST(WorkerClientTest, TurnsAnErrorCodeThatDoesNotExistIntoUnknown) {
  for (const int code : {0, -1, 17, 1 << 30}) {
    ScriptedWorker worker([code](MessageStream& stream) {
      Reply reply;
      reply.set_sequence(ReadOne(stream).sequence());
      reply.mutable_error()->set_code(code);
      stream.Write(reply);
      Drain(stream);
    });
    EXPECT_EQ(worker.Client()->Describe("m").status().code(), absl::StatusCode::kUnknown) << code;
  }
}

TEST(WorkerClientTest, IsUnavailableAfterAReplyToACommandThatWasNeverSent) {
  ScriptedWorker worker([](MessageStream& stream) {
    ReadOne(stream);
    stream.Write(SteppedReply(99, 1));
    Drain(stream);
  });
  const absl::Status status = worker.Client()->EndJob(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a reply to command 99"));
}

TEST(WorkerClientTest, IsUnavailableAfterWhatIsNoReply) {
  ScriptedWorker worker([](MessageStream& stream) {
    ReadOne(stream);
    Command long_one;
    long_one.mutable_describe()->set_model(std::string(size_t{5} << 20, 'm'));
    stream.Write(long_one);
    Drain(stream);
  });
  const absl::Status status = worker.Client()->EndJob(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("what is no message"));
}

TEST(WorkerClientTest, IsUnavailableAfterAReplyOfTheWrongKind) {
  ScriptedWorker worker([](MessageStream& stream) {
    stream.Write(SteppedReply(ReadOne(stream).sequence(), 1));
    Drain(stream);
  });
  const absl::Status status = worker.Client()->Load({.model = "m"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("wrong kind"));
}

TEST(WorkerClientTest, SaysHowTheWorkerEndedWhenItsStreamHas) {
  ScriptedWorker worker([](MessageStream& stream) { ReadOne(stream); });
  EXPECT_EQ(worker.Client()->EndJob(1), absl::UnavailableError("the worker was told to go"));
}

TEST(WorkerClientTest, IsUnavailableWhenNoAnswerComesInTime) {
  ScriptedWorker worker(Drain);
  const absl::Status status = worker.Client(absl::Milliseconds(20))->EndJob(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no answer within 20ms"));
}

internal::ModelDescription ValidDescription() {
  internal::ModelDescription description;
  description.set_size_multiple(16);
  description.set_min_size(16);
  description.set_max_size(1024);
  description.set_max_steps(10);
  description.set_max_sequence_length(512);
  description.set_blocks(24);
  return description;
}

absl::Status StatusOfDescription(const internal::ModelDescription& description) {
  ScriptedWorker worker([&](MessageStream& stream) {
    Reply reply;
    reply.set_sequence(ReadOne(stream).sequence());
    *reply.mutable_description() = description;
    stream.Write(reply);
    Drain(stream);
  });
  return worker.Client()->Describe("m").status();
}

TEST(WorkerClientTest, RefusesADescriptionThatNoModelCanHave) {
  EXPECT_TRUE(StatusOfDescription(ValidDescription()).ok());
  using Change = void (*)(internal::ModelDescription&);
  for (const Change change : std::initializer_list<Change>{
           [](internal::ModelDescription& d) { d.set_size_multiple(0); },
           [](internal::ModelDescription& d) { d.set_min_size(0); },
           [](internal::ModelDescription& d) { d.set_max_size(15); },
           [](internal::ModelDescription& d) { d.set_max_size(1 << 20); },
           [](internal::ModelDescription& d) { d.set_size_multiple(2048); },  // no multiple is in the range
           [](internal::ModelDescription& d) { d.set_max_steps(0); },
           [](internal::ModelDescription& d) { d.set_max_sequence_length(-1); },
           [](internal::ModelDescription& d) { d.set_max_sequence_length(1 << 20); },
           [](internal::ModelDescription& d) { d.set_blocks(-1); },
           [](internal::ModelDescription& d) { d.set_blocks(1 << 20); },
       }) {
    internal::ModelDescription description = ValidDescription();
    change(description);
    EXPECT_EQ(StatusOfDescription(description).code(), absl::StatusCode::kUnavailable) << description.DebugString();
  }
}

struct SentRows {
  int32_t first;
  size_t bytes;
};

// The status of decoding a 2 x 3 image from these rows and then `decoded`.
absl::Status DecodeStatus(const std::vector<SentRows>& rows) {
  ScriptedWorker worker([&](MessageStream& stream) {
    Reply reply;
    reply.set_sequence(ReadOne(stream).sequence());
    for (const SentRows& sent : rows) {
      reply.mutable_rows()->set_first(sent.first);
      reply.mutable_rows()->set_rgb(std::string(sent.bytes, 'x'));
      stream.Write(reply);
    }
    reply.mutable_decoded()->set_height(3);
    reply.mutable_decoded()->set_width(2);
    stream.Write(reply);
    Drain(stream);
  });
  const std::unique_ptr<WorkerClient> client = worker.Client();
  const absl::StatusOr<uint64_t> sequence = client->SendDecode(1);
  if (!sequence.ok()) return sequence.status();
  return client->WaitForDecode(*sequence, {.height = 3, .width = 2}).status();
}

TEST(WorkerClientTest, PutsRowsTogetherThatFollowEachOther) {
  EXPECT_TRUE(DecodeStatus({{0, 18}}).ok());
  EXPECT_TRUE(DecodeStatus({{0, 6}, {1, 12}}).ok());
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
