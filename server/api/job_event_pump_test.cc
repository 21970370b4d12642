#include "server/api/job_event_pump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/api/server_info.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;

// Reports events on request of the test, and counts the watches that have ended.
class ScriptedService final : public ImageService {
 public:
  absl::StatusOr<std::unique_ptr<JobWatch>> Watch(const Caller&, absl::string_view job, WatchedEvents,
                                                  Listener listener) override {
    if (job != "job") return absl::NotFoundError("there is no such job");
    deliver = std::move(listener);
    if (first.has_value()) deliver(*first);
    class Ending final : public JobWatch {
     public:
      explicit Ending(std::atomic<int>& ended) : ended_(ended) {}
      ~Ending() override { ++ended_; }

     private:
      std::atomic<int>& ended_;
    };
    return std::make_unique<Ending>(watches_ended);
  }

  absl::StatusOr<Submitted> Submit(const Caller&, const JobRequest&, const std::optional<IdempotencyKey>&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::optional<Submitted>> FindSubmission(const Caller&, const IdempotencyKey&) override {
    return absl::UnimplementedError("");
  }
  void CountRejection(const absl::Status&) override {}
  absl::StatusOr<Job> Get(const Caller&, absl::string_view) override { return absl::UnimplementedError(""); }
  absl::StatusOr<JobPage> List(const Caller&, const ListOptions&) override { return absl::UnimplementedError(""); }
  absl::StatusOr<Job> Cancel(const Caller&, absl::string_view) override { return absl::UnimplementedError(""); }
  absl::StatusOr<ImageFile> OpenImage(const Caller&, absl::string_view) override {
    return absl::UnimplementedError("");
  }
  std::vector<ServedModel> ListModels() override { return {}; }
  ServerInfo Info() override { return {}; }
  absl::Status Ready() override { return absl::OkStatus(); }
  absl::Status Probe() override { return absl::OkStatus(); }
  std::string MetricsText() override { return ""; }

  Listener deliver;
  std::optional<JobEvent> first;
  std::atomic<int> watches_ended = 0;
};

std::string Spelt(const JobEvent& event) {
  if (const auto* queued = std::get_if<QueuedEvent>(&event)) return absl::StrCat("queued ", queued->position);
  if (std::holds_alternative<StartedEvent>(event)) return "started";
  if (const auto* step = std::get_if<StepEvent>(&event)) return absl::StrCat("step ", step->image, ".", step->step);
  if (const auto* preview = std::get_if<PreviewEvent>(&event)) {
    return absl::StrCat("preview ", preview->image, ".", preview->preview);
  }
  if (const auto* image = std::get_if<ImageEvent>(&event)) return absl::StrCat("image ", image->image.index);
  return "ended";
}

// Collects events, and blocks the pump until Open.
class Sink {
 public:
  void operator()(const JobEvent& event) {
    std::unique_lock lock(mutex_);
    events_.push_back(Spelt(event));
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  std::vector<std::string> WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return events_.size() >= count; });
    return events_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
  bool open_ = false;
};

JobEvent Preview(int image, int preview) { return PreviewEvent{.image = image, .preview = preview}; }

JobEvent ImageOf(int index) {
  FinishedImage image;
  image.index = index;
  return ImageEvent{image};
}

TEST(JobEventPumpTest, ASlowSinkMissesWhatWasSupersededAndNothingElse) {
  ScriptedService service;
  Sink sink;
  {
    base::TaskPool pool(2);
    auto pump =
        JobEventPump::Start(service, pool, {}, "job", WatchedEvents::kAll, [&](const JobEvent& event) { sink(event); });
    ASSERT_TRUE(pump.ok()) << pump.status();
    service.deliver(QueuedEvent{.position = 9});
    sink.WaitFor(1);
    for (const JobEvent& event : std::vector<JobEvent>{
             QueuedEvent{.position = 2}, QueuedEvent{.position = 1}, StartedEvent{}, StepEvent{.image = 0, .step = 0},
             StepEvent{.image = 0, .step = 1}, Preview(0, 0), StepEvent{.image = 0, .step = 2}, Preview(0, 1),
             Preview(1, 0), ImageOf(0), StepEvent{.image = 1, .step = 1}, ImageOf(1), EndedEvent{}}) {
      service.deliver(event);
    }
    sink.Open();
  }
  EXPECT_THAT(sink.WaitFor(11), ElementsAre("queued 9", "queued 1", "started", "step 0.1", "step 0.2", "preview 0.1",
                                            "preview 1.0", "image 0", "step 1.1", "image 1", "ended"));
  EXPECT_EQ(service.watches_ended, 1);
}

TEST(JobEventPumpTest, AStepOfOneImageDoesNotSupersedeThoseOfAnother) {
  ScriptedService service;
  Sink sink;
  {
    base::TaskPool pool(2);
    auto pump =
        JobEventPump::Start(service, pool, {}, "job", WatchedEvents::kAll, [&](const JobEvent& event) { sink(event); });
    ASSERT_TRUE(pump.ok()) << pump.status();
    service.deliver(StartedEvent{});
    sink.WaitFor(1);
    for (int step = 1; step <= 3; ++step) {
      for (int image = 0; image < 3; ++image) service.deliver(StepEvent{.image = image, .step = step});
    }
    service.deliver(EndedEvent{});
    sink.Open();
  }
  EXPECT_THAT(sink.WaitFor(5), ElementsAre("started", "step 0.3", "step 1.3", "step 2.3", "ended"));
}

TEST(JobEventPumpTest, NothingIsReportedAfterStop) {
  ScriptedService service;
  Sink sink;
  sink.Open();
  {
    base::TaskPool pool(2);
    auto pump =
        JobEventPump::Start(service, pool, {}, "job", WatchedEvents::kAll, [&](const JobEvent& event) { sink(event); });
    ASSERT_TRUE(pump.ok()) << pump.status();
    service.deliver(StartedEvent{});
    sink.WaitFor(1);
    (*pump)->Stop();
    service.deliver(ImageOf(0));
    (*pump)->Stop();
  }
  EXPECT_THAT(sink.WaitFor(1), ElementsAre("started"));
  EXPECT_EQ(service.watches_ended, 1);
}

TEST(JobEventPumpTest, AnEndThatIsReportedBeforeTheWatchHasBegunEndsIt) {
  ScriptedService service;
  service.first = EndedEvent{};
  Sink sink;
  sink.Open();
  {
    base::TaskPool pool(2);
    ASSERT_TRUE(JobEventPump::Start(service, pool, {}, "job", WatchedEvents::kAll, [&](const JobEvent& event) {
                  sink(event);
                }).ok());
    EXPECT_THAT(sink.WaitFor(1), ElementsAre("ended"));
  }
  EXPECT_EQ(service.watches_ended, 1);
}

TEST(JobEventPumpTest, AJobThatIsNotThereIsAnError) {
  ScriptedService service;
  base::TaskPool pool(1);
  EXPECT_EQ(
      JobEventPump::Start(service, pool, {}, "other", WatchedEvents::kAll, [](const JobEvent&) {}).status().code(),
      absl::StatusCode::kNotFound);
}

TEST(TaskPoolTest, DoesWhatItsTasksPostBeforeItEnds) {
  std::atomic<int> done = 0;
  {
    base::TaskPool pool(3);
    for (int i = 0; i < 10; ++i) {
      pool.Post([&] {
        pool.Post([&] {
          pool.Post([&] { ++done; });
          ++done;
        });
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 30);
}

}  // namespace
}  // namespace tessera::server
