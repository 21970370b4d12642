#include "server/workers/worker_group.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/json/json.h"
#include "base/machine/machine_processors.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "control/host/communicators.h"
#include "control/host/device.h"
#include "control/parameters/component_files.h"
#include "control/protocol/commands.h"
#include "parallel/plan/mesh.h"
#include "parallel/segment/mesh_groups.h"
#include "server/workers/last_output.h"
#include "server/workers/load_progress.h"

namespace tessera::server {
namespace {

// The longest time between the end of a worker's stream and the end of its process.
constexpr absl::Duration kExitTimeout = absl::Seconds(2);
// An adopted worker first finishes the commands of its last controller, and exits if it cannot.
constexpr absl::Duration kResumeTimeout = absl::Seconds(30);

// If ranks report different budgets, every rank has at least the smallest values.
std::optional<control::MemoryBudget> Least(const std::optional<control::MemoryBudget>& a,
                                           const std::optional<control::MemoryBudget>& b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() ? a : b;
  return control::MemoryBudget{.most = std::min(a->most, b->most), .free = std::min(a->free, b->free)};
}

}  // namespace

std::string DeviceOfRank(const std::string& devices, int rank, int ranks) {
  const std::vector<std::string> names = absl::StrSplit(devices, ',');
  const std::string& name = names[static_cast<size_t>(rank) % names.size()];
  const control::Device of_rank = {.kind = control::DeviceKind::kCuda, .index = rank};
  return ranks > 1 && control::ParseDevice(name) == control::Device{.kind = of_rank.kind} ? DeviceText(of_rank) : name;
}

namespace {

bool IsOnCpu(const std::string& device) {
  return control::IsDevice(control::DeviceOnItsHost(device), control::DeviceKind::kCpu);
}

}  // namespace

bool IsOnNodes(const std::string& devices) {
  const std::vector<std::string> names = absl::StrSplit(devices, ',');
  return std::ranges::any_of(names, [](const std::string& name) { return !control::SplitDevice(name).node.empty(); });
}

absl::StatusOr<std::unique_ptr<WorkerGroup>> WorkerGroup::Start(const WorkerGroupOptions& options) {
  parallel::MeshShape shape = options.layout.mesh;
  shape.data = std::max(1, options.data);
  const int ranks = shape.data * options.layout.ranks();
  ASSIGN_OR_RETURN(parallel::Mesh mesh, parallel::Mesh::Create(shape, ranks));
  const parallel::HostSegmentOptions segment = {
      .ranks = ranks, .groups = options.data > 0 ? parallel::TrainingMeshGroups(mesh) : parallel::MeshGroups(mesh)};
  ASSIGN_OR_RETURN(std::shared_ptr<parallel::HostSegment> shared, parallel::HostSegment::CreateShared(segment));
  std::unique_ptr<WorkerGroup> group(new WorkerGroup(options, std::move(shared)));
  RETURN_IF_ERROR(group->StartProcesses());
  return group;
}

absl::Status WorkerGroup::StartProcesses() {
  const int ranks = segment_->ranks();
  workers_.resize(static_cast<size_t>(ranks));
  if (options_.hosts != nullptr && IsOnNodes(options_.devices)) {
    RemoteRanksRequest request = {
        .segment = segment_, .layout = parallel::LayoutText(options_.layout), .data = options_.data};
    for (int rank = 0; rank < ranks; ++rank) request.devices.push_back(DeviceOfRank(options_.devices, rank, ranks));
    ASSIGN_OR_RETURN(remote_, options_.hosts->Start(request));
    std::vector<std::unique_ptr<RankProcess>> processes = remote_->TakeProcesses();
    for (size_t rank = 0; rank < processes.size(); ++rank) workers_[rank].process = std::move(processes[rank]);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (workers_[static_cast<size_t>(rank)].process != nullptr) continue;
    std::vector<std::string> arguments = {"--layout",  parallel::LayoutText(options_.layout),
                                          "--rank",    absl::StrCat(rank),
                                          "--segment", absl::StrCat(WorkerProcess::kInheritedDescriptor)};
    if (options_.data > 0) arguments.insert(arguments.end(), {"--data", absl::StrCat(options_.data)});
    // Ranks on other hosts end with this process, and a group can only be adopted whole.
    const absl::Duration grace = remote_ == nullptr ? options_.orphan_grace_period : absl::ZeroDuration();
    absl::StatusOr<std::unique_ptr<WorkerProcess>> process = WorkerProcess::Start({.executable = WorkerExecutable(),
                                                                                   .arguments = std::move(arguments),
                                                                                   .inherited = segment_->descriptor(),
                                                                                   .show_output = options_.show_output,
                                                                                   .orphan_grace_period = grace,
                                                                                   .owner = options_.owner});
    if (!process.ok()) return process.status();
    workers_[static_cast<size_t>(rank)].process = *std::move(process);
  }
  return absl::OkStatus();
}

// The ranks of one host share its processors.
control::LoadParameters WorkerGroup::OnRank(control::LoadParameters parameters, int rank) const {
  const RankProcess& own = *workers_[static_cast<size_t>(rank)].process;
  if (remote_ != nullptr && parameters.placement.threads == 0) {
    const auto sharing =
        std::ranges::count_if(workers_, [&](const Worker& worker) { return worker.process->node() == own.node(); });
    const int all = own.processors() > 0 ? own.processors() : base::ReadMachineProcessors().available();
    parameters.placement.threads = std::max(1, all / static_cast<int>(sharing));
  } else if (ranks() > 1) {
    const int32_t all =
        parameters.placement.threads > 0 ? parameters.placement.threads : base::ReadMachineProcessors().available();
    parameters.placement.threads = std::max(1, all / ranks());
  }
  parameters.placement.threads = std::min(parameters.placement.threads, control::kMaxThreads);
  parameters.device = control::DeviceOnItsHost(DeviceOfRank(parameters.device, rank, ranks()));
  return parameters;
}

absl::StatusOr<std::unique_ptr<WorkerGroup>> WorkerGroup::Adopt(const WorkerGroupOptions& options,
                                                                absl::Span<const WorkerIdentity> identities) {
  std::unique_ptr<WorkerGroup> group(new WorkerGroup(options, nullptr));
  absl::Status status;
  const WorkerProcess* first = nullptr;
  for (const WorkerIdentity& identity : identities) {
    absl::StatusOr<std::unique_ptr<WorkerProcess>> process = WorkerProcess::Adopt(identity);
    status.Update(process.status());
    if (process.ok() && first == nullptr) first = process->get();
    if (process.ok()) group->workers_.push_back({.process = *std::move(process)});
  }
  if (status.ok() && group->ranks() != options.layout.ranks()) {
    status = absl::FailedPreconditionError(
        absl::StrCat("the group has ", group->ranks(), " workers; its layout needs ", options.layout.ranks()));
  }
  if (!status.ok()) return absl::FailedPreconditionError(std::string(status.message()));
  const absl::StatusOr<int> descriptor = first->OpenInherited();
  if (!descriptor.ok()) return absl::FailedPreconditionError(std::string(descriptor.status().message()));
  absl::StatusOr<std::shared_ptr<parallel::HostSegment>> segment = parallel::HostSegment::Map(*descriptor);
  close(*descriptor);
  if (!segment.ok() || (*segment)->ranks() != group->ranks() || (*segment)->IsPoisoned()) {
    return absl::FailedPreconditionError("the workers' shared memory can no longer be used");
  }
  group->segment_ = *std::move(segment);
  return group;
}

WorkerGroup::WorkerGroup(const WorkerGroupOptions& options, std::shared_ptr<parallel::HostSegment> segment)
    : options_(options), segment_(std::move(segment)) {
  prediction_.Place(IsOnCpu(DeviceOfRank(options.devices, 0, options.layout.ranks())));
}

WorkerGroup::~WorkerGroup() {
  ending_ = true;
  watch_.reset();
  if (ranks() > 1) Kill();  // ranks ended one after the other would wait for each other
}

absl::Status WorkerGroup::Connect(absl::Duration timeout) {
  const absl::Duration deadline = base::SteadyNow() + timeout;
  for (int rank = 0; rank < ranks(); ++rank) {
    Worker& worker = workers_[static_cast<size_t>(rank)];
    absl::StatusOr<int> socket = worker.process->Connect(deadline - base::SteadyNow());
    if (!socket.ok()) {
      const std::string output(absl::StripAsciiWhitespace(worker.process->LastOutput()));
      return absl::UnavailableError(absl::StrCat(ranks() > 1 ? absl::StrCat(Name(rank), ": ") : "",
                                                 std::string(socket.status().message()),
                                                 output.empty() ? "" : absl::StrCat(kLastOutput, output)));
    }
    worker.client = std::make_unique<control::WorkerClient>(
        control::WorkerClient::Options{.socket = *socket,
                                       .timeout = options_.timeout,
                                       .ending = [this, rank] { return Ending(rank); },
                                       .sends_results = rank == 0});
  }
  std::vector<ProgressWatch::Rank> watched;
  for (int rank = 0; rank < ranks(); ++rank) {
    watched.push_back({Name(rank), workers_[static_cast<size_t>(rank)].process.get()});
  }
  const auto ended = [this](int rank) {
    if (!ending_) Ending(rank);
  };
  watch_ = std::make_unique<ProgressWatch>(
      std::move(watched), *segment_,
      ProgressWatch::Events{.ended = ended, .hangs = [this](const std::string& reason) { End(reason); }});
  return absl::OkStatus();
}

std::vector<WorkerIdentity> WorkerGroup::Identities() const {
  std::vector<WorkerIdentity> identities;
  for (const Worker& worker : workers_) {
    absl::StatusOr<WorkerIdentity> identity = worker.process->identity();
    if (!identity.ok()) return {};
    identities.push_back(*std::move(identity));
  }
  return identities;
}

std::vector<pid_t> WorkerGroup::Pids() const {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_) pids.push_back(worker.process->pid());
  return pids;
}

