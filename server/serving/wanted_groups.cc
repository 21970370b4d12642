#include "server/serving/wanted_groups.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads/start_thread.h"
#include "base/time/clock.h"
#include "base/time/steady_time.h"
#include "control/model/model_description.h"
#include "server/api/service_error.h"
#include "server/scheduling/shape_class.h"
#include "server/workers/last_output.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr absl::Duration kLongestPause = absl::Minutes(1);  // between two tries

}  // namespace

WantedGroups::WantedGroups(ServiceMonitor& monitor, ServedModels& models, GroupFleet& fleet,
                           const DurableServiceOptions& options, const std::string& owner)
    : monitor_(monitor), models_(models), fleet_(fleet), options_(options), describer_(options.progress, owner) {}

WantedGroups::~WantedGroups() {
  describer_.Stop();
  if (thread_.joinable()) thread_.join();
}

absl::Status WantedGroups::Install() {
  std::vector<std::pair<DescribedGroup, size_t>> readable;
  absl::Status first;
  for (const ServedGroupOptions& group : options_.groups) {
    absl::StatusOr<DescribedGroup> described = describer_.Describe(group);
    const Lock lock = monitor_.Acquire();
    if (described.ok()) {
      readable.emplace_back(*std::move(described), next_number_);
    } else {
      first.Update(described.status());
      unreadable_.push_back({.options = group,
                             .number = next_number_,
                             .reason = described.status(),
                             .pause = options_.first_back_off,
                             .next = base::SteadyNow() + options_.first_back_off});
    }
    next_number_ += static_cast<size_t>(group.count);
  }
  if (readable.empty() && !options_.may_start_without_models) return first;
  const Lock lock = monitor_.Acquire();
  for (const Unreadable& group : unreadable_) LogRefused(group.options.name, group.number, group.reason);
  // The order is that of the configuration: the first model serves requests that name none.
  for (const ServedGroupOptions& group : options_.groups) {
    const auto found =
        std::ranges::find_if(readable, [&](const auto& other) { return other.first.options.name == group.name; });
    if (found == readable.end()) {
      ShowUnreadable(lock, group);
    } else {
      ShowReadable(lock, found->first);
    }
  }
  for (const auto& [group, number] : readable) {
    ShowReadable(lock, group);
    fleet_.Install(lock, group, number, static_cast<int64_t>(next_number_));
  }
  return absl::OkStatus();
}

void WantedGroups::Start(JobLifecycle& jobs, JobOutcomes& outcomes) {
  jobs_ = &jobs;
  outcomes_ = &outcomes;
  {
    const Lock lock = monitor_.Acquire();
    fleet_.StartRunners(lock, jobs);
  }
  thread_ = base::StartThread([this] { Run(); });
}

void WantedGroups::Set(std::vector<ServedGroupOptions> groups) {
  for (ServedGroupOptions& group : groups) group.files = FilesIdentity(group.load);
  const Lock lock = monitor_.Acquire();
  wanted_ = std::move(groups);
  monitor_.Notify();
}

void WantedGroups::Run() {
  while (true) {
    bool taken = false;
    {
      Lock lock = monitor_.Acquire();
      monitor_.WaitFor(lock, kTick, [&] { return monitor_.stopping(lock) || wanted_.has_value(); });
      if (monitor_.stopping(lock)) return;
      taken = wanted_.has_value();
      if (taken) Take(lock, *std::exchange(wanted_, std::nullopt));
    }
    if (taken) FailUnserved();
    TryUnreadable();
    if (fleet_.EndDrained()) FailUnserved();
  }
}

void WantedGroups::Take(const Lock& lock, const std::vector<ServedGroupOptions>& groups) {
  std::vector<bool> kept(fleet_.size(lock), false);
  unreadable_.clear();
  for (const ServedGroupOptions& group : groups) {
    ServedGroupOptions missing = group;
    missing.count = fleet_.Keep(lock, group, kept);
    if (missing.count == 0) continue;
    // Tried below at once.
    unreadable_.push_back({.options = missing,
                           .number = next_number_,
                           .reason = absl::UnavailableError("it has not been read yet"),
                           .pause = options_.first_back_off,
                           .next = base::SteadyNow()});
    next_number_ += static_cast<size_t>(missing.count);
  }
  fleet_.DrainOthers(lock, kept);
  const ServedModels before = models_.TakeAll();
  for (const ServedGroupOptions& group : groups) {
    if (models_.Find(group.name) != nullptr) continue;
    const ServedModels::Model known = before.Find(group.name);
    if (known == nullptr) {
      ShowUnreadable(lock, group);
      continue;
    }
    ServedModel model = *known;
    model.aliases = group.aliases;
    models_.Put(std::move(model));
  }
  monitor_.NotifyWork(lock);
}

