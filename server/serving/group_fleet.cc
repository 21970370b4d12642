#include "server/serving/group_fleet.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/machine/machine_processors.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "base/time/steady_time.h"
#include "control/host/device.h"
#include "control/model/group_share.h"
#include "control/model/model_cost.h"
#include "server/scheduling/shape_class.h"
#include "server/serving/group_record.h"
#include "server/workers/rank_placement.h"

namespace tessera::server {
namespace {

constexpr int32_t kMaxRows = 8;  // of one batch
constexpr absl::Duration kProbeTimeout = absl::Seconds(60);
// Of memory, where nothing is left: all that is asked for is more.
constexpr double kLeastBudget = 1;
// A group that is free again sooner is not worth the start of its workers.
constexpr absl::Duration kShortestReplacement = absl::Seconds(3);

// What no hardware of the kind surpasses: a thread of a CPU with 64 or, by its matrix unit, 1024 operations a cycle,
// and a GPU in bf16.
double MostFlopsPerSecond(const control::LoadParameters& load, int ranks) {
  if (!control::IsDevice(DeviceOfRank(load.device, 0, ranks), control::DeviceKind::kCpu)) return 2e15 * ranks;
  return (load.dtype == control::Dtype::kBf16 ? 4e12 : 3e11) * std::max<int32_t>(1, load.placement.threads);
}

control::Device DeviceOf(const GroupRunnerOptions& group, int rank) {
  const std::string name = DeviceOfRank(group.load.device, rank, group.layout.ranks());
  auto device = control::ParseDevice(control::DeviceOnItsHost(name)).value_or(control::Device());
  if (device.kind == control::DeviceKind::kCuda) device.index = std::max(0, device.index);
  return device;
}

bool IsOnHost(const GroupRunnerOptions& group) {
  return DeviceOf(group, 0).kind == control::DeviceKind::kCpu && !IsOnNodes(group.load.device);
}

// Whether a group that runs is what these options ask for. How many there are of it is another question, and other
// names of its model are no reason to load it anew.
bool IsSame(const ServedGroupOptions& a, const ServedGroupOptions& b) {
  return a.name == b.name && a.load.model == b.load.model && a.load.files == b.load.files && a.files == b.files &&
         LoadText(a.load) == LoadText(b.load) && a.devices == b.devices && a.layout.layout == b.layout.layout &&
         a.layout.ranks == b.layout.ranks;
}

}  // namespace

GroupFleet::GroupFleet(ServiceMonitor& monitor, ServedModels& models, const DurableServiceOptions& options,
                       const std::string& own_folder, std::string owner)
    : monitor_(monitor),
      models_(models),
      options_(options),
      records_(own_folder + "/workers"),
      owner_(std::move(owner)) {}

void GroupFleet::Install(const Lock& lock, const DescribedGroup& group, size_t number, int64_t replicas) {
  const std::string& name = group.options.name;
  GroupRunnerOptions runner = {.model_name = name,
                               .files = group.options.files,
                               .model = group.model,
                               .load = group.options.load,
                               .layout = group.layout,
                               .certify = options_.certify,
                               .certificates = options_.data_folder + "/certificates",
                               .records = records_,
                               .owner = owner_,
                               .first_back_off = options_.first_back_off,
                               .progress = options_.progress,
                               .at_point = options_.at_point,
                               .trace = options_.trace,
                               .spans = options_.spans,
                               .warmup = group.options.warmup,
                               .next_prompts = group.options.next_prompts,
                               .hosts = options_.hosts,
                               .contents = &contents_};
  runner.load.device = PlaceRanks(group.layout, runner.load.device);
  if (!options_.certificates.empty()) runner.certificates = options_.certificates;
  if (runner.load.placement.threads == 0 && !IsOnNodes(runner.load.device)) {
    const int64_t processors = base::ReadMachineProcessors().available();
    runner.load.placement.threads =
        static_cast<int32_t>(std::max<int64_t>(1, processors / std::max<int64_t>(replicas, 1)));
  }
  for (int64_t replica = 0; replica < group.options.count; ++replica) {
    runner.id = static_cast<GroupId>(replicas_.size()) + 1;
    runner.name = absl::StrCat(name, "-", number + static_cast<size_t>(replica));
    Replica& added = replicas_.emplace_back();
    added.options = group.options;
    added.group = runner;
    added.description = {.id = runner.id,
                         .model = name,
                         .ranks = group.layout.ranks(),
                         .max_rows = kMaxRows,
                         .share = control::ShareOf(group.layout.mesh, DeviceOf(runner, 0).kind, runner.load.dtype),
                         .most_flops_per_second = MostFlopsPerSecond(runner.load, group.layout.ranks())};
    added.model = models_.Find(name);
    monitor_.scheduler(lock).groups().Add(added.description);
    if (monitor_.draining()) monitor_.scheduler(lock).groups().Drain(runner.id);
  }
  ShareMemory(lock);
}

void GroupFleet::StartRunners(const Lock&, GroupOwner& owner) {
  for (Replica& replica : replicas_) {
    if (replica.runner == nullptr) replica.runner = std::make_unique<GroupRunner>(replica.group, owner, options_.log);
  }
}

void GroupFleet::TryAll(const Lock&) {
  for (const Replica& replica : replicas_) {
    if (replica.runner != nullptr && !replica.draining) replica.runner->TryNow();
  }
}

void GroupFleet::Stop() {
  for (Replica& replica : replicas_) {
    if (replica.runner != nullptr) replica.runner->Stop();
  }
}

int64_t GroupFleet::Keep(const Lock&, const ServedGroupOptions& group, std::vector<bool>& kept) {
  int64_t missing = group.count;
  for (size_t i = 0; i < replicas_.size() && missing > 0; ++i) {
    if (kept[i] || replicas_[i].draining || !IsSame(replicas_[i].options, group)) continue;
    kept[i] = true;
    --missing;
    if (replicas_[i].runner != nullptr) replicas_[i].runner->TryNow();
  }
  return missing;
}

void GroupFleet::DrainOthers(const Lock& lock, const std::vector<bool>& kept) {
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] || std::exchange(replicas_[i].draining, true)) continue;
    monitor_.scheduler(lock).groups().Drain(replicas_[i].group.id);
    options_.log(absl::StrCat("group ", replicas_[i].group.name,
                              ": is drained and then ended, because the configuration no longer has it"));
  }
}

