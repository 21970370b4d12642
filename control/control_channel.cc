#include "control/control_channel.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/batch_scheduling.h"
#include "base/file_descriptor.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/task_pool.h"
#include "control/command_wire.h"
#include "control/job_parameters_wire.h"
#include "control/message_stream.h"
#include "control/socket_folder.h"
#include "tessera/internal/control.pb.h"

namespace tessera::control {
namespace {

constexpr size_t kQueueLength = 64;
constexpr size_t kMaxRowBytes = size_t{1} << 20;   // of one Rows message
constexpr size_t kMaxCommandBytes = 160 << 20;     // of one encoded command: latents are the largest
constexpr size_t kMaxPartBytes = size_t{1} << 20;  // of one TensorPart message
constexpr auto kAcceptPause = std::chrono::milliseconds(10);

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

// A connected controller. The thread that reads the stream pushes, the thread that executes pops; that one and the one
// that decodes write.
class Controller {
 public:
  // `drops`: what was read but not yet begun when the stream ends is not carried out.
  Controller(base::FileDescriptor socket, bool drops) : stream_(std::move(socket), kMaxCommandBytes), drops_(drops) {}

  // Reading thread.
  bool Read(internal::Command& command) { return stream_.Read(command) == MessageStream::Event::kMessage; }

  // Reading thread. Waits for room; false when the executing thread wants no more.
  bool Push(internal::Command command) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return released_ || queue_.size() < kQueueLength; });
    if (released_) return false;
    queue_.push_back(std::move(command));
    changed_.notify_all();
    return true;
  }

  // Reading thread: no more will come. True if a command is being executed.
  bool EndStream() {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    changed_.notify_all();
    return busy_ || beside_ > 0;
  }

  // Reading thread. False when the executing thread needs longer than `timeout`.
  bool WaitUntilReleased(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [this] { return released_; });
  }

  // Reading thread: this object belongs to the executing thread, too, until it returns.
  void WaitUntilReleased() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return released_; });
  }

  // Executing thread. Empty at the end of the stream.
  std::optional<internal::Command> Pop() {
    std::unique_lock<std::mutex> lock(mutex_);
    busy_ = false;
    changed_.wait(lock, [this] { return ended_ || !queue_.empty(); });
    if (ended_ && (drops_ || queue_.empty())) return std::nullopt;
    busy_ = true;
    internal::Command command = std::move(queue_.front());
    queue_.pop_front();
    changed_.notify_all();
    return command;
  }

  // A command is carried out beside the next ones: from here on, and until here.
  void BeginBeside() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++beside_;
  }
  void EndBeside() {
    std::lock_guard<std::mutex> lock(mutex_);
    --beside_;
    changed_.notify_all();
  }
  // Executing thread.
  void WaitForBeside() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return beside_ == 0; });
  }

  bool Write(const internal::Reply& reply) { return stream_.Write(reply); }
  bool PeerHasEnded() const { return stream_.PeerHasEnded(); }

  // Executing thread: does not touch this object afterwards.
  void Release() {
    std::lock_guard<std::mutex> lock(mutex_);
    busy_ = false;
    released_ = true;
    changed_.notify_all();  // under the lock: the reading thread may destroy this object right after
  }

 private:
  MessageStream stream_;
  const bool drops_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<internal::Command> queue_;
  bool ended_ = false;
  bool busy_ = false;
  int beside_ = 0;  // commands
  bool released_ = false;
};