absl::Status WorkerGroup::Resume() {
  const uint64_t sequence =
      SendToAll([](control::WorkerClient& client, int) { return client.Send(control::Resume()); });
  Answers<control::WorkerProgress> answers;
  const absl::StatusOr<control::WorkerProgress> resumed =
      WaitForAll({.idle = kResumeTimeout}, answers,
                 [&](control::WorkerClient& client) { return client.Wait<control::Resume>(sequence); });
  if (!resumed.ok()) return resumed.status();
  for (const absl::StatusOr<control::WorkerProgress>& answer : answers) {
    if (*answer != *resumed) return Fail(absl::DataLossError("the ranks are in different states"));
  }
  return absl::OkStatus();
}

std::string WorkerGroup::Name(int rank) const {
  const std::string node = workers_[static_cast<size_t>(rank)].process->node();
  return absl::StrCat(ranks() == 1 ? "the worker" : absl::StrCat("rank ", rank, " of ", ranks()),
                      node.empty() ? "" : absl::StrCat(" on ", node));
}

bool WorkerGroup::host_lost() const {
  return std::ranges::any_of(workers_, [](const Worker& worker) { return worker.process->host_lost(); });
}

void WorkerGroup::Kill() {
  for (const Worker& worker : workers_) {
    if (worker.process != nullptr) worker.process->Kill();  // null if it could not be started
  }
}

