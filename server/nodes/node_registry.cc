#include "server/nodes/node_registry.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/threads/start_thread.h"
#include "control/host/device.h"
#include "parallel/remote/segment_mirror.h"
#include "server/api/generation_request.h"

namespace tessera::server {
namespace {

constexpr int kMostDevices = 64;
constexpr int kMostProcessors = 1 << 16;
constexpr int kHere = 0;              // this host's number within a group
constexpr size_t kMostFenced = 1024;  // per name, the last ones

std::string Nearest(const std::string& name, const std::vector<std::string>& names) {
  const std::string nearest = base::NearestName(name, names);
  if (!nearest.empty()) return absl::StrCat("; the nearest is ", nearest);
  return names.empty() ? "; there is none" : absl::StrCat("; valid values are ", absl::StrJoin(names, ", "));
}

}  // namespace

// Transfers the segments of one group between its hosts. Its mutex keeps the batches of a host in order.
class NodeRegistry::Group final {
 public:
  Group(uint64_t id, std::shared_ptr<parallel::HostSegment> segment, std::vector<int> host_of_rank)
      : id_(id), segment_(std::move(segment)), mirror_(segment_, std::move(host_of_rank), kHere) {}
  ~Group() { Stop(); }

  void AddHost(const std::string& node, uint64_t epoch, std::shared_ptr<NodeLink> link) {
    hosts_.push_back({node, epoch, std::move(link)});
  }
  void Run() {
    thread_ = base::StartThread([this] {
      while (!ending_) {
        const std::string batch = mirror_.Collect();
        if (batch.empty()) {
          mirror_.Wait(parallel::kMirrorWait);
        } else {
          Carry(kHere, batch).IgnoreError();
        }
      }
    });
  }
  void Stop() {
    ending_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void EndOnNodes() {
    for (const Host& host : hosts_) {
      internal::ToNode message;
      message.set_epoch(host.epoch);
      message.mutable_end()->set_group(id_);
      host.link->Send(std::move(message));
    }
  }

  // Takes a node's segment updates. An invalid update ends the group.
  absl::Status Receive(const std::string& node, uint64_t epoch, const std::string& updates) {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (hosts_[i].node != node || hosts_[i].epoch != epoch) continue;
      absl::Status carried = Carry(static_cast<int>(i) + 1, updates);
      if (!carried.ok()) segment_->Poison(-1, absl::StrCat("node ", node, ": ", std::string(carried.message())));
      return carried;
    }
    return absl::OkStatus();  // the group is being taken apart
  }

  uint64_t id() const { return id_; }

 private:
  struct Host {
    std::string node;
    uint64_t epoch;
    std::shared_ptr<NodeLink> link;
  };

  using Batches = std::map<int, std::string>;  // by host

  absl::Status Carry(int from, const std::string& updates) {
    const std::lock_guard lock(mutex_);
    ASSIGN_OR_RETURN(Batches others, mirror_.Route(from, updates));
    for (auto& [host, batch] : others) {
      const Host& to = hosts_[static_cast<size_t>(host) - 1];
      internal::ToNode message;
      message.set_epoch(to.epoch);
      message.mutable_segment()->set_group(id_);
      message.mutable_segment()->set_updates(std::move(batch));
      to.link->Send(std::move(message));
    }
    return absl::OkStatus();
  }

  const uint64_t id_;
  const std::shared_ptr<parallel::HostSegment> segment_;
  std::mutex mutex_;
  parallel::SegmentMirror mirror_;
  std::vector<Host> hosts_;  // by number, from 1 on; complete before the group is published
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

class NodeRegistry::Ranks final : public RemoteRanks {
 public:
  Ranks(NodeRegistry& registry, std::shared_ptr<Group> group, std::vector<std::unique_ptr<RankProcess>> processes)
      : registry_(registry), group_(std::move(group)), processes_(std::move(processes)) {}
  ~Ranks() override {
    processes_.clear();
    group_->EndOnNodes();
    registry_.Forget(group_->id());
    group_->Stop();
  }
  std::vector<std::unique_ptr<RankProcess>> TakeProcesses() override { return std::move(processes_); }

