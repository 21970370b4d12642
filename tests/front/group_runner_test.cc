// Tests what a group runner reports while its workers die.
#include "server/serving/group_runner.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "control/parameters/job_parameters.h"
#include "tests/front/child_process.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(60);

// Has one task for the group. Blocks the runner's thread in WaitForWork or OnDied until it is released.
class HoldingOwner final : public server::GroupOwner {
 public:
  void OnReady(server::GroupId, const std::optional<control::MemoryBudget>&) override { Reached(ready_); }
  void OnDied(server::GroupId, const absl::Status&, bool) override {
    Reached(died_);
    WaitUntilReleased();
  }
  void OnRefused(server::GroupId) override {}
  server::StepPlan Next(server::GroupId) override {
    const std::lock_guard lock(mutex_);
    if (!has_task_) return {};
    has_task_ = false;
    return {.start = {1}, .step = {1}};
  }
  void WaitForWork(server::GroupId, absl::Duration) override {
    Reached(idle_);
    WaitUntilReleased();
  }
  absl::StatusOr<server::RunnableTask> Claim(server::GroupId, server::TaskId) override {
    server::RunnableTask task;
    task.parameters = std::make_shared<const control::JobParameters>(control::JobParameters{
        .prompt = "x", .height = 16, .width = 16, .steps = 4, .guidance_scale = 1, .sampler = "ddim"});
    return task;
  }
  std::vector<int32_t> OnStarted(server::GroupId, server::TaskId, const control::JobStarted&) override { return {}; }
  void OnBatchDiffers(server::GroupId, const std::vector<server::TaskId>&) override {}
  void OnStepped(server::GroupId, const std::vector<server::TaskId>&, double) override {}
  void OnPreview(server::GroupId, server::TaskId, const control::Frames&) override {}
  void OnDecoded(server::GroupId, server::TaskId, control::Frames, const control::JobStarted&, double) override {}
  void OnFailed(server::GroupId, server::TaskId, const absl::Status&) override {}
  void OnBatchFailed(server::GroupId, const std::vector<server::TaskId>&, const absl::Status&) override {}
  void OnEnded(server::GroupId, server::TaskId) override {}

  void GiveTask() {
    const std::lock_guard lock(mutex_);
    has_task_ = true;
  }
  bool WaitForReady() { return WaitFor(ready_); }
  bool WaitForIdle() { return WaitFor(idle_); }
  bool WaitForDeath() { return WaitFor(died_); }
  void Release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  void Reached(bool& what) {
    const std::lock_guard lock(mutex_);
    what = true;
    changed_.notify_all();
  }
  bool WaitFor(const bool& what) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoMilliseconds(kSoon), [&] { return what; });
  }
  void WaitUntilReleased() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return released_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_task_ = false, ready_ = false, idle_ = false, died_ = false, released_ = false;
};

class GroupRunnerTest : public ::testing::Test {
 protected:
  GroupRunnerTest() {
    std::ofstream(folder_ / "model_index.json") << "{}";
    setenv("TESSERA_WORKER", FAKE_WORKER, 1);
    setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  }

  void Start(const std::string& script) {
    setenv("TESSERA_FAKE_WORKER", script.c_str(), 1);
    server::GroupRunnerOptions options = {.id = 1, .name = "tiny-0", .model_name = "tiny"};
    options.model.size_multiple = 8;
    options.model.min_size = options.model.default_height = options.model.default_width = 16;
    options.model.max_size = 64;
    options.model.max_steps = 100;
    options.load.model = folder_.path();
    options.certificates = folder_ / "certificates";
    runner_ = std::make_unique<server::GroupRunner>(options, owner_, [](const std::string&) {});
  }

  void TearDown() override {
    owner_.Release();
    runner_.reset();
  }

  TestFolder folder_;
  HoldingOwner owner_;
  std::unique_ptr<server::GroupRunner> runner_;
};

TEST_F(GroupRunnerTest, IsNotReadyAnyMoreWhenItsOwnerHearsOfItsDeath) {
  owner_.GiveTask();
  Start("step1-of-x=die");
  ASSERT_TRUE(owner_.WaitForDeath());
  EXPECT_FALSE(runner_->Progress().is_ready());
  EXPECT_EQ(runner_->Info().state, server::GroupState::kRestarting);
  EXPECT_EQ(runner_->Probe(kSoon).code(), absl::StatusCode::kUnavailable);
}

TEST_F(GroupRunnerTest, IsNotReadyAnyMoreOnceItsWorkersAreKnownToBeDeadWhateverItsThreadDoes) {
  Start("");
  ASSERT_TRUE(owner_.WaitForReady());
  ASSERT_TRUE(owner_.WaitForIdle());
  EXPECT_TRUE(runner_->Progress().is_ready());
  const std::vector<pid_t> workers = ProcessesWith(FAKE_WORKER, "XDG_RUNTIME_DIR", folder_.path());
  ASSERT_EQ(workers.size(), 1u);
  kill(workers[0], SIGKILL);
  WaitUntil("a runner that is not ready", [&] { return !runner_->Progress().is_ready(); });
  EXPECT_EQ(runner_->Info().state, server::GroupState::kRestarting);
  EXPECT_EQ(runner_->Probe(kSoon).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tessera
