#include "tests/support/fake_image_service.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/random_bytes.h"
#include "server/api/service_error.h"
#include "server/api/unused_parameters.h"

namespace tessera {
namespace {

constexpr int kPreviewSide = 16;

// Returns an image that differs for every seed.
control::Frames Gradient(uint64_t seed, int width, int height) {
  control::Frames image{.width = width, .height = height, .bytes = {}};
  image.bytes.reserve(size_t{3} * width * height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      image.bytes.push_back(static_cast<uint8_t>(seed * 37 + 255 * x / width));
      image.bytes.push_back(static_cast<uint8_t>(seed * 59 + 255 * y / height));
      image.bytes.push_back(static_cast<uint8_t>(seed * 83));
    }
  }
  return image;
}

}  // namespace

server::ServedModel FakeModel(const std::string& id) {
  server::ServedModel model;
  model.id = id;
  model.ready = true;
  control::ModelDescription description;
  description.pipeline = "FakePipeline";
  description.family = "fake";
  description.digest = std::string(64, '0');
  description.size_multiple = 16;
  description.min_size = 16;
  description.max_size = 1024;
  description.default_width = description.default_height = 64;
  description.default_steps = 4;
  description.max_steps = 1000;
  description.default_guidance_scale = 4.5;
  description.default_max_sequence_length = 77;
  description.max_sequence_length = 256;
  description.options = {"prompt_2", "true_cfg_scale", "clip_skip", "skip_layers", "original_size"};
  description.default_sampler = "euler";
  description.samplers = {"ddim", "dpmsolver++", "euler"};
  description.heads = 4;
  description.blocks = 4;
  model.description = std::make_shared<const control::ModelDescription>(std::move(description));
  return model;
}

struct FakeImageService::Subscription {
  void Tell(const server::JobEvent& event) const {
    if (active && server::IsAmong(events, event)) listener(event);
  }

  server::WatchedEvents events;
  Listener listener;
  bool active = true;
};

struct FakeImageService::Record {
  std::string tenant;
  server::Job job;
  bool cancel = false;
  std::vector<std::shared_ptr<Subscription>> subscriptions;
};

class FakeImageService::Watching final : public server::JobWatch {
 public:
  Watching(FakeImageService& service, std::shared_ptr<Record> record, std::shared_ptr<Subscription> subscription)
      : service_(service), record_(std::move(record)), subscription_(std::move(subscription)) {}

  ~Watching() override {
    const std::lock_guard lock(service_.mutex_);
    subscription_->active = false;
    std::erase(record_->subscriptions, subscription_);
    --service_.watches_;
    service_.changed_.notify_all();
  }

 private:
  FakeImageService& service_;
  const std::shared_ptr<Record> record_;
  const std::shared_ptr<Subscription> subscription_;
};

FakeImageService::FakeImageService(FakeServiceOptions options)
    : options_([&] {
        if (options.models.empty()) options.models = {FakeModel()};
        return std::move(options);
      }()),
      started_(options_.now()),
      worker_([this] { Work(); }) {}

FakeImageService::~FakeImageService() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

absl::Status FakeImageService::CheckRoom(const server::Caller& caller) {
  int64_t waiting = 0, of_caller = 0;
  for (const auto& record : order_) {
    if (server::IsEnded(record->job.state)) continue;
    ++waiting;
    if (record->tenant == caller.tenant) ++of_caller;
  }
  if (waiting >= options_.max_queued) {
    return server::WithRetryAfter(
        server::WithErrorCode(absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", waiting, " jobs wait")),
                              "queue_full"),
        absl::Seconds(1));
  }
  if (caller.limits.queued_jobs > 0 && of_caller >= caller.limits.queued_jobs) {
    return server::WithRetryAfter(
        server::WithErrorCode(
            absl::ResourceExhaustedError(absl::StrCat(
                "this key has ", of_caller, " jobs waiting; valid values are at most ", caller.limits.queued_jobs)),
            "key_queue_full"),
        absl::Seconds(1));
  }
  return absl::OkStatus();
}