 private:
  NodeRegistry& registry_;
  const std::shared_ptr<Group> group_;
  std::vector<std::unique_ptr<RankProcess>> processes_;
};

NodeRegistry::NodeRegistry(NodeRegistryOptions options) : options_(std::move(options)) {}
NodeRegistry::~NodeRegistry() = default;

void NodeRegistry::Log(base::LogLevel level, const std::string& node, const std::string& text) const {
  base::LogLine line(level, absl::StrCat("node ", node, ": ", text), {{"node", node}});
  line.event = "node";
  options_.log(line);
}

absl::Status NodeRegistry::CheckHello(const internal::NodeHello& hello) const {
  if (!control::IsNodeName(hello.name())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name ", QuotedValue(hello.name().substr(0, kMostShown)),
                     " is not valid; valid values are 1 to 63 of a-z 0-9 . - that begin with "
                     "a letter or digit"));
  }
  if (hello.version() != options_.version) {
    return absl::FailedPreconditionError(
        absl::StrCat("its worker is ", QuotedValue(hello.version().substr(0, kMostShown)), ", the server's is ",
                     QuotedValue(options_.version), "; install the same version on both"));
  }
  const bool devices =
      hello.devices_size() > 0 && hello.devices_size() <= kMostDevices &&
      std::ranges::all_of(hello.devices(), [](const auto& name) { return control::IsNodeDevice(name); });
  if (hello.incarnation() == 0) return absl::InvalidArgumentError("its process has no incarnation number");
  if (!devices || hello.processors() < 1 || hello.processors() > kMostProcessors) {
    return absl::InvalidArgumentError("it offers no valid devices; valid values are cpu:N and cuda:N");
  }
  return absl::OkStatus();
}

std::vector<std::shared_ptr<NodeRankState>> NodeRegistry::TakeRanks(Node& node) {
  std::vector<std::shared_ptr<NodeRankState>> ranks;
  for (auto& [number, rank] : node.ranks) ranks.push_back(std::move(rank));
  node.ranks.clear();
  return ranks;
}

absl::StatusOr<uint64_t> NodeRegistry::Admit(const internal::NodeHello& hello, std::shared_ptr<NodeLink> link,
                                             internal::NodeWelcome welcome) {
  RETURN_IF_ERROR(CheckHello(hello));
  std::vector<std::shared_ptr<NodeRankState>> lost;
  std::shared_ptr<NodeLink> fenced;
  uint64_t epoch = 0, fenced_epoch = 0;
  {
    const std::lock_guard lock(mutex_);
    Node& node = nodes_[hello.name()];
    if (std::ranges::find(node.fenced, hello.incarnation()) != node.fenced.end()) {
      return absl::AbortedError("a newer process with that name has joined; this one must end");
    }
    lost = TakeRanks(node);
    fenced = std::exchange(node.link, std::move(link));
    fenced_epoch = std::exchange(node.epoch, ++last_epoch_);
    if (node.incarnation == hello.incarnation()) {
      fenced = nullptr;  // the process has given up that connection itself
    } else if (node.incarnation != 0) {
      node.fenced.push_back(node.incarnation);
      if (node.fenced.size() > kMostFenced) node.fenced.pop_front();
    }
    node.incarnation = hello.incarnation();
    node.devices.assign(hello.devices().begin(), hello.devices().end());
    node.processors = hello.processors();
    node.changed = absl::Now();
    node.last_rank = 0;
    epoch = node.epoch;
    // The welcome must be sent before any group's message.
    internal::ToNode first;
    first.set_epoch(epoch);
    *first.mutable_welcome() = std::move(welcome);
    node.link->Send(std::move(first));
    changed_.notify_all();
  }
  for (const auto& rank : lost) rank->OnEnded("is lost: its node has joined again", "", /*lost=*/true);
  if (fenced != nullptr) {
    internal::ToNode message;
    message.set_epoch(fenced_epoch);
    message.set_replaced("a newer process with that name has joined");
    fenced->Send(std::move(message));
    Log(base::LogLevel::kWarning, hello.name(), "a newer process has joined, and the earlier one is fenced");
  }
  Log(base::LogLevel::kInfo, hello.name(), absl::StrCat("has joined with ", absl::StrJoin(hello.devices(), ", ")));
  std::function<void()> joined;
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) joined = options_.joined;
  }
  if (joined) joined();
  return epoch;
}

