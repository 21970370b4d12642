#include "server/serving/watch_hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

namespace tessera::server {
namespace {

using ::testing::ElementsAre;

// Records the names of the events that a listener got, in order. Read it after a ReleaseAll, which returns after all
// were delivered.
class Heard {
 public:
  ImageService::Listener listener() {
    return [this](const JobEvent& event) {
      const std::lock_guard lock(mutex_);
      names_.push_back(NameOf(event));
    };
  }
  std::vector<std::string> names() {
    const std::lock_guard lock(mutex_);
    return names_;
  }

 private:
  static std::string NameOf(const JobEvent& event) {
    if (const auto* queued = std::get_if<QueuedEvent>(&event)) return "queued " + std::to_string(queued->position);
    if (std::holds_alternative<StartedEvent>(event)) return "started";
    if (const auto* step = std::get_if<StepEvent>(&event)) return "step " + std::to_string(step->step);
    if (const auto* image = std::get_if<ImageEvent>(&event)) return "image " + std::to_string(image->image.index);
    if (std::holds_alternative<EndedEvent>(event)) return "ended";
    return std::holds_alternative<ReleasedEvent>(event) ? "released" : "preview";
  }

  std::mutex mutex_;
  std::vector<std::string> names_;
};

const absl::Status kReason = absl::UnavailableError("the server is stopping");

TEST(WatchHubTest, DeliversInTheOrderOfPublishing) {
  WatchHub hub;
  Heard heard;
  const auto subscription = hub.Hold("job", WatchedEvents::kAll, heard.listener());
  hub.Begin(subscription, {});
  for (int32_t step = 1; step <= 3; ++step) hub.Publish("job", StepEvent{.step = step});
  hub.Publish("another", StepEvent{.step = 9});
  hub.ReleaseAll(kReason);
  EXPECT_THAT(heard.names(), ElementsAre("step 1", "step 2", "step 3", "released"));
  hub.End(subscription);
}

TEST(WatchHubTest, WhoWantsResultsIsNotWokenForProgress) {
  WatchHub hub;
  Heard heard;
  const auto subscription = hub.Hold("job", WatchedEvents::kResults, heard.listener());
  hub.Begin(subscription, {QueuedEvent{.position = 1}});
  hub.Publish("job", StartedEvent{});
  hub.Publish("job", StepEvent{.step = 1});
  hub.Publish("job", ImageEvent{{.index = 0}});
  hub.ReleaseAll(kReason);
  EXPECT_THAT(heard.names(), ElementsAre("image 0", "released"));
  hub.End(subscription);
}

TEST(WatchHubTest, WhatHappensWhileTheStateIsReadComesAfterIt) {
  WatchHub hub;
  Heard heard;
  const auto subscription = hub.Hold("job", WatchedEvents::kAll, heard.listener());
  hub.Publish("job", QueuedEvent{.position = 7});
  hub.Publish("job", ImageEvent{{.index = 0}});
  hub.Publish("job", ImageEvent{{.index = 1}});
  hub.Begin(subscription, {StartedEvent{}, ImageEvent{{.index = 0}}});
  hub.ReleaseAll(kReason);
  EXPECT_THAT(heard.names(), ElementsAre("started", "image 0", "image 1", "released"));
  hub.End(subscription);
}

TEST(WatchHubTest, AnEndThatWasPublishedWhileTheStateWasReadIsTheLastEvent) {
  WatchHub hub;
  Heard heard;
  const auto subscription = hub.Hold("job", WatchedEvents::kAll, heard.listener());
  hub.PublishEnd({.id = "job", .images = {{.index = 0}}});
  EXPECT_FALSE(hub.IsWatched("job"));
  hub.Begin(subscription, {StartedEvent{}});
  hub.ReleaseAll(kReason);
  EXPECT_THAT(heard.names(), ElementsAre("started", "image 0", "ended"));
  hub.End(subscription);
}

TEST(WatchHubTest, NothingComesAfterTheEnd) {
  WatchHub hub;
  Heard heard;
  const auto subscription = hub.Hold("job", WatchedEvents::kAll, heard.listener());
  hub.Begin(subscription, {EndedEvent{}});
  hub.Publish("job", StepEvent{.step = 1});
  hub.ReleaseAll(kReason);
  EXPECT_THAT(heard.names(), ElementsAre("ended"));
  hub.End(subscription);
}

TEST(WatchHubTest, WhoComesAfterTheReleaseOfAllIsReleasedToo) {
  WatchHub hub;
  Heard heard;
  hub.ReleaseAll(kReason);
  const auto subscription = hub.Hold("job", WatchedEvents::kAll, heard.listener());
  hub.Begin(subscription, {StartedEvent{}});
  hub.ReleaseAll(kReason);
  EXPECT_THAT(heard.names(), ElementsAre("started", "released"));
  hub.End(subscription);
}

TEST(WatchHubTest, AListenerMayEndItsOwnWatch) {
  WatchHub hub;
  std::shared_ptr<WatchHub::Subscription> subscription;
  int calls = 0;
  subscription = hub.Hold("job", WatchedEvents::kAll, [&](const JobEvent&) {
    ++calls;
    hub.End(subscription);
  });
  hub.Begin(subscription, {});
  hub.Publish("job", StepEvent{.step = 1});
  hub.Publish("job", StepEvent{.step = 2});
  hub.ReleaseAll(kReason);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(hub.IsWatched("job"));
}

TEST(WatchHubTest, TheEndOfAWatchWaitsForTheCallThatIsUnderWay) {
  WatchHub hub;
  std::mutex mutex;
  std::condition_variable changed;
  bool entered = false, may_return = false, returned = false;
  const auto subscription = hub.Hold("job", WatchedEvents::kAll, [&](const JobEvent&) {
    std::unique_lock lock(mutex);
    entered = true;
    changed.notify_all();
    changed.wait(lock, [&] { return may_return; });
    returned = true;
  });
  hub.Begin(subscription, {StartedEvent{}});
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return entered; });
  std::thread other([&] {
    const std::lock_guard inner(mutex);
    may_return = true;
    changed.notify_all();
  });
  lock.unlock();
  hub.End(subscription);
  EXPECT_TRUE(returned);
  other.join();
}

}  // namespace
}  // namespace tessera::server
