// How the groups change while the server runs: others are wanted, and what could not be read is tried again.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "server/serving/durable_image_service.h"

namespace tessera {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr absl::Duration kLongestPause = absl::Minutes(1);  // between two tries

// Whether a group that runs is what these options ask for. How many there are of it is another question, and other
// names of its model are no reason to load it anew.
bool IsSame(const ServedGroupOptions& a, const ServedGroupOptions& b) {
  return a.name == b.name && a.load.model == b.load.model && LoadText(a.load) == LoadText(b.load) &&
         a.devices == b.devices && a.layout.layout == b.layout.layout && a.layout.ranks == b.layout.ranks;
}

}  // namespace

void DurableImageService::SetGroups(const std::vector<ServedGroupOptions>& groups) {
  const std::lock_guard lock(mutex_);
  wanted_groups_ = groups;
  changed_.notify_all();
}

void DurableImageService::WatchGroups() {
  while (true) {
    std::vector<TaskId> unserved;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, absl::ToChronoMilliseconds(kTick),
                        [this] { return stopping_ || wanted_groups_.has_value(); });
      if (stopping_) return;
      if (wanted_groups_.has_value()) {
        TakeGroups(*std::exchange(wanted_groups_, std::nullopt));
        unserved = TakeUnserved();
      }
    }
    FailUnserved(unserved);
    TryUnreadable();
    EndLeaving();
  }
}

void DurableImageService::TakeGroups(const std::vector<ServedGroupOptions>& groups) {
  std::vector<bool> stays(replicas_.size(), false);
  unreadable_.clear();
  for (const ServedGroupOptions& group : groups) {
    ServedGroupOptions missing = group;
    for (size_t i = 0; i < replicas_.size() && missing.count > 0; ++i) {
      if (stays[i] || replicas_[i].leaving || !IsSame(replicas_[i].options, group)) continue;
      stays[i] = true;
      --missing.count;
      runners_[i]->TryNow();
    }
    if (missing.count == 0) continue;
    // Tried below, at once.
    unreadable_.push_back({.options = missing,
                           .number = next_number_,
                           .reason = absl::UnavailableError("it has not been looked for yet"),
                           .pause = options_.first_back_off,
                           .next = SteadyNow()});
    next_number_ += static_cast<size_t>(missing.count);
  }
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (stays[i] || std::exchange(replicas_[i].leaving, true)) continue;
    scheduler_.Drain(groups_[i].id);
    options_.log(
        absl::StrCat("group ", groups_[i].name, ": finishes what runs in it and ends, as it is not wanted any more"));
  }
  const auto before = std::exchange(models_, {});
  for (const ServedGroupOptions& group : groups) {
    if (FindServed(group.name) != nullptr) continue;
    const auto known = std::ranges::find_if(before, [&](const auto& model) { return model->id == group.name; });
    if (known == before.end()) {
      ShowUnreadable({.options = group});
      continue;
    }
    ServedModel model = **known;
    model.aliases = group.aliases;
    PutModel(std::move(model));
  }
  Changed();
}

std::vector<TaskId> DurableImageService::TakeUnserved() {
  std::vector<TaskId> taken;
  for (const GroupRunnerOptions& group : groups_) {
    if (FindServed(group.model_name) != nullptr) continue;
    const std::vector<TaskId> waiting = scheduler_.TakeModel(group.model_name);
    taken.insert(taken.end(), waiting.begin(), waiting.end());
  }
  std::erase_if(kept_tasks_, [&](const auto& kept) {
    if (FindServed(kept.first) != nullptr) return false;
    taken.push_back(kept.second.task.id);
    return true;
  });
  return taken;
}

void DurableImageService::FailUnserved(const std::vector<TaskId>& tasks) {
  for (const TaskId task : tasks) FailWaiting(task, NotServed());
}

void DurableImageService::EnqueueKept(const std::string& model) {
  const auto [begin, end] = kept_tasks_.equal_range(model);
  for (auto kept = begin; kept != end; ++kept) Enqueue(kept->second.task, /*ticket=*/0);
  kept_tasks_.erase(begin, end);
}

// Only this thread changes the list.
void DurableImageService::TryUnreadable() {
  while (true) {
    ServedGroupOptions options;
    size_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto due = std::ranges::find_if(unreadable_, [](const auto& group) { return group.next <= SteadyNow(); });
      if (stopping_ || due == unreadable_.end()) return;
      options = due->options;
      number = due->number;
    }
    const absl::StatusOr<Described> described = DescribeGroup(options);
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    const auto group = std::ranges::find(unreadable_, number, &Unreadable::number);
    if (!described.ok()) {
      if (described.status() != group->reason) {
        LogRefused(options.name, number, described.status());
      }
      group->reason = described.status();
      group->next = SteadyNow() + group->pause;
      group->pause = std::min(2 * group->pause, kLongestPause);
      ShowUnreadable(*group);
      continue;
    }
    unreadable_.erase(group);
    int64_t replicas = options.count;
    for (const Replica& replica : replicas_) replicas += replica.leaving ? 0 : 1;
    for (const Unreadable& other : unreadable_) replicas += other.options.count;
    Install(*described, number, replicas);
    StartRunners();
    EnqueueKept(options.name);
    Changed();
  }
}

void DurableImageService::EndLeaving() {
  std::vector<size_t> empty;
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < replicas_.size(); ++i) {
      const Replica& replica = replicas_[i];
      if (replica.leaving && !replica.ended && scheduler_.IsEmpty(groups_[i].id)) empty.push_back(i);
    }
  }
  for (const size_t i : empty) {
    runners_[i]->Stop();  // its thread may want the lock
    std::vector<TaskId> unserved;
    {
      const std::lock_guard lock(mutex_);
      scheduler_.OnGroupDied(groups_[i].id);
      scheduler_.RemoveGroup(groups_[i].id);
      replicas_[i].ended = true;
      ShareMemory();
      unserved = TakeUnserved();
    }
    FailUnserved(unserved);
  }
}

}  // namespace tessera