void NodeRegistry::Lose(const std::string& name, uint64_t epoch, const std::string& reason) {
  std::vector<std::shared_ptr<NodeRankState>> lost;
  {
    const std::lock_guard lock(mutex_);
    const auto node = nodes_.find(name);
    if (node == nodes_.end() || node->second.epoch != epoch || node->second.link == nullptr) return;
    node->second.link = nullptr;
    node->second.changed = absl::Now();
    lost = TakeRanks(node->second);
  }
  for (const auto& rank : lost) {
    rank->OnEnded(absl::StrCat("is lost with its node: ", reason), "", /*lost=*/true);
  }
  Log(base::LogLevel::kWarning, name, absl::StrCat("is lost: ", reason));
}

absl::Status NodeRegistry::Receive(const std::string& name, const internal::FromNode& message) {
  std::shared_ptr<NodeRankState> rank;
  std::shared_ptr<Group> group;
  std::vector<std::pair<std::shared_ptr<NodeRankState>, const internal::RankState*>> states;
  {
    const std::lock_guard lock(mutex_);
    Node& node = nodes_[name];
    if (message.epoch() != node.epoch && !base::Planted("fenced_nodes_are_heard")) return absl::OkStatus();
    const auto find = [&](uint64_t number) {
      const auto found = node.ranks.find(number);
      return found == node.ranks.end() ? nullptr : found->second;
    };
    if (message.has_bytes()) rank = find(message.bytes().rank());
    if (message.has_content()) rank = find(message.content().rank());
    if (message.has_ended()) {
      rank = find(message.ended().rank());
      node.ranks.erase(message.ended().rank());
    }
    for (const internal::RankState& state : message.beat().ranks()) {
      if (auto of = find(state.rank()); of != nullptr) states.emplace_back(std::move(of), &state);
    }
    if (message.has_segment()) {
      const auto found = groups_.find(message.segment().group());
      if (found != groups_.end()) group = found->second;
    }
  }
  for (const auto& [of, state] : states) of->OnState(state->stopped(), state->peak_memory_bytes());
  if (rank != nullptr && message.has_bytes()) rank->OnBytes(message.bytes().bytes());
  if (rank != nullptr && message.has_content()) rank->OnContent(message.content());
  if (rank != nullptr && message.has_ended()) {
    rank->OnEnded(message.ended().state(), message.ended().last_output(), /*lost=*/false);
  }
  if (group != nullptr) return group->Receive(name, message.epoch(), message.segment().updates());
  return absl::OkStatus();
}

absl::Status NodeRegistry::CheckDevices(const RemoteRanksRequest& request, bool& may_come) const {
  may_come = false;
  std::vector<std::string> connected;
  for (const auto& [name, node] : nodes_) {
    if (node.link != nullptr) connected.push_back(name);
  }
  for (size_t rank = 0; rank < request.devices.size(); ++rank) {
    const control::PlacedDevice device = control::SplitDevice(request.devices[rank]);
    if (device.node.empty()) continue;
    const auto node = nodes_.find(device.node);
    if (node == nodes_.end() || node->second.link == nullptr) {
      may_come = true;
      return absl::UnavailableError(absl::StrCat("node ", device.node, ", which must run rank ", rank,
                                                 ", has not joined", Nearest(device.node, connected)));
    }
    if (std::ranges::find(node->second.devices, device.device) == node->second.devices.end()) {
      return absl::FailedPreconditionError(absl::StrCat("node ", device.node, " offers no ", device.device,
                                                        Nearest(device.device, node->second.devices)));
    }
  }
  return absl::OkStatus();
}

absl::Status NodeRegistry::WaitForNodes(std::unique_lock<std::mutex>& lock, const RemoteRanksRequest& request) {
  absl::Status status;
  changed_.wait_for(lock, absl::ToChronoMilliseconds(options_.join_wait), [&] {
    bool may_come = false;
    status = CheckDevices(request, may_come);
    return stopping_ || !may_come;
  });
  return stopping_ ? absl::UnavailableError("the server is stopping") : status;
}

