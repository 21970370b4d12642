#include "server/nodes/node_agent.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/machine/machine_processors.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "base/time/steady_time.h"
#include "server/grpc/grpc_log.h"
#include "server/nodes/content_receiver.h"
#include "server/nodes/hosted_group.h"
#include "server/nodes/silence_watch.h"
#include "server/nodes/stream_writer.h"
#include "server/workers/worker_process.h"
#include "tessera/internal/node.grpc.pb.h"

namespace tessera::server {
namespace {

using internal::FromNode;
using internal::ToNode;
using AgentStream = grpc::ClientReaderWriter<FromNode, ToNode>;

constexpr int kMostAnswerBytes = 64 << 20;
constexpr absl::Duration kLongestBackOff = absl::Seconds(5);
constexpr absl::Duration kControllerTimeout = absl::Seconds(5);
constexpr absl::Duration kReasonTimeout = absl::Seconds(1);
constexpr absl::Duration kWelcomeTimeout = absl::Seconds(10);
constexpr absl::Duration kVersionTimeout = absl::Seconds(60);
constexpr int64_t kLongestBeat = 3'600'000;  // ms

absl::Status FromGrpc(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

// Turns gRPC's text about a connection into an error that the user can act on.
absl::Status ConnectionError(const std::string& controller, const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  if (absl::StrContains(lower, "handshake") || absl::StrContains(lower, "certificate") ||
      absl::StrContains(lower, "hostname verification") || absl::StrContains(lower, "peer name")) {
    return absl::UnavailableError(
        absl::StrCat("the controller at ", controller,
                     " has no valid certificate: it must be signed by the authority in ca.crt, "
                     "not be expired, and name the host"));
  }
  if (absl::StrContains(lower, "dns") || absl::StrContains(lower, "resol")) {
    return absl::UnavailableError(absl::StrCat("the name in ", controller, " cannot be resolved"));
  }
  return absl::UnavailableError(absl::StrCat("no controller answers at ", controller));
}

// A channel reports only through a call why it cannot connect.
absl::Status WhyNotConnected(internal::NodeController::Stub& stub, const std::string& controller) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kReasonTimeout));
  const std::unique_ptr<AgentStream> stream = stub.Join(&context);
  stream->WritesDone();
  return ConnectionError(controller, stream->Finish().error_message());
}

// Returns whether retrying is useless until something is changed on either side.
bool IsRefusal(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
         absl::IsAborted(status);
}

}  // namespace

// One stream after its welcome.
class NodeAgent::Session final {
 public:
  Session(AgentStream& stream, std::function<void()> cancel, uint64_t epoch, ContentStore& contents)
      : stream_(stream),
        cancel_(std::move(cancel)),
        epoch_(epoch),
        writer_(stream, cancel_),
        contents_(contents, [this](FromNode message) { Send(std::move(message)); }) {}

  // Runs until the stream ends; returns why it ended.
  absl::Status Run(absl::Duration beat, absl::Duration lost_after) {
    SilenceWatch watch(
        beat, lost_after, [this] { Beat(); }, cancel_);
    ToNode message;
    absl::Status status;
    while (status.ok() && stream_.Read(&message)) {
      watch.Heard();
      if (message.epoch() == epoch_) status = Receive(message);
    }
    if (!status.ok()) cancel_();
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    groups_.clear();
    if (!status.ok()) return status;
    if (watch.is_silent()) return absl::UnavailableError("the controller sent nothing for too long");
    return absl::UnavailableError("the connection to the controller has ended");
  }

 private:
  absl::Status Receive(const ToNode& message) {
    switch (message.kind_case()) {
      case ToNode::kStart:
        return StartGroup(message.start());
      case ToNode::kBytes:
        for (const auto& [id, group] : groups_) group->OnBytes(message.bytes().rank(), message.bytes().bytes());
        return absl::OkStatus();
      case ToNode::kKill:
        for (const auto& [id, group] : groups_) group->Kill(message.kill().rank());
        return absl::OkStatus();
      case ToNode::kEnd: {
        std::unique_ptr<HostedGroup> ended;
        const std::lock_guard lock(mutex_);
        if (const auto found = groups_.find(message.end().group()); found != groups_.end()) {
          ended = std::move(found->second);
          groups_.erase(found);
        }
        return absl::OkStatus();
      }
      case ToNode::kSegment: {
        const auto found = groups_.find(message.segment().group());
        return found == groups_.end() ? absl::OkStatus() : found->second->OnSegment(message.segment().updates());
      }
      case ToNode::kContent:
        return contents_.Push(message.content());
      case ToNode::kReplaced:
        return absl::AbortedError(message.replaced());
      default:
        return absl::OkStatus();
    }
  }

  // If a group cannot be started, its ranks are lost; the node continues.
  absl::Status StartGroup(const internal::StartGroup& start) {
    if (groups_.contains(start.group())) return absl::InvalidArgumentError("the controller started a group twice");
    absl::StatusOr<std::unique_ptr<HostedGroup>> group =
        HostedGroup::Start(start, [this](FromNode message) { Send(std::move(message)); });
    if (group.ok()) {
      const std::lock_guard lock(mutex_);
      groups_[start.group()] = *std::move(group);
      return absl::OkStatus();
    }
    for (const internal::StartRank& rank : start.ranks()) {
      FromNode message;
      message.mutable_ended()->set_rank(rank.rank());
      message.mutable_ended()->set_state(absl::StrCat("could not be started: ", std::string(group.status().message())));
      Send(std::move(message));
    }
    return absl::OkStatus();
  }

  void Send(FromNode message) {
    message.set_epoch(epoch_);
    writer_.Push(std::move(message));
  }

