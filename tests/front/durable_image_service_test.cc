#include "server/serving/durable_image_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/api/image_request.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/request_fields.h"
#include "server/api/service_error.h"
#include "server/image/image_file.h"
#include "server/metadata/parameters_text.h"
#include "tests/jobs/faulty_disk.h"
#include "tests/support/picture_of.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kSoon = absl::Seconds(60);

// Records the events of a watch and waits for its end.
class Events {
 public:
  server::ImageService::Listener listener() {
    return [this](const server::JobEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
      changed_.notify_all();
    };
  }

  template <class Event>
  bool WaitFor() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoMilliseconds(kSoon), [this] { return Count<Event>() > 0; });
  }

  template <class Event>
  int Count() const {
    int count = 0;
    for (const server::JobEvent& event : events_) count += std::holds_alternative<Event>(event);
    return count;
  }

  server::Job WaitForEnd() {
    EXPECT_TRUE(WaitFor<server::EndedEvent>());
    const std::lock_guard lock(mutex_);
    const auto* end = std::get_if<server::EndedEvent>(&events_.back());
    EXPECT_NE(end, nullptr) << "something came after the end";
    return end == nullptr ? server::Job() : end->job;
  }

  const std::vector<server::JobEvent>& events() const { return events_; }  // call it after the end

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<server::JobEvent> events_;
};

class DurableImageServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("TESSERA_WORKER", FAKE_WORKER, 1);
    std::filesystem::create_directory(folder_ / "tiny");
    std::ofstream(folder_ / "tiny/model_index.json") << "{}";
  }
  void TearDown() override { service_.reset(); }

  void Start(const std::string& script = "", server::DurableServiceOptions options = {}) {
    setenv("TESSERA_FAKE_WORKER", script.c_str(), 1);
    options.data_folder = folder_ / "data";
    options.groups = {
        {.name = "tiny", .load = {.model = folder_ / "tiny", .placement = placement_}, .layout = layout_}};
    options.first_back_off = absl::Milliseconds(1);
    if (!options.log) options.log = [](const std::string&) {};
    absl::StatusOr<std::unique_ptr<server::DurableImageService>> service = server::DurableImageService::Start(options);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
  }

  static server::JobRequest Request(uint64_t seed = 1, int32_t count = 1) {
    server::JobRequest request = {.model = "tiny", .count = count};
    request.parameters = {.prompt = "x", .height = 16, .width = 24, .steps = 6, .seed = seed, .sampler = "ddim"};
    return request;
  }

  std::string Submit(const server::JobRequest& request) {
    const absl::StatusOr<server::Submitted> submitted = service_->Submit(caller_, request, std::nullopt);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    return submitted.ok() ? submitted->job.id : "";
  }

  server::Job WaitForEnd(const std::string& job) {
    Events events;
    const auto watch = service_->Watch(caller_, job, server::WatchedEvents::kAll, events.listener());
    EXPECT_TRUE(watch.ok()) << watch.status();
    return events.WaitForEnd();
  }

  // Waits until the group is refused. It is tried again at once, so that the reason does not stay.
  std::string ReasonOfRefusal() {
    server::GroupInfo group;
    WaitUntil("a refused group", [&] {
      group = service_->Info().groups[0];
      return group.state == server::GroupState::kRefused;
    });
    return group.reason;
  }

  // Returns the file of a finished image.
  std::string FileOf(const server::Job& job, size_t index = 0) {
    if (job.images.size() <= index) return "no image";
    return *base::ReadAll(*service_->OpenImage(caller_, job.images[index].id)->bytes);
  }

  TestFolder folder_;
  FaultyDisk disk_;
  server::LayoutRequest layout_;
  control::Placement placement_;
  server::Caller caller_ = {.tenant = "me"};
  std::unique_ptr<server::DurableImageService> service_;
};

