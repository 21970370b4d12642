// ServingParts holds the parts of the service over an in-memory job store and without real groups. Each check returns
// whether a property of them holds. The ordinary tests expect true; the tests with a planted bug expect false.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "control/model/model_description.h"
#include "server/adapters/served_adapters.h"
#include "server/api/caller.h"
#include "server/api/image_request.h"
#include "server/api/job_request.h"
#include "server/api/request_fields.h"
#include "server/api/service_error.h"
#include "server/pictures/uploaded_pictures.h"
#include "server/scheduling/shape_class.h"
#include "server/serving/job_admission.h"
#include "server/serving/job_lifecycle.h"
#include "server/serving/job_outcomes.h"
#include "server/serving/maintenance.h"
#include "server/serving/shared_queue.h"
#include "server/serving/watch_hub.h"
#include "server/serving/watched_job.h"
#include "tests/support/fake_job_store.h"
#include "tests/support/wait_until.h"

namespace tessera {

inline constexpr server::GroupId kGroup = 1;
inline constexpr char kTenant[] = "me";

class FakeGroups final : public server::ServingGroups {
 public:
  explicit FakeGroups(server::ServedModels& models) : models_(models) {}
  server::ServingGroup Find(const server::ServiceMonitor::Lock&, server::GroupId) const override {
    return {.name = "m-0", .model = models_.Find("m")};
  }
  void OnReady(const server::ServiceMonitor::Lock&, server::GroupId,
               const std::optional<control::MemoryBudget>&) override {}
  void OnRefused(const server::ServiceMonitor::Lock&, server::GroupId) override {}
  void ReplaceAbandoned(const server::ServiceMonitor::Lock&) override { ++replaced; }

  int replaced = 0;

 private:
  server::ServedModels& models_;
};

// One group of one model, ready for tasks.
struct ServingParts {
  ServingParts() {
    const server::ServiceMonitor::Lock lock = monitor.Acquire();
    control::ModelDescription model;
    model.size_multiple = 8;
    model.min_size = model.default_height = model.default_width = 16;
    model.max_size = 64;
    model.max_steps = 100;
    models.Put({.id = "m", .description = std::make_shared<const control::ModelDescription>(model)});
    monitor.scheduler(lock).capacity().SetModel("m", {.flops = {.image = 1}});
    monitor.scheduler(lock).groups().Add({.id = kGroup, .model = "m", .max_rows = 2});
    monitor.scheduler(lock).groups().OnReady(kGroup);
  }
  ~ServingParts() { monitor.Stop(); }

