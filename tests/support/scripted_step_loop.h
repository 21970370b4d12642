// Runs the step loop with workers that only record the requests they get, and an owner that plans as scripted.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "control/parameters/job_parameters.h"
#include "server/workers/step_loop.h"

namespace tessera {

// Records requests for jobs of few steps. A decode is recorded with the number of steps before it. A wait names the
// command by its number among steps and decodes, or the start or end of a job by the job.
class FakeStepWorkers final : public server::StepWorkers {
 public:
  absl::StatusOr<uint64_t> SendStartJob(uint64_t job, const control::JobParameters&) override {
    Note("start ", job);
    of_jobs_[++sequence_] = job;
    return sequence_;
  }
  absl::StatusOr<control::JobStarted> WaitForStart(uint64_t sequence) override {
    const uint64_t job = of_jobs_[sequence];
    Note("started ", job);
    if (failing_start == job) return start_error;
    return control::JobStarted();
  }
  absl::StatusOr<int32_t> EncodePrompts(absl::Span<const control::JobParameters> jobs) override {
    Note("encode ", jobs.size());
    return prompts_encoded;
  }
  absl::StatusOr<uint64_t> SendSteps(absl::Span<const uint64_t> jobs, int32_t count) override {
    Note("send ", absl::StrCat(absl::StrJoin(jobs, "+"), count > 1 ? absl::StrCat(" x", count) : ""));
    for (const uint64_t job : jobs) steps_[job] += count;
    sent_[++sequence_] = {.number = ++number_, .completed = steps_[jobs[0]], .count = count};
    return sequence_;
  }
  absl::StatusOr<std::vector<control::Stepped>> WaitForSteps(uint64_t sequence) override {
    const Sent& sent = sent_[sequence];
    Note("wait ", sent.number);
    if (failing_step == sent.number) return step_error;
    std::vector<control::Stepped> steps;
    for (int32_t step = sent.completed - sent.count + 1; step <= sent.completed - lost_steps; ++step) {
      steps.push_back({.completed = step + extra_steps, .seconds = 1});
    }
    return steps;
  }
  absl::StatusOr<uint64_t> SendDecode(uint64_t job) override {
    Note("decode ", absl::StrCat(job, " after ", steps_[job]));
    sent_[++sequence_] = {.number = ++number_, .completed = steps_[job]};
    return sequence_;
  }
  absl::StatusOr<control::DecodedPicture> WaitForDecode(uint64_t sequence, const control::JobStarted&) override {
    Note("wait ", sent_[sequence].number);
    return control::DecodedPicture{.completed = sent_[sequence].completed - steps_not_in_pictures};
  }
  // Chooses images before steps unless `slow_pictures` or `all_answered` is set.
  uint64_t WaitForAny(absl::Span<const uint64_t> sequences) override {
    const auto found = std::ranges::find_if(
        sequences, [this](uint64_t sequence) { return slow_pictures == (sent_[sequence].count > 0); });
    return all_answered || found == sequences.end() ? sequences.front() : *found;
  }
  absl::StatusOr<uint64_t> SendEndJob(uint64_t job) override {
    Note("end ", job);
    of_jobs_[++sequence_] = job;
    return sequence_;
  }
  absl::Status WaitForEnd(uint64_t sequence) override {
    Note("ended ", of_jobs_[sequence]);
    return absl::OkStatus();
  }
  absl::Status health() override { return absl::OkStatus(); }

  std::vector<std::string> asked;
  uint64_t failing_start = 0, failing_step = 0;
  absl::Status start_error = absl::InvalidArgumentError("refused");
  absl::Status step_error = absl::InternalError("a step failed");
  int32_t extra_steps = 0;  // reported by the worker but not requested
  int32_t lost_steps = 0;   // missing in each reply
  int32_t steps_not_in_pictures = 0;
  bool slow_pictures = false;
  bool all_answered = false;  // every command has been answered, so the first is chosen
  int32_t prompts_encoded = 0;