TEST_F(DurableImageServiceTest, ReportsEverythingThatHappensToAJobInOrder) {
  Start(absl::StrCat("gate=", folder_ / "gate"));
  server::JobRequest request = Request(/*seed=*/7, /*count=*/2);
  request.parameters.prompt = "gated";
  request.partial_images = 2;
  const std::string id = Submit(request);
  Events events;
  const auto watch = service_->Watch(caller_, id, server::WatchedEvents::kAll, events.listener());
  ASSERT_TRUE(watch.ok());
  folder_.Write("gate", "");  // steps that end before the watch begins are not reported
  const server::Job job = events.WaitForEnd();
  EXPECT_EQ(job.state, server::JobState::kDone) << job.error;
  ASSERT_EQ(job.images.size(), 2u);
  EXPECT_EQ(job.images[0].seed, 7u);
  EXPECT_EQ(job.images[1].seed, 8u);
  EXPECT_NE(FileOf(job, 0), FileOf(job, 1));
  EXPECT_EQ(job.steps_done, 12);
  EXPECT_EQ(job.layout, "serial");
  EXPECT_TRUE(job.lossless);
  EXPECT_EQ(events.Count<server::ImageEvent>(), 2);
  std::vector<int32_t> last_step(2, 0);
  for (const server::JobEvent& event : events.events()) {
    if (const auto* step = std::get_if<server::StepEvent>(&event)) {
      EXPECT_EQ(step->step, ++last_step[static_cast<size_t>(step->image)]);
    }
  }
}

TEST_F(DurableImageServiceTest, EveryLayoutMakesTheSamePicture) {
  std::string serial;
  for (const char* layout : {"", "cfg=2", "ring=3"}) {
    layout_ = {.layout = layout};
    Start();
    const server::Job job = WaitForEnd(Submit(Request(3)));
    ASSERT_EQ(job.state, server::JobState::kDone) << job.error;
    if (serial.empty()) serial = PictureOf(FileOf(job));
    EXPECT_EQ(PictureOf(FileOf(job)), serial) << layout;
    EXPECT_EQ(server::ParseParameters(server::DecodeImage(FileOf(job))->parameters)->layout, job.layout);
    service_.reset();
  }
}

TEST_F(DurableImageServiceTest, WhatHasNoEffectIsSaidAndNeitherShownNorRecorded) {
  Start();
  server::JobRequest request = Request();
  request.parameters.negative_prompt = "leaf";
  const server::Job job = WaitForEnd(Submit(request));
  EXPECT_THAT(job.warnings,
              ::testing::ElementsAre("the negative prompt is not used: it needs a true CFG scale above 1"));
  EXPECT_EQ(job.request->parameters.negative_prompt, std::nullopt);
  EXPECT_EQ(server::DecodeImage(FileOf(job))->parameters.find("leaf"), std::string::npos);
}

TEST_F(DurableImageServiceTest, WhatWasAcceptedBeforeTheServiceEndedIsMadeByTheNextOne) {
  Start("load=hang");
  std::vector<std::string> jobs;
  for (uint64_t seed = 1; seed <= 5; ++seed) jobs.push_back(Submit(Request(seed)));
  service_.reset();
  Start();
  for (const std::string& id : jobs) EXPECT_EQ(WaitForEnd(id).state, server::JobState::kDone);
}

TEST_F(DurableImageServiceTest, AnAcceptedJobGetsTheAdapterOfThenAfterItsFileWasReplacedAndARestart) {
  const std::string first = OneTensor("first"), second = OneTensor("other");
  folder_.Write("adapters/style.safetensors", first);
  server::DurableServiceOptions options;
  options.adapter_folder = folder_ / "adapters";
  const auto request = [this] {
    server::ImageRequest asked;
    asked.prompt = "x";
    asked.loras = {{.name = "style", .scale = 0.5}};
    return *server::ValidateImageRequest(asked, service_->ListModels(), {}, /*random_seed=*/1);
  };
  Start("", options);
  const std::string expected = PictureOf(FileOf(WaitForEnd(Submit(request()))));
  service_.reset();

  Start("load=hang", options);
  const std::string accepted = Submit(request());
  folder_.Write("adapters/style.safetensors", second);
  const absl::StatusOr<server::LoadedAdapter> loaded = service_->LoadAdapter("style");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model, "tiny");
  EXPECT_EQ(service_->ListModels()[0].adapters[0].digest, loaded->adapter.digest);
  service_.reset();

  Start("", options);
  const server::Job job = WaitForEnd(accepted);
  ASSERT_EQ(job.state, server::JobState::kDone) << job.error;
  EXPECT_EQ(PictureOf(FileOf(job)), expected);
  const server::Job later = WaitForEnd(Submit(request()));
  ASSERT_EQ(later.state, server::JobState::kDone) << later.error;
  EXPECT_NE(PictureOf(FileOf(later)), expected);
  const absl::StatusOr<server::ImageParameters> said =
      server::ParseParameters(server::DecodeImage(FileOf(later))->parameters);
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_THAT(said->adapters, ::testing::ElementsAre(control::AdapterUse{
                                  .name = "style", .scale = 0.5, .digest = loaded->adapter.digest}));
}