  static server::JobRequest Request(int32_t steps = 1) {
    server::JobRequest request = {.model = "m"};
    request.parameters = {.prompt = "x", .height = 16, .width = 16, .steps = steps, .sampler = "ddim"};
    return request;
  }
  // Submits a job of one image and returns its task.
  server::TaskId Submit(const std::optional<absl::Duration>& timeout = std::nullopt) {
    server::JobRequest request = Request();
    request.timeout = timeout;
    return Submit(request);
  }
  server::TaskId Submit(const server::JobRequest& request) {
    const absl::StatusOr<server::Submitted> submitted = admission.Submit({.tenant = kTenant}, request, std::nullopt);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    job = submitted.ok() ? submitted->job.id : "";
    return submitted.ok() ? store.Get(kTenant, job)->tasks[0].id : 0;
  }
  // Watches the job that was submitted last.
  void Watch() {
    absl::StatusOr<std::unique_ptr<server::JobWatch>> watched =
        server::WatchJob(context, kTenant, job, server::WatchedEvents::kAll, [this](const server::JobEvent& event) {
          const std::lock_guard lock(mutex);
          events.push_back(event);
        });
    EXPECT_TRUE(watched.ok()) << watched.status();
    if (watched.ok()) watch = *std::move(watched);
  }
  // Ends the watch and returns all events that it received.
  std::vector<server::JobEvent> Events() {
    hub.ReleaseAll(server::DrainingError());
    const std::lock_guard lock(mutex);
    return events;
  }
  // Runs a whole image of the task in the group, up to storing its file.
  void RunUntilDecoded(server::TaskId task) {
    EXPECT_THAT(jobs.Next(kGroup).start, testing::ElementsAre(task));
    EXPECT_TRUE(jobs.Claim(kGroup, task).ok());
    jobs.OnStarted(kGroup, task, {.steps = 1});
    EXPECT_THAT(jobs.Next(kGroup).decode, testing::ElementsAre(task));
    jobs.OnStepped(kGroup, {task}, 1);
    jobs.OnDecoded(kGroup, task, {.width = 1, .height = 1, .bytes = {1, 2, 3}}, {.steps = 1}, 1);
  }
  int64_t Waiting() { return monitor.scheduler(monitor.Acquire()).tasks().waiting(); }
  void WaitUntilForgotten(server::TaskId task) {
    WaitUntil("the task has ended", [&] {
      const server::ServiceMonitor::Lock lock = monitor.Acquire();
      return monitor.tasks(lock).Find(task) == nullptr;
    });
  }
  // Waits until the pool has stored everything.
  void WaitUntilStored() {
    server::ServiceMonitor::Lock lock = monitor.Acquire();
    EXPECT_TRUE(monitor.WaitFor(lock, absl::Seconds(60), [&] { return outcomes.unstored(lock) == 0; }));
  }

