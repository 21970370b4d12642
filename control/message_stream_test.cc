#include "control/message_stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "tessera/internal/control.pb.h"

namespace tessera::control {
namespace {

using internal::Command;
using Event = MessageStream::Event;

constexpr size_t kMostBytes = size_t{8} << 20;

struct Pair {
  Pair() {
    std::array<int, 2> ends;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    a = base::FileDescriptor(ends[0]);
    b = base::FileDescriptor(ends[1]);
  }
  base::FileDescriptor a, b;
};

Command Described(const std::string& model) {
  Command command;
  command.mutable_describe()->set_model(model);
  return command;
}

// What one end reads of these bytes, after which the other end has gone.
struct Outcome {
  int messages = 0;
  Event end = Event::kMessage;
};

Outcome Receive(const std::string& bytes, size_t most_bytes = kMostBytes) {
  Pair pair;
  EXPECT_EQ(send(pair.a.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  pair.a.Close();
  MessageStream stream(std::move(pair.b), most_bytes);
  Outcome outcome;
  Command command;
  while ((outcome.end = stream.Read(command)) == Event::kMessage) ++outcome.messages;
  EXPECT_EQ(stream.Read(command), outcome.end) << "for good";
  return outcome;
}

TEST(MessageStreamTest, BringsMessagesOfAnySizeInOrder) {
  Pair pair;
  const std::vector<size_t> sizes = {0, 1, 200, 70'000, 5'000'000};  // more than the system keeps for a reader
  std::thread writer([&] {
    MessageStream stream(std::move(pair.a), kMostBytes);
    for (const size_t size : sizes) EXPECT_TRUE(stream.Write(Described(std::string(size, 'x'))));
  });
  MessageStream stream(std::move(pair.b), kMostBytes);
  Command command;
  for (const size_t size : sizes) {
    ASSERT_EQ(stream.Read(command), Event::kMessage);
    EXPECT_EQ(command.describe().model(), std::string(size, 'x'));
  }
  EXPECT_EQ(stream.Read(command), Event::kEnd);
  writer.join();
}

TEST(MessageStreamTest, MessagesOfSeveralThreadsStayWhole) {
  Pair pair;
  MessageStream sender(std::move(pair.a), kMostBytes), receiver(std::move(pair.b), kMostBytes);
  constexpr int kThreads = 4, kMessages = 200;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&sender, thread] {
      for (int i = 0; i < kMessages; ++i) {
        EXPECT_TRUE(sender.Write(Described(std::string(static_cast<size_t>(1000 + 3000 * thread), 'a' + thread))));
      }
    });
  }
  Command command;
  for (int i = 0; i < kThreads * kMessages; ++i) {
    ASSERT_EQ(receiver.Read(command), Event::kMessage);
    const std::string& model = command.describe().model();
    EXPECT_EQ(model, std::string(static_cast<size_t>(1000 + 3000 * (model[0] - 'a')), model[0]));
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MessageStreamTest, WhatWasWrittenIsReadAfterTheWriterHasGone) {
  Pair pair;
  {
    MessageStream stream(std::move(pair.a), kMostBytes);
    EXPECT_TRUE(stream.Write(Described("m")));
    stream.End();
  }
  MessageStream stream(std::move(pair.b), kMostBytes);
  Command command;
  EXPECT_EQ(stream.Read(command), Event::kMessage);
  EXPECT_EQ(stream.Read(command), Event::kEnd);
  EXPECT_FALSE(stream.Write(command));
}

TEST(MessageStreamTest, EndWakesAReader) {
  Pair pair;
  MessageStream stream(std::move(pair.b), kMostBytes);
  std::thread reader([&] {
    Command command;
    EXPECT_EQ(stream.Read(command), Event::kEnd);
  });
  stream.End();
  reader.join();
}

TEST(MessageStreamTest, WaitsNoLongerThanItIsTold) {
  Pair pair;
  MessageStream writer(std::move(pair.a), kMostBytes), reader(std::move(pair.b), kMostBytes);
  Command command;
  EXPECT_EQ(reader.Read(command, absl::ZeroDuration()), Event::kTimeout);
  EXPECT_EQ(reader.Read(command, absl::Milliseconds(2)), Event::kTimeout);
  EXPECT_TRUE(writer.Write(Described("a")));
  EXPECT_TRUE(writer.Write(Described("b")));
  EXPECT_EQ(reader.Read(command, absl::ZeroDuration()), Event::kMessage);
  EXPECT_EQ(reader.Read(command, absl::ZeroDuration()), Event::kMessage);
  EXPECT_EQ(command.describe().model(), "b");
  EXPECT_EQ(reader.Read(command, absl::ZeroDuration()), Event::kTimeout);
}

TEST(MessageStreamTest, IsBrokenByWhatIsNoMessage) {
  EXPECT_EQ(Receive("GET / HTTP/1.1\r\n\r\n" + std::string(70, ' ')).end, Event::kBroken);
  EXPECT_EQ(Receive(std::string(16, '\xFF')).end, Event::kBroken) << "a length without an end";
  EXPECT_EQ(Receive(std::string("\x01\x0c", 2)).end, Event::kBroken) << "the end of a group that did not begin";
}

TEST(MessageStreamTest, EndsWithAPeerThatGoesWithinAMessage) {
  EXPECT_EQ(Receive("").end, Event::kEnd);
  EXPECT_EQ(Receive("\x80").end, Event::kEnd) << "half a length";
  const Outcome outcome = Receive(std::string("\x02\x08\x01\x05\x08", 5));
  EXPECT_EQ(outcome.messages, 1);
  EXPECT_EQ(outcome.end, Event::kEnd) << "less than its length";
}

TEST(MessageStreamTest, IsBrokenByAMessageThatIsTooLong) {
  const std::string bytes = std::string("\x02\x08\x01", 3) + std::string("\x04\x08\x80\x80\x01", 5);
  EXPECT_EQ(Receive(bytes, 4).messages, 2);
  const Outcome outcome = Receive(bytes, 3);
  EXPECT_EQ(outcome.messages, 1);
  EXPECT_EQ(outcome.end, Event::kBroken);
}

}  // namespace
}  // namespace tessera::control
