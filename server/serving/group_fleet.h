// The groups that are installed: their runners, whether they are ready, and how they share the machine's memory.
//
// Group i has id i + 1, and stays in the list when it has ended. Methods with a lock need it held; the others take it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/serving/group_describer.h"
#include "server/serving/group_runner.h"
#include "server/serving/service_options.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

class GroupFleet final : public ServingGroups {
 public:
  using Lock = ServiceMonitor::Lock;

  // `owner` of the workers: names `own_folder`, where their records are, also where others have folders of that path.
  GroupFleet(ServiceMonitor& monitor, ServedModels& models, const DurableServiceOptions& options,
             const std::string& own_folder, std::string owner);

  // Adds the replicas of a group whose model is among the served ones. `number` is that of the first one, in its name;
  // `replicas` are those of all groups, which share the threads.
  void Install(const Lock& lock, const DescribedGroup& group, size_t number, int64_t replicas);
  // Of whatever is installed and has none. `owner` outlives them.
  void StartRunners(const Lock& lock, GroupOwner& owner);
  // Those that could not start try at once.
  void TryAll(const Lock& lock);
  // Ends all runners. Nothing is installed after this.
  void Stop();

  // Of the replicas that are what `group` asks for, keeps as many as it wants; those try at once where they could not
  // start. How many are missing. `kept` is marked for those that stay, by index.
  int64_t Keep(const Lock& lock, const ServedGroupOptions& group, std::vector<bool>& kept);
  // All others finish what runs in them and start nothing more.
  void DrainOthers(const Lock& lock, const std::vector<bool>& kept);
  void DrainAll(const Lock& lock);
  // Ends those that were drained by DrainOthers and are empty; whether there was one.
  bool EndDrained();

  size_t size(const Lock&) const { return replicas_.size(); }
  int64_t serving(const Lock& lock) const;                  // replicas that are not drained by DrainOthers
  std::vector<std::string> Models(const Lock& lock) const;  // of every group that ever was
  std::vector<GroupInfo> Infos(const Lock& lock) const;
  // Of the model's group that is furthest ahead.
  GroupProgress ProgressOf(const Lock& lock, const std::string& model) const;
  // One step on every group, as ImageService::Probe.
  absl::Status Probe();

  // ServingGroups.
  ServingGroup Find(const Lock& lock, GroupId group) const override;
  void OnReady(const Lock& lock, GroupId group, const std::optional<control::MemoryBudget>& memory_budget) override;
  void OnRefused(const Lock& lock, GroupId group) override;
  void ReplaceAbandoned(const Lock& lock) override;

 private:
  struct Replica {
    ServedGroupOptions options;
    GroupRunnerOptions group;
    GroupDescription description;
    ServedModels::Model model;
    std::unique_ptr<GroupRunner> runner;  // null: it was not started yet
    bool refused = false;                 // the scheduler does not know it
    bool draining = false;                // it is not wanted any more
    bool ended = false;
    bool is_loaded = false;   // its workers have their model
    bool is_in_rest = false;  // and had it when rest_ was measured
  };

  Replica& At(GroupId group) { return replicas_[static_cast<size_t>(group - 1)]; }
  // Shares the machine's memory among the groups that are on its CPU.
  void ShareMemory(const Lock& lock);
  // Notes what all processes take, once no image is being made since the loaded groups have changed.
  void MeasureRest(const Lock& lock);
  // The ranks of all groups that are on one of this group's devices: the most of them.
  int64_t MostRanksPerDevice(const GroupRunnerOptions& group) const;

  // Guarded by the monitor. Bytes that all processes take while no image is made, as of the last time.
  double rest_ = 0;
  bool is_rest_known_ = true;  // since the loaded groups have changed

  ServiceMonitor& monitor_;
  ServedModels& models_;  // guarded by the monitor
  const DurableServiceOptions options_;
  const std::string records_;
  const std::string owner_;
  ServedContents contents_;
  std::deque<Replica> replicas_;  // guarded by the monitor; runners are thread-safe
};

}  // namespace tessera::server
