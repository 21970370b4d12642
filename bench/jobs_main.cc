// Measures the figures of docs/performance.md for the job store on this disk: the rates at which it accepts, hands out
// and recovers jobs.
//
//   bench_jobs FOLDER [ROWS [SUBMITTERS [SECONDS]]]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "control/model/model_cost.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/new_job.h"
#include "server/jobs/sqlite_job_store.h"
#include "server/scheduling/request_scheduler.h"

namespace tessera {
namespace {

server::NewJob ExampleJob() {
  server::NewJob job{.tenant = "bench", .request = {.model = "emoji"}};
  job.request.parameters.prompt = "a photograph of a red apple on a wooden table, soft light from the left";
  job.request.parameters.height = job.request.parameters.width = 1024;
  job.request.parameters.steps = 20;
  return job;
}

struct Times {
  std::vector<double> milliseconds;
  double At(double quantile) {
    std::sort(milliseconds.begin(), milliseconds.end());
    return milliseconds.empty() ? 0 : milliseconds[static_cast<size_t>(quantile * (milliseconds.size() - 1))];
  }
};

absl::Status Fill(server::JobStore& store, int64_t rows) {
  // Keeps enough submissions in flight to keep the writing thread busy.
  std::atomic<int64_t> answered{0};
  std::atomic<bool> failed{false};
  for (int64_t sent = 0; sent < rows; ++sent) {
    while (sent - answered > 2048) std::this_thread::yield();
    store.SubmitAsync(ExampleJob(), [&](const absl::StatusOr<server::SubmittedJob>& job) {
      if (!job.ok()) failed = true;
      ++answered;
    });
  }
  while (answered < rows) std::this_thread::yield();
  return failed ? absl::InternalError("a submission failed") : absl::OkStatus();
}

// Measures one group of eight rows with a full queue.
void PlanSteps(server::RequestScheduler& scheduler, const base::Clock& clock) {
  scheduler.groups().Add({.id = 1, .model = "emoji", .max_rows = 8});
  scheduler.groups().OnReady(1);
  Times plans;
  for (int i = 0; i < 2000; ++i) {
    const absl::Duration start = clock.Elapsed();
    const server::StepPlan plan = scheduler.steps().Next(1, clock.Now());
    for (server::TaskId task : plan.start) {
      scheduler.steps().OnStarted(1, task, scheduler.tasks().Find(task)->spec.steps);
    }
    if (!plan.step.empty()) scheduler.steps().OnStepped(1, 0.01);
    for (server::TaskId task : plan.decode) scheduler.steps().OnEnded(1, task);
    plans.milliseconds.push_back(absl::ToDoubleMilliseconds(clock.Elapsed() - start));
  }
  std::printf("plan of a step: median %.4f ms, p99 %.4f ms\n", plans.At(0.5), plans.At(0.99));
}

int Run(const std::string& folder, int64_t rows, int submitters, double seconds) {
  std::filesystem::create_directories(folder);
  base::SystemClock clock;
  server::DiskResultStore files(folder + "/results");
  const server::SqliteJobStoreOptions options = {.path = folder + "/jobs.sqlite3", .files = &files, .clock = &clock};
  absl::StatusOr<std::unique_ptr<server::JobStore>> opened = server::SqliteJobStore::Open(options);
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
    return 1;
  }
  std::unique_ptr<server::JobStore> store = *std::move(opened);
  const int64_t missing = rows - store->Counts()[static_cast<size_t>(server::TaskState::kQueued)];
  absl::Duration began = clock.Elapsed();
  if (missing > 0 && !Fill(*store, missing).ok()) return 1;
  const double fill_seconds = absl::ToDoubleSeconds(clock.Elapsed() - began);
  if (missing > 0) {
    std::printf("fill: %lld jobs at %.0f jobs/s\n", static_cast<long long>(missing), missing / fill_seconds);
  }

  std::vector<Times> submits(static_cast<size_t>(submitters));
  std::vector<std::thread> threads;
  began = clock.Elapsed();
  const absl::Duration end = began + absl::Seconds(seconds);
  for (Times& times : submits) {
    threads.emplace_back([&store, &clock, &times, end] {
      while (clock.Elapsed() < end) {
        const absl::Duration start = clock.Elapsed();
        if (!store->Submit(ExampleJob()).ok()) return;
        times.milliseconds.push_back(absl::ToDoubleMilliseconds(clock.Elapsed() - start));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double submit_seconds = absl::ToDoubleSeconds(clock.Elapsed() - began);
  Times all;
  for (const Times& times : submits) {
    all.milliseconds.insert(all.milliseconds.end(), times.milliseconds.begin(), times.milliseconds.end());
  }
  std::printf("submit: %d submitters, %.0f jobs/s, median %.2f ms, p99 %.2f ms, longest %.2f ms\n", submitters,
              static_cast<double>(all.milliseconds.size()) / submit_seconds, all.At(0.5), all.At(0.99), all.At(1));

  store.reset();
  began = clock.Elapsed();
  const std::clock_t cpu_began = std::clock();
  store = *server::SqliteJobStore::Open(options);
  server::RequestScheduler scheduler({});
  scheduler.capacity().SetModel("emoji", {.flops = {.image = 1}});
  std::vector<uint64_t> queue;
  const absl::StatusOr<server::Recovery> recovery = store->Recover([&](const server::QueuedTask& task) {
    queue.push_back(task.id);
    const control::JobParameters& parameters = task.request->parameters;
    const server::SchedulerTask scheduled = {
        .id = task.id,
        .key = task.tenant,
        .shape = {.model = task.request->model, .height = parameters.height, .width = parameters.width},
        .steps = parameters.steps,
        .enqueued = task.created};
    scheduler.Enqueue(scheduled, task.created).IgnoreError();
  });
  if (!recovery.ok()) return 1;
  std::printf("recovery: %lld queued jobs in %.2f s, the scheduler's queue included; %.2f s of processor time\n",
              static_cast<long long>(recovery->queued), absl::ToDoubleSeconds(clock.Elapsed() - began),
              static_cast<double>(std::clock() - cpu_began) / CLOCKS_PER_SEC);

  Times claims;
  for (size_t i = 0; i < 500 && i < queue.size(); ++i) {
    const absl::Duration start = clock.Elapsed();
    if (!store->Claim(queue[i * (queue.size() / 500)]).ok()) return 1;
    claims.milliseconds.push_back(absl::ToDoubleMilliseconds(clock.Elapsed() - start));
  }
  PlanSteps(scheduler, clock);
  std::printf("claim: median %.2f ms, p99 %.2f ms, longest %.2f ms\n", claims.At(0.5), claims.At(0.99), claims.At(1));
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  int64_t rows = 1'000'000;
  int submitters = 32;
  double seconds = 5;
  if (argc < 2 || argc > 5 || (argc > 2 && !absl::SimpleAtoi(argv[2], &rows)) ||
      (argc > 3 && !absl::SimpleAtoi(argv[3], &submitters)) || (argc > 4 && !absl::SimpleAtod(argv[4], &seconds)) ||
      submitters < 1 || rows < 0) {
    std::fprintf(stderr, "usage: bench_jobs FOLDER [ROWS [SUBMITTERS [SECONDS]]]\n");
    return 2;
  }
  return tessera::Run(argv[1], rows, submitters, seconds);
}
