#include "tests/support/test_image_service.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "control/model/model_description.h"
#include "control/pictures/picture_input.h"
#include "server/api/caller.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/server_info.h"
#include "server/api/service_error.h"
#include "server/api/stored_picture.h"
#include "server/serving/durable_image_service.h"
#include "tests/support/fake_model.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

constexpr char kFaults[] = " start-of-[warn]=warn start-of-[misfit]=refuse step2-of-[fail]=error step1-of-[die]=die";

// Every page of the padding is different.
std::string Padded(std::string bytes, size_t size) {
  for (size_t i = bytes.size(); i < size; ++i) bytes.push_back(static_cast<char>((i >> 12) + i));
  return bytes;
}

}  // namespace

class TestImageService::CountedWatch final : public server::JobWatch {
 public:
  CountedWatch(TestImageService& service, std::unique_ptr<server::JobWatch> watch)
      : service_(service), watch_(std::move(watch)) {}

  ~CountedWatch() override {
    watch_.reset();
    const std::lock_guard lock(service_.mutex_);
    --service_.watches_;
  }

 private:
  TestImageService& service_;
  std::unique_ptr<server::JobWatch> watch_;
};

TestImageService::TestImageService(TestServiceOptions options) : options_(std::move(options)) {
  std::string script = options_.script + kFaults;
  if (options_.paused) absl::StrAppend(&script, " permits=", folder_ / "permits");
  setenv("TESSERA_WORKER", FAKE_WORKER, 1);
  setenv("TESSERA_FAKE_WORKER", script.c_str(), 1);
  server::DurableServiceOptions durable = {.data_folder = data_folder_,
                                           .picture_decoder = PICTURE_DECODER,
                                           .limits = {.max_queued_jobs = options_.max_queued},
                                           .first_back_off = absl::Milliseconds(1),
                                           .openai_names = options_.openai_names,
                                           .log = [](const std::string&) {}};
  for (const TestModel& model : options_.models) {
    const std::string folder = absl::StrCat("model", durable.groups.size());
    folder_.Write(folder + "/model_index.json", "{}");
    durable.groups.push_back({.name = model.name, .aliases = model.aliases, .load = {.model = folder_ / folder}});
  }
  for (const std::string& name : options_.adapters) {
    folder_.Write("adapters/" + name + ".safetensors", OneTensor(name));
    durable.adapter_folder = folder_ / "adapters";
  }
  auto service = server::DurableImageService::Start(durable);
  if (!service.ok()) {
    ADD_FAILURE() << service.status();
    std::abort();
  }
  service_ = *std::move(service);
  WaitUntil("every group is ready", [this] {
    return std::ranges::all_of(service_->Info().groups, [](const server::GroupInfo& group) {
      return group.state == server::GroupState::kReady;
    });
  });
}

TestImageService::~TestImageService() = default;

absl::StatusOr<server::Submitted> TestImageService::Submit(const server::Caller& caller,
                                                           const server::JobRequest& request,
                                                           const std::optional<server::IdempotencyKey>& idempotency) {
  if (options_.before_submit) options_.before_submit();
  if (request.parameters.prompt == "[refuse]") {
    const absl::Status full = server::WithErrorCode(absl::ResourceExhaustedError("the queue is full"), "queue_full");
    service_->CountRejection(full);
    return server::WithRetryAfter(full, absl::Seconds(2));
  }
  absl::StatusOr<server::Submitted> submitted = service_->Submit(caller, request, idempotency);
  if (submitted.ok()) {
    const std::lock_guard lock(mutex_);
    tenants_[submitted->job.id] = caller.tenant;
  }
  return submitted;
}

absl::StatusOr<std::optional<server::Submitted>> TestImageService::FindSubmission(
    const server::Caller& caller, const server::IdempotencyKey& idempotency) {
  return service_->FindSubmission(caller, idempotency);
}

void TestImageService::CountRejection(const absl::Status& refused) { service_->CountRejection(refused); }

absl::StatusOr<server::Job> TestImageService::Get(const server::Caller& caller, absl::string_view job) {
  return service_->Get(caller, job);
}

absl::StatusOr<server::JobPage> TestImageService::List(const server::Caller& caller,
                                                       const server::ListOptions& options) {
  return service_->List(caller, options);
}

absl::StatusOr<server::Job> TestImageService::Cancel(const server::Caller& caller, absl::string_view job) {
  return service_->Cancel(caller, job);
}

absl::StatusOr<server::LoadedAdapter> TestImageService::LoadAdapter(const std::string& name) {
  return service_->LoadAdapter(name);
}

absl::Status TestImageService::UnloadAdapter(const std::string& name) { return service_->UnloadAdapter(name); }