// Takes one controller after the other, and reads its commands.
class Listener {
 public:
  static absl::StatusOr<std::unique_ptr<Listener>> Create(const SocketFolder& folder, const std::string& path,
                                                          absl::Duration orphan_grace_period) {
    sockaddr_un address = {.sun_family = AF_UNIX};
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);  // the folder was made for it
    base::FileDescriptor listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!listening.valid() || bind(listening.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        listen(listening.get(), SOMAXCONN) != 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on the control channel's socket: ", std::strerror(errno)));
    }
    return std::unique_ptr<Listener>(new Listener(folder, std::move(listening), orphan_grace_period));
  }

  // Every controller has been released.
  ~Listener() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
      changed_.notify_all();
    }
    shutdown(listening_.get(), SHUT_RDWR);
    acceptor_.join();
  }

  // Executing thread. Null when none came in time.
  Controller* WaitForController(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [this] { return controller_ != nullptr; });
    if (controller_ == nullptr) closed_ = true;
    return controller_;
  }

  // Executing thread: `controller` is invalid afterwards. `last`: no other one is taken.
  void Release(Controller* controller, bool last) {
    std::lock_guard<std::mutex> lock(mutex_);
    controller->Release();
    controller_ = nullptr;
    closed_ = closed_ || last;
    changed_.notify_all();
  }

 private:
  Listener(const SocketFolder& folder, base::FileDescriptor listening, absl::Duration orphan_grace_period)
      : folder_(folder),
        listening_(std::move(listening)),
        orphan_grace_period_(orphan_grace_period),
        ends_with_stream_(orphan_grace_period <= absl::ZeroDuration()),
        acceptor_(base::StartThread([this] { Accept(); })) {}

  void Accept() {
    std::thread reader;
    while (true) {
      base::FileDescriptor connection(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::unique_lock<std::mutex> lock(mutex_);
      if (!connection.valid()) {
        // Without descriptors or memory for the moment.
        if (changed_.wait_for(lock, kAcceptPause, [this] { return closed_; })) break;
        continue;
      }
      // What one that has gone left behind is finished soon. Its reader may not know yet that it has.
      changed_.wait(lock,
                    [this] { return controller_ == nullptr || !(leaving_ || controller_->PeerHasEnded()) || closed_; });
      if (closed_) break;
      if (controller_ != nullptr) continue;  // that one is refused
      if (reader.joinable()) reader.join();  // it is about to end: it has no lock to wait for
      auto controller = std::make_unique<Controller>(std::move(connection), ends_with_stream_);
      controller_ = controller.get();
      leaving_ = false;
      changed_.notify_all();
      reader = base::StartThread([this, controller = std::move(controller)] { ReadCommands(*controller); });
    }
    if (reader.joinable()) reader.join();
  }

  void ReadCommands(Controller& controller) {
    base::UseBatchScheduling();  // the command before is carried out meanwhile
    if (ends_with_stream_) folder_.Remove();
    internal::Command command;
    for (uint64_t expected = 1; controller.Read(command); ++expected) {
      // Nothing counts after a wrong number, of which the executing thread tells when its turn comes.
      const bool last = command.has_shutdown() || command.sequence() != expected;
      if (!controller.Push(std::move(command)) || last) return controller.WaitUntilReleased();
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      leaving_ = true;
    }
    const bool busy = controller.EndStream();
    // Within a command it may wait for another rank, which never comes.
    if (ends_with_stream_ ? busy : !controller.WaitUntilReleased(orphan_grace_period_)) {
      folder_.Remove();
      _exit(0);
    }
    controller.WaitUntilReleased();
  }

  const SocketFolder& folder_;
  const base::FileDescriptor listening_;
  const absl::Duration orphan_grace_period_;
  const bool ends_with_stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Controller* controller_ = nullptr;
  bool leaving_ = false;  // the stream of that one has ended
  bool closed_ = false;

  std::thread acceptor_;
};

// Of all controllers so far.
struct Progress {
  std::atomic<uint64_t> commands = 0;
  std::atomic<uint64_t> failures = 0;
};

// Executes one controller's log. Keeps which jobs exist, so that a handler sees only commands that make sense.
class LogExecutor {
 public:
  LogExecutor(CommandHandler& handler, Controller& controller, const ChannelOptions& options, Progress& progress)
      : handler_(handler),
        controller_(controller),
        sends_results_(options.sends_results),
        finishes_(options.orphan_grace_period > absl::ZeroDuration()),
        progress_(progress) {}

  // The jobs of a controller that has gone go with it.
  ~LogExecutor() {
    controller_.WaitForBeside();
    for (const auto& [job, size] : jobs_) {
      Guarded([&, id = job] { return handler_.EndJob(id); }).IgnoreError();
    }
  }

