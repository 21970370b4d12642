// Which groups there are: those of the configuration as it is now, so far as their models can be read.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "server/api/service_error.h"
#include "server/scheduling/cost_model.h"
#include "server/serving/durable_image_service.h"

namespace tessera {
namespace {

constexpr int32_t kMaxRows = 8;  // of one batch
constexpr absl::Duration kDescribePatience = absl::Seconds(60);

// What no hardware of the kind surpasses: a thread of a CPU with 64 or, by its matrix unit, 1024 operations a cycle,
// and a GPU in bf16.
double MostFlopsPerSecond(const LoadParameters& load, int ranks) {
  if (!absl::StartsWith(load.device, "cpu")) return 2e15 * ranks;
  return (load.dtype == "bf16" ? 4e12 : 3e11) * std::max<int32_t>(1, load.threads);
}

}  // namespace

absl::StatusOr<ModelDescription> DurableImageService::DescribeModel(const std::string& folder) {
  absl::StatusOr<std::unique_ptr<WorkerGroup>> started =
      WorkerGroup::Start({.progress = options_.progress, .owner = owner_});
  if (!started.ok()) return started.status();
  const std::shared_ptr<WorkerGroup> group = *std::move(started);
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return absl::CancelledError("the server ends");
    describing_ = group;
  }
  absl::Status connected = group->Connect(kDescribePatience);
  absl::StatusOr<ModelDescription> description =
      connected.ok() ? group->Describe(folder) : absl::StatusOr<ModelDescription>(connected);
  if (description.ok()) group->Shutdown().IgnoreError();
  const std::lock_guard lock(mutex_);
  describing_ = nullptr;
  return description;
}

absl::StatusOr<DurableImageService::Described> DurableImageService::DescribeGroup(const ServedGroupOptions& group) {
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("model ", group.name, ": ", std::string(status.message())));
  };
  Described described = {.options = group};
  if (group.find_model) {
    absl::StatusOr<std::string> folder = group.find_model();
    if (!folder.ok()) return named(folder.status());
    described.options.load.model = *std::move(folder);
  }
  absl::StatusOr<ModelDescription> model = DescribeModel(described.options.load.model);
  if (!model.ok()) return named(model.status());
  described.model = *std::move(model);
  const absl::StatusOr<Layout> layout =
      ChooseLayout(group.layout, LayoutModelOf(described.model, described.options.load.dtype));
  if (!layout.ok()) return named(layout.status());
  described.layout = *layout;
  return described;
}

void DurableImageService::PutModel(ServedModel model) {
  const auto found = std::ranges::find_if(models_, [&](const auto& known) { return known->id == model.id; });
  auto put = std::make_shared<const ServedModel>(std::move(model));
  if (found == models_.end()) {
    models_.push_back(std::move(put));
  } else {
    *found = std::move(put);
  }
}

void DurableImageService::ShowReadable(const Described& group) {
  const std::string& name = group.options.name;
  const std::shared_ptr<const ServedModel> known = FindServed(name);
  if (known != nullptr && known->unreadable.ok()) return;
  PutModel({.id = name, .aliases = group.options.aliases, .description = group.model, .added = clock_.Now()});
  scheduler_.SetModel(name, CostOf(group.model, static_cast<int32_t>(ElementBytes(group.options.load.dtype))));
}