 private:
  template <typename What>
  void Note(const char* verb, const What& what) {
    asked.push_back(absl::StrCat(verb, what));
  }
  struct Sent {
    uint64_t number = 0;
    int32_t completed = 0;
    int32_t count = 0;  // number of steps
  };
  std::map<uint64_t, int32_t> steps_;
  std::map<uint64_t, Sent> sent_;         // steps and decodes
  std::map<uint64_t, uint64_t> of_jobs_;  // starts and ends, by command
  uint64_t sequence_ = 0, number_ = 0;
};

// Plans as scripted and records the notifications it gets.
class FakeStepOwner final : public server::StepOwner {
 public:
  server::StepPlan Next(server::GroupId) override {
    if (plans.empty()) return {};
    server::StepPlan plan = plans.front();
    plans.pop_front();
    if (on_plan) on_plan(plan);
    return plan;
  }
  void WaitForWork(server::GroupId, absl::Duration) override { heard.push_back("idle"); }
  absl::StatusOr<server::RunnableTask> Claim(server::GroupId, server::TaskId) override {
    server::RunnableTask claimed;
    claimed.parameters = std::make_shared<const control::JobParameters>(parameters);
    return claimed;
  }
  std::vector<int32_t> OnStarted(server::GroupId, server::TaskId task, const control::JobStarted&) override {
    heard.push_back(absl::StrCat("started ", task));
    return preview_after;
  }
  void OnBatchDiffers(server::GroupId, const std::vector<server::TaskId>&) override { heard.push_back("differs"); }
  void OnStepped(server::GroupId, const std::vector<server::TaskId>& tasks, double) override {
    heard.push_back(absl::StrCat("stepped ", absl::StrJoin(tasks, "+")));
  }
  void OnPreview(server::GroupId, server::TaskId task, const control::Frames&) override {
    heard.push_back(absl::StrCat("preview ", task));
  }
  void OnDecoded(server::GroupId, server::TaskId task, control::Frames, const control::JobStarted&, double) override {
    heard.push_back(absl::StrCat("decoded ", task));
  }
  void OnFailed(server::GroupId, server::TaskId task, const absl::Status&) override {
    heard.push_back(absl::StrCat("failed ", task));
  }
  void OnBatchFailed(server::GroupId, const std::vector<server::TaskId>& tasks, const absl::Status&) override {
    heard.push_back(absl::StrCat("batch failed ", absl::StrJoin(tasks, "+")));
  }
  void OnEnded(server::GroupId, server::TaskId task) override { heard.push_back(absl::StrCat("ended ", task)); }

  std::deque<server::StepPlan> plans;
  std::vector<int32_t> preview_after;
  control::JobParameters parameters;                     // of every task
  std::function<void(const server::StepPlan&)> on_plan;  // called before the plan is executed
  std::vector<std::string> heard;
};

struct ScriptedStepLoop {
  explicit ScriptedStepLoop(server::StepLoopOptions options = {}) : loop(workers, owner, trace, std::move(options)) {}

  // Runs until the loop is idle.
  absl::Status Run(std::deque<server::StepPlan> plans) {
    owner.plans = std::move(plans);
    while (owner.heard.empty() || owner.heard.back() != "idle") {
      if (absl::Status turned = loop.Turn(); !turned.ok()) return turned;
    }
    return absl::OkStatus();
  }

  FakeStepWorkers workers;
  FakeStepOwner owner;
  server::GroupTrace trace{nullptr, "", 1};
  server::StepLoop loop;
};

inline bool APreviewIsOfItsOwnStep() {
  ScriptedStepLoop loop;
  loop.owner.preview_after = {1};
  EXPECT_TRUE(loop.Run({{.start = {1}}, {.step = {1}}, {.step = {1}}, {.step = {1}, .decode = {1}}}).ok());
  const auto preview =
      std::ranges::find_if(loop.workers.asked, [](const std::string& asked) { return asked.starts_with("decode"); });
  return *preview == "decode 1 after 1";
}

}  // namespace tessera