void GroupFleet::DrainAll(const Lock& lock) {
  for (const Replica& replica : replicas_) monitor_.scheduler(lock).groups().Drain(replica.group.id);
}

bool GroupFleet::EndDrained() {
  std::vector<Replica*> empty;
  {
    const Lock lock = monitor_.Acquire();
    for (Replica& replica : replicas_) {
      if (replica.draining && !replica.ended && monitor_.scheduler(lock).groups().IsEmpty(replica.group.id)) {
        empty.push_back(&replica);
      }
    }
  }
  for (Replica* replica : empty) {
    if (replica->runner != nullptr) replica->runner->Stop();  // its thread may want the lock
    const Lock lock = monitor_.Acquire();
    monitor_.scheduler(lock).steps().OnGroupDied(replica->group.id);
    monitor_.scheduler(lock).groups().Remove(replica->group.id);
    replica->ended = true;
    replica->is_loaded = is_rest_known_ = false;
    MeasureRest(lock);
    ShareMemory(lock);
  }
  return !empty.empty();
}

int64_t GroupFleet::serving(const Lock&) const { return std::ranges::count(replicas_, false, &Replica::draining); }

std::vector<std::string> GroupFleet::Models(const Lock&) const {
  std::vector<std::string> models;
  for (const Replica& replica : replicas_) models.push_back(replica.group.model_name);
  return models;
}

std::vector<GroupInfo> GroupFleet::Infos(const Lock&) const {
  std::vector<GroupInfo> infos;
  for (const Replica& replica : replicas_) {
    if (replica.runner != nullptr && !replica.ended) infos.push_back(replica.runner->Info());
  }
  return infos;
}

GroupProgress GroupFleet::ProgressOf(const Lock&, const std::string& model) const {
  std::optional<GroupProgress> first;
  for (const Replica& replica : replicas_) {
    if (replica.group.model_name != model || replica.draining || replica.runner == nullptr) continue;
    const GroupProgress progress = replica.runner->Progress();
    if (!first || progress.IsAheadOf(*first)) first = progress;
  }
  return first.value_or(GroupProgress());
}

absl::Status GroupFleet::Probe() {
  const absl::Duration deadline = base::SteadyNow() + kProbeTimeout;
  std::vector<GroupRunner*> runners;
  {
    const Lock lock = monitor_.Acquire();
    for (const Replica& replica : replicas_) {
      if (replica.runner != nullptr && !replica.draining) runners.push_back(replica.runner.get());
    }
  }
  for (GroupRunner* runner : runners) RETURN_IF_ERROR(runner->Probe(deadline - base::SteadyNow()));
  return absl::OkStatus();
}

ServingGroup GroupFleet::Find(const Lock&, GroupId group) const {
  const Replica& replica = replicas_[static_cast<size_t>(group - 1)];
  return {.name = replica.group.name,
          .load = replica.group.load,
          .layout = replica.runner == nullptr ? replica.group.layout : replica.runner->layout(),
          .model = replica.model,
          .contents = replica.runner == nullptr ? "" : replica.runner->contents(),
          .products_drift = replica.runner == nullptr ? std::nullopt : replica.runner->products_drift()};
}