void WantedGroups::FailUnserved() {
  std::vector<TaskId> tasks;
  {
    const Lock lock = monitor_.Acquire();
    tasks = jobs_->TakeUnserved(lock, fleet_.Models(lock));
  }
  for (const TaskId task : tasks) outcomes_->FailWaiting(task, NotServedError());
}

void WantedGroups::TryUnreadable() {
  while (true) {
    ServedGroupOptions options;
    size_t number = 0;
    {
      const Lock lock = monitor_.Acquire();
      const auto due =
          std::ranges::find_if(unreadable_, [](const auto& group) { return group.next <= base::SteadyNow(); });
      if (monitor_.stopping(lock) || due == unreadable_.end()) return;
      options = due->options;
      number = due->number;
    }
    const absl::StatusOr<DescribedGroup> described = describer_.Describe(options);
    const Lock lock = monitor_.Acquire();
    if (monitor_.stopping(lock)) return;
    const auto group = std::ranges::find(unreadable_, number, &Unreadable::number);
    if (!described.ok()) {
      if (described.status() != group->reason) LogRefused(options.name, number, described.status());
      group->reason = described.status();
      group->next = base::SteadyNow() + group->pause;
      group->pause = std::min(2 * group->pause, kLongestPause);
      ShowUnreadable(lock, group->options);
      continue;
    }
    unreadable_.erase(group);
    int64_t replicas = options.count + fleet_.serving(lock);
    for (const Unreadable& other : unreadable_) replicas += other.options.count;
    ShowReadable(lock, *described);
    fleet_.Install(lock, *described, number, replicas);
    fleet_.StartRunners(lock, *jobs_);
    jobs_->EnqueueKept(lock, options.name);
    monitor_.NotifyWork(lock);
  }
}

std::vector<GroupInfo> WantedGroups::UnreadableInfos(const Lock&) const {
  std::vector<GroupInfo> infos;
  for (const Unreadable& group : unreadable_) {
    for (int64_t replica = 0; replica < group.options.count; ++replica) {
      infos.push_back({.name = absl::StrCat(group.options.name, "-", group.number + replica),
                       .model = group.options.name,
                       .dtype = base::EnumName(group.options.load.dtype),
                       .devices = {group.options.load.device},
                       .state = GroupState::kRefused,
                       .reason = WithoutLastOutput(group.reason.message()),
                       .certificate = "not needed"});
    }
  }
  return infos;
}

void WantedGroups::ShowReadable(const Lock& lock, const DescribedGroup& group) {
  const std::string& name = group.options.name;
  const ServedModels::Model known = models_.Find(name);
  if (known != nullptr && known->unreadable.ok()) return;
  models_.Put({.id = name,
               .aliases = group.options.aliases,
               .description = std::make_shared<const control::ModelDescription>(group.model),
               .added = base::SystemClock().Now()});
  monitor_.scheduler(lock).capacity().SetModel(name, group.model.cost);
}

void WantedGroups::ShowUnreadable(const Lock&, const ServedGroupOptions& group) {
  const ServedModels::Model known = models_.Find(group.name);
  if (known != nullptr && known->unreadable.ok()) return;  // another group serves it
  // The details of what is wrong with its files are for operators only.
  models_.Put({.id = group.name,
               .aliases = group.aliases,
               .added = base::SystemClock().Now(),
               .unreadable = WithErrorCode(
                   absl::UnavailableError(absl::StrCat("the model ", group.name, " cannot be read now")), "no_group")});
}

void WantedGroups::LogRefused(const std::string& model, size_t number, const absl::Status& reason) const {
  const std::string name = absl::StrCat(model, "-", number);
  base::LogLine line(
      base::LogLevel::kError, absl::StrCat("group ", name, ": refused: ", std::string(reason.message())),
      {{"group", name}, {"model", model}, {"state", "refused"}, {"reason", std::string(reason.message())}});
  line.event = "group";
  options_.log(line);
}

}  // namespace tessera::server