void WorkerGroup::End(const std::string& reason) { Fail(absl::UnavailableError(reason)).IgnoreError(); }

uint64_t WorkerGroup::PeakMemoryBytes() const {
  uint64_t bytes = 0;
  for (const Worker& worker : workers_) bytes += worker.process->PeakMemoryBytes();
  return bytes;
}

absl::Status WorkerGroup::Fail(const absl::Status& reason) {
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    if (failure_.has_value()) return *failure_;
    failure_ = reason;
  }
  segment_->Poison(-1, std::string(reason.message()));
  Kill();
  return reason;
}

absl::Status WorkerGroup::health() {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_.value_or(absl::OkStatus());
}

// Returns how a worker ended, with its last output.
std::string WorkerGroup::Ending(int rank) {
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    if (failure_.has_value()) return std::string(failure_->message());
  }
  RankProcess& process = *workers_[static_cast<size_t>(rank)].process;
  std::string text = absl::StrCat(Name(rank), " closed its control channel");
  if (process.WaitForExit(kExitTimeout)) {
    const std::string output(absl::StripAsciiWhitespace(process.LastOutput()));
    text = absl::StrCat(Name(rank), " ", process.StateText(), output.empty() ? "" : absl::StrCat(kLastOutput, output));
  }
  if (ending_) return text;
  return std::string(Fail(absl::UnavailableError(text)).message());
}

