// The worker processes that make images together, one a rank, driven as one: every rank gets the same commands in the
// same order, and what the group answers is what its ranks agree on.
//
// When a rank dies, stands still, or fails at what the others can do, the whole group ends: its memory is poisoned, so
// that no rank waits for another in vain, and every process is killed. Every later call fails with the reason, which
// names the rank. Used by one thread, but for Kill, End and PeakMemoryBytes.
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
#include "control/worker_client.h"
#include "parallel/plan/layout.h"
#include "parallel/segment/segment.h"
#include "server/workers/progress_watch.h"
#include "server/workers/remote_hosts.h"
#include "server/workers/step_prediction.h"
#include "server/workers/step_workers.h"
#include "server/workers/worker_process.h"

namespace tessera::server {

struct WorkerGroupOptions {
  parallel::Layout layout;
  int data =
      0;  // of training: so many times the ranks of the layout share out the data; 0: the group makes images only
  bool show_output = false;                 // copy the workers' output to our standard error
  absl::Duration timeout = absl::Hours(1);  // for the answer to any one command
  ProgressBounds progress;
  absl::Duration orphan_grace_period;  // how long the workers outlive this process's sudden end; zero: they end with it
  std::string owner = "";              // as in WorkerProcessOptions
  // As LoadParameters has them. Ranks whose devices are of nodes are started there, by `hosts`, which outlives the
  // group.
  std::string devices = "cpu";
  RemoteHosts* hosts = nullptr;  // null: there are none
};

// Whether a rank of so many is on a device of a node.
bool IsOnNodes(const std::string& devices);

// `devices` as LoadParameters has them: on "cuda" rank r of several is on device r, of several devices with commas
// between them it has the r-th.
std::string DeviceOfRank(const std::string& devices, int rank, int ranks);

class WorkerGroup final : public StepWorkers {
 public:
  static constexpr int kMaxStepsInFlight = control::WorkerClient::kMaxStepsInFlight;

  // Starts the processes; Connect before anything else. RESOURCE_EXHAUSTED without shared memory for them.
  static absl::StatusOr<std::unique_ptr<WorkerGroup>> Start(const WorkerGroupOptions& options);
  // Takes over the workers of a group that a process before this one started with those options: Connect, then Resume.
  // FAILED_PRECONDITION unless every rank is there; those that are there are then killed, and nothing else is.
  static absl::StatusOr<std::unique_ptr<WorkerGroup>> Adopt(const WorkerGroupOptions& options,
                                                            absl::Span<const WorkerIdentity> identities);
  ~WorkerGroup() override;  // kills what still runs

  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // UNAVAILABLE when a worker ends first, DEADLINE_EXCEEDED.
  absl::Status Connect(absl::Duration timeout);

  // The identity of every rank, for Adopt; empty where one has ended.
  std::vector<WorkerIdentity> Identities() const;

  // DATA_LOSS when the ranks of an adopted group were not left alike.
  absl::Status Resume();

  // The model that is loaded, for what is predicted of its steps; Describe does so itself.
  void Predict(const control::ModelDescription& model);

  // Sends a command to every rank and waits for their replies; returns that of rank 0. Errors that all ranks report
  // alike leave the group as it was. Every other one ends it: UNAVAILABLE, or the code of the rank that failed;
  // DATA_LOSS when ranks differ in what must be equal on all. The methods below also compare or join what the ranks
  // reply.
  template <class Command>
  absl::StatusOr<typename Command::Reply> Call(const Command& command) {
    const uint64_t sequence = SendToAll([&](control::WorkerClient& client, int) { return client.Send(command); });
    const absl::Duration idle = control::IsLong<Command>() ? options_.progress.loading : options_.progress.other;
    Answers<typename Command::Reply> answers;
    return WaitForAll({.idle = idle}, answers,
                      [&](control::WorkerClient& client) { return client.Wait<Command>(sequence); });
  }