  // Until the stream ends or a number of it is wrong. True when it says that the worker is to end.
  bool Run() {
    for (uint64_t expected = 1;; ++expected) {
      std::optional<internal::Command> command = controller_.Pop();
      if (!command.has_value()) return false;
      sequence_ = command->sequence();
      if (sequence_ != expected) {
        Fail(sequence_,
             absl::InvalidArgumentError(absl::StrCat("command ", sequence_, " came where ", expected, " was due")));
        return false;
      }
      if (command->has_shutdown()) {
        controller_.WaitForBeside();
        Send(sequence_, [](internal::Reply& reply) { reply.mutable_ended(); });
        return true;
      }
      if (command->has_resume()) {
        controller_.WaitForBeside();
        Send(sequence_, [this](internal::Reply& reply) {
          reply.mutable_resumed()->set_commands(progress_.commands);
          reply.mutable_resumed()->set_failures(progress_.failures);
        });
        continue;
      }
      if (command->has_decode() && handler_.decodes_beside_steps()) {
        DecodeBesideSteps(command->decode().job());
      } else if (command->has_step() && handler_.steps_ahead()) {
        StepAhead(command->step());
      } else {
        Carry(sequence_, [&] { return Execute(*command); });
      }
    }
  }

 private:
  struct Size {
    int32_t height = 0;
    int32_t width = 0;
  };
  struct Picture {
    Size size;
    Decoding decoding;
  };

  template <typename Call>
  static absl::Status Guarded(Call call) {
    try {
      return call();
    } catch (const std::exception& error) {
      return StatusOfException(error);
    }
  }

  // Carries out a command by this call, on any thread.
  template <typename Call>
  void Carry(uint64_t sequence, Call call) {
    const absl::Status status = Guarded(call);
    ++progress_.commands;
    if (status.ok()) return;
    ++progress_.failures;
    Fail(sequence, status);
  }

  // Begins a command here and finishes it on the thread of `pool`, beside those that follow.
  template <typename Begun, typename Begin, typename Finish>
  void CarryBeside(std::optional<base::TaskPool>& pool, Begin begin, Finish finish) {
    absl::StatusOr<Begun> begun = absl::UnknownError("not begun");
    absl::Status status = Guarded([&] {
      begun = begin();
      return begun.status();
    });
    if (!status.ok()) return Carry(sequence_, [&] { return status; });
    if (!pool) pool.emplace(1);
    controller_.BeginBeside();
    pool->Post([this, sequence = sequence_, finish, begun = *std::move(begun)] {
      Carry(sequence, [&] { return finish(sequence, begun); });
      controller_.EndBeside();
    });
  }

  // False when the controller has gone and the command need not be finished. On any thread.
  template <typename Fill>
  bool Send(uint64_t sequence, Fill fill) {
    internal::Reply reply;
    reply.set_sequence(sequence);
    fill(reply);
    return controller_.Write(reply) || finishes_;
  }

  void Fail(uint64_t sequence, const absl::Status& status) {
    Send(sequence, [&](internal::Reply& reply) { ToWire(status, reply.mutable_error()); });
  }

