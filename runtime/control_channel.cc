#include "runtime/control_channel.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "runtime/socket_folder.h"
#include "runtime/utf8.h"
#include "tessera/internal/control.grpc.pb.h"

namespace tessera {
namespace {

using Stream = grpc::ServerReaderWriter<internal::Reply, internal::Command>;

constexpr size_t kQueueLength = 64;
constexpr size_t kMaxRowBytes = size_t{1} << 20;   // of one Rows message
constexpr int kMaxCommandBytes = 1 << 20;          // of one encoded command
constexpr size_t kMaxTextBytes = size_t{1} << 18;  // of one string of a command
constexpr int32_t kMaxSide = 1 << 16;
constexpr int32_t kMaxSteps = 1 << 20;
constexpr int32_t kMaxThreads = 1 << 12;
constexpr int32_t kMaxTokens = 1 << 16;
constexpr int kMaxBatch = 1024;

absl::Status StatusOfException(const std::exception& error) {
  const absl::string_view what = error.what();
  // LibTorch's allocators report exhaustion as ordinary exceptions, and put a stack trace after the first line.
  const std::string first_line(what.substr(0, what.find('\n')));
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr || absl::StrContains(what, "out of memory") ||
      absl::StrContains(what, "can't allocate memory") || absl::StrContains(what, "not enough memory")) {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory: ", first_line));
  }
  return absl::InternalError(first_line);
}

absl::Status OutOfRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", legal is ", low, " to ", high));
}