TEST_F(DurableImageServiceTest, AnAdapterThatIsGoneFailsItsJobByNameAndNoOther) {
  folder_.Write("adapters/style.safetensors", OneTensor("first"));
  server::DurableServiceOptions options;
  options.adapter_folder = folder_ / "adapters";
  Start("load=hang", options);
  server::JobRequest styled = Request(1);
  styled.parameters.adapters = {{.name = "style", .digest = service_->ListModels()[0].adapters[0].digest}};
  const std::string bad = Submit(styled), good = Submit(Request(2));
  ASSERT_TRUE(service_->UnloadAdapter("style").ok());
  EXPECT_TRUE(service_->ListModels()[0].adapters.empty());
  service_.reset();
  std::filesystem::remove_all(folder_ / "data/adapters");
  std::filesystem::remove(folder_ / "adapters/style.safetensors");
  Start("", options);
  const server::Job failed = WaitForEnd(bad);
  EXPECT_EQ(failed.state, server::JobState::kFailed);
  EXPECT_THAT(std::string(failed.error.message()), HasSubstr("adapter 'style' that the job was accepted with"));
  EXPECT_EQ(WaitForEnd(good).state, server::JobState::kDone);
}

TEST_F(DurableImageServiceTest, AJobThatKillsItsWorkersIsQuarantinedAndTheOthersAreMade) {
  Start("step3-of-poison=die");
  server::JobRequest poison = Request(1);
  poison.parameters.prompt = "poison";
  const std::string bad = Submit(poison);
  std::vector<std::string> good;
  for (uint64_t seed = 2; seed <= 5; ++seed) good.push_back(Submit(Request(seed)));
  const server::Job failed = WaitForEnd(bad);
  EXPECT_EQ(failed.state, server::JobState::kFailed);
  EXPECT_THAT(std::string(failed.error.message()), HasSubstr("killed by signal 9"));
  for (const std::string& id : good) EXPECT_EQ(WaitForEnd(id).state, server::JobState::kDone);
}

TEST_F(DurableImageServiceTest, JobsOfAGroupWhoseRanksDisagreeAreMadeByOneRank) {
  layout_ = {.layout = "cfg=2"};
  Start("rank1:drift-of-poison=3");
  server::JobRequest request = Request(1);
  request.parameters.prompt = "poison";
  const server::Job job = WaitForEnd(Submit(request));
  EXPECT_EQ(job.state, server::JobState::kDone) << job.error;
  EXPECT_EQ(job.layout, "serial");
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "data/certificates")) << "the layout is no longer certified";
}

// The fake worker computes no products, so that the certificate that is made at the start names a drift of zero.
TEST_F(DurableImageServiceTest, PicturesNameTheDriftOfTheCertificateOfTheirLayout) {
  placement_.products = control::Products::kFp8;
  const auto drift_on = [this](const std::string& layout) {
    layout_ = {.layout = layout};
    Start();
    const server::Job job = WaitForEnd(Submit(Request()));
    EXPECT_EQ(job.state, server::JobState::kDone) << job.error;
    const absl::StatusOr<server::DecodedImage> image = server::DecodeImage(FileOf(job));
    service_.reset();
    EXPECT_TRUE(image.ok()) << image.status();
    const absl::StatusOr<server::ImageParameters> parameters =
        server::ParseParameters(image.ok() ? image->parameters : "");
    EXPECT_TRUE(parameters.ok()) << parameters.status();
    return parameters.ok() ? parameters->products_drift : -1;
  };
  EXPECT_EQ(drift_on("cfg=2"), 0);
  EXPECT_EQ(drift_on("serial"), std::nullopt) << "one rank has no certificate";
}

