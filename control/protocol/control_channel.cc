#include "control/protocol/control_channel.h"

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
#include "base/files/file_descriptor.h"
#include "base/macros/status_macros.h"
#include "base/threads/batch_scheduling.h"
#include "base/threads/start_thread.h"
#include "base/threads/task_pool.h"
#include "control/pictures/picture_frames.h"
#include "control/protocol/command_handler.h"
#include "control/protocol/commands.h"
#include "control/protocol/frames.h"
#include "control/protocol/message_stream.h"
#include "control/protocol/socket_folder.h"

namespace tessera::control {
namespace {

constexpr size_t kQueueLength = 64;
constexpr size_t kMaxRowBytes = size_t{1} << 20;  // in one Rows reply
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

// A connected controller. The reading thread pushes its commands and the executing thread pops them; the executing
// thread and the threads that finish steps and decode write replies.
class Controller {
 public:
  // `drops`: when the stream ends, commands that were read but not begun are dropped.
  Controller(base::FileDescriptor socket, bool drops) : stream_(std::move(socket), kMaxFrameBytes), drops_(drops) {}

  // Called by the reading thread.
  bool Read(CommandFrame& command) {
    std::string message;
    return stream_.Read(message) == MessageStream::Event::kMessage && base::DecodeFields(message, command).ok();
  }

  // Called by the reading thread. Waits while the queue is full; returns false once the executing thread has called
  // Release.
  bool Push(CommandFrame command) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return released_ || queue_.size() < kQueueLength; });
    if (released_) return false;
    queue_.push_back(std::move(command));
    changed_.notify_all();
    return true;
  }

  // Called by the reading thread when no more commands follow. Returns whether a command is being executed.
  bool EndStream() {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    changed_.notify_all();
    return busy_ || concurrent_ > 0;
  }

  // Called by the reading thread. Returns false if the executing thread needs longer than `timeout`.
  bool WaitUntilReleased(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [this] { return released_; });
  }

  // Called by the reading thread. Until it returns, the executing thread uses this object too.
  void WaitUntilReleased() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return released_; });
  }

  // Called by the executing thread. Returns nullopt at the end of the stream.
  std::optional<CommandFrame> Pop() {
    std::unique_lock<std::mutex> lock(mutex_);
    busy_ = false;
    changed_.wait(lock, [this] { return ended_ || !queue_.empty(); });
    if (ended_ && (drops_ || queue_.empty())) return std::nullopt;
    busy_ = true;
    CommandFrame command = std::move(queue_.front());
    queue_.pop_front();
    changed_.notify_all();
    return command;
  }

  // Mark the begin and the end of a command that is executed concurrently with the next ones.
  void BeginConcurrent() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++concurrent_;
  }
  void EndConcurrent() {
    std::lock_guard<std::mutex> lock(mutex_);
    --concurrent_;
    changed_.notify_all();
  }
  // Called by the executing thread.
  void WaitForConcurrent() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return concurrent_ == 0; });
  }

  bool Write(const ReplyFrame& reply) { return stream_.Write(base::EncodeFields(reply)); }
  bool PeerHasEnded() const { return stream_.PeerHasEnded(); }

  // Called by the executing thread, which does not access this object afterwards.
  void Release() {
    std::lock_guard<std::mutex> lock(mutex_);
    busy_ = false;
    released_ = true;
    changed_.notify_all();  // locked, because the reading thread may destroy this object right after
  }

 private:
  MessageStream stream_;
  const bool drops_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<CommandFrame> queue_;
  bool ended_ = false;
  bool busy_ = false;
  int concurrent_ = 0;  // commands executed concurrently
  bool released_ = false;
};