  absl::Status Execute(const internal::Command& command) {
    switch (command.kind_case()) {
      case internal::Command::kDescribe:
        return Describe(command.describe());
      case internal::Command::kIdentify:
        return Identify(command.identify());
      case internal::Command::kLoad:
        return Load(command.load());
      case internal::Command::kStartJob:
        return StartJob(command.start_job());
      case internal::Command::kEncodePrompts:
        return EncodePrompts(command.encode_prompts());
      case internal::Command::kStep:
        return Step(command.step());
      case internal::Command::kDecode:
        return Decode(command.decode().job());
      case internal::Command::kEndJob:
        return EndJob(command.end_job().job());
      case internal::Command::kLatents:
        return Latents(command.latents().job());
      case internal::Command::kPredict:
        return Predict(command.predict());
      case internal::Command::kStartTraining:
        return StartTraining(command.start_training());
      case internal::Command::kPrepareSamples:
        return PrepareSamples(command.prepare_samples());
      case internal::Command::kTrain:
        return Answer(handler_.Train(), &internal::Reply::mutable_trained);
      case internal::Command::kSaveTraining:
        return Answer(handler_.SaveTraining(command.save_training().exports()), &internal::Reply::mutable_saved);
      case internal::Command::kExportTraining:
        return ExportTraining(command.export_training());
      case internal::Command::kEvaluateTraining:
        return Answer(handler_.EvaluateTraining(), &internal::Reply::mutable_evaluated);
      case internal::Command::kResume:
      case internal::Command::kShutdown:
      case internal::Command::KIND_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError("the command is of no known kind");
  }

  absl::Status Describe(const internal::Describe& command) {
    ASSIGN_OR_RETURN(std::string model, FromWire(command));
    ASSIGN_OR_RETURN(ModelDescription description, handler_.Describe(model));
    Send(sequence_, [&](internal::Reply& reply) { ToWire(description, reply.mutable_description()); });
    return absl::OkStatus();
  }

  absl::Status Identify(const internal::Identify& command) {
    ASSIGN_OR_RETURN(const std::string device, FromWire(command));
    return Answer(handler_.Identify(device), &internal::Reply::mutable_identified);
  }

  absl::Status Load(const internal::Load& command) {
    ASSIGN_OR_RETURN(LoadParameters parameters, FromWire(command));
    jobs_.clear();
    controller_.WaitForBeside();
    ASSIGN_OR_RETURN(Loaded loaded, handler_.Load(parameters));
    Send(sequence_, [&](internal::Reply& reply) { ToWire(loaded, reply.mutable_loaded()); });
    return absl::OkStatus();
  }

  absl::Status StartJob(const internal::StartJob& command) {
    const uint64_t job = command.job();
    if (job == 0) return absl::InvalidArgumentError("job 0 is not a valid number");
    if (jobs_.count(job) != 0) return absl::AlreadyExistsError(absl::StrCat("job ", job, " has been started already"));
    const JobParameters parameters = FromWire(command.parameters());
    RETURN_IF_ERROR(CheckBounds(parameters));
    ASSIGN_OR_RETURN(JobStarted started, handler_.StartJob(job, parameters));
    if (started.height < 1 || started.width < 1) return absl::InternalError("the job was started without a size");
    jobs_[job] = {.height = started.height, .width = started.width};
    Send(sequence_, [&](internal::Reply& reply) { ToWire(started, reply.mutable_started()); });
    return absl::OkStatus();
  }

  absl::Status EncodePrompts(const internal::EncodePrompts& command) {
    if (static_cast<size_t>(command.parameters_size()) > kMaxPromptsAhead) {
      return absl::InvalidArgumentError(
          absl::StrCat(command.parameters_size(), " prompts to encode; at most ", kMaxPromptsAhead, " are valid"));
    }
    std::vector<JobParameters> jobs;
    for (const auto& parameters : command.parameters()) {
      jobs.push_back(FromWire(parameters));
      RETURN_IF_ERROR(CheckBounds(jobs.back()));
    }
    ASSIGN_OR_RETURN(const int32_t prompts, handler_.EncodePrompts(jobs));
    Send(sequence_, [&](internal::Reply& reply) { reply.mutable_encoded()->set_prompts(prompts); });
    return absl::OkStatus();
  }

  absl::Status Step(const internal::Step& command) {
    ASSIGN_OR_RETURN(const std::vector<uint64_t> jobs, JobsOf(command));
    ASSIGN_OR_RETURN(const int32_t count, CountOf(command));
    std::vector<Stepped> steps;
    while (static_cast<int32_t>(steps.size()) < count) {
      ASSIGN_OR_RETURN(const Stepping stepping, handler_.Step(jobs));
      ASSIGN_OR_RETURN(steps.emplace_back(), stepping());
    }
    return SendSteps(sequence_, steps);
  }

  void StepAhead(const internal::Step& command) {
    CarryBeside<std::vector<Stepping>>(
        steps_, [&] { return BeginSteps(command); },
        [this](uint64_t sequence, const std::vector<Stepping>& begun) -> absl::Status {
          std::vector<Stepped> steps;
          for (const Stepping& stepping : begun) {
            ASSIGN_OR_RETURN(steps.emplace_back(), stepping());
          }
          return SendSteps(sequence, steps);
        });
  }

  absl::StatusOr<std::vector<Stepping>> BeginSteps(const internal::Step& command) {
    ASSIGN_OR_RETURN(const std::vector<uint64_t> jobs, JobsOf(command));
    ASSIGN_OR_RETURN(const int32_t count, CountOf(command));
    std::vector<Stepping> begun;
    while (static_cast<int32_t>(begun.size()) < count) {
      ASSIGN_OR_RETURN(begun.emplace_back(), handler_.Step(jobs));
    }
    return begun;
  }

  absl::StatusOr<std::vector<uint64_t>> JobsOf(const internal::Step& command) const {
    ASSIGN_OR_RETURN(std::vector<uint64_t> jobs, FromWire(command));
    for (const uint64_t job : jobs) {
      if (jobs_.count(job) == 0) return absl::NotFoundError(absl::StrCat("there is no job ", job));
    }
    return jobs;
  }

  // On any thread.
  absl::Status SendSteps(uint64_t sequence, absl::Span<const Stepped> steps) {
    Send(sequence, [&](internal::Reply& reply) { ToWire(steps, reply.mutable_stepped()); });
    return absl::OkStatus();
  }

  absl::Status Decode(uint64_t job) {
    ASSIGN_OR_RETURN(const Picture picture, BeginDecode(job));
    return SendPixels(sequence_, picture);
  }

  void DecodeBesideSteps(uint64_t job) {
    CarryBeside<Picture>(
        decoder_, [&] { return BeginDecode(job); },
        [this](uint64_t sequence, const Picture& picture) { return SendPixels(sequence, picture); });
  }

  absl::StatusOr<Picture> BeginDecode(uint64_t job) {
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return absl::NotFoundError(absl::StrCat("there is no job ", job));
    ASSIGN_OR_RETURN(Decoding decoding, handler_.Decode(job));
    return Picture{.size = found->second, .decoding = std::move(decoding)};
  }

  // On any thread.
  absl::Status SendPixels(uint64_t sequence, const Picture& picture) {
    const Size& size = picture.size;
    const size_t row_bytes = static_cast<size_t>(size.width) * 3;
    int32_t next = 0;
    const absl::StatusOr<Decoded> decoded = picture.decoding([&](int32_t first, absl::Span<const uint8_t> rgb) {
      if (first != next || rgb.size() % row_bytes != 0 ||
          rgb.size() / row_bytes > static_cast<size_t>(size.height - next)) {
        return absl::InternalError("the decoder's rows do not follow each other");
      }
      const size_t chunk = std::max(kMaxRowBytes / row_bytes, size_t{1}) * row_bytes;
      for (size_t at = 0; at < rgb.size(); at += chunk) {
        const absl::Span<const uint8_t> part = rgb.subspan(at, chunk);
        const bool sent = Send(sequence, [&](internal::Reply& reply) {
          reply.mutable_rows()->set_first(next);
          reply.mutable_rows()->set_rgb(part.data(), part.size());
        });
        if (!sent) return absl::CancelledError("the controller has gone");
        next += static_cast<int32_t>(part.size() / row_bytes);
      }
      return absl::OkStatus();
    });
    if (!decoded.ok()) return decoded.status();
    if (next != (sends_results_ ? size.height : 0) || decoded->height != size.height || decoded->width != size.width) {
      return absl::InternalError("the decoded image is not of the size that the job was started with");
    }
    Send(sequence, [&](internal::Reply& reply) { ToWire(*decoded, reply.mutable_decoded()); });
    return absl::OkStatus();
  }

  absl::Status Latents(uint64_t job) {
    if (jobs_.count(job) == 0) return absl::NotFoundError(absl::StrCat("there is no job ", job));
    return SendValues(handler_.Latents(job));
  }

  absl::Status Predict(const internal::Predict& command) {
    ASSIGN_OR_RETURN(const std::vector<uint64_t> batch, BatchOf(command));
    for (const uint64_t job : batch) {
      if (jobs_.count(job) == 0) return absl::NotFoundError(absl::StrCat("there is no job ", job));
    }
    ASSIGN_OR_RETURN(LatentValues latents, FromWire(command));
    return SendValues(handler_.Predict(batch.front(), latents, absl::MakeConstSpan(batch).subspan(1)));
  }

  absl::Status SendValues(const absl::StatusOr<LatentValues>& latents) {
    if (!latents.ok()) return latents.status();
    if (sends_results_) {
      const absl::string_view bytes(reinterpret_cast<const char*>(latents->values.data()),
                                    latents->values.size() * sizeof(double));
      for (size_t at = 0; at < bytes.size(); at += kMaxPartBytes) {
        const absl::string_view part = bytes.substr(at, kMaxPartBytes);
        const bool sent = Send(
            sequence_, [&](internal::Reply& reply) { reply.mutable_part()->set_values(part.data(), part.size()); });
        if (!sent) return absl::CancelledError("the controller has gone");
      }
    }
    Send(sequence_, [&](internal::Reply& reply) {
      reply.mutable_tensor()->mutable_shape()->Assign(latents->shape.begin(), latents->shape.end());
    });
    return absl::OkStatus();
  }

  // What was answered, as the one reply of that kind.
  template <typename Result, typename Message>
  absl::Status Answer(const absl::StatusOr<Result>& result, Message* (internal::Reply::*part)()) {
    if (!result.ok()) return result.status();
    Send(sequence_, [&](internal::Reply& reply) { ToWire(*result, (reply.*part)()); });
    return absl::OkStatus();
  }

  absl::Status StartTraining(const internal::StartTraining& command) {
    ASSIGN_OR_RETURN(const TrainingStart start, FromWire(command));
    return Answer(handler_.StartTraining(start), &internal::Reply::mutable_training_started);
  }

  absl::Status PrepareSamples(const internal::PrepareSamples& command) {
    ASSIGN_OR_RETURN(const int64_t most, FromWire(command));
    return Answer(handler_.PrepareSamples(most), &internal::Reply::mutable_prepared);
  }

  absl::Status ExportTraining(const internal::ExportTraining& command) {
    ASSIGN_OR_RETURN(const std::string path, FromWire(command));
    return Answer(handler_.ExportTraining(path), &internal::Reply::mutable_saved);
  }

  absl::Status EndJob(uint64_t job) {
    jobs_.erase(job);
    RETURN_IF_ERROR(handler_.EndJob(job));
    Send(sequence_, [](internal::Reply& reply) { reply.mutable_ended(); });
    return absl::OkStatus();
  }

  CommandHandler& handler_;
  Controller& controller_;
  const bool sends_results_;
  const bool finishes_;  // commands whose answer nobody waits for
  Progress& progress_;
  uint64_t sequence_ = 0;
  std::map<uint64_t, Size> jobs_;
  std::optional<base::TaskPool> steps_, decoder_;  // of one thread each; made when first needed
};

}  // namespace