absl::Status WorkerGroup::Agree(const std::vector<absl::Status>& answers) {
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    if (failure_.has_value()) return *failure_;
  }
  auto failed = std::find_if(answers.begin(), answers.end(), [](const auto& answer) { return !answer.ok(); });
  if (failed == answers.end() || ranks() == 1) return answers.front();
  if (const std::optional<parallel::HostPoison> poison = segment_->poison(); poison.has_value()) {
    absl::StatusCode code = absl::StatusCode::kUnavailable;
    std::string name = "a rank";
    if (poison->rank >= 0 && poison->rank < ranks()) {
      name = Name(poison->rank);
      const absl::Status& own = answers[static_cast<size_t>(poison->rank)];
      if (!own.ok() && own.code() != absl::StatusCode::kAborted) code = own.code();
    }
    return Fail(absl::Status(code, absl::StrCat(name, ": ", poison->reason)));
  }
  const bool alike =
      std::all_of(answers.begin(), answers.end(), [&](const auto& answer) { return answer.code() == failed->code(); });
  if (alike) return answers.front();
  // A rank that gave up because another one failed reports ABORTED.
  const auto cause = std::find_if(answers.begin(), answers.end(), [](const auto& answer) {
    return !answer.ok() && answer.code() != absl::StatusCode::kAborted;
  });
  if (cause != answers.end()) failed = cause;
  return Fail(absl::Status(failed->code(), absl::StrCat(Name(static_cast<int>(failed - answers.begin())), ": ",
                                                        std::string(failed->message()))));
}

void WorkerGroup::Predict(const control::ModelDescription& model) { prediction_.Describe(model.cost); }

PauseBound WorkerGroup::BoundOf(uint64_t sequence) const {
  if (const auto steps = unanswered_steps_.find(sequence); steps != unanswered_steps_.end()) {
    return {.idle = stepped_ ? options_.progress.step : options_.progress.other,
            .predicted = prediction_.Step(steps->second),
            .is_step = true};
  }
  const auto decode = unanswered_decodes_.find(sequence);
  return {.idle = options_.progress.other,
          .predicted = decode == unanswered_decodes_.end() ? absl::ZeroDuration() : prediction_.Decode(decode->second)};
}

absl::StatusOr<control::ModelDescription> WorkerGroup::Describe(const std::string& model,
                                                                const control::ComponentFiles& files) {
  absl::StatusOr<control::ModelDescription> description = Call(control::DescribeModel{.model = model, .files = files});
  if (description.ok()) Predict(*description);
  return description;
}

absl::StatusOr<control::ModelDescription> WorkerGroup::Describe(const std::string& model) {
  return Describe(model, control::ComponentFiles());
}

