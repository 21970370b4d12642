// Tests WantedGroups with fake workers and an in-memory job store.
#include "server/serving/wanted_groups.h"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/service_error.h"
#include "server/pictures/uploaded_pictures.h"
#include "server/serving/watch_hub.h"
#include "tests/front/fake_worker_test.h"
#include "tests/support/fake_job_store.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Lock = server::ServiceMonitor::Lock;

class WantedGroupsTest : public FakeWorkerTest {
 protected:
  WantedGroupsTest() {
    options_.first_back_off = absl::Milliseconds(1);
    options_.data_folder = folder_ / "data";
    options_.log = [this](const base::LogLine& line) {
      const std::lock_guard lock(log_mutex_);
      log_.push_back(line.text);
    };
  }

  void TearDown() override {
    monitor_.Stop();
    wanted_.reset();
    if (fleet_ != nullptr) fleet_->Stop();
    outcomes_.reset();
    FakeWorkerTest::TearDown();
  }

  server::ServedGroupOptions Group(const std::string& name, const std::string& folder) {
    return {.name = name, .load = {.model = folder_ / folder}};
  }
  absl::Status Install(const std::vector<server::ServedGroupOptions>& groups) {
    options_.groups = groups;
    fleet_ = std::make_unique<server::GroupFleet>(monitor_, models_, options_, options_.data_folder, "owner");
    wanted_ = std::make_unique<server::WantedGroups>(monitor_, models_, *fleet_, options_, "owner");
    return wanted_->Install();
  }
  void Start() {
    context_ = std::make_unique<const server::ServingContext>(server::ServingContext{.monitor = monitor_,
                                                                                     .store = store_,
                                                                                     .hub = hub_,
                                                                                     .models = models_,
                                                                                     .groups = *fleet_,
                                                                                     .contents = *contents_,
                                                                                     .adapters = *adapters_,
                                                                                     .pictures = pictures_,
                                                                                     .metrics = metrics_,
                                                                                     .trace = trace_,
                                                                                     .log = options_.log});
    outcomes_ = std::make_unique<server::JobOutcomes>(*context_);
    jobs_ = std::make_unique<server::JobLifecycle>(*context_, *outcomes_);
    wanted_->Start(*jobs_, *outcomes_);
  }
  bool WaitUntilReady(const std::string& model) {
    return WaitUntil("a group of the model is ready",
                     [&] { return fleet_->ProgressOf(monitor_.Acquire(), model).is_ready(); });
  }
  // Returns the installed groups.
  std::vector<server::GroupInfo> Infos() { return fleet_->Infos(monitor_.Acquire()); }
  std::vector<server::GroupInfo> Unreadable() { return wanted_->UnreadableInfos(monitor_.Acquire()); }
  // Returns the answer to requests for the model.
  absl::Status Answer(const std::string& name) {
    const Lock lock = monitor_.Acquire();
    const server::ServedModels::Model model = models_.Find(name);
    return model == nullptr ? absl::NotFoundError(name) : model->unreadable;
  }
  std::vector<std::string> Log() {
    const std::lock_guard lock(log_mutex_);
    return log_;
  }

  server::ServiceMonitor monitor_{{}};
  server::ServedModels models_;
  FakeJobStore store_;
  server::WatchHub hub_;
  server::ServiceMetrics metrics_;
  server::QueueTrace trace_{nullptr};
  server::DurableServiceOptions options_;
  std::mutex log_mutex_;
  std::vector<std::string> log_;  // guarded by log_mutex_
  std::unique_ptr<server::GroupFleet> fleet_;
  std::unique_ptr<server::WantedGroups> wanted_;
  const std::unique_ptr<server::ContentStore> contents_ = *server::ContentStore::Open({});  // none
  const std::unique_ptr<server::ServedAdapters> adapters_ = *server::ServedAdapters::Open({}, *contents_);
  server::UploadedPictures pictures_{{}, *contents_};
  std::unique_ptr<const server::ServingContext> context_;
  std::unique_ptr<server::JobOutcomes> outcomes_;
  std::unique_ptr<server::JobLifecycle> jobs_;
};

