#include "control/protocol/message_stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

namespace tessera::control {
namespace {

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

// `length` as encoded at the start of a message.
std::string LengthBytes(uint64_t length) { return {reinterpret_cast<const char*>(&length), sizeof(length)}; }

// What one end reads when the other end sends these bytes and closes.
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
  std::string message;
  while ((outcome.end = stream.Read(message)) == Event::kMessage) ++outcome.messages;
  EXPECT_EQ(stream.Read(message), outcome.end) << "for good";
  return outcome;
}

TEST(MessageStreamTest, BringsMessagesOfAnySizeInOrder) {
  Pair pair;
  const std::vector<size_t> sizes = {0, 1, 200, 70'000, 5'000'000};  // the last is larger than a socket buffer
  std::thread writer([&] {
    MessageStream stream(std::move(pair.a), kMostBytes);
    for (const size_t size : sizes) EXPECT_TRUE(stream.Write(std::string(size, 'x')));
  });
  MessageStream stream(std::move(pair.b), kMostBytes);
  std::string message;
  for (const size_t size : sizes) {
    ASSERT_EQ(stream.Read(message), Event::kMessage);
    EXPECT_EQ(message, std::string(size, 'x'));
  }
  EXPECT_EQ(stream.Read(message), Event::kEnd);
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
        EXPECT_TRUE(sender.Write(std::string(static_cast<size_t>(1000 + 3000 * thread), 'a' + thread)));
      }
    });
  }
  std::string message;
  for (int i = 0; i < kThreads * kMessages; ++i) {
    ASSERT_EQ(receiver.Read(message), Event::kMessage);
    EXPECT_EQ(message, std::string(static_cast<size_t>(1000 + 3000 * (message[0] - 'a')), message[0]));
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MessageStreamTest, WhatWasWrittenIsReadAfterTheWriterHasGone) {
  Pair pair;
  {
    MessageStream stream(std::move(pair.a), kMostBytes);
    EXPECT_TRUE(stream.Write("m"));
    stream.End();
  }
  MessageStream stream(std::move(pair.b), kMostBytes);
  std::string message;
  EXPECT_EQ(stream.Read(message), Event::kMessage);
  EXPECT_EQ(stream.Read(message), Event::kEnd);
  EXPECT_FALSE(stream.Write(message));
}

TEST(MessageStreamTest, EndWakesAReader) {
  Pair pair;
  MessageStream stream(std::move(pair.b), kMostBytes);
  std::thread reader([&] {
    std::string message;
    EXPECT_EQ(stream.Read(message), Event::kEnd);
  });
  stream.End();
  reader.join();
}

TEST(MessageStreamTest, WaitsNoLongerThanItsTimeout) {
  Pair pair;
  MessageStream writer(std::move(pair.a), kMostBytes), reader(std::move(pair.b), kMostBytes);
  std::string message;
  EXPECT_EQ(reader.Read(message, absl::ZeroDuration()), Event::kTimeout);
  EXPECT_EQ(reader.Read(message, absl::Milliseconds(2)), Event::kTimeout);
  EXPECT_TRUE(writer.Write("a"));
  EXPECT_TRUE(writer.Write("b"));
  EXPECT_EQ(reader.Read(message, absl::ZeroDuration()), Event::kMessage);
  EXPECT_EQ(reader.Read(message, absl::ZeroDuration()), Event::kMessage);
  EXPECT_EQ(message, "b");
  EXPECT_EQ(reader.Read(message, absl::ZeroDuration()), Event::kTimeout);
}

TEST(MessageStreamTest, IsBrokenByALengthThatNoMessageHas) {
  EXPECT_EQ(Receive("GET / HTTP/1.1\r\n\r\n" + std::string(70, ' ')).end, Event::kBroken);
  EXPECT_EQ(Receive(std::string(16, '\xFF')).end, Event::kBroken);
}

TEST(MessageStreamTest, EndsWithAPeerThatGoesWithinAMessage) {
  EXPECT_EQ(Receive("").end, Event::kEnd);
  EXPECT_EQ(Receive(LengthBytes(5).substr(0, 4)).end, Event::kEnd) << "half a length";
  const Outcome outcome = Receive(LengthBytes(2) + "ab" + LengthBytes(5) + "abcd");
  EXPECT_EQ(outcome.messages, 1);
  EXPECT_EQ(outcome.end, Event::kEnd) << "less than its length";
}

TEST(MessageStreamTest, IsBrokenByAMessageThatIsTooLong) {
  const std::string bytes = LengthBytes(2) + "ab" + LengthBytes(4) + "abcd";
  EXPECT_EQ(Receive(bytes, 4).messages, 2);
  const Outcome outcome = Receive(bytes, 3);
  EXPECT_EQ(outcome.messages, 1);
  EXPECT_EQ(outcome.end, Event::kBroken);
}

}  // namespace
}  // namespace tessera::control
