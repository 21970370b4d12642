// WorkerGroup runs the worker processes, one per rank, that generate images together. Every rank gets the same commands
// in the same order, and the group's reply is the one that its ranks agree on.
//
// If a rank dies, hangs, or fails where the others succeed, the whole group ends: its shared memory is poisoned, so
// that no rank waits for another in vain, and every process is killed. Every later call fails with the reason, which
// names the rank. For one thread, except Kill, End, PeakMemoryBytes, DeviceMemories and
// LoadedPart.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "control/protocol/worker_client.h"
#include "parallel/plan/layout.h"
#include "parallel/segment/segment.h"
#include "server/workers/progress_watch.h"
#include "server/workers/remote_hosts.h"
#include "server/workers/step_prediction.h"
#include "server/workers/step_workers.h"
#include "server/workers/worker_process.h"

namespace tessera::control {
struct ComponentFiles;
struct DeviceIdentity;
struct JobParameters;
struct Loaded;
struct LoadParameters;
struct ModelDescription;
struct Trained;
}  // namespace tessera::control

namespace tessera::server {

struct WorkerGroupOptions {
  parallel::Layout layout;
  int data = 0;  // training: number of data-parallel copies of the layout's ranks; 0: the group only generates images
  bool show_output = false;                 // copy the workers' output to our standard error
  absl::Duration timeout = absl::Hours(1);  // for the reply to any one command
  ProgressBounds progress;
  absl::Duration orphan_grace_period;  // how long the workers survive this process's sudden end; zero: they end with it
  std::string owner = "";              // WorkerProcessOptions::owner
  // As in LoadParameters. Ranks on devices of nodes are started there through `hosts`, which outlives the group.
  std::string devices = "cpu";
  RemoteHosts* hosts = nullptr;  // null: this host only
};

// Whether any of these devices belongs to a node.
bool IsOnNodes(const std::string& devices);

// The device of one rank; `devices` is as in LoadParameters. With "cuda" and several ranks, rank r uses device r; from
// a comma-separated list it uses the r-th entry.
std::string DeviceOfRank(const std::string& devices, int rank, int ranks);

class WorkerGroup final : public StepWorkers {
 public:
  static constexpr int kMaxStepsInFlight = control::WorkerClient::kMaxStepsInFlight;

  // Starts the processes; call Connect next. RESOURCE_EXHAUSTED if there is not enough shared memory.
  static absl::StatusOr<std::unique_ptr<WorkerGroup>> Start(const WorkerGroupOptions& options);
  // Takes over the workers of a group that an earlier process started with the same options; call Connect, then Resume.
  // FAILED_PRECONDITION unless every rank is running; the ranks that are running are then killed, and no other process
  // is.
  static absl::StatusOr<std::unique_ptr<WorkerGroup>> Adopt(const WorkerGroupOptions& options,
                                                            absl::Span<const WorkerIdentity> identities);
  ~WorkerGroup() override;  // kills what still runs

  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // UNAVAILABLE if a worker ends first; DEADLINE_EXCEEDED.
  absl::Status Connect(absl::Duration timeout);

  // The identity of every rank, for Adopt; empty if any rank has ended.
  std::vector<WorkerIdentity> Identities() const;

  // DATA_LOSS if the ranks of an adopted group were left in different states.
  absl::Status Resume();

  // Sets the loaded model for step predictions. Describe also does so.
  void Predict(const control::ModelDescription& model);

  // Sends a command to every rank, waits for their replies and returns that of rank 0. An error that all ranks report
  // alike does not change the group. Any other error ends it: UNAVAILABLE, the code of the rank that failed, or
  // DATA_LOSS if ranks differ where they must agree. The methods below also compare or combine the ranks' replies.
  template <class Command>
  absl::StatusOr<typename Command::Reply> Call(const Command& command) {
    const uint64_t sequence = SendToAll([&](control::WorkerClient& client, int) { return client.Send(command); });
    const absl::Duration idle = control::IsLong<Command>() ? options_.progress.loading : options_.progress.other;
    Answers<typename Command::Reply> answers;
    return WaitForAll({.idle = idle}, answers,
                      [&](control::WorkerClient& client) { return client.Wait<Command>(sequence); });
  }

  absl::StatusOr<control::ModelDescription> Describe(const std::string& model);
  absl::StatusOr<control::ModelDescription> Describe(const std::string& model, const control::ComponentFiles& files);
  // Returns the identity of the devices that `ranks` ranks would use with `devices`; differing values are joined with
  // semicolons.
  absl::StatusOr<control::DeviceIdentity> Identify(const std::string& devices, int ranks);
  // The requested threads are shared by all ranks; DeviceOfRank assigns the devices. The result counts the weights of
  // all ranks and has the memory budget of the rank with the smallest one.
  absl::StatusOr<control::Loaded> Load(const control::LoadParameters& parameters);
  // Returns ModelDigest::contents of the loaded model. The workers compute it while they do other work, so that it is
  // best called after the first image. FAILED_PRECONDITION if the files of two machines differ.
  absl::StatusOr<std::string> Digest();
  absl::StatusOr<uint64_t> SendStartJob(uint64_t job, const control::JobParameters& parameters) override;
  absl::StatusOr<control::JobStarted> WaitForStart(uint64_t sequence) override;
  absl::StatusOr<int32_t> EncodePrompts(absl::Span<const control::JobParameters> jobs) override;
  absl::StatusOr<uint64_t> SendSteps(absl::Span<const uint64_t> jobs, int32_t count) override;
  absl::StatusOr<std::vector<control::Stepped>> WaitForSteps(uint64_t sequence) override;
  absl::StatusOr<uint64_t> SendDecode(uint64_t job) override;
  absl::StatusOr<control::DecodedPicture> WaitForDecode(uint64_t sequence, const control::JobStarted& started) override;
  uint64_t WaitForAny(absl::Span<const uint64_t> sequences) override;  // the reply that rank 0 sends first
  absl::StatusOr<uint64_t> SendEndJob(uint64_t job) override;
  absl::Status WaitForEnd(uint64_t sequence) override;
  // The returned values must be equal on all ranks.
  absl::StatusOr<control::Trained> Train();