absl::StatusOr<server::Submitted> FakeImageService::Submit(const server::Caller& caller,
                                                           const server::JobRequest& request,
                                                           const std::optional<server::IdempotencyKey>& idempotency) {
  if (options_.before_submit) options_.before_submit();
  const std::lock_guard lock(mutex_);
  if (idempotency.has_value()) {
    absl::StatusOr<std::optional<server::Submitted>> known = FindSubmission(caller, *idempotency);
    if (!known.ok()) return known.status();
    if (known->has_value()) return **std::move(known);
  }
  absl::Status room = absl::StrContains(request.parameters.prompt, "[refuse]")
                          ? server::WithRetryAfter(
                                server::WithErrorCode(absl::ResourceExhaustedError("the queue is full"), "queue_full"),
                                absl::Seconds(2))
                          : CheckRoom(caller);
  if (!room.ok()) {
    CountRejection(room);
    return room;
  }
  auto record = std::make_shared<Record>();
  record->tenant = caller.tenant;
  server::Job& job = record->job;
  job.id = base::RandomId("job_");
  job.request = request;
  job.created = options_.now();
  job.steps_total = request.parameters.steps * request.count;
  job.layout = "serial";
  for (const server::ServedModel& model : options_.models) {
    if (model.id == request.model)
      job.warnings = server::DropUnusedParameters(job.request.parameters, *model.description);
  }
  if (absl::StrContains(request.parameters.prompt, "[warn]")) job.warnings.push_back("the prompt asks for a warning");
  jobs_[job.id] = record;
  order_.push_back(record);
  if (idempotency.has_value()) {
    idempotency_[{caller.tenant, idempotency->key}] = {idempotency->digest, job.id};
  }
  changed_.notify_all();
  return server::Submitted{.job = Snapshot(*record), .existed = false};
}

absl::StatusOr<std::optional<server::Submitted>> FakeImageService::FindSubmission(
    const server::Caller& caller, const server::IdempotencyKey& idempotency) {
  const std::lock_guard lock(mutex_);
  const auto known = idempotency_.find({caller.tenant, idempotency.key});
  if (known == idempotency_.end()) return std::nullopt;
  const auto& [digest, id] = known->second;
  if (digest != idempotency.digest) {
    return absl::AlreadyExistsError("this idempotency key was used for another request");
  }
  return server::Submitted{.job = Snapshot(*jobs_.at(id)), .existed = true};
}

void FakeImageService::CountRejection(const absl::Status&) {
  const std::lock_guard lock(mutex_);
  ++rejected_;
}

FakeImageService::Record* FakeImageService::Find(const server::Caller& caller, absl::string_view job) {
  const auto found = jobs_.find(std::string(job));
  return found == jobs_.end() || found->second->tenant != caller.tenant ? nullptr : found->second.get();
}

server::Job FakeImageService::Snapshot(const Record& record) {
  server::Job job = record.job;
  if (job.state != server::JobState::kQueued) return job;
  int64_t position = 0;
  for (const auto& other : order_) {
    if (other.get() == &record) break;
    if (other->job.state == server::JobState::kQueued) ++position;
  }
  job.queue_position = position;
  return job;
}

absl::StatusOr<server::Job> FakeImageService::Get(const server::Caller& caller, absl::string_view job) {
  const std::lock_guard lock(mutex_);
  const Record* record = Find(caller, job);
  if (record == nullptr) return absl::NotFoundError("there is no such job");
  return Snapshot(*record);
}

absl::StatusOr<server::JobPage> FakeImageService::List(const server::Caller& caller,
                                                       const server::ListOptions& options) {
  const std::lock_guard lock(mutex_);
  server::JobPage page;
  bool reached = options.after.empty();
  for (auto entry = order_.rbegin(); entry != order_.rend(); ++entry) {
    const Record& record = **entry;
    if (record.tenant != caller.tenant) continue;
    if (!reached) {
      reached = record.job.id == options.after;
      continue;
    }
    if (options.state.has_value() && record.job.state != *options.state) continue;
    if (page.jobs.size() == static_cast<size_t>(options.limit)) {
      page.next = page.jobs.back().id;
      break;
    }
    page.jobs.push_back(Snapshot(record));
  }
  if (!reached) return absl::NotFoundError("after names no job of this key");
  return page;
}

absl::StatusOr<server::Job> FakeImageService::Cancel(const server::Caller& caller, absl::string_view job) {
  const std::lock_guard lock(mutex_);
  Record* record = Find(caller, job);
  if (record == nullptr) return absl::NotFoundError("there is no such job");
  if (record->job.state == server::JobState::kQueued) {
    End(*record, server::JobState::kCancelled, absl::OkStatus());
  } else if (record->job.state == server::JobState::kRunning) {
    record->cancel = true;
  }
  changed_.notify_all();
  return Snapshot(*record);
}

absl::StatusOr<std::unique_ptr<server::JobWatch>> FakeImageService::Watch(const server::Caller& caller,
                                                                          absl::string_view job,
                                                                          server::WatchedEvents events,
                                                                          Listener listener) {
  const std::lock_guard lock(mutex_);
  if (Find(caller, job) == nullptr) return absl::NotFoundError("there is no such job");
  const std::shared_ptr<Record> record = jobs_.at(std::string(job));
  auto subscription = std::make_shared<Subscription>();
  subscription->events = events;
  subscription->listener = std::move(listener);
  ++watches_;
  auto watch = std::make_unique<Watching>(*this, record, subscription);
  const server::Job now = Snapshot(*record);
  if (now.state == server::JobState::kQueued) subscription->Tell(server::QueuedEvent{.position = *now.queue_position});
  if (now.started.has_value()) subscription->Tell(server::StartedEvent{});
  for (const server::FinishedImage& image : now.images) subscription->Tell(server::ImageEvent{image});
  if (server::IsEnded(now.state)) {
    subscription->Tell(server::EndedEvent{now});
  } else {
    record->subscriptions.push_back(subscription);
  }
  changed_.notify_all();
  return watch;
}