// Accepts one controller after another, and reads its commands.
class Listener {
 public:
  static absl::StatusOr<std::unique_ptr<Listener>> Create(const SocketFolder& folder, const std::string& path,
                                                          absl::Duration orphan_grace_period) {
    sockaddr_un address = {.sun_family = AF_UNIX};
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);  // SocketFolder::Create has checked that it fits
    base::FileDescriptor listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!listening.valid() || bind(listening.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        listen(listening.get(), SOMAXCONN) != 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on the control channel's socket: ", std::strerror(errno)));
    }
    return std::unique_ptr<Listener>(new Listener(folder, std::move(listening), orphan_grace_period));
  }

  // Every controller must have been released.
  ~Listener() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
      changed_.notify_all();
    }
    shutdown(listening_.get(), SHUT_RDWR);
    acceptor_.join();
  }

  // Called by the executing thread. Returns null if no controller connected in time.
  Controller* WaitForController(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [this] { return controller_ != nullptr; });
    if (controller_ == nullptr) closed_ = true;
    return controller_;
  }

  // Called by the executing thread. `controller` is invalid afterwards. `last`: no further controller is accepted.
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
        // Descriptors or memory are temporarily exhausted.
        if (changed_.wait_for(lock, kAcceptPause, [this] { return closed_; })) break;
        continue;
      }
      // A disconnected controller's remaining work ends soon. Its reading thread may not have noticed the disconnect
      // yet.
      changed_.wait(lock,
                    [this] { return controller_ == nullptr || !(leaving_ || controller_->PeerHasEnded()) || closed_; });
      if (closed_) break;
      if (controller_ != nullptr) continue;  // refuses the new connection
      if (reader.joinable()) reader.join();  // it ends soon and needs no lock for that
      auto controller = std::make_unique<Controller>(std::move(connection), ends_with_stream_);
      controller_ = controller.get();
      leaving_ = false;
      changed_.notify_all();
      reader = base::StartThread([this, controller = std::move(controller)] { ReadCommands(*controller); });
    }
    if (reader.joinable()) reader.join();
  }

  void ReadCommands(Controller& controller) {
    base::UseBatchScheduling();  // the previous command executes meanwhile
    if (ends_with_stream_) folder_.Remove();
    CommandFrame command;
    for (uint64_t expected = 1; controller.Read(command); ++expected) {
      // Nothing after a wrong number counts. The executing thread reports it when it reaches the command.
      const bool last = command.command == kCommandNumber<Shutdown> || command.sequence != expected;
      if (!controller.Push(std::move(command)) || last) return controller.WaitUntilReleased();
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      leaving_ = true;
    }
    const bool busy = controller.EndStream();
    // A command in execution may wait for another rank, which never replies.
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
  bool leaving_ = false;  // its stream has ended
  bool closed_ = false;

  std::thread acceptor_;
};

// Counts the commands of all controllers so far.
struct Progress {
  std::atomic<uint64_t> commands = 0;
  std::atomic<uint64_t> failures = 0;
};

// Executes one controller's log. Tracks which jobs exist, so that a handler only sees valid commands.
class LogExecutor {
 public:
  LogExecutor(CommandHandler& handler, Controller& controller, const ChannelOptions& options, Progress& progress)
      : handler_(handler),
        controller_(controller),
        sends_results_(options.sends_results),
        finishes_(options.orphan_grace_period > absl::ZeroDuration()),
        progress_(progress) {}

  // Ends the jobs of the disconnected controller.
  ~LogExecutor() {
    controller_.WaitForConcurrent();
    for (const auto& [job, shape] : jobs_) {
      Guarded([&, id = job] { return handler_.EndJob(id); }).IgnoreError();
    }
  }

  // Runs until the stream ends, a sequence number is wrong or a Shutdown is read. Returns true for Shutdown.
  bool Run() {
    for (uint64_t expected = 1;; ++expected) {
      const std::optional<CommandFrame> frame = controller_.Pop();
      if (!frame.has_value()) return false;
      sequence_ = frame->sequence;
      number_ = frame->command;
      if (sequence_ != expected) {
        Fail(Current(), absl::InvalidArgumentError(absl::StrCat("expected command ", expected, ", got ", sequence_)));
        return false;
      }
      if (number_ == kCommandNumber<Shutdown>) {
        controller_.WaitForConcurrent();
        SendReply(Current(), Ended()).IgnoreError();
        return true;
      }
      if (number_ == kCommandNumber<Resume>) {
        controller_.WaitForConcurrent();
        SendReply(Current(), WorkerProgress{.commands = progress_.commands, .failures = progress_.failures})
            .IgnoreError();
        continue;
      }
      if (number_ == kCommandNumber<DecodeJob> && handler_.decodes_during_steps()) {
        DecodeConcurrently(frame->fields);
      } else if (number_ == kCommandNumber<MakeSteps> && handler_.steps_ahead()) {
        StepAhead(frame->fields);
      } else {
        Carry(Current(), [&] { return Execute(frame->fields, static_cast<const Commands*>(nullptr)); });
      }
    }
  }

 private:
  // The command that a reply answers.
  struct Answered {
    uint64_t sequence = 0;
    uint32_t command = 0;
  };
  struct Picture {
    Frames shape;  // without bytes
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

  // Executes a command by this call, on any thread.
  template <typename Call>
  void Carry(const Answered& command, Call call) {
    const absl::Status status = Guarded(call);
    ++progress_.commands;
    if (status.ok()) return;
    ++progress_.failures;
    Fail(command, status);
  }