absl::StatusOr<control::DeviceIdentity> WorkerGroup::Identify(const std::string& devices, int ranks) {
  control::DeviceIdentity all;
  std::set<std::string> asked;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string device = control::DeviceOnItsHost(DeviceOfRank(devices, rank, ranks));
    if (!asked.insert(device).second) continue;
    ASSIGN_OR_RETURN(const control::DeviceIdentity one, Call(control::IdentifyDevice{.device = device}));
    if (asked.size() == 1) all = one;
    for (std::string control::DeviceIdentity::*part :
         {&control::DeviceIdentity::device, &control::DeviceIdentity::driver, &control::DeviceIdentity::cudnn,
          &control::DeviceIdentity::nccl, &control::DeviceIdentity::communicator}) {
      if (one.*part != all.*part) absl::StrAppend(&(all.*part), "; ", one.*part);
    }
  }
  // NCCL requires a separate GPU for each rank.
  const bool alone = asked.size() == static_cast<size_t>(ranks) && ranks > 1;
  if (all.communicator == control::kNcclCommunicator && !alone) all.communicator = control::kHostCommunicator;
  return all;
}

template <class Reply, class MemoryOf>
void WorkerGroup::KeepMemories(const Answers<Reply>& answers, MemoryOf memory_of) {
  const std::lock_guard lock(memory_mutex_);
  memories_.resize(answers.size());
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    if (answers[rank].ok()) memories_[rank] = memory_of(*answers[rank]);
  }
}

std::vector<std::optional<control::DeviceMemory>> WorkerGroup::DeviceMemories() const {
  const std::lock_guard lock(memory_mutex_);
  return memories_;
}

double WorkerGroup::LoadedPart() const { return server::LoadedPart(*segment_); }

absl::StatusOr<control::Loaded> WorkerGroup::Load(const control::LoadParameters& parameters) {
  prediction_.Place(IsOnCpu(DeviceOfRank(parameters.device, 0, ranks())));
  const uint64_t sequence = SendToAll([&](control::WorkerClient& client, int rank) {
    return client.Send(control::LoadModel{.parameters = OnRank(parameters, rank)});
  });
  Answers<control::Loaded> answers;
  absl::StatusOr<control::Loaded> loaded =
      WaitForAll({.idle = options_.progress.loading}, answers,
                 [&](control::WorkerClient& client) { return client.Wait<control::LoadModel>(sequence); });
  KeepMemories(answers, [](const control::Loaded& answer) { return answer.device_memory; });
  if (!loaded.ok()) return loaded;
  for (size_t rank = 1; rank < answers.size(); ++rank) {
    loaded->weight_bytes += answers[rank]->weight_bytes;
    loaded->seconds = std::max(loaded->seconds, answers[rank]->seconds);
    loaded->memory_budget = Least(loaded->memory_budget, answers[rank]->memory_budget);
  }
  return loaded;
}

absl::StatusOr<std::string> WorkerGroup::Digest() {
  const uint64_t sequence =
      SendToAll([](control::WorkerClient& client, int) { return client.Send(control::DigestModel()); });
  Answers<control::ModelDigest> answers;
  const absl::StatusOr<control::ModelDigest> digest =
      WaitForAll({.idle = options_.progress.loading}, answers,
                 [&](control::WorkerClient& client) { return client.Wait<control::DigestModel>(sequence); });
  if (!digest.ok()) return digest.status();
  for (size_t rank = 1; rank < answers.size(); ++rank) {
    if (answers[rank]->contents.empty() || answers[rank]->contents == digest->contents) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the model's files differ between the machines of rank 0 and rank ", rank,
                     "; every machine must have the same ones"));
  }
  return digest->contents;
}