absl::StatusOr<server::ImageFile> FakeImageService::OpenImage(const server::Caller& caller, absl::string_view image) {
  const std::lock_guard lock(mutex_);
  const auto found = images_.find(std::string(image));
  if (found == images_.end() || found->second.first != caller.tenant) {
    return absl::NotFoundError("there is no such image");
  }
  return found->second.second;
}

absl::StatusOr<server::ImageService::LoadedAdapter> FakeImageService::LoadAdapter(const std::string& name) {
  for (const server::ServedAdapter& adapter : options_.adapters) {
    if (adapter.name == name) return LoadedAdapter{.model = options_.models[0].id, .adapter = adapter};
  }
  return absl::NotFoundError(absl::StrCat("there is no adapter ", name));
}

std::vector<server::ServedModel> FakeImageService::ListModels() { return options_.models; }

server::ServerInfo FakeImageService::Info() {
  const std::lock_guard lock(mutex_);
  server::ServerInfo info;
  info.version = TESSERA_VERSION;
  info.started = started_;
  for (const auto& record : order_) {
    if (record->job.state == server::JobState::kQueued) ++info.queued_jobs;
    if (record->job.state == server::JobState::kRunning) ++info.running_jobs;
  }
  for (const server::ServedModel& model : options_.models) {
    info.groups.push_back({.name = absl::StrCat(model.id, "-0"),
                           .model = model.id,
                           .layout = "serial",
                           .dtype = "fp32",
                           .devices = {"cpu"},
                           .state = server::GroupState::kReady,
                           .reason = "",
                           .certificate = "off"});
  }
  info.nodes.push_back({.name = "node-a", .devices = {"cpu:0"}, .epoch = 1, .changed = started_});
  return info;
}

absl::Status FakeImageService::Ready() {
  const std::lock_guard lock(mutex_);
  return ready_;
}

absl::Status FakeImageService::Probe() { return absl::OkStatus(); }

std::string FakeImageService::MetricsText() {
  const server::ServerInfo info = Info();
  const std::lock_guard lock(mutex_);
  return absl::StrCat(
      "# HELP tessera_queued_jobs Jobs that wait for a group.\n# TYPE tessera_queued_jobs "
      "gauge\ntessera_queued_jobs{model=\"fake\"} ",
      info.queued_jobs,
      "\n# HELP tessera_running_jobs Jobs that a group works on.\n# TYPE tessera_running_jobs gauge\n"
      "tessera_running_jobs{model=\"fake\"} ",
      info.running_jobs,
      "\n# HELP tessera_rejected_jobs_total Jobs that were not accepted.\n"
      "# TYPE tessera_rejected_jobs_total counter\ntessera_rejected_jobs_total ",
      rejected_, "\n");
}

void FakeImageService::AllowSteps(int64_t steps) {
  const std::lock_guard lock(mutex_);
  allowed_steps_ += steps;
  changed_.notify_all();
}

void FakeImageService::SetReady(absl::Status ready) {
  const std::lock_guard lock(mutex_);
  ready_ = std::move(ready);
}

bool FakeImageService::WaitForState(absl::string_view job, server::JobState state, absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [&] {
    const auto found = jobs_.find(std::string(job));
    return found != jobs_.end() && found->second->job.state == state;
  });
}

bool FakeImageService::WaitForJobs(server::JobState state, size_t count, absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [&] { return JobsInState(state) == count; });
}

bool FakeImageService::WaitForWatches(size_t count, absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [&] { return watches_ == count; });
}

size_t FakeImageService::JobsInState(server::JobState state) const {
  return std::count_if(order_.begin(), order_.end(), [&](const auto& record) { return record->job.state == state; });
}

void FakeImageService::Report(Record& record, const server::JobEvent& event) {
  const std::vector<std::shared_ptr<Subscription>> subscriptions = record.subscriptions;
  for (const auto& subscription : subscriptions) subscription->Tell(event);
}

void FakeImageService::TellQueuePositions() {
  int64_t position = 0;
  for (const auto& record : order_) {
    if (record->job.state == server::JobState::kQueued) Report(*record, server::QueuedEvent{.position = position++});
  }
}