  // Begins a command on this thread and finishes it on the thread of `pool`, concurrently with later commands.
  template <typename Begun, typename Begin, typename Finish>
  void ExecuteConcurrently(std::optional<base::TaskPool>& pool, Begin begin, Finish finish) {
    absl::StatusOr<Begun> begun = absl::UnknownError("not begun");
    absl::Status status = Guarded([&] {
      begun = begin();
      return begun.status();
    });
    if (!status.ok()) return Carry(Current(), [&] { return status; });
    if (!pool) pool.emplace(1);
    controller_.BeginConcurrent();
    pool->Post([this, command = Current(), finish, begun = *std::move(begun)] {
      Carry(command, [&] { return finish(command, begun); });
      controller_.EndConcurrent();
    });
  }

  Answered Current() const { return {.sequence = sequence_, .command = number_}; }

  // Returns false if the controller has disconnected and the command need not be finished. Called on any thread.
  bool Send(const Answered& command, ReplyKind kind, std::string fields) {
    const ReplyFrame reply = {
        .sequence = command.sequence, .command = command.command, .kind = kind, .fields = std::move(fields)};
    return controller_.Write(reply) || finishes_;
  }

  template <class Reply>
  absl::Status SendReply(const Answered& command, const Reply& reply) {
    Send(command, ReplyKind::kDone, base::EncodeFields(reply));
    return absl::OkStatus();
  }

  void Fail(const Answered& command, const absl::Status& status) {
    Send(command, ReplyKind::kError, base::EncodeFields(ErrorReplyOf(status)));
  }

  // Decodes the command from its fields and executes it.
  template <class... Command>
  absl::Status Execute(const std::string& fields, const std::tuple<Command...>*) {
    absl::Status status = absl::InvalidArgumentError("the kind of the command is unknown");
    const auto execute = [&]<class One>() {
      One command;
      status = base::DecodeFields(fields, command);
      if (status.ok()) status = On(command);
      return true;
    };
    ((number_ == kCommandNumber<Command> && execute.template operator()<Command>()) || ...);
    return status;
  }

  template <class Command>
  absl::Status On(const Command& command) {
    const auto reply = Answer(handler_, command);
    return reply.ok() ? SendReply(Current(), *reply) : reply.status();
  }

  absl::Status On(const LoadModel& command) {
    jobs_.clear();
    controller_.WaitForConcurrent();
    ASSIGN_OR_RETURN(const Loaded loaded, handler_.Load(command.parameters));
    return SendReply(Current(), loaded);
  }

  absl::Status On(const StartJob& command) {
    const uint64_t job = command.job;
    if (jobs_.count(job) != 0) return absl::AlreadyExistsError(absl::StrCat("job ", job, " has been started already"));
    ASSIGN_OR_RETURN(const JobStarted started, handler_.StartJob(job, command.parameters));
    if (absl::Status valid = base::CheckFields(started); !valid.ok()) return absl::InternalError(valid.message());
    jobs_[job] = ShapeOf(started);
    return SendReply(Current(), started);
  }

  absl::Status On(const MakeSteps& command) {
    RETURN_IF_ERROR(CheckJobs(command.jobs));
    StepsMade made;
    while (static_cast<int32_t>(made.steps.size()) < command.count) {
      ASSIGN_OR_RETURN(const Stepping stepping, handler_.Step(command.jobs));
      ASSIGN_OR_RETURN(made.steps.emplace_back(), stepping());
    }
    return SendReply(Current(), made);
  }

  void StepAhead(const std::string& fields) {
    ExecuteConcurrently<std::vector<Stepping>>(
        steps_, [&] { return BeginSteps(fields); },
        [this](const Answered& command, const std::vector<Stepping>& begun) -> absl::Status {
          StepsMade made;
          for (const Stepping& stepping : begun) {
            ASSIGN_OR_RETURN(made.steps.emplace_back(), stepping());
          }
          return SendReply(command, made);
        });
  }

  absl::StatusOr<std::vector<Stepping>> BeginSteps(const std::string& fields) {
    MakeSteps command;
    RETURN_IF_ERROR(base::DecodeFields(fields, command));
    RETURN_IF_ERROR(CheckJobs(command.jobs));
    std::vector<Stepping> begun;
    while (static_cast<int32_t>(begun.size()) < command.count) {
      ASSIGN_OR_RETURN(begun.emplace_back(), handler_.Step(command.jobs));
    }
    return begun;
  }

  absl::Status CheckJobs(absl::Span<const uint64_t> jobs) const {
    for (const uint64_t job : jobs) {
      if (jobs_.count(job) == 0) return absl::NotFoundError(absl::StrCat("there is no job ", job));
    }
    return absl::OkStatus();
  }

