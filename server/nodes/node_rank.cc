#include "server/nodes/node_rank.h"

#include <sys/socket.h>

#include <utility>

namespace tessera::server {
namespace {

// Time between the order to end a rank and the node's report that it has ended.
constexpr absl::Duration kExitTimeout = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::shared_ptr<NodeRankState>> NodeRankState::Create(std::string node, int processors, Calls calls) {
  std::shared_ptr<NodeRankState> state(new NodeRankState(std::move(node), processors, std::move(calls)));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError("no sockets for the control channel of a node's rank");
  }
  state->client_ = base::FileDescriptor(ends[0]);
  state->pump_ = std::make_unique<BytePump>(
      ends[1], BytePump::Events{.read = state->calls_.send, .closed = [send = state->calls_.send] { send(""); }});
  return state;
}

void NodeRankState::OnBytes(const std::string& bytes) { pump_->Push(bytes); }

void NodeRankState::OnState(bool stopped, uint64_t peak_memory_bytes) {
  const std::lock_guard lock(mutex_);
  stopped_ = stopped && !ended_;
  peak_memory_bytes_ = peak_memory_bytes;
}

void NodeRankState::OnEnded(const std::string& state, const std::string& last_output, bool lost) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    state_ = state;
    last_output_ = last_output;
    lost_ = lost;
    stopped_ = false;
    changed_.notify_all();
  }
  content_.OnEnded(state);
  pump_->Finish();
}

NodeRank::~NodeRank() {
  Kill();
  WaitForExit(kExitTimeout);
}

absl::StatusOr<int> NodeRank::Connect(absl::Duration) {
  const std::lock_guard lock(state_->mutex_);
  if (!state_->client_.valid()) return absl::FailedPreconditionError("the rank has a controller already");
  return state_->client_.Release();
}

bool NodeRank::WaitForExit(absl::Duration timeout) {
  std::unique_lock lock(state_->mutex_);
  return state_->changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [this] { return state_->ended_; });
}

std::string NodeRank::StateText() {
  const std::lock_guard lock(state_->mutex_);
  return state_->state_;
}

bool NodeRank::IsStopped() const {
  const std::lock_guard lock(state_->mutex_);
  return state_->stopped_;
}

std::string NodeRank::LastOutput() {
  const std::lock_guard lock(state_->mutex_);
  return state_->last_output_;
}

uint64_t NodeRank::PeakMemoryBytes() const {
  const std::lock_guard lock(state_->mutex_);
  return state_->peak_memory_bytes_;
}

void NodeRank::Kill() { state_->calls_.kill(); }

absl::StatusOr<WorkerIdentity> NodeRank::identity() const {
  return absl::FailedPreconditionError("ranks of a node cannot be adopted");
}

bool NodeRank::host_lost() const {
  const std::lock_guard lock(state_->mutex_);
  return state_->lost_;
}

}  // namespace tessera::server