  FakeJobStore store;
  server::ServiceMonitor monitor{{}};
  server::ServedModels models;
  FakeGroups groups{models};
  const std::unique_ptr<server::ContentStore> contents = *server::ContentStore::Open({});  // none
  const std::unique_ptr<server::ServedAdapters> adapters = *server::ServedAdapters::Open({}, *contents);
  server::UploadedPictures pictures{{}, *contents};
  server::ServiceMetrics metrics;
  server::QueueTrace trace{nullptr};
  server::WatchHub hub;
  std::mutex mutex;
  std::vector<server::JobEvent> events;  // guarded by mutex
  std::unique_ptr<server::JobWatch> watch;
  std::string job;
  std::vector<std::string> log;
  const server::ServingContext context = {.monitor = monitor,
                                          .store = store,
                                          .hub = hub,
                                          .models = models,
                                          .groups = groups,
                                          .contents = *contents,
                                          .adapters = *adapters,
                                          .pictures = pictures,
                                          .metrics = metrics,
                                          .trace = trace,
                                          .log = [this](const std::string& line) {
                                            const std::lock_guard lock(mutex);
                                            log.push_back(line);
                                          }};
  server::JobOutcomes outcomes{context};
  server::JobLifecycle jobs{context, outcomes};
  server::JobAdmission admission{context, jobs, outcomes, {}};
  server::Maintenance maintenance{context, jobs, outcomes, absl::Seconds(1)};
};

template <typename Event>
std::optional<size_t> PlaceOf(const std::vector<server::JobEvent>& events) {
  for (size_t i = 0; i < events.size(); ++i) {
    if (std::holds_alternative<Event>(events[i])) return i;
  }
  return std::nullopt;
}

inline bool AClaimIsReportedAfterItIsMade() {
  ServingParts parts;
  const server::TaskId task = parts.Submit();
  parts.Watch();
  // An impossible step number marks the moment of the claim.
  parts.store.on_claim = [&] { parts.hub.Publish(parts.job, server::StepEvent{.step = 99}); };
  parts.RunUntilDecoded(task);
  parts.WaitUntilStored();
  const std::vector<server::JobEvent> events = parts.Events();
  return PlaceOf<server::StartedEvent>(events).has_value() &&
         *PlaceOf<server::StepEvent>(events) < *PlaceOf<server::StartedEvent>(events);
}

inline bool AJobThatEndsWhileItsStateIsReadIsSeenToEnd() {
  ServingParts parts;
  const server::TaskId task = parts.Submit();
  parts.store.on_get = [&] {
    parts.RunUntilDecoded(task);
    parts.WaitUntilStored();
  };
  parts.Watch();
  return PlaceOf<server::EndedEvent>(parts.Events()).has_value();
}

// A notice of a shared queue may arrive after this server has claimed the task in it.
inline bool ALateNoticeTakesNothingFromAGroup() {
  ServingParts parts;
  server::SharedQueue queue(parts.context, parts.jobs, parts.outcomes);
  const server::TaskId task = parts.Submit();
  const server::JobRecord before = *parts.store.Get(kTenant, parts.job);
  std::promise<void> may_finish;
  parts.store.on_finish = [&] { may_finish.get_future().wait(); };
  parts.RunUntilDecoded(task);
  queue.OnChanged(before);
  const bool queued_again = [&] {
    const server::ServiceMonitor::Lock lock = parts.monitor.Acquire();
    const server::LiveTask* live = parts.monitor.tasks(lock).Find(task);
    return live == nullptr || !live->attempt.has_value() || live->again;
  }();
  may_finish.set_value();
  parts.WaitUntilStored();
  return !queued_again && parts.store.StateOfTask(task) == server::TaskState::kDone;
}

inline bool AFinishedTaskIsNotQueuedAgainWhenItsGroupEnds() {
  ServingParts parts;
  const server::TaskId task = parts.Submit();
  std::promise<void> may_finish;
  parts.store.on_finish = [&] { may_finish.get_future().wait(); };
  parts.RunUntilDecoded(task);
  parts.jobs.OnDied(kGroup, absl::CancelledError("the server is stopping"), /*blameless=*/true);
  const bool queued_again = parts.Waiting() > 0;
  may_finish.set_value();
  parts.WaitUntilStored();
  return !queued_again && parts.store.StateOfTask(task) == server::TaskState::kDone;
}

inline bool TheKeyThatWasServedLeastIsNext() {
  server::RequestScheduler scheduler({});
  const absl::Time now = absl::FromUnixSeconds(1'800'000'000);
  scheduler.capacity().SetModel("m", {.flops = {.image = 1}});
  scheduler.groups().Add({.id = kGroup, .model = "m", .max_rows = 1});
  scheduler.groups().OnReady(kGroup);
  const auto enqueue = [&](server::TaskId id, const std::string& key, int32_t steps) {
    const server::SchedulerTask task = {
        .id = id, .key = key, .shape = {.model = "m", .height = 8, .width = 8}, .steps = steps, .enqueued = now};
    return scheduler.Enqueue(task, now).ok();
  };
  const auto run = [&] {  // runs the next task to its end
    const server::StepPlan plan = scheduler.steps().Next(kGroup, now);
    if (plan.start.size() != 1) return server::TaskId{0};
    const server::TaskId task = plan.start[0];
    scheduler.steps().OnStarted(kGroup, task, scheduler.tasks().Find(task)->spec.steps);
    while (true) {
      const server::StepPlan step = scheduler.steps().Next(kGroup, now);
      if (!step.step.empty()) scheduler.steps().OnStepped(kGroup, 1);
      if (!step.decode.empty()) break;
    }
    scheduler.steps().OnEnded(kGroup, task);
    return task;
  };
  // The 100 steps of key "a" count more than the short tasks that follow, so the task of key "b" is next.
  if (!enqueue(1, "a", 100) || run() != 1) return false;
  return enqueue(2, "a", 1) && enqueue(3, "b", 1) && run() == 3;
}

inline bool EveryFieldChangesTheDigest() {
  const std::string none = server::RequestDigest({});
  server::ImageRequest seed, steps, negative;
  seed.seed = 1;
  steps.steps = 1;
  negative.negative_prompt = "x";
  return server::RequestDigest(seed) != none && server::RequestDigest(steps) != none &&
         server::RequestDigest(negative) != none;
}

}  // namespace tessera
