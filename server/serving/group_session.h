// The workers of one group, from nothing until they can serve, again and again: proves the layout, adopts the workers
// of a server that ended without a word or starts new ones, loads the model, and makes a first step.
//
// Open, Close and what is between them are called by one thread. Kill, End and what is const are thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log_line.h"
#include "server/api/image_service.h"
#include "server/api/picture_size.h"
#include "server/jobs/failpoint.h"
#include "server/scheduling/step_plan.h"
#include "server/serving/group_record.h"
#include "server/serving/served_contents.h"
#include "server/trace/group_trace.h"
#include "server/verification/certify.h"
#include "server/workers/layout_choice.h"
#include "server/workers/worker_group.h"

namespace tessera::server {

struct GroupRunnerOptions {
  GroupId id = 0;
  std::string name;
  std::string model_name;  // as requests call it
  std::string files;       // as in ServedGroupOptions
  control::ModelDescription model;
  control::LoadParameters load;
  parallel::Layout layout;
  CertifyPolicy certify = CertifyPolicy::kAuto;
  std::string certificates;  // folder
  std::string records;       // folder of group records; empty: workers end with this process
  std::string owner;         // of the workers, as in WorkerProcessOptions
  absl::Duration first_back_off = absl::Seconds(1);
  absl::Duration longest_back_off = absl::Seconds(60);
  absl::Duration start_timeout = absl::Seconds(60);
  ProgressBounds progress;
  AtPoint at_point;                      // before and after each record; may be empty
  TraceFile* trace = nullptr;            // outlives the runner
  std::vector<PictureSize> warmup = {};  // as in ServedGroupOptions
  std::function<std::vector<control::JobParameters>()> next_prompts = nullptr;  // likewise
  RemoteHosts* hosts = nullptr;                                                 // likewise
  ServedContents* contents = nullptr;  // of all groups, outlives the runner; null: there are no others
};

class GroupSession final {
 public:
  using OnState = std::function<void(GroupState state, const std::string& reason)>;

  // All that is passed outlives it. `log` is told what operators should know, `on_state` how far Open has come.
  GroupSession(const GroupRunnerOptions& options, const base::EventLog& log, GroupTrace& trace, OnState on_state);

  // Until the workers can serve.
  absl::Status Open();
  // The open ones.
  WorkerGroup& workers() { return *group_; }
  const std::optional<control::MemoryBudget>& device_memory() const {
    return device_memory_;
  }  // that the model has left
  // One real step of the smallest image and its picture, while nothing else runs.
  absl::Status MakeProbePicture();
  // Two steps of each size of the options; the error names the size.
  absl::Status MakeWarmupSteps();
  // The guard has stopped the layout: it is no longer proven, and one rank goes on after the next Open.
  void GiveUpLayout(const std::string& reason);
  // The workers have just answered, or nothing was asked.
  void Answered();
  // Ends the workers and forgets them.
  void Close();

  // Kills the workers, and all that would be started later.
  void Kill();
  // Ends the workers that are there with this reason; whether there were any.
  bool End(const std::string& reason);

  bool is_alive() const;            // workers are there, as far as is known
  parallel::Layout layout() const;  // the one of the options, until it was given up
  bool certified() const;
  std::string contents() const;  // the digest of what was loaded last
  absl::Duration SinceLastAnswer() const;
  absl::Duration ReloadTime() const;  // that Open takes, by its last run
  // Of the workers that are there, as in GroupInfo.
  std::vector<std::optional<control::DeviceMemory>> DeviceMemories() const;

 private:
  absl::Status CheckLayout();
  // So many steps of a job that no user sees, and the picture of its latents after them.
  absl::Status MakeSteps(const control::JobParameters& job, int steps, bool decode);
  absl::StatusOr<std::shared_ptr<WorkerGroup>> Start(const WorkerGroupOptions& options);
  // Makes it the one that Kill kills.
  absl::Status Use(const std::shared_ptr<WorkerGroup>& group);
  WorkerGroupOptions OptionsFor(const parallel::Layout& layout) const;  // of workers that end with this process
  WorkerGroupOptions ServingOptions() const;
  absl::Status Adopt();
  absl::Status Load();
  // What was loaded; FAILED_PRECONDITION if other groups of the model serve something else.
  absl::Status AcceptContents(const std::string& contents);
  void KeepRecord(bool loaded);

  const GroupRunnerOptions& options_;
  const base::EventLog& log_;
  GroupTrace& trace_;
  const OnState on_state_;
  const GroupRecordFile record_;
  // Used by the thread alone.
  CertificateSubject subject_;  // of the layout in use
  bool may_adopt_ = true;       // until it has been tried
  std::optional<control::MemoryBudget> device_memory_;

  mutable std::mutex mutex_;
  // Guarded by mutex_; group_ is changed by the thread alone.
  std::shared_ptr<WorkerGroup> group_;  // the one in use, whatever for
  parallel::Layout layout_;
  bool certified_ = false;
  std::string contents_;
  bool killed_ = false;
  struct {
    absl::Duration reload = absl::Seconds(10);  // until it was measured
    absl::Duration answered;                    // on the steady clock
  } times_;
};

}  // namespace tessera::server