  absl::Status On(const DecodeJob& command) {
    ASSIGN_OR_RETURN(const Picture picture, BeginDecode(command));
    return SendPixels(Current(), picture);
  }

  void DecodeConcurrently(const std::string& fields) {
    ExecuteConcurrently<Picture>(
        decoder_,
        [&]() -> absl::StatusOr<Picture> {
          DecodeJob command;
          RETURN_IF_ERROR(base::DecodeFields(fields, command));
          return BeginDecode(command);
        },
        [this](const Answered& command, const Picture& picture) { return SendPixels(command, picture); });
  }

  absl::StatusOr<Picture> BeginDecode(const DecodeJob& command) {
    RETURN_IF_ERROR(CheckJobs({command.job}));
    ASSIGN_OR_RETURN(Decoding decoding, handler_.Decode(command.job));
    return Picture{.shape = jobs_[command.job], .decoding = std::move(decoding)};
  }

  // Called on any thread.
  absl::Status SendPixels(const Answered& command, const Picture& picture) {
    const Frames& shape = picture.shape;
    const size_t row_bytes = shape.row_bytes();
    size_t next = 0;  // row
    const absl::StatusOr<Decoded> decoded = picture.decoding([&](int32_t first, absl::Span<const uint8_t> bytes) {
      if (first < 0 || static_cast<size_t>(first) != next || bytes.size() % row_bytes != 0 ||
          bytes.size() / row_bytes > shape.rows() - next) {
        return absl::InternalError("the decoder's rows are not consecutive");
      }
      const size_t chunk = std::max(kMaxRowBytes / row_bytes, size_t{1}) * row_bytes;
      for (size_t at = 0; at < bytes.size(); at += chunk) {
        const absl::Span<const uint8_t> part = bytes.subspan(at, chunk);
        const Rows rows = {.first = static_cast<int32_t>(next),
                           .bytes = std::string(reinterpret_cast<const char*>(part.data()), part.size())};
        const bool sent = Send(command, ReplyKind::kPart, base::EncodeFields(rows));
        if (!sent) return absl::CancelledError("the controller disconnected");
        next += part.size() / row_bytes;
      }
      return absl::OkStatus();
    });
    if (!decoded.ok()) return decoded.status();
    if (next != (sends_results_ ? shape.rows() : 0) || !ShapeOf(*decoded).has_shape_of(shape)) {
      return absl::InternalError("the decoded image does not have the size that the job was started with");
    }
    return SendReply(command, *decoded);
  }

  absl::Status On(const ReadLatents& command) {
    RETURN_IF_ERROR(CheckJobs({command.job}));
    return SendValues(handler_.Latents(command.job));
  }

  absl::Status On(const PredictFrom& command) {
    RETURN_IF_ERROR(CheckJobs({command.job}));
    RETURN_IF_ERROR(CheckJobs(command.others));
    return SendValues(handler_.Predict(command.job, command.latents, command.others));
  }

  absl::Status SendValues(absl::StatusOr<LatentValues> latents) {
    if (!latents.ok()) return latents.status();
    if (!sends_results_) latents->values.clear();
    return SendReply(Current(), *latents);
  }

  absl::Status On(const EndJob& command) {
    jobs_.erase(command.job);
    RETURN_IF_ERROR(handler_.EndJob(command.job));
    return SendReply(Current(), Ended());
  }

  // Run answers these commands.
  absl::Status On(const Resume&) { return absl::OkStatus(); }
  absl::Status On(const Shutdown&) { return absl::OkStatus(); }

  CommandHandler& handler_;
  Controller& controller_;
  const bool sends_results_;
  const bool finishes_;  // also finishes commands after the controller has disconnected
  Progress& progress_;
  uint64_t sequence_ = 0;                          // of the current command
  uint32_t number_ = 0;                            // its kCommandNumber
  std::map<uint64_t, Frames> jobs_;                // shapes of their pictures, without bytes
  std::optional<base::TaskPool> steps_, decoder_;  // one thread each; created on first use
};

}  // namespace

absl::Status ServeControlChannel(CommandHandler& handler, const ChannelOptions& options) {
  const sigset_t termination_signals = BlockTermination();
  ASSIGN_OR_RETURN(const std::unique_ptr<SocketFolder> folder, SocketFolder::Create(options.socket_path));
  TerminationThread termination(*folder, termination_signals);

  const bool outlives = options.orphan_grace_period > absl::ZeroDuration();
  if (outlives) signal(SIGPIPE, SIG_IGN);  // the reader of the worker's output ends with the controller
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