absl::StatusOr<server::StoredPicture> TestImageService::PutPicture(const server::Caller& caller,
                                                                   absl::string_view file) {
  return service_->PutPicture(caller, file);
}

absl::StatusOr<std::string> TestImageService::ReadPicture(const server::Caller& caller,
                                                          const control::PictureUse& picture) {
  return service_->ReadPicture(caller, picture);
}

absl::StatusOr<server::UploadedFile> TestImageService::PutFile(const server::Caller& caller, absl::string_view file) {
  return service_->PutFile(caller, file);
}

absl::StatusOr<server::UploadedFile> TestImageService::FindFile(const server::Caller& caller, absl::string_view id) {
  return service_->FindFile(caller, id);
}

absl::StatusOr<std::vector<server::UploadedFile>> TestImageService::ListFiles(const server::Caller& caller) {
  return service_->ListFiles(caller);
}

absl::Status TestImageService::DeleteFile(const server::Caller& caller, absl::string_view id) {
  return service_->DeleteFile(caller, id);
}

absl::Status TestImageService::Probe() { return service_->Probe(); }

std::string TestImageService::MetricsText() { return service_->MetricsText(); }

absl::StatusOr<std::unique_ptr<server::JobWatch>> TestImageService::Watch(const server::Caller& caller,
                                                                          absl::string_view job,
                                                                          server::WatchedEvents events,
                                                                          Listener listener) {
  absl::StatusOr<std::unique_ptr<server::JobWatch>> watch = service_->Watch(caller, job, events, std::move(listener));
  if (!watch.ok()) return watch;
  const std::lock_guard lock(mutex_);
  ++watches_;
  return std::make_unique<CountedWatch>(*this, *std::move(watch));
}

absl::StatusOr<std::vector<server::DayUsage>> TestImageService::Usage(const server::UsageQuery& query) {
  return service_->Usage(query);
}

absl::StatusOr<server::ImageFile> TestImageService::OpenImage(const server::Caller& caller, absl::string_view image) {
  absl::StatusOr<server::ImageFile> file = service_->OpenImage(caller, image);
  if (!file.ok()) return file;
  if (options_.min_file_bytes > 0) {
    absl::StatusOr<std::string> bytes = base::ReadAll(*file->bytes);
    if (!bytes.ok()) return bytes.status();
    file->bytes = base::BytesOf(Padded(*std::move(bytes), options_.min_file_bytes));
  }
  if (options_.file_of) file->bytes = options_.file_of(std::move(file->bytes));
  return file;
}

std::vector<server::ServedModel> TestImageService::ListModels() {
  std::vector<server::ServedModel> models = service_->ListModels();
  for (server::ServedModel& model : models) {
    control::ModelDescription description = *FakeModel().description;
    description.pictures =
        control::UsualRules(std::ranges::find(options_.models, model.id, &TestModel::name)->pictures);
    model.description = std::make_shared<const control::ModelDescription>(std::move(description));
  }
  return models;
}

server::ServerInfo TestImageService::Info() {
  server::ServerInfo info = service_->Info();
  info.nodes.insert(info.nodes.end(), options_.nodes.begin(), options_.nodes.end());
  return info;
}

absl::Status TestImageService::Ready() {
  {
    const std::lock_guard lock(mutex_);
    if (!ready_.ok()) return ready_;
  }
  return service_->Ready();
}

void TestImageService::AllowSteps(int64_t steps) {
  std::ofstream(folder_ / "permits", std::ios::app) << std::string(static_cast<size_t>(steps), '.');
}

void TestImageService::SetReady(absl::Status ready) {
  const std::lock_guard lock(mutex_);
  ready_ = std::move(ready);
}

server::JobState TestImageService::StateOf(const std::string& job) {
  std::string tenant;
  {
    const std::lock_guard lock(mutex_);
    tenant = tenants_[job];
  }
  const absl::StatusOr<server::Job> found = service_->Get({.tenant = tenant}, job);
  EXPECT_TRUE(found.ok()) << job << ": " << found.status();
  return found.ok() ? found->state : server::JobState::kFailed;
}

bool TestImageService::WaitForState(const std::string& job, server::JobState state) {
  return WaitUntil("a state of a job", [&] { return StateOf(job) == state; });
}

bool TestImageService::WaitForJobs(server::JobState state, size_t count) {
  return WaitUntil("jobs in a state", [&] {
    std::vector<std::string> jobs;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [job, tenant] : tenants_) jobs.push_back(job);
    }
    return static_cast<size_t>(
               std::ranges::count_if(jobs, [&](const std::string& job) { return StateOf(job) == state; })) == count;
  });
}

bool TestImageService::WaitForWatches(size_t count) {
  return WaitUntil("watches", [&] {
    const std::lock_guard lock(mutex_);
    return watches_ == count;
  });
}

}  // namespace tessera