TEST_F(DurableImageServiceTest, ImagesThatChangeEachOtherInABatchAreMadeOneByOne) {
  std::mutex mutex;
  std::string log;
  Start("batch-drift", {.log = [&](const std::string& line) {
          const std::lock_guard lock(mutex);
          absl::StrAppend(&log, line, "\n");
        }});
  const server::Job job = WaitForEnd(Submit(Request(7, 4)));
  EXPECT_EQ(job.state, server::JobState::kDone);
  ASSERT_EQ(job.images.size(), 4u);
  const server::Job after = WaitForEnd(Submit(Request(7, 2)));
  EXPECT_EQ(FileOf(after, 0), FileOf(job, 0));
  service_.reset();
  EXPECT_THAT(log, HasSubstr("images of 24x16 change each other by"));
  const std::string first = "images of this size are generated one at a time";
  EXPECT_EQ(log.find(first), log.rfind(first)) << log;
}

TEST_F(DurableImageServiceTest, ARequestThatTheModelRefusesFailsAlone) {
  Start("start-of-poison=error");
  server::JobRequest bad = Request(1);
  bad.parameters.prompt = "poison";
  const server::Job failed = WaitForEnd(Submit(bad));
  EXPECT_EQ(failed.state, server::JobState::kFailed);
  EXPECT_THAT(std::string(failed.error.message()), HasSubstr("fails as its script says"));
  EXPECT_EQ(WaitForEnd(Submit(Request(2))).state, server::JobState::kDone);
}

TEST_F(DurableImageServiceTest, NothingIsKeptOfAJobThatWasCancelledWhileItRan) {
  folder_.Write("permits", ".");
  Start(absl::StrCat("permits=", folder_ / "permits"));
  server::JobRequest request = Request(1);
  request.parameters.steps = 1000;
  const std::string id = Submit(request);
  WaitUntil("its first step", [&] { return service_->Get(caller_, id)->steps_done == 1; });
  ASSERT_TRUE(service_->Cancel(caller_, id).ok());
  folder_.Write("permits", std::string(1000, '.'));
  // The store keeps no layout for a job without images.
  WaitUntil("a job without images", [&] { return service_->Get(caller_, id)->layout.empty(); });
}

TEST_F(DurableImageServiceTest, AJobThatRunsCanBeCancelled) {
  Start("step3-of-slow=hang");
  server::JobRequest slow = Request(1);
  slow.parameters.prompt = "slow";
  const std::string id = Submit(slow);
  Events events;
  const auto watch = service_->Watch(caller_, id, server::WatchedEvents::kAll, events.listener());
  WaitUntil("a step", [&] { return service_->Get(caller_, id)->steps_done > 0; });
  const absl::StatusOr<server::Job> cancelled = service_->Cancel(caller_, id);
  ASSERT_TRUE(cancelled.ok());
  EXPECT_EQ(cancelled->state, server::JobState::kCancelled);
  EXPECT_EQ(events.WaitForEnd().state, server::JobState::kCancelled);
  // A cancelled job has no images.
  EXPECT_EQ(service_->Get(caller_, id)->images.size(), 0u);
}

