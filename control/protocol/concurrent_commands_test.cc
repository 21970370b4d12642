// Tests commands that are executed concurrently with later ones: decoding, and steps that are issued ahead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "control/protocol/commands.h"
#include "tests/support/control_channel_fixture.h"
#include "tests/support/wait_until.h"

namespace tessera::control {
namespace {

// A channel whose handler decodes concurrently with steps.
class ConcurrentDecodingTest : public ControlChannelTest {
 protected:
  ConcurrentDecodingTest() {
    Stop();
    handler_.DecodeDuringSteps();
    Serve(absl::Seconds(60));
  }
};

TEST_F(ConcurrentDecodingTest, AnswersWhatComesAfterAPictureBeforeIt) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Ask(StartCommand(6));
  session.Send(3, DecodeCommand(5));
  session.Send(4, StepCommand({5, 6}));
  session.Send(5, EndJob{.job = 5});
  EXPECT_EQ(session.Receive().sequence, 4u);
  EXPECT_EQ(session.Receive().sequence, 5u);
  handler_.LetPicturesCome();
  ReplyFrame reply = session.Receive();
  for (; reply.kind == ReplyKind::kPart; reply = session.Receive()) EXPECT_EQ(reply.sequence, 3u);
  EXPECT_TRUE(Answers<DecodeJob>(reply));
  EXPECT_EQ(reply.sequence, 3u);
}

TEST_F(ConcurrentDecodingTest, LoadsAfterThePicture) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Send(2, DecodeCommand(5));
  session.Send(3, LoadCommand());
  handler_.LetPicturesCome();
  ReplyFrame reply = session.Receive();
  for (; reply.kind == ReplyKind::kPart; reply = session.Receive()) EXPECT_EQ(reply.sequence, 2u);
  EXPECT_TRUE(Answers<DecodeJob>(reply));
  EXPECT_TRUE(Answers<LoadModel>(session.Receive()));
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "decode 5", "pixels", "load m"));
}

TEST_F(ConcurrentDecodingTest, CountsThePictureBeforeItSaysHowFarItGot) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Send(2, DecodeCommand(5));
  session.Send(3, Resume());
  handler_.LetPicturesCome();
  ReplyFrame reply = session.Receive();
  for (; reply.sequence == 2; reply = session.Receive()) {
  }
  EXPECT_EQ(ReplyOf<Resume>(reply).commands, 2u);
}

TEST_F(ConcurrentDecodingTest, FinishesThePictureOfAControllerThatHasGone) {
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

// A channel whose handler issues steps without waiting for them.
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
  EXPECT_EQ(session.Receive().sequence, 4u);
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "step 5", "step 5", "start 6"));
  handler_.LetStepsEnd();
  for (const uint64_t sequence : {2, 3}) {
    const ReplyFrame reply = session.Receive();
    EXPECT_EQ(reply.sequence, sequence);
    EXPECT_EQ(ReplyOf<MakeSteps>(reply).steps.back().completed, static_cast<int>(sequence) - 1);
  }
}

TEST_F(StepsAheadTest, IssuesAllStepsOfACommandAndAnswersThemAtOnce) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Send(2, MakeSteps{.jobs = {5}, .count = 2});
  session.Send(3, StartCommand(6));
  EXPECT_EQ(session.Receive().sequence, 3u);
  EXPECT_THAT(handler_.calls(), ::testing::ElementsAre("start 5", "step 5", "step 5", "start 6"));
  handler_.LetStepsEnd();
  const auto made = ReplyOf<MakeSteps>(session.Receive());
  ASSERT_EQ(made.steps.size(), 2u);
  EXPECT_EQ(made.steps[0].completed, 1);
  EXPECT_EQ(made.steps[1].completed, 2);
}

TEST_F(StepsAheadTest, AnswersAStepThatNothingFollows) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Send(2, StepCommand({5}));
  handler_.LetStepsEnd();
  EXPECT_TRUE(Answers<MakeSteps>(session.Receive()));
}

TEST_F(StepsAheadTest, WhatGoesWrongInAStepIsItsAnswer) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  handler_.LetStepsEnd();
  EXPECT_EQ(CodeOf(session.Ask(StepCommand({6}))), absl::StatusCode::kNotFound);
  session.Ask(StepCommand({5}));
  session.Ask(StepCommand({5}));
  EXPECT_EQ(CodeOf(session.Ask(StepCommand({5}))), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Answers<MakeSteps>(session.Ask(StepCommand({5}))));
}

TEST_F(StepsAheadTest, LoadsAndReportsProgressOnlyAfterEveryStep) {
  Session session(socket_path());
  session.Ask(StartCommand(5));
  session.Send(2, StepCommand({5}));
  session.Send(3, LoadCommand());
  session.Send(4, Resume());
  handler_.LetStepsEnd();
  EXPECT_TRUE(Answers<MakeSteps>(session.Receive()));
  EXPECT_TRUE(Answers<LoadModel>(session.Receive()));
  EXPECT_EQ(ReplyOf<Resume>(session.Receive()).commands, 3u);
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

}  // namespace
}  // namespace tessera::control