absl::StatusOr<std::shared_ptr<NodeRankState>> NodeRegistry::AddRank(Node& node, const std::string& name) {
  const uint64_t number = ++node.last_rank, epoch = node.epoch;
  const std::shared_ptr<NodeLink> link = node.link;
  const auto send = [=](std::string bytes) {
    internal::ToNode message;
    message.set_epoch(epoch);
    message.mutable_bytes()->set_rank(number);
    message.mutable_bytes()->set_bytes(std::move(bytes));
    link->Send(std::move(message));
  };
  const auto kill = [=] {
    internal::ToNode message;
    message.set_epoch(epoch);
    message.mutable_kill()->set_rank(number);
    link->Send(std::move(message));
  };
  const auto send_content = [=](internal::ContentPiece piece) {
    internal::ToNode message;
    message.set_epoch(epoch);
    *message.mutable_content() = std::move(piece);
    message.mutable_content()->set_rank(number);
    link->Send(std::move(message));
  };
  ASSIGN_OR_RETURN(
      std::shared_ptr<NodeRankState> rank,
      NodeRankState::Create(name, node.processors, {.send = send, .kill = kill, .send_content = send_content}));
  node.ranks[number] = rank;
  return rank;
}

absl::StatusOr<std::unique_ptr<RemoteRanks>> NodeRegistry::Start(const RemoteRanksRequest& request) {
  std::unique_lock lock(mutex_);
  RETURN_IF_ERROR(WaitForNodes(lock, request));
  std::vector<std::string> names;  // of hosts, from number 1 on
  std::vector<int> host_of_rank;
  for (const std::string& text : request.devices) {
    const std::string node = control::SplitDevice(text).node;
    if (node.empty()) {
      host_of_rank.push_back(kHere);
      continue;
    }
    auto found = std::ranges::find(names, node);
    if (found == names.end()) found = names.insert(names.end(), node);
    host_of_rank.push_back(static_cast<int>(found - names.begin()) + 1);
  }
  auto group = std::make_shared<Group>(++last_group_, request.segment, host_of_rank);
  std::vector<std::unique_ptr<RankProcess>> processes(request.devices.size());
  std::vector<internal::ToNode> starts(names.size());
  for (size_t host = 0; host < names.size(); ++host) {
    const Node& node = nodes_[names[host]];
    group->AddHost(names[host], node.epoch, node.link);
    starts[host].set_epoch(node.epoch);
    internal::StartGroup& start = *starts[host].mutable_start();
    start.set_group(group->id());
    start.set_layout(request.layout);
    start.set_data(request.data);
    start.set_host(static_cast<int>(host) + 1);
    start.mutable_host_of_rank()->Add(host_of_rank.begin(), host_of_rank.end());
  }
  for (size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    if (host_of_rank[rank] == kHere) continue;
    const auto host = static_cast<size_t>(host_of_rank[rank]) - 1;
    Node& node = nodes_[names[host]];
    ASSIGN_OR_RETURN(std::shared_ptr<NodeRankState> state, AddRank(node, names[host]));
    internal::StartRank& start = *starts[host].mutable_start()->add_ranks();
    start.set_rank(node.last_rank);
    start.set_world_rank(static_cast<int>(rank));
    processes[rank] = std::make_unique<NodeRank>(std::move(state));
  }
  groups_[group->id()] = group;
  for (size_t host = 0; host < names.size(); ++host) nodes_[names[host]].link->Send(std::move(starts[host]));
  lock.unlock();
  group->Run();
  return std::make_unique<Ranks>(*this, std::move(group), std::move(processes));
}

void NodeRegistry::Forget(uint64_t group) {
  const std::lock_guard lock(mutex_);
  groups_.erase(group);
}

void NodeRegistry::Stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

std::vector<NodeInfo> NodeRegistry::Infos() const {
  const std::lock_guard lock(mutex_);
  std::vector<NodeInfo> infos;
  for (const auto& [name, node] : nodes_) {
    infos.push_back({.name = name,
                     .state = node.link == nullptr ? NodeState::kLost : NodeState::kJoined,
                     .devices = node.devices,
                     .epoch = node.epoch,
                     .changed = node.changed});
  }
  return infos;
}

}  // namespace tessera::server
