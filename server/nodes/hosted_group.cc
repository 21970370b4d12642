#include "server/nodes/hosted_group.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/threads/start_thread.h"
#include "parallel/plan/layout.h"
#include "parallel/plan/mesh.h"
#include "parallel/segment/mesh_groups.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(60);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);
// Time between the end of a process and the last bytes that it has written.
constexpr std::chrono::seconds kLastBytes{1};
constexpr int kMostData = 1024;

}  // namespace

// HostedRank is one rank: a thread connects to its process, transfers bytes, and reports its end.
class HostedRank final {
 public:
  HostedRank(uint64_t number, HostedGroup::Send send, std::unique_ptr<WorkerProcess> process)
      : number_(number),
        send_(std::move(send)),
        process_(std::move(process)),
        thread_(base::StartThread([this] { Run(); })) {}
  ~HostedRank() {
    process_->Kill();
    thread_.join();
  }

  void OnBytes(const std::string& bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes.empty()) {
      finished_ = true;
      if (pump_ != nullptr) pump_->Finish();
    } else if (pump_ != nullptr) {
      pump_->Push(bytes);
    } else {
      early_ += bytes;
    }
  }
  void Kill() { process_->Kill(); }
  void AddState(internal::Beat& beat) {
    if (process_->WaitForExit(absl::ZeroDuration())) return;
    internal::RankState& state = *beat.add_ranks();
    state.set_rank(number_);
    state.set_stopped(process_->IsStopped());
    state.set_peak_memory_bytes(process_->PeakMemoryBytes());
  }

 private:
  void Run() {
    const absl::StatusOr<int> socket = process_->Connect(kConnectTimeout);
    if (socket.ok()) {
      Use(*socket);
    } else {
      process_->Kill();
    }
    while (!process_->WaitForExit(kWatchInterval)) {
    }
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kLastBytes, [this] { return pump_ == nullptr || closed_; });
    }
    internal::FromNode message;
    internal::RankEnded& ended = *message.mutable_ended();
    ended.set_rank(number_);
    ended.set_state(process_->StateText());
    ended.set_last_output(process_->LastOutput());
    send_(std::move(message));
  }

  void Use(int socket) {
    const auto read = [this](std::string bytes) {
      internal::FromNode message;
      message.mutable_bytes()->set_rank(number_);
      message.mutable_bytes()->set_bytes(std::move(bytes));
      send_(std::move(message));
    };
    const auto closed = [this] {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      changed_.notify_all();
    };
    const std::lock_guard lock(mutex_);
    pump_ = std::make_unique<BytePump>(socket, BytePump::Events{.read = read, .closed = closed});
    if (!early_.empty()) pump_->Push(std::exchange(early_, ""));
    if (finished_) pump_->Finish();
  }

  const uint64_t number_;
  const HostedGroup::Send send_;
  const std::unique_ptr<WorkerProcess> process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::string early_;  // bytes that arrived before the process was connected
  bool finished_ = false, closed_ = false;
  std::unique_ptr<BytePump> pump_;
  std::thread thread_;
};

HostedGroup::HostedGroup(uint64_t id, std::shared_ptr<parallel::HostSegment> segment, std::vector<int> host_of_rank,
                         int host, Send send)
    : id_(id), send_(std::move(send)), segment_(std::move(segment)), mirror_(segment_, std::move(host_of_rank), host) {}

absl::StatusOr<std::unique_ptr<HostedGroup>> HostedGroup::Start(const internal::StartGroup& start, Send send) {
  ASSIGN_OR_RETURN(const parallel::Layout layout, parallel::ParseLayout(start.layout()));
  if (start.data() < 0 || start.data() > kMostData) return absl::InvalidArgumentError("the group has too many ranks");
  parallel::MeshShape shape = layout.mesh;
  shape.data = std::max(1, start.data());
  const int ranks = shape.data * layout.ranks();
  if (ranks > parallel::kMaxHostRanks || start.host_of_rank_size() != ranks || start.host() < 1) {
    return absl::InvalidArgumentError("the hosts of the group do not match its ranks");
  }
  ASSIGN_OR_RETURN(const parallel::Mesh mesh, parallel::Mesh::Create(shape, ranks));
  ASSIGN_OR_RETURN(std::shared_ptr<parallel::HostSegment> segment,
                   parallel::HostSegment::CreateShared(
                       {.ranks = ranks,
                        .groups = start.data() > 0 ? parallel::TrainingMeshGroups(mesh) : parallel::MeshGroups(mesh)}));
  std::unique_ptr<HostedGroup> group(new HostedGroup(start.group(), std::move(segment),
                                                     {start.host_of_rank().begin(), start.host_of_rank().end()},
                                                     start.host(), std::move(send)));
  for (const internal::StartRank& rank : start.ranks()) {
    if (rank.world_rank() < 0 || rank.world_rank() >= ranks || start.host_of_rank(rank.world_rank()) != start.host() ||
        group->ranks_.contains(rank.rank())) {
      return absl::InvalidArgumentError("a rank of the group is not on this node");
    }
    std::vector<std::string> arguments = {"--layout",  start.layout(),
                                          "--rank",    absl::StrCat(rank.world_rank()),
                                          "--segment", absl::StrCat(WorkerProcess::kInheritedDescriptor)};
    if (start.data() > 0) arguments.insert(arguments.end(), {"--data", absl::StrCat(start.data())});
    ASSIGN_OR_RETURN(std::unique_ptr<WorkerProcess> process,
                     WorkerProcess::Start({.executable = WorkerExecutable(),
                                           .arguments = std::move(arguments),
                                           .inherited = group->segment_->descriptor()}));
    group->ranks_[rank.rank()] = std::make_unique<HostedRank>(rank.rank(), group->send_, std::move(process));
  }
  group->carrier_ = base::StartThread([of = group.get()] { of->Carry(); });
  return group;
}

HostedGroup::~HostedGroup() {
  for (const auto& [number, rank] : ranks_) rank->Kill();  // all at once, before each destructor waits for one
  ranks_.clear();
  ending_ = true;
  if (carrier_.joinable()) carrier_.join();
}

void HostedGroup::Carry() {
  while (!ending_) {
    std::string batch = mirror_.Collect();
    if (batch.empty()) {
      mirror_.Wait(parallel::kMirrorWait);
      continue;
    }
    internal::FromNode message;
    message.mutable_segment()->set_group(id_);
    message.mutable_segment()->set_updates(std::move(batch));
    send_(std::move(message));
  }
}

void HostedGroup::OnBytes(uint64_t rank, const std::string& bytes) {
  if (const auto found = ranks_.find(rank); found != ranks_.end()) found->second->OnBytes(bytes);
}

void HostedGroup::Kill(uint64_t rank) {
  if (const auto found = ranks_.find(rank); found != ranks_.end()) found->second->Kill();
}

absl::Status HostedGroup::OnSegment(const std::string& updates) { return mirror_.Apply(updates); }

void HostedGroup::AddStates(internal::Beat& beat) {
  for (const auto& [number, rank] : ranks_) rank->AddState(beat);
}

}  // namespace tessera::server