absl::Status ServeControlChannel(CommandHandler& handler, const ChannelOptions& options) {
  const sigset_t termination_signals = BlockTermination();
  ASSIGN_OR_RETURN(const std::unique_ptr<SocketFolder> folder, SocketFolder::Create(options.socket_path));
  TerminationThread termination(*folder, termination_signals);

  const bool outlives = options.orphan_grace_period > absl::ZeroDuration();
  if (outlives) signal(SIGPIPE, SIG_IGN);  // the reader of its output ends with the controller
  ASSIGN_OR_RETURN(const std::unique_ptr<Listener> listener,
                   Listener::Create(*folder, options.socket_path, options.orphan_grace_period));

  Progress progress;
  absl::Duration timeout = options.first_controller;
  for (bool first = true;; first = false) {
    Controller* controller = listener->WaitForController(timeout);
    if (controller == nullptr) {
      return first ? absl::DeadlineExceededError("no controller has connected") : absl::OkStatus();
    }
    if (outlives) prctl(PR_SET_PDEATHSIG, 0);
    const bool shutdown = LogExecutor(handler, *controller, options, progress).Run();
    const bool last = shutdown || !outlives;
    listener->Release(controller, last);
    if (last) return absl::OkStatus();
    timeout = options.orphan_grace_period;
  }
}

}  // namespace tessera::control