TEST_F(DurableImageServiceTest, AJobBelongsToItsTenant) {
  Start();
  const std::string id = Submit(Request(1));
  const server::Job job = WaitForEnd(id);
  const server::Caller other = {.tenant = "other"};
  EXPECT_EQ(service_->Get(other, id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(service_->Cancel(other, id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(service_->OpenImage(other, job.images[0].id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(service_->Watch(other, id, server::WatchedEvents::kAll, [](const server::JobEvent&) {}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(service_->List(other, {})->jobs.empty());
  EXPECT_EQ(service_->List(caller_, {})->jobs.size(), 1u);
}

TEST_F(DurableImageServiceTest, OneIdempotencyKeyIsOneJob) {
  Start();
  const auto first = service_->Submit(caller_, Request(1), server::IdempotencyKey{.key = "k", .digest = "d"});
  const auto second = service_->Submit(caller_, Request(1), server::IdempotencyKey{.key = "k", .digest = "d"});
  const auto third = service_->Submit(caller_, Request(2), server::IdempotencyKey{.key = "k", .digest = "e"});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->job.id, second->job.id);
  EXPECT_TRUE(second->existed);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kAlreadyExists);
  WaitForEnd(first->job.id);
}

TEST_F(DurableImageServiceTest, WhatWasAcceptedUnderAKeyIsGivenBackWhateverBoundIsReached) {
  Start("load=hang", {.limits = {.max_queued_jobs = 2}});
  const server::IdempotencyKey key = {.key = "k", .digest = "d"};
  const auto first = service_->Submit(caller_, Request(1), key);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto expect_the_first = [&](const server::Caller& caller) {
    const auto again = service_->Submit(caller, Request(1), key);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->job.id, first->job.id);
    EXPECT_TRUE(again->existed);
    EXPECT_EQ(service_->Submit(caller, Request(1), server::IdempotencyKey{.key = "k", .digest = "e"}).status().code(),
              absl::StatusCode::kAlreadyExists);
  };
  const auto code_of_another = [&](const server::Caller& caller) {
    return service_->Submit(caller, Request(9), server::IdempotencyKey{.key = "new", .digest = "d"}).status().code();
  };

  const server::Caller bounded = {.tenant = caller_.tenant, .limits = {.queued_jobs = 1}};
  EXPECT_EQ(code_of_another(bounded), absl::StatusCode::kResourceExhausted) << "the key has its one job";
  expect_the_first(bounded);
  Submit(Request(2));
  EXPECT_EQ(code_of_another(caller_), absl::StatusCode::kResourceExhausted) << "the queue is full";
  expect_the_first(caller_);
  service_->Drain(absl::ZeroDuration());
  EXPECT_EQ(code_of_another(caller_), absl::StatusCode::kUnavailable) << "the server is stopping";
  expect_the_first(caller_);
  EXPECT_EQ(service_->Submit({.tenant = "other"}, Request(1), key).status().code(), absl::StatusCode::kUnavailable)
      << "the key of another tenant";
}

TEST_F(DurableImageServiceTest, AFullQueueRefusesWithTheTimeToComeAgain) {
  Start("load=hang", {.limits = {.max_queued_jobs = 3}});
  for (uint64_t seed = 1; seed <= 3; ++seed) Submit(Request(seed));
  const absl::Status refused = service_->Submit(caller_, Request(4), std::nullopt).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(server::RetryAfter(refused).has_value());
  EXPECT_THAT(service_->MetricsText(), HasSubstr("tessera_rejected_jobs_total{reason=\"queue_full\"} 1"));
  EXPECT_EQ(service_->Info().queued_jobs, 3);
}

TEST_F(DurableImageServiceTest, AKeyThatHasUsedUpItsLimitsGetsThatError) {
  Start("load=hang");
  for (const server::KeyLimits& limits :
       {server::KeyLimits{.queued_jobs = 1}, server::KeyLimits{.queued_device_seconds = 1e-9}}) {
    const server::Caller bounded = {.tenant = "bounded", .limits = limits};
    const absl::Status refused = service_->Submit(bounded, Request(1, /*count=*/2), std::nullopt).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(server::ErrorCode(refused), "key_queue_full");
    EXPECT_TRUE(server::RetryAfter(refused).has_value());
  }
  EXPECT_TRUE(service_->Submit(caller_, Request(1, /*count=*/2), std::nullopt).ok());
}

TEST_F(DurableImageServiceTest, AFullDiskIsNoFullQueue) {
  FaultyDisk disk;
  Start("load=hang", {.vfs = disk.vfs()});
  const std::string job = Submit(Request(1));
  disk.Plan(DiskFault::kFull, 0);
  for (const absl::Status& failed :
       {service_->Submit(caller_, Request(2), std::nullopt).status(), service_->Cancel(caller_, job).status()}) {
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
    EXPECT_EQ(server::ErrorCode(failed), "storage_full");
    EXPECT_TRUE(server::RetryAfter(failed).has_value());
  }
  disk.Plan(DiskFault::kError, 0, /*every=*/1);
  const absl::Status failed = service_->Submit(caller_, Request(2), std::nullopt).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_EQ(server::ErrorCode(failed), "storage_unavailable");
  disk.Plan(DiskFault::kNone, 0);
  EXPECT_TRUE(service_->Submit(caller_, Request(2), std::nullopt).ok());
  EXPECT_EQ(service_->Info().queued_jobs, 2);
  service_.reset();  // before the disk is destroyed
}

TEST_F(DurableImageServiceTest, AKeyMayHaveSoMuchWorkQueuedAndNoMore) {
  Start("load=hang");
  Submit(Request(1));
  const double one = service_->Info().queued_device_seconds;
  ASSERT_GT(one, 0);
  const server::Caller bounded = {.tenant = "bounded", .limits = {.queued_device_seconds = 2.5 * one}};
  EXPECT_TRUE(service_->Submit(bounded, Request(2), std::nullopt).ok());
  EXPECT_TRUE(service_->Submit(bounded, Request(3), std::nullopt).ok());
  const absl::Status refused = service_->Submit(bounded, Request(4), std::nullopt).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("this key may have"));
  EXPECT_TRUE(server::RetryAfter(refused).has_value());
  Submit(Request(5));  // has another key
}

TEST_F(DurableImageServiceTest, NoJobIsAcceptedAfterMoreThanTheExpectedWait) {
  Start("load=hang", {.limits = {.max_expected_wait = absl::Nanoseconds(1)}});
  Submit(Request(1));
  const absl::Status refused = service_->Submit(caller_, Request(2), std::nullopt).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(server::RetryAfter(refused).has_value());
}

TEST_F(DurableImageServiceTest, AnImageThatTheMachineCouldNeverHoldIsRefused) {
  // The fake model has 12 parameters. An image takes about 4,860 bytes plus 20 per token.
  const server::HostMemory memory = {.total = 12 * 4 + 8192, .available = 8192};
  Start("", {.host_memory = [memory] { return memory; }});
  server::JobRequest large = Request(1);
  large.parameters.height = large.parameters.width = 256;
  const absl::Status refused = service_->Submit(caller_, large, std::nullopt).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("an image of 256x256 needs about"));
  EXPECT_EQ(WaitForEnd(Submit(Request(2))).state, server::JobState::kDone);
}

TEST_F(DurableImageServiceTest, ImagesThatFitOnlySinglyShareNoBatch) {
  // One image takes about 4,980 bytes. The worker's batches differ, so the log shows whether the server tried a batch.
  for (const double available : {6000.0, 12000.0}) {
    std::mutex mutex;
    std::string log;
    Start("batch-drift",
          {.host_memory = [available] { return server::HostMemory{.total = 1e6, .available = available}; },
           .log =
               [&](const std::string& line) {
                 const std::lock_guard lock(mutex);
                 absl::StrAppend(&log, line, "\n");
               }});
    EXPECT_EQ(WaitForEnd(Submit(Request(7, 4))).state, server::JobState::kDone);
    service_.reset();
    EXPECT_EQ(absl::StrContains(log, "change each other"), available > 10000) << log;
  }
}

TEST_F(DurableImageServiceTest, IsNotReadyWhileTheJobStoreCannotWrite) {
  Start("", {.ready_when_durable = true, .vfs = disk_.vfs()});
  EXPECT_EQ(service_->Ready(), absl::OkStatus());
  disk_.Plan(DiskFault::kFull, 0);
  EXPECT_FALSE(service_->Submit(caller_, Request(1), std::nullopt).ok());
  EXPECT_EQ(service_->Ready().code(), absl::StatusCode::kUnavailable);
  disk_.Plan(DiskFault::kNone, 0);
  WaitUntil("ready without a job", [&] { return service_->Ready().ok(); });
  EXPECT_EQ(WaitForEnd(Submit(Request(2))).state, server::JobState::kDone);
}

TEST_F(DurableImageServiceTest, AGroupWhoseFirstStepFailsIsNeverReady) {
  std::mutex mutex;
  std::string log;
  Start("step1=error", {.log = [&](const std::string& line) {
          const std::lock_guard lock(mutex);
          absl::StrAppend(&log, line, "\n");
        }});
  EXPECT_THAT(ReasonOfRefusal(), HasSubstr("its first picture failed"));
  EXPECT_EQ(service_->Ready().code(), absl::StatusCode::kUnavailable);
  service_.reset();
  EXPECT_THAT(log, Not(HasSubstr("tiny-0: ready")));
  EXPECT_THAT(log, HasSubstr("tiny-0: loading"));
}

TEST_F(DurableImageServiceTest, IsReadyOnceAGroupHasItsModel) {
  Start("load=hang");
  EXPECT_EQ(service_->Ready().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(service_->Probe().code(), absl::StatusCode::kUnavailable);
  service_.reset();
  Start("load=hang", {.ready_when_durable = true});
  EXPECT_EQ(service_->Ready(), absl::OkStatus());
  service_.reset();
  Start();
  WaitForEnd(Submit(Request(1)));
  EXPECT_EQ(service_->Ready(), absl::OkStatus());
  EXPECT_EQ(service_->Probe(), absl::OkStatus());
  EXPECT_TRUE(service_->ListModels()[0].progress.is_ready());
}

TEST_F(DurableImageServiceTest, ListsAModelThatIsLoadingWithItsProgress) {
  Start(absl::StrCat("load-gate=", folder_ / "gate"));
  const auto progress = [&] { return service_->ListModels()[0].progress; };
  WaitUntil("half of the model is read", [&] { return progress().loaded == 0.5; });
  EXPECT_EQ(progress().state, server::GroupState::kLoading);
  EXPECT_FALSE(service_->ListModels()[0].progress.is_ready());
  EXPECT_EQ(service_->Info().groups[0].loaded, 0.5);
  EXPECT_EQ(service_->Ready().code(), absl::StatusCode::kUnavailable);
  const std::string job = Submit(Request(1));
  EXPECT_EQ(service_->Get(caller_, job)->state, server::JobState::kQueued);
  folder_.Write("gate", "");
  EXPECT_EQ(WaitForEnd(job).state, server::JobState::kDone);
  EXPECT_EQ(progress().state, server::GroupState::kReady);
  EXPECT_EQ(progress().loaded, 1);
}

TEST_F(DurableImageServiceTest, AModelOfSeveralRanksHasLoadedWhatTheirMeanSays) {
  layout_ = {.layout = "cfg=2"};
  Start(absl::StrCat("rank1:load-gate=", folder_ / "gate"), {.certify = server::CertifyPolicy::kOff});
  WaitUntil("one rank waits for the other", [&] { return service_->ListModels()[0].progress.loaded == 0.75; });
  EXPECT_EQ(service_->ListModels()[0].progress.state, server::GroupState::kLoading);
}

TEST_F(DurableImageServiceTest, DrainingAcceptsNothingAndFinishesWhatRuns) {
  folder_.Write("permits", ".");
  Start(absl::StrCat("permits=", folder_ / "permits"));
  const std::string id = Submit(Request(1));
  WaitUntil("its first step", [&] { return service_->Get(caller_, id)->steps_done == 1; });
  folder_.Write("permits", std::string(6, '.'));
  service_->Drain(kSoon);
  EXPECT_EQ(service_->Get(caller_, id)->state, server::JobState::kDone);
  EXPECT_EQ(service_->Submit(caller_, Request(2), std::nullopt).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(service_->Ready().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DurableImageServiceTest, AnUncertifiedLayoutIsRefusedWithItsReason) {
  layout_ = {.layout = "cfg=2"};
  Start("layout-drift=3");
  EXPECT_THAT(ReasonOfRefusal(), HasSubstr("it did not pass"));
  EXPECT_EQ(service_->Ready().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DurableImageServiceTest, TwoServicesDoNotShareAFolder) {
  Start();
  server::DurableServiceOptions options = {.data_folder = folder_ / "data",
                                           .groups = {{.name = "tiny", .load = {.model = folder_ / "tiny"}}},
                                           .log = [](const std::string&) {}};
  EXPECT_FALSE(server::DurableImageService::Start(options).ok());
}

}  // namespace
}  // namespace tessera