  void Beat() {
    FromNode message;
    internal::Beat& beat = *message.mutable_beat();
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return;
      for (const auto& [id, group] : groups_) group->AddStates(beat);
    }
    Send(std::move(message));
  }

  AgentStream& stream_;
  const std::function<void()> cancel_;
  const uint64_t epoch_;
  StreamWriter<AgentStream, FromNode> writer_;
  ContentReceiver contents_;
  std::mutex mutex_;  // guards the map; only the reading thread changes it
  std::map<uint64_t, std::unique_ptr<HostedGroup>> groups_;
  bool ended_ = false;  // guarded by mutex_
};

NodeAgent::NodeAgent(NodeAgentOptions options)
    : options_(std::move(options)),
      incarnation_(base::RandomNumber<uint64_t>() | 1),
      // A process of the same name may have been stopped, and still use the folder.
      contents_(*ContentStore::Open({.own_folder = options_.content_folder, .is_shared = true, .log = options_.log})) {}

absl::Status NodeAgent::Run() {
  const absl::Duration deadline = base::SteadyNow() + options_.join_timeout;
  absl::Duration back_off = options_.first_back_off;
  std::string reported;
  while (true) {
    const bool joined_before = has_joined_;
    const absl::Status status = JoinOnce(has_joined_ ? absl::InfiniteDuration() : deadline - base::SteadyNow());
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return absl::OkStatus();
    }
    if (absl::IsAborted(status)) return status;
    if (!has_joined_ && (IsRefusal(status) || base::SteadyNow() >= deadline)) return status;
    if (has_joined_ && !joined_before) back_off = options_.first_back_off;
    const std::string text(status.message());
    if (std::exchange(reported, text) != text) {
      options_.log({base::LogLevel::kWarning, absl::StrCat("not joined to ", options_.controller, ": ", text)});
    }
    if (!Pause(has_joined_ ? back_off : std::min(back_off, deadline - base::SteadyNow()))) return absl::OkStatus();
    back_off = std::min(2 * back_off, kLongestBackOff);
  }
}

bool NodeAgent::Pause(absl::Duration time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(time), [this] { return stopping_; });
  return !stopping_;
}

void NodeAgent::Stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  if (context_ != nullptr) context_->TryCancel();
  changed_.notify_all();
}

absl::Status NodeAgent::JoinOnce(absl::Duration timeout) {
  KeepGrpcQuiet();
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials, NodeChannelCredentials(options_.files));
  ASSIGN_OR_RETURN(const std::string token, ReadNodeToken(options_.files));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMostAnswerBytes);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // each try resolves the name again and reconnects
  const std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel(options_.controller, credentials, arguments);
  const absl::Duration wait = std::clamp(timeout, absl::ZeroDuration(), kControllerTimeout);
  const std::unique_ptr<internal::NodeController::Stub> stub = internal::NodeController::NewStub(channel);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(wait))) {
    return WhyNotConnected(*stub, options_.controller);
  }
  grpc::ClientContext context;
  const auto cancel = [&context] { context.TryCancel(); };
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return absl::CancelledError("the node is stopping");
    context_ = &context;
  }
  const std::unique_ptr<AgentStream> stream = stub->Join(&context);
  FromNode first;
  internal::NodeHello& hello = *first.mutable_hello();
  hello.set_name(options_.name);
  hello.set_version(options_.version);
  hello.set_token(token);
  hello.set_incarnation(incarnation_);
  hello.mutable_devices()->Add(options_.devices.begin(), options_.devices.end());
  hello.set_processors(base::ReadMachineProcessors().available());
  absl::Status status;
  ToNode welcome;
  bool answered = false;
  {
    const SilenceWatch watch(
        kWelcomeTimeout / 10, kWelcomeTimeout, [] {}, cancel);
    answered = stream->Write(first) && stream->Read(&welcome);
  }
  const int64_t beat = welcome.welcome().beat_ms(), lost_after = welcome.welcome().lost_after_ms();
  if (answered && welcome.has_welcome() && beat > 0 && beat <= kLongestBeat && lost_after > beat &&
      lost_after <= kLongestBeat) {
    has_joined_ = true;
    options_.log(absl::StrCat("joined ", options_.controller, " as ", options_.name, " with ",
                              absl::StrJoin(options_.devices, ", ")));
    if (options_.joined) options_.joined();
    Session session(*stream, cancel, welcome.epoch(), *contents_);
    status = session.Run(absl::Milliseconds(beat), absl::Milliseconds(lost_after));
  }
  if (answered) context.TryCancel();  // otherwise the stream has already ended
  const grpc::Status finished = stream->Finish();
  {
    const std::lock_guard lock(mutex_);
    context_ = nullptr;
  }
  if (!status.ok()) return status;
  const absl::Status refusal = FromGrpc(finished);
  if (absl::IsUnavailable(refusal)) return ConnectionError(options_.controller, std::string(refusal.message()));
  if (IsRefusal(refusal)) {
    return absl::Status(refusal.code(), absl::StrCat("the controller at ", options_.controller,
                                                     " refuses this node: ", std::string(refusal.message())));
  }
  return absl::UnavailableError(absl::StrCat("the controller at ", options_.controller, " did not accept this node"));
}

absl::StatusOr<std::string> VersionOfWorker() {
  ASSIGN_OR_RETURN(const std::unique_ptr<WorkerProcess> worker,
                   WorkerProcess::Start({.executable = WorkerExecutable(), .arguments = {"--version"}}));
  if (!worker->WaitForExit(kVersionTimeout))
    return absl::UnavailableError("the worker program does not print its version");
  return std::string(absl::StripAsciiWhitespace(worker->LastOutput()));
}

}  // namespace tessera::server