TEST_F(WantedGroupsTest, WhoseModelCannotBeReadAreShownAndInstalledOnceItCan) {
  ASSERT_EQ(Install({Group("late", "later"), Group("m", "model")}), absl::OkStatus());
  EXPECT_EQ(server::ErrorCode(Answer("late")), "no_group");
  EXPECT_EQ(Answer("m"), absl::OkStatus());
  const std::vector<server::GroupInfo> unreadable = Unreadable();
  ASSERT_EQ(unreadable.size(), 1u);
  EXPECT_EQ(unreadable[0].name, "late-0");
  EXPECT_EQ(unreadable[0].state, server::GroupState::kRefused);
  EXPECT_THAT(unreadable[0].reason, StartsWith("model late: "));
  EXPECT_THAT(Log(), Contains(StartsWith("group late-0: refused: model late: ")).Times(1));
  Start();
  ASSERT_TRUE(WaitUntilReady("m"));
  folder_.Write("later/model_index.json", "{}");
  ASSERT_TRUE(WaitUntilReady("late"));
  EXPECT_EQ(Answer("late"), absl::OkStatus());
  EXPECT_THAT(Unreadable(), IsEmpty());
  EXPECT_THAT(Log(), Contains(StartsWith("group late-0: refused")).Times(1)) << "a reason is logged when it is new";
}

TEST_F(WantedGroupsTest, OfWhichNoneCanBeReadEndTheStartUnlessItMayGoOn) {
  EXPECT_THAT(std::string(Install({Group("m", "nowhere"), Group("n", "nowhere")}).message()), StartsWith("model m: "));
  wanted_.reset();
  options_.may_start_without_models = true;
  EXPECT_EQ(Install({Group("m", "nowhere")}), absl::OkStatus());
  EXPECT_EQ(Unreadable().size(), 1u);
}

TEST_F(WantedGroupsTest, WhoseDeviceNeverWorksAreRefusedAndTriedAgainAndAgain) {
  Order("no-device");
  ASSERT_EQ(Install({Group("m", "model")}), absl::OkStatus());
  Start();
  ASSERT_TRUE(WaitUntil("the group was tried three times", [this] { return Infos()[0].restarts >= 3; }));
  server::GroupInfo refused;
  ASSERT_TRUE(WaitUntil("it is refused", [&] {
    refused = Infos()[0];
    return refused.state == server::GroupState::kRefused;
  }));
  EXPECT_EQ(refused.reason, "device 'cpu' is not available");
  EXPECT_FALSE(fleet_->ProgressOf(monitor_.Acquire(), "m").is_ready());
  EXPECT_EQ(Answer("m"), absl::OkStatus()) << "its model can be read";
  const Lock lock = monitor_.Acquire();
  EXPECT_EQ(monitor_.scheduler(lock).capacity().CheckFits({.model = "m", .height = 16, .width = 16}).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(WantedGroupsTest, ThatAreWantedNoMoreEndAndWhatWaitsForThemFails) {
  Order("no-device");
  ASSERT_EQ(Install({Group("m", "model")}), absl::OkStatus());
  Start();
  server::JobRequest request = {.model = "m"};
  request.parameters = {.prompt = "x", .height = 16, .width = 16, .steps = 1, .sampler = "ddim"};
  const absl::StatusOr<server::SubmittedJob> job = store_.Submit({.tenant = "me", .request = request});
  ASSERT_TRUE(job.ok()) << job.status();
  const server::TaskId task = job->job.tasks[0].id;
  {
    const Lock lock = monitor_.Acquire();
    jobs_->Enqueue(lock, {.id = task, .job = job->job.id, .tenant = "me", .request = &request}, /*ticket=*/0);
  }
  wanted_->Set({Group("other", "model")});
  ASSERT_TRUE(WaitUntil("the task has failed", [&] { return store_.StateOfTask(task) == server::TaskState::kFailed; }));
  Order("");  // not before: the first group would make the task
  ASSERT_TRUE(WaitUntilReady("other"));
  ASSERT_TRUE(WaitUntil("the first group has ended", [this] { return Infos().size() == 1; }));
  EXPECT_EQ(Infos()[0].name, "other-1");
  EXPECT_TRUE(absl::IsNotFound(Answer("m")));
}

}  // namespace
}  // namespace tessera