  absl::StatusOr<control::ModelDescription> Describe(const std::string& model);
  // What ranks of so many would compute with on these devices; where they differ, each with a semicolon between them.
  absl::StatusOr<control::DeviceIdentity> Identify(const std::string& devices, int ranks);
  // Threads are those of all ranks together; devices are given to them as DeviceOfRank says. The weights are those of
  // all ranks, the memory budget is that of the rank with the least.
  absl::StatusOr<control::Loaded> Load(const control::LoadParameters& parameters);
  absl::StatusOr<uint64_t> SendStartJob(uint64_t job, const control::JobParameters& parameters) override;
  absl::StatusOr<control::JobStarted> WaitForStart(uint64_t sequence) override;
  absl::StatusOr<int32_t> EncodePrompts(absl::Span<const control::JobParameters> jobs) override;
  absl::StatusOr<uint64_t> SendSteps(absl::Span<const uint64_t> jobs, int32_t count) override;
  absl::StatusOr<std::vector<control::Stepped>> WaitForSteps(uint64_t sequence) override;
  absl::StatusOr<uint64_t> SendDecode(uint64_t job) override;
  absl::StatusOr<control::DecodedPicture> WaitForDecode(uint64_t sequence, const control::JobStarted& started) override;
  uint64_t WaitForAny(absl::Span<const uint64_t> sequences) override;  // answered by rank 0
  absl::StatusOr<uint64_t> SendEndJob(uint64_t job) override;
  absl::Status WaitForEnd(uint64_t sequence) override;
  // The figures of a step are those of all ranks, which must be equal.
  absl::StatusOr<control::Trained> Train();

  absl::Status Shutdown();

  // The reason why it has ended for good; OK while it has not.
  absl::Status health() override;

  // Whether a host of its ranks is gone.
  bool host_lost() const;

  int ranks() const { return static_cast<int>(workers_.size()); }
  const parallel::Layout& layout() const { return options_.layout; }
  pid_t pid(int rank) const { return workers_[static_cast<size_t>(rank)].process->pid(); }
  std::vector<pid_t> Pids() const;  // by rank

  // The sum over all ranks; 0 when the system does not say.
  uint64_t PeakMemoryBytes() const;

  // Of each rank's device, by rank, as the rank said last; nothing of one that never did. Thread-safe.
  std::vector<std::optional<control::DeviceMemory>> DeviceMemories() const;

  // Kills every worker without waiting. Thread-safe.
  void Kill();

  // Ends the group without waiting: every call, the one under way too, fails with the reason. Thread-safe, once it is
  // connected.
  void End(const std::string& reason);

 private:
  struct Worker {
    std::unique_ptr<RankProcess> process;
    std::unique_ptr<control::WorkerClient> client;
  };

  WorkerGroup(const WorkerGroupOptions& options, std::shared_ptr<parallel::HostSegment> segment);

  // "the worker" where it is alone, else "rank 2 of 4", with its node: "rank 2 of 4 on node-a".
  std::string Name(int rank) const;
  absl::Status StartProcesses();
  control::LoadParameters OnRank(control::LoadParameters parameters, int rank) const;

  template <class Reply>
  using Answers = std::vector<absl::StatusOr<Reply>>;  // by rank

  // Sends a command to every rank by `send`, without waiting for an answer. Its sequence number, the same on all.
  template <class Send>
  uint64_t SendToAll(const Send& send) {
    const ProgressWatch::Due due(*watch_, {.idle = options_.progress.other});
    uint64_t sequence = 0;
    for (int rank = 0; rank < ranks(); ++rank) sequence = send(*workers_[static_cast<size_t>(rank)].client, rank);
    return sequence;
  }

  // Waits for the answer of one rank after the other, all within `bound` of progress, and makes one of them: the first
  // rank's, if all agree. A rank that ends meanwhile ends the group, and with it every wait.
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
  // The status of the group after its ranks have answered so.
  absl::Status Agree(const std::vector<absl::Status>& answers);

  // Of a command that makes steps or a picture, or of another one.
  PauseBound BoundOf(uint64_t sequence) const;

  // Keeps what the ranks have reported with their answers.
  template <class Reply, class MemoryOf>
  void KeepMemories(const Answers<Reply>& answers, MemoryOf memory_of);

  // Ends the group. The first reason stays and is returned.
  absl::Status Fail(const absl::Status& reason);
  std::string Ending(int rank);

  const WorkerGroupOptions options_;
  std::shared_ptr<parallel::HostSegment> segment_;
  std::unique_ptr<RemoteRanks> remote_;  // null: every rank runs on this host
  std::vector<Worker> workers_;

  std::mutex failure_mutex_;
  std::optional<absl::Status> failure_;  // guarded by failure_mutex_

  std::atomic<bool> ending_ = false;
  std::unique_ptr<ProgressWatch> watch_;  // since Connect

  bool stepped_ = false;  // the job in hand has made a step
  StepPrediction prediction_;
  std::map<uint64_t, std::vector<uint64_t>> unanswered_steps_;  // jobs, by the command's sequence number
  std::map<uint64_t, uint64_t> unanswered_decodes_;             // job, likewise

  mutable std::mutex memory_mutex_;
  std::vector<std::optional<control::DeviceMemory>> memories_;  // by rank; guarded by memory_mutex_
};

}  // namespace tessera::server