void FakeImageService::End(Record& record, server::JobState state, absl::Status error) {
  record.job.state = state;
  record.job.error = std::move(error);
  record.job.ended = options_.now();
  record.job.expires = *record.job.ended + options_.retention;
  Report(record, server::EndedEvent{record.job});
  record.subscriptions.clear();
  changed_.notify_all();
}

void FakeImageService::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<Record> next;
    changed_.wait(lock, [&] {
      for (const auto& record : order_) {
        if (record->job.state != server::JobState::kQueued) continue;
        if (!next || record->job.request.priority > next->job.request.priority) next = record;
      }
      return stopping_ || next != nullptr;
    });
    if (stopping_) return;
    Run(lock, next);
  }
}

bool FakeImageService::WaitForStep(std::unique_lock<std::recursive_mutex>& lock, const Record& record) {
  const auto interrupted = [&] { return stopping_ || record.cancel; };
  if (options_.paused) {
    changed_.wait(lock, [&] { return interrupted() || allowed_steps_ > 0; });
    if (!interrupted()) --allowed_steps_;
  } else if (options_.step_time > absl::ZeroDuration()) {
    changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.step_time), interrupted);
  } else {
    lock.unlock();  // lets other threads proceed
    lock.lock();
  }
  return !interrupted();
}

void FakeImageService::Run(std::unique_lock<std::recursive_mutex>& lock, const std::shared_ptr<Record>& record) {
  server::Job& job = record->job;
  const control::JobParameters& parameters = job.request.parameters;
  job.state = server::JobState::kRunning;
  job.started = options_.now();
  Report(*record, server::StartedEvent{});
  TellQueuePositions();
  changed_.notify_all();
  const std::vector<int32_t> previews = server::PreviewSteps(parameters.steps, job.request.partial_images);
  for (int32_t index = 0; index < job.request.count; ++index) {
    for (int32_t step = 1; step <= parameters.steps; ++step) {
      if (!WaitForStep(lock, *record)) {
        if (!stopping_) End(*record, server::JobState::kCancelled, absl::OkStatus());
        return;
      }
      if (absl::StrContains(parameters.prompt, "[fail]") && step == std::min(2, parameters.steps)) {
        return End(*record, server::JobState::kFailed, absl::InternalError("the prompt asks for a failure"));
      }
      if (absl::StrContains(parameters.prompt, "[misfit]")) {
        return End(*record, server::JobState::kFailed, base::ErrorOfField("steps", " is 7; the model takes fewer"));
      }
      if (absl::StrContains(parameters.prompt, "[die]")) {
        return End(*record, server::JobState::kFailed, absl::AbortedError("the worker ended 3 times"));
      }
      if (job.request.timeout.has_value() && options_.now() > job.created + *job.request.timeout) {
        return End(*record, server::JobState::kFailed, absl::DeadlineExceededError("the job's deadline has passed"));
      }
      ++job.steps_done;
      Report(*record, server::StepEvent{.image = index, .step = step, .steps = parameters.steps});
      const auto preview = std::find(previews.begin(), previews.end(), step);
      if (preview == previews.end()) continue;
      const control::Frames image = Gradient(parameters.seed + index, kPreviewSide, kPreviewSide);
      Report(*record, server::PreviewEvent{.image = index,
                                           .preview = static_cast<int32_t>(preview - previews.begin()),
                                           .width = image.width,
                                           .height = image.height,
                                           .format = job.request.output.format,
                                           .bytes = std::make_shared<std::string>(
                                               server::EncodeOutput(image, job.request.output).value_or(""))});
    }
    FinishImage(*record, index);
  }
  End(*record, server::JobState::kDone, absl::OkStatus());
}

void FakeImageService::FinishImage(Record& record, int32_t index) {
  const server::JobRequest& request = record.job.request;
  const uint64_t seed = request.parameters.seed + static_cast<uint64_t>(index);
  std::string bytes =
      server::EncodeOutput(Gradient(seed, request.parameters.width, request.parameters.height), request.output)
          .value_or("");
  for (size_t i = bytes.size(); i < options_.min_file_bytes; ++i) {
    bytes.push_back(static_cast<char>((i >> 12) + i));  // makes every page different
  }
  server::ImageFile file{.format = request.output.format, .bytes = base::BytesOf(std::move(bytes))};
  if (options_.file_of) file.bytes = options_.file_of(std::move(file.bytes));
  const server::FinishedImage image = {.index = index,
                                       .id = base::RandomId("img_"),
                                       .seed = seed,
                                       .width = request.parameters.width,
                                       .height = request.parameters.height,
                                       .format = request.output.format,
                                       .bytes = file.bytes->size()};
  images_[image.id] = {record.tenant, std::move(file)};
  record.job.images.push_back(image);
  Report(record, server::ImageEvent{image});
}

}  // namespace tessera