absl::Status CheckText(absl::string_view field, absl::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", text.size(), " bytes, at most ", kMaxTextBytes, " are accepted"));
  }
  if (text.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(field, " contains a NUL byte"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadParameters> FromWire(const internal::Load& wire) {
  for (const auto& [field, text] :
       {std::pair{"model", &wire.model()}, {"dtype", &wire.dtype()}, {"device", &wire.device()}}) {
    if (absl::Status status = CheckText(field, *text); !status.ok()) return status;
  }
  if (wire.threads() < 0 || wire.threads() > kMaxThreads) return OutOfRange("threads", wire.threads(), 0, kMaxThreads);
  return LoadParameters{
      .model = wire.model(), .dtype = wire.dtype(), .device = wire.device(), .threads = wire.threads()};
}

absl::StatusOr<JobParameters> FromWire(const internal::JobParameters& wire) {
  for (const auto& [field, text] : {std::pair{"prompt", &wire.prompt()},
                                    {"negative prompt", &wire.negative_prompt()},
                                    {"sampler", &wire.sampler()},
                                    {"noise", &wire.noise()}}) {
    if (absl::Status status = CheckText(field, *text); !status.ok()) return status;
  }
  if (wire.height() < 1 || wire.height() > kMaxSide) return OutOfRange("height", wire.height(), 1, kMaxSide);
  if (wire.width() < 1 || wire.width() > kMaxSide) return OutOfRange("width", wire.width(), 1, kMaxSide);
  if (wire.steps() < 1 || wire.steps() > kMaxSteps) return OutOfRange("steps", wire.steps(), 1, kMaxSteps);
  if (wire.max_sequence_length() < 0 || wire.max_sequence_length() > kMaxTokens) {
    return OutOfRange("max sequence length", wire.max_sequence_length(), 0, kMaxTokens);
  }
  if (!std::isfinite(wire.guidance_scale())) {
    return absl::InvalidArgumentError(absl::StrCat("guidance is ", wire.guidance_scale(), ", not a finite number"));
  }
  JobParameters parameters;
  parameters.prompt = wire.prompt();
  parameters.negative_prompt = wire.negative_prompt();
  parameters.height = wire.height();
  parameters.width = wire.width();
  parameters.steps = wire.steps();
  parameters.guidance_scale = wire.guidance_scale();
  parameters.seed = wire.seed();
  parameters.sampler = wire.sampler();
  parameters.noise = wire.noise();
  parameters.clean_caption = wire.clean_caption();
  parameters.resolution_binning = wire.resolution_binning();
  parameters.max_sequence_length = wire.max_sequence_length();
  return parameters;
}

void ToWire(const ModelDescription& description, internal::ModelDescription* wire) {
  wire->set_pipeline(ReplaceInvalidUtf8(description.pipeline));
  wire->set_family(ReplaceInvalidUtf8(description.family));
  wire->set_digest(ReplaceInvalidUtf8(description.digest));
  for (const ModelComponent& component : description.components) {
    internal::Component* part = wire->add_components();
    part->set_name(ReplaceInvalidUtf8(component.name));
    part->set_class_name(ReplaceInvalidUtf8(component.class_name));
    part->set_parameters(component.parameters);
    part->set_bytes(component.bytes);
    part->set_dtype(ReplaceInvalidUtf8(component.dtype));
    for (const std::string& file : component.files) part->add_files(ReplaceInvalidUtf8(file));
  }
  wire->set_size_multiple(description.size_multiple);
  wire->set_min_size(description.min_size);
  wire->set_max_size(description.max_size);
  wire->set_default_height(description.default_height);
  wire->set_default_width(description.default_width);
  wire->set_default_steps(description.default_steps);
  wire->set_default_guidance_scale(description.default_guidance_scale);
  wire->set_default_resolution_binning(description.default_resolution_binning);
  wire->set_can_bin(description.can_bin);
  wire->set_default_clean_caption(description.default_clean_caption);
  wire->set_default_max_sequence_length(description.default_max_sequence_length);
  wire->set_default_sampler(ReplaceInvalidUtf8(description.default_sampler));
  for (const std::string& sampler : description.samplers) wire->add_samplers(ReplaceInvalidUtf8(sampler));
  wire->set_max_steps(description.max_steps);
  wire->set_heads(description.heads);
  wire->set_blocks(description.blocks);
  for (const std::string& warning : description.warnings) wire->add_warnings(ReplaceInvalidUtf8(warning));
}

void ToWire(const Loaded& loaded, internal::Loaded* wire) {
  wire->set_seconds(loaded.seconds);
  wire->set_weight_bytes(loaded.weight_bytes);
}

void ToWire(const JobStarted& started, internal::JobStarted* wire) {
  wire->set_height(started.height);
  wire->set_width(started.width);
  wire->set_generated_height(started.generated_height);
  wire->set_generated_width(started.generated_width);
  wire->set_sampler(ReplaceInvalidUtf8(started.sampler));
  wire->set_prompt_tokens(started.prompt_tokens);
  wire->set_max_sequence_length(started.max_sequence_length);
  wire->set_seconds(started.seconds);
  for (const std::string& warning : started.warnings) wire->add_warnings(ReplaceInvalidUtf8(warning));
}

void ToWire(const Stepped& stepped, internal::Stepped* wire) {
  wire->set_completed(stepped.completed);
  wire->set_seconds(stepped.seconds);
}

void ToWire(const Decoded& decoded, internal::Decoded* wire) {
  wire->set_height(decoded.height);
  wire->set_width(decoded.width);
  wire->set_seconds(decoded.seconds);
}

void ToWire(const absl::Status& status, internal::Error* wire) {
  wire->set_code(static_cast<int32_t>(status.code()));
  wire->set_message(ReplaceInvalidUtf8(status.message()));
}

// A connected controller. The thread that reads the stream pushes, the thread that executes pops and writes.
class Controller {
 public:
  explicit Controller(Stream* stream) : stream_(stream) {}

  // Reading thread. Waits for room; false when the executing thread wants no more.
  bool Push(internal::Command command) {
    const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return released_ || queue_.size() < kQueueLength;
    };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&has_room));
    if (released_) return false;
    queue_.push_back(std::move(command));
    return true;
  }

  // Reading thread: no more will come. True if a command is being executed.
  bool EndStream() {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    return busy_;
  }

  // Reading thread: the stream belongs to the executing thread until this returns its verdict.
  grpc::Status WaitUntilReleased() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&released_));
    return verdict_;
  }

  // Executing thread. Empty at the end of the stream; commands read but not yet begun are then dropped.
  std::optional<internal::Command> Pop() {
    const auto has_news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ || !queue_.empty(); };
    absl::MutexLock lock(&mutex_);
    busy_ = false;
    mutex_.Await(absl::Condition(&has_news));
    if (ended_) return std::nullopt;
    busy_ = true;
    internal::Command command = std::move(queue_.front());
    queue_.pop_front();
    return command;
  }

  bool Write(const internal::Reply& reply) { return stream_->Write(reply); }

  // Executing thread: does not touch this object or the stream afterwards.
  void Release(grpc::Status verdict) {
    absl::MutexLock lock(&mutex_);
    busy_ = false;
    verdict_ = std::move(verdict);
    released_ = true;
  }

 private:
  Stream* const stream_;
  absl::Mutex mutex_;
  std::deque<internal::Command> queue_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status verdict_ ABSL_GUARDED_BY(mutex_);
};

class WorkerService final : public internal::Worker::Service {
 public:
  WorkerService(const SocketFolder& folder, bool ends_with_stream)
      : folder_(folder), ends_with_stream_(ends_with_stream) {}