absl::StatusOr<uint64_t> WorkerGroup::SendStartJob(uint64_t job, const control::JobParameters& parameters) {
  // With nodes, each rank gets the paths of its host, and no rank gets the command before every host has the contents.
  std::vector<control::StartJob> commands(remote_ == nullptr ? 1 : workers_.size(),
                                          {.job = job, .parameters = parameters});
  for (size_t rank = 0; remote_ != nullptr && rank < commands.size(); ++rank) {
    const auto bring = [&](auto& contents) -> absl::Status {
      for (auto& content : contents) {
        absl::StatusOr<std::string> path = workers_[rank].process->BringContent(content.digest, content.file);
        RETURN_IF_ERROR(health());
        if (!path.ok()) {
          return absl::Status(path.status().code(),
                              absl::StrCat(Name(static_cast<int>(rank)), ": ", std::string(path.status().message())));
        }
        content.file = *std::move(path);
      }
      return absl::OkStatus();
    };
    control::JobParameters& of_rank = commands[rank].parameters;
    RETURN_IF_ERROR(bring(of_rank.adapters));
    RETURN_IF_ERROR(bring(of_rank.images));
    RETURN_IF_ERROR(bring(of_rank.mask));
  }
  stepped_ = false;
  prediction_.Start(job, parameters);
  const uint64_t sequence = SendToAll([&](control::WorkerClient& client, int rank) {
    return client.Send(commands[static_cast<size_t>(rank) % commands.size()]);
  });
  RETURN_IF_ERROR(health());
  return sequence;
}

absl::StatusOr<control::JobStarted> WorkerGroup::WaitForStart(uint64_t sequence) {
  Answers<control::JobStarted> answers;
  absl::StatusOr<control::JobStarted> started =
      WaitForAll({.idle = options_.progress.other}, answers,
                 [&](control::WorkerClient& client) { return client.Wait<control::StartJob>(sequence); });
  if (!started.ok()) return started;
  for (int rank = 1; rank < ranks(); ++rank) {
    const control::JobStarted& other = *answers[static_cast<size_t>(rank)];
    if (other.generated_height != started->generated_height || other.generated_width != started->generated_width ||
        other.first_step != started->first_step || other.steps != started->steps || other.sampler != started->sampler ||
        other.prompt_tokens != started->prompt_tokens || !ShapeOf(other).has_shape_of(ShapeOf(*started))) {
      return Fail(absl::DataLossError(absl::StrCat(Name(rank), " parsed the request differently from rank 0")));
    }
  }
  return started;
}

absl::StatusOr<int32_t> WorkerGroup::EncodePrompts(absl::Span<const control::JobParameters> jobs) {
  ASSIGN_OR_RETURN(const control::PromptsEncoded encoded,
                   Call(control::EncodePrompts{.jobs = {jobs.begin(), jobs.end()}}));
  return encoded.prompts;
}

absl::StatusOr<uint64_t> WorkerGroup::SendSteps(absl::Span<const uint64_t> jobs, int32_t count) {
  absl::StatusOr<uint64_t> sequence;
  SendToAll([&](control::WorkerClient& client, int) {
    sequence = client.SendSteps(jobs, count);
    return sequence.ok() ? *sequence : 0;
  });
  RETURN_IF_ERROR(health());
  if (sequence.ok()) unanswered_steps_[*sequence].assign(jobs.begin(), jobs.end());
  return sequence;
}

absl::StatusOr<std::vector<control::Stepped>> WorkerGroup::WaitForSteps(uint64_t sequence) {
  using Steps = std::vector<control::Stepped>;
  Answers<Steps> answers;
  absl::StatusOr<Steps> steps = WaitForAll(
      BoundOf(sequence), answers, [&](control::WorkerClient& client) { return client.WaitForSteps(sequence); });
  KeepMemories(answers, [](const Steps& answer) { return answer.back().device_memory; });
  const auto made = unanswered_steps_.extract(sequence);
  if (!steps.ok()) return steps;
  stepped_ = true;
  for (int rank = 1; rank < ranks(); ++rank) {
    const Steps& others = *answers[static_cast<size_t>(rank)];
    if (others.size() != steps->size()) {
      return Fail(absl::DataLossError(
          absl::StrCat(Name(rank), " has made ", others.size(), " steps, and rank 0 ", steps->size())));
    }
    for (size_t step = 0; step < steps->size(); ++step) {
      control::Stepped& stepped = (*steps)[step];
      const control::Stepped& other = others[step];
      const bool known = stepped.digest != 0 && other.digest != 0;
      if (other.completed != stepped.completed || (known && other.digest != stepped.digest)) {
        return Fail(absl::DataLossError(absl::StrCat("after step ", stepped.completed, " the latents of ", Name(rank),
                                                     " differ from those of rank 0")));
      }
      if (stepped.digest == 0) stepped.digest = other.digest;
      stepped.seconds = std::max(stepped.seconds, other.seconds);
    }
  }
  if (!made.empty()) {
    for (const control::Stepped& step : *steps) prediction_.Observe(made.mapped(), absl::Seconds(step.seconds));
  }
  return steps;
}