void DurableImageService::Install(const Described& group, size_t number, int64_t replicas) {
  const std::string& name = group.options.name;
  ShowReadable(group);
  GroupRunnerOptions runner = {.model_name = name,
                               .model = group.model,
                               .load = group.options.load,
                               .layout = group.layout,
                               .certify = options_.certify,
                               .certificates = options_.data_folder + "/certificates",
                               .records = RecordsFolder(),
                               .owner = owner_,
                               .first_back_off = options_.first_back_off,
                               .progress = options_.progress,
                               .at_point = options_.at_point,
                               .trace = options_.trace};
  if (runner.load.threads == 0) {
    runner.load.threads = std::max<int32_t>(
        1, static_cast<int32_t>(std::thread::hardware_concurrency() / std::max<int64_t>(replicas, 1)));
  }
  const MeshShape& mesh = group.layout.mesh;
  for (int64_t replica = 0; replica < group.options.count; ++replica) {
    runner.id = static_cast<GroupId>(groups_.size()) + 1;
    runner.name = absl::StrCat(name, "-", number + static_cast<size_t>(replica));
    groups_.push_back(runner);
    replicas_.push_back(
        {.options = group.options,
         .description = {.id = runner.id,
                         .model = name,
                         .ranks = group.layout.ranks(),
                         .max_rows = kMaxRows,
                         .share = {.sequence = mesh.ring * mesh.ulysses,
                                   .tensor = mesh.tensor,
                                   .cfg = mesh.cfg,
                                   .pipe = mesh.pipe},
                         .most_flops_per_second = MostFlopsPerSecond(runner.load, group.layout.ranks())},
         .model = FindServed(name)});
    scheduler_.AddGroup(replicas_.back().description);
    if (draining_) scheduler_.Drain(runner.id);
  }
  ShareMemory();
}

void DurableImageService::StartRunners() {
  GroupOwner& owner = *this;
  while (runners_.size() < groups_.size()) {
    runners_.push_back(std::make_unique<GroupRunner>(groups_[runners_.size()], owner, options_.log));
  }
}

void DurableImageService::ShowUnreadable(const Unreadable& group) {
  const std::shared_ptr<const ServedModel> known = FindServed(group.options.name);
  if (known != nullptr && known->unreadable.ok()) return;  // another group serves it
  // What is wrong with its files is the operator's business.
  PutModel({.id = group.options.name,
            .aliases = group.options.aliases,
            .added = clock_.Now(),
            .unreadable = WithErrorCode(
                absl::UnavailableError(absl::StrCat("the model ", group.options.name, " cannot be read at present")),
                "no_group")});
}

void DurableImageService::LogRefused(const std::string& model, size_t number, const absl::Status& reason) const {
  const std::string name = absl::StrCat(model, "-", number);
  LogLine line(LogLevel::kError, absl::StrCat("group ", name, ": refused: ", std::string(reason.message())),
               {{"group", name}, {"model", model}, {"state", "refused"}, {"reason", std::string(reason.message())}});
  line.event = "group";
  options_.log(line);
}

absl::Status DurableImageService::AddGroups() {
  std::vector<Described> readable;
  std::vector<size_t> numbers;
  absl::Status first;
  for (const ServedGroupOptions& group : options_.groups) {
    absl::StatusOr<Described> described = DescribeGroup(group);
    const std::lock_guard lock(mutex_);
    if (described.ok()) {
      readable.push_back(*std::move(described));
      numbers.push_back(next_number_);
    } else {
      first.Update(described.status());
      unreadable_.push_back({.options = group,
                             .number = next_number_,
                             .reason = described.status(),
                             .pause = options_.first_back_off,
                             .next = SteadyNow() + options_.first_back_off});
    }
    next_number_ += static_cast<size_t>(group.count);
  }
  if (readable.empty() && !options_.may_start_without_models) return first;
  const std::lock_guard lock(mutex_);
  for (const Unreadable& group : unreadable_) {
    LogRefused(group.options.name, group.number, group.reason);
  }
  // In the order of the configuration: the first is the one for requests that name none.
  for (const ServedGroupOptions& group : options_.groups) {
    const auto found =
        std::ranges::find_if(readable, [&](const auto& other) { return other.options.name == group.name; });
    if (found == readable.end()) {
      ShowUnreadable({.options = group});
    } else {
      ShowReadable(*found);
    }
  }
  for (size_t i = 0; i < readable.size(); ++i) Install(readable[i], numbers[i], static_cast<int64_t>(next_number_));
  return absl::OkStatus();
}

}  // namespace tessera