  grpc::Status Drive(grpc::ServerContext*, Stream* stream) override {
    Controller controller(stream);
    {
      absl::MutexLock lock(&mutex_);
      if (controller_ != nullptr || closed_) {
        return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "this worker has a controller");
      }
      controller_ = &controller;
    }
    if (ends_with_stream_) folder_.Remove();
    internal::Command command;
    for (uint64_t expected = 1; stream->Read(&command); ++expected) {
      // The executing thread tells of a wrong number, when all before it has been done; nothing after it counts.
      const bool in_order = command.sequence() == expected;
      if (!controller.Push(std::move(command)) || !in_order) return controller.WaitUntilReleased();
    }
    const bool busy = controller.EndStream();
    if (busy && ends_with_stream_) {
      folder_.Remove();
      _exit(0);
    }
    return controller.WaitUntilReleased();
  }

  // Executing thread. Null when none came in time.
  Controller* WaitForController(absl::Duration patience) {
    const auto has_controller = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return controller_ != nullptr; };
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&has_controller), patience);
    if (controller_ == nullptr) closed_ = true;
    return controller_;
  }

  // Executing thread: `controller` is invalid afterwards.
  void Release(Controller* controller, grpc::Status verdict) {
    absl::MutexLock lock(&mutex_);
    controller->Release(std::move(verdict));
    controller_ = nullptr;
  }

 private:
  const SocketFolder& folder_;
  const bool ends_with_stream_;
  absl::Mutex mutex_;
  Controller* controller_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Executes one controller's log. Keeps which jobs exist, so that a handler sees only commands that make sense.
class LogExecutor {
 public:
  LogExecutor(CommandHandler& handler, Controller& controller) : handler_(handler), controller_(controller) {}

  // The jobs of a controller that has gone go with it.
  ~LogExecutor() {
    for (const auto& [job, size] : jobs_) {
      Guarded([&, id = job] { return handler_.EndJob(id); }).IgnoreError();
    }
  }

  struct Outcome {
    bool shutdown = false;
    grpc::Status verdict;
  };