absl::StatusOr<uint64_t> WorkerGroup::SendDecode(uint64_t job) {
  const uint64_t sequence =
      SendToAll([&](control::WorkerClient& client, int) { return client.Send(control::DecodeJob{.job = job}); });
  RETURN_IF_ERROR(health());
  unanswered_decodes_[sequence] = job;
  return sequence;
}

absl::StatusOr<control::DecodedPicture> WorkerGroup::WaitForDecode(uint64_t sequence,
                                                                   const control::JobStarted& started) {
  Answers<control::DecodedPicture> answers;
  absl::StatusOr<control::DecodedPicture> picture =
      WaitForAll(BoundOf(sequence), answers,
                 [&](control::WorkerClient& client) { return client.WaitForDecode(sequence, started); });
  unanswered_decodes_.erase(sequence);
  return picture;
}

uint64_t WorkerGroup::WaitForAny(absl::Span<const uint64_t> sequences) {
  if (sequences.size() == 1) return sequences.front();  // which then sets the bound itself
  PauseBound bound = {.idle = options_.progress.other};
  for (const uint64_t sequence : sequences) bound.predicted = std::max(bound.predicted, BoundOf(sequence).predicted);
  const ProgressWatch::Due due(*watch_, bound);
  return workers_[0].client->WaitForAny(sequences);
}

absl::StatusOr<uint64_t> WorkerGroup::SendEndJob(uint64_t job) {
  prediction_.End(job);
  const uint64_t sequence =
      SendToAll([&](control::WorkerClient& client, int) { return client.Send(control::EndJob{.job = job}); });
  RETURN_IF_ERROR(health());
  return sequence;
}

absl::Status WorkerGroup::WaitForEnd(uint64_t sequence) {
  Answers<control::Ended> answers;
  return WaitForAll({.idle = options_.progress.other}, answers,
                    [&](control::WorkerClient& client) { return client.Wait<control::EndJob>(sequence); })
      .status();
}

absl::StatusOr<control::Trained> WorkerGroup::Train() {
  const uint64_t sequence =
      SendToAll([](control::WorkerClient& client, int) { return client.Send(control::TrainStep()); });
  Answers<control::Trained> answers;
  absl::StatusOr<control::Trained> trained =
      WaitForAll({.idle = options_.progress.loading}, answers,
                 [&](control::WorkerClient& client) { return client.Wait<control::TrainStep>(sequence); });
  if (!trained.ok()) return trained;
  // Compare bytes, because NaN is not equal to itself.
  const auto differ = [](double a, double b) { return std::memcmp(&a, &b, sizeof(a)) != 0; };
  for (int rank = 1; rank < ranks(); ++rank) {
    const control::Trained& other = *answers[static_cast<size_t>(rank)];
    if (other.step != trained->step || other.skipped != trained->skipped || differ(other.loss, trained->loss) ||
        differ(other.gradient_norm, trained->gradient_norm)) {
      return Fail(absl::DataLossError(absl::StrCat("after training step ", trained->step, " the loss or gradients of ",
                                                   Name(rank), " differ from those of rank 0")));
    }
    trained->seconds = std::max(trained->seconds, other.seconds);
  }
  return trained;
}

absl::Status WorkerGroup::Shutdown() {
  ending_ = true;
  absl::Status status;
  for (Worker& worker : workers_) status.Update(worker.client->Call(control::Shutdown()).status());
  if (!status.ok()) return status;
  for (Worker& worker : workers_) {
    worker.client.reset();
    worker.process->WaitForExit(kExitTimeout);
  }
  return absl::OkStatus();
}

}  // namespace tessera::server