  absl::Status Shutdown();

  // The reason why the group has ended permanently; OK while it runs.
  absl::Status health() override;

  // Whether the host of any rank is lost.
  bool host_lost() const;

  int ranks() const { return static_cast<int>(workers_.size()); }
  const parallel::Layout& layout() const { return options_.layout; }
  pid_t pid(int rank) const { return workers_[static_cast<size_t>(rank)].process->pid(); }
  std::vector<pid_t> Pids() const;  // by rank

  // The sum over all ranks; 0 if the system does not report it.
  uint64_t PeakMemoryBytes() const;

  // The memory of each rank's device, by rank, as last reported; nullopt for a rank that has not reported it.
  // Thread-safe.
  std::vector<std::optional<control::DeviceMemory>> DeviceMemories() const;

  // LoadedPart of the model that is being loaded, or was loaded last. Thread-safe.
  double LoadedPart() const;

  // Kills every worker without waiting. Thread-safe.
  void Kill();

  // Ends the group without waiting: every call, including the pending one, fails with the reason. Thread-safe after
  // Connect.
  void End(const std::string& reason);

 private:
  struct Worker {
    std::unique_ptr<RankProcess> process;
    std::unique_ptr<control::WorkerClient> client;
  };

  WorkerGroup(const WorkerGroupOptions& options, std::shared_ptr<parallel::HostSegment> segment);

  // "the worker" if it is the only one, else "rank 2 of 4", with its node if it has one: "rank 2 of 4 on node-a".
  std::string Name(int rank) const;
  absl::Status StartProcesses();
  control::LoadParameters OnRank(control::LoadParameters parameters, int rank) const;

  template <class Reply>
  using Answers = std::vector<absl::StatusOr<Reply>>;  // by rank

  // Sends a command to every rank with `send`, without waiting for replies. Returns its sequence number, which is the
  // same on all ranks.
  template <class Send>
  uint64_t SendToAll(const Send& send) {
    const ProgressWatch::Due due(*watch_, {.idle = options_.progress.other});
    uint64_t sequence = 0;
    for (int rank = 0; rank < ranks(); ++rank) sequence = send(*workers_[static_cast<size_t>(rank)].client, rank);
    return sequence;
  }

  // Waits for the reply of each rank in turn, with progress within `bound`, and returns the first rank's reply if all
  // agree. A rank that ends meanwhile ends the group and therefore every wait.
  template <class Reply, class Wait>
  absl::StatusOr<Reply> WaitForAll(const PauseBound& bound, Answers<Reply>& answers, const Wait& wait) {
    const ProgressWatch::Due due(*watch_, bound);
    answers.clear();
    std::vector<absl::Status> statuses;
    for (const Worker& worker : workers_) statuses.push_back(answers.emplace_back(wait(*worker.client)).status());
    const absl::Status agreed = Agree(statuses);
    if (!agreed.ok()) return agreed;
    return answers.front();
  }
  // The combined status of the ranks' replies; ends the group if they disagree.
  absl::Status Agree(const std::vector<absl::Status>& answers);

  // The bound of a pending step or decode command, or of any other command.
  PauseBound BoundOf(uint64_t sequence) const;

  // Stores the device memory that the ranks reported in their replies.
  template <class Reply, class MemoryOf>
  void KeepMemories(const Answers<Reply>& answers, MemoryOf memory_of);

  // Ends the group. Returns the first reason, which later calls do not replace.
  absl::Status Fail(const absl::Status& reason);
  std::string Ending(int rank);

  const WorkerGroupOptions options_;
  std::shared_ptr<parallel::HostSegment> segment_;
  std::unique_ptr<RemoteRanks> remote_;  // null: every rank runs on this host
  std::vector<Worker> workers_;

  std::mutex failure_mutex_;
  std::optional<absl::Status> failure_;  // guarded by failure_mutex_

  std::atomic<bool> ending_ = false;
  std::unique_ptr<ProgressWatch> watch_;  // null before Connect

  bool stepped_ = false;  // the current job has completed a step
  StepPrediction prediction_;
  std::map<uint64_t, std::vector<uint64_t>> unanswered_steps_;  // jobs, by the command's sequence number
  std::map<uint64_t, uint64_t> unanswered_decodes_;             // the job, by the command's sequence number

  mutable std::mutex memory_mutex_;
  std::vector<std::optional<control::DeviceMemory>> memories_;  // by rank; guarded by memory_mutex_
};

}  // namespace tessera::server