void GroupFleet::OnReady(const Lock& lock, GroupId id, const std::optional<control::MemoryBudget>& memory_budget) {
  RequestScheduler& scheduler = monitor_.scheduler(lock);
  Replica& replica = At(id);
  if (std::exchange(replica.refused, false)) scheduler.groups().Add(replica.description);
  const auto ranks = static_cast<double>(MostRanksPerDevice(replica.group));
  replica.is_loaded = true;
  is_rest_known_ = false;
  MeasureRest(lock);
  if (options_.host_memory && IsOnHost(replica.group)) {
    scheduler.SetFreeMemory(id, options_.host_memory().available / ranks);
  } else if (memory_budget.has_value()) {
    scheduler.SetMemory(id, static_cast<double>(memory_budget->most));
    scheduler.SetFreeMemory(id, static_cast<double>(memory_budget->free) / ranks);
  }
  scheduler.groups().OnReady(id);
  if (monitor_.draining() || replica.draining) scheduler.groups().Drain(id);
}

void GroupFleet::OnRefused(const Lock& lock, GroupId group) {
  At(group).refused = true;
  monitor_.scheduler(lock).groups().Remove(group);
}

void GroupFleet::ReplaceAbandoned(const Lock& lock) {
  MeasureRest(lock);
  RequestScheduler& scheduler = monitor_.scheduler(lock);
  for (const Replica& replica : replicas_) {
    const GroupId group = replica.group.id;
    if (replica.runner == nullptr || !scheduler.steps().IsAbandoned(group)) continue;
    const absl::Duration since = replica.runner->SinceLastAnswer();
    // What has taken longer than was predicted may take as long again.
    const absl::Duration left = std::max(scheduler.capacity().LeastTimeInFlight(group) - since, since);
    if (left <= std::max(replica.runner->ReloadTime(), kShortestReplacement)) continue;
    scheduler.steps().Retire(group);
    replica.runner->Replace("all its images were cancelled or are late, and it was still generating them");
  }
}

// A single image may count on the group's part of all that this server's processes leave when they make none: workers
// keep what an image has taken, and other groups may make one at the same time. Until a group is loaded, its weights
// are what is known of it.
void GroupFleet::ShareMemory(const Lock& lock) {
  if (!options_.host_memory) return;
  const HostMemory host = options_.host_memory();
  double weights = 0, unmeasured = 0, groups = 0;
  for (const Replica& replica : replicas_) {
    if (replica.ended || !IsOnHost(replica.group)) continue;
    if (!replica.draining) ++groups;
    if (replica.group.load.placement.stream_blocks) continue;
    const auto bytes = static_cast<double>(WeightBytes(replica.group.model, replica.group.load.dtype));
    weights += bytes;
    if (!replica.is_in_rest) unmeasured += bytes;
  }
  if (host.total <= weights) return;  // loading will say so
  const double left = host.total - std::max(weights, rest_ + unmeasured);
  const double budget = std::max(left / std::max(groups, 1.0), kLeastBudget);
  const std::string limit = absl::StrCat(host.is_limit ? "the memory limit of the server's control group (container)"
                                                       : "the memory of the server's machine",
                                         " is ", base::ByteText(static_cast<uint64_t>(host.total)));
  for (Replica& replica : replicas_) {
    if (!IsOnHost(replica.group)) continue;
    replica.description.memory_bytes = budget / replica.description.ranks;
    monitor_.scheduler(lock).SetMemory(replica.group.id, replica.description.memory_bytes, limit);
  }
}

void GroupFleet::MeasureRest(const Lock& lock) {
  if (is_rest_known_ || !options_.host_memory) return;
  for (const Replica& replica : replicas_) {
    if (!replica.ended && !monitor_.scheduler(lock).groups().IsEmpty(replica.group.id)) return;
  }
  is_rest_known_ = true;
  rest_ = options_.host_memory().in_use;
  for (Replica& replica : replicas_) replica.is_in_rest = replica.is_loaded;
  ShareMemory(lock);
}

int64_t GroupFleet::MostRanksPerDevice(const GroupRunnerOptions& group) const {
  const auto device_of = [](const GroupRunnerOptions& of, int rank) {
    const std::string name = DeviceOfRank(of.load.device, rank, of.layout.ranks());
    return std::pair(control::SplitDevice(name).node, DeviceOf(of, rank));
  };
  std::map<std::pair<std::string, control::Device>, int64_t> ranks;
  for (const Replica& replica : replicas_) {
    if (replica.ended) continue;
    for (int rank = 0; rank < replica.group.layout.ranks(); ++rank) ++ranks[device_of(replica.group, rank)];
  }
  int64_t most = 1;
  for (int rank = 0; rank < group.layout.ranks(); ++rank) most = std::max(most, ranks[device_of(group, rank)]);
  return most;
}

}  // namespace tessera::server