  Outcome Run() {
    for (uint64_t expected = 1;; ++expected) {
      std::optional<internal::Command> command = controller_.Pop();
      if (!command.has_value()) return {};
      sequence_ = command->sequence();
      if (sequence_ != expected) {
        const std::string message = absl::StrCat("command ", sequence_, " came where ", expected, " was due");
        Fail(absl::InvalidArgumentError(message));
        return {.verdict = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, message)};
      }
      if (command->has_shutdown()) {
        Send([](internal::Reply& reply) { reply.mutable_ended(); });
        return {.shutdown = true};
      }
      if (absl::Status status = Guarded([&] { return Execute(*command); }); !status.ok()) Fail(status);
    }
  }

 private:
  struct Size {
    int32_t height = 0;
    int32_t width = 0;
  };

  template <typename Call>
  static absl::Status Guarded(Call call) {
    try {
      return call();
    } catch (const std::exception& error) {
      return StatusOfException(error);
    }
  }

  // A controller that has gone is noticed by the reading thread.
  template <typename Fill>
  bool Send(Fill fill) {
    internal::Reply reply;
    reply.set_sequence(sequence_);
    fill(reply);
    return controller_.Write(reply);
  }

  void Fail(const absl::Status& status) {
    Send([&](internal::Reply& reply) { ToWire(status, reply.mutable_error()); });
  }

  absl::Status Execute(const internal::Command& command) {
    switch (command.kind_case()) {
      case internal::Command::kDescribe:
        return Describe(command.describe());
      case internal::Command::kLoad:
        return Load(command.load());
      case internal::Command::kStartJob:
        return StartJob(command.start_job());
      case internal::Command::kStep:
        return Step(command.step());
      case internal::Command::kDecode:
        return Decode(command.decode().job());
      case internal::Command::kEndJob:
        return EndJob(command.end_job().job());
      case internal::Command::kShutdown:
      case internal::Command::KIND_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError("the command is of no known kind");
  }

  absl::Status Describe(const internal::Describe& command) {
    if (absl::Status status = CheckText("model", command.model()); !status.ok()) return status;
    absl::StatusOr<ModelDescription> description = handler_.Describe(command.model());
    if (!description.ok()) return description.status();
    Send([&](internal::Reply& reply) { ToWire(*description, reply.mutable_description()); });
    return absl::OkStatus();
  }

  absl::Status Load(const internal::Load& command) {
    absl::StatusOr<LoadParameters> parameters = FromWire(command);
    if (!parameters.ok()) return parameters.status();
    jobs_.clear();
    absl::StatusOr<Loaded> loaded = handler_.Load(*parameters);
    if (!loaded.ok()) return loaded.status();
    Send([&](internal::Reply& reply) { ToWire(*loaded, reply.mutable_loaded()); });
    return absl::OkStatus();
  }

  absl::Status StartJob(const internal::StartJob& command) {
    const uint64_t job = command.job();
    if (job == 0) return absl::InvalidArgumentError("job 0 is not a legal number");
    if (jobs_.count(job) != 0) return absl::AlreadyExistsError(absl::StrCat("job ", job, " has been started already"));
    absl::StatusOr<JobParameters> parameters = FromWire(command.parameters());
    if (!parameters.ok()) return parameters.status();
    absl::StatusOr<JobStarted> started = handler_.StartJob(job, *parameters);
    if (!started.ok()) return started.status();
    if (started->height < 1 || started->width < 1) return absl::InternalError("the job was started without a size");
    jobs_[job] = {.height = started->height, .width = started->width};
    Send([&](internal::Reply& reply) { ToWire(*started, reply.mutable_started()); });
    return absl::OkStatus();
  }

  absl::Status Step(const internal::Step& command) {
    const std::vector<uint64_t> jobs(command.jobs().begin(), command.jobs().end());
    if (jobs.empty() || jobs.size() > kMaxBatch) return OutOfRange("number of jobs", jobs.size(), 1, kMaxBatch);
    std::set<uint64_t> distinct;
    for (uint64_t job : jobs) {
      if (jobs_.count(job) == 0) return absl::NotFoundError(absl::StrCat("there is no job ", job));
      if (!distinct.insert(job).second) {
        return absl::InvalidArgumentError(absl::StrCat("job ", job, " occurs twice in one batch"));
      }
    }
    absl::StatusOr<Stepped> stepped = handler_.Step(jobs);
    if (!stepped.ok()) return stepped.status();
    Send([&](internal::Reply& reply) { ToWire(*stepped, reply.mutable_stepped()); });
    return absl::OkStatus();
  }

  absl::Status Decode(uint64_t job) {
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return absl::NotFoundError(absl::StrCat("there is no job ", job));
    const size_t row_bytes = static_cast<size_t>(found->second.width) * 3;
    int32_t next = 0;
    absl::StatusOr<Decoded> decoded = handler_.Decode(job, [&](int32_t first, absl::Span<const uint8_t> rgb) {
      if (first != next || rgb.size() % row_bytes != 0 ||
          rgb.size() / row_bytes > static_cast<size_t>(found->second.height - next)) {
        return absl::InternalError("the decoder's rows do not follow each other");
      }
      const size_t chunk = std::max(kMaxRowBytes / row_bytes, size_t{1}) * row_bytes;
      for (size_t at = 0; at < rgb.size(); at += chunk) {
        const absl::Span<const uint8_t> part = rgb.subspan(at, chunk);
        const bool sent = Send([&](internal::Reply& reply) {
          reply.mutable_rows()->set_first(next);
          reply.mutable_rows()->set_rgb(part.data(), part.size());
        });
        if (!sent) return absl::CancelledError("the controller has gone");
        next += static_cast<int32_t>(part.size() / row_bytes);
      }
      return absl::OkStatus();
    });
    if (!decoded.ok()) return decoded.status();
    if (next != found->second.height || decoded->height != found->second.height ||
        decoded->width != found->second.width) {
      return absl::InternalError("the decoded image is not of the size that the job was started with");
    }
    Send([&](internal::Reply& reply) { ToWire(*decoded, reply.mutable_decoded()); });
    return absl::OkStatus();
  }

  absl::Status EndJob(uint64_t job) {
    jobs_.erase(job);
    if (absl::Status status = handler_.EndJob(job); !status.ok()) return status;
    Send([](internal::Reply& reply) { reply.mutable_ended(); });
    return absl::OkStatus();
  }

  CommandHandler& handler_;
  Controller& controller_;
  uint64_t sequence_ = 0;
  std::map<uint64_t, Size> jobs_;
};

}  // namespace

absl::Status ServeControlChannel(CommandHandler& handler, const ChannelOptions& options) {
  // gRPC's own messages would mix with ours.
  setenv("GRPC_VERBOSITY", "NONE", /*replace=*/0);
  absl::StatusOr<std::unique_ptr<SocketFolder>> folder = SocketFolder::Create(options.socket_path);
  if (!folder.ok()) return folder.status();
  TerminationThread termination(**folder);

  const bool ends_with_stream = options.linger <= absl::ZeroDuration();
  WorkerService service(**folder, ends_with_stream);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + options.socket_path, grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(kMaxCommandBytes);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::UnavailableError("cannot listen on the control channel's socket");

  absl::Status status;
  absl::Duration patience = options.first_controller;
  for (bool first = true;; first = false) {
    Controller* controller = service.WaitForController(patience);
    if (controller == nullptr) {
      if (first) status = absl::DeadlineExceededError("no controller has connected");
      break;
    }
    LogExecutor::Outcome outcome = LogExecutor(handler, *controller).Run();
    service.Release(controller, outcome.verdict);
    if (outcome.shutdown || ends_with_stream) break;
    patience = options.linger;
  }
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  return status;
}

}  // namespace tessera
