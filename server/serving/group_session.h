// GroupSession brings the workers of one group up until they can serve: it proves the layout, adopts the workers of a
// server that crashed or starts new ones, loads the model, and makes a first step. It can be opened again after Close.
//
// One thread calls Open, Close and the methods declared between them. Kill, End and const methods are thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log/log_line.h"
#include "control/model/model_description.h"
#include "control/parameters/load_parameters.h"
#include "server/api/picture_size.h"
#include "server/api/server_info.h"
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
  std::string model_name;  // its name in requests
  std::string files;       // see ServedGroupOptions
  control::ModelDescription model;
  control::LoadParameters load;
  parallel::Layout layout;
  CertifyPolicy certify = CertifyPolicy::kAuto;
  std::string certificates;  // folder
  std::string records;       // folder of group records; empty: workers end with this process
  std::string owner;         // owner of the workers, see WorkerProcessOptions
  absl::Duration first_back_off = absl::Seconds(1);
  ProgressBounds progress;
  AtPoint at_point;                      // called before and after each record; may be empty
  TraceFile* trace = nullptr;            // outlives the runner
  const ImageSpans* spans = nullptr;     // likewise
  std::vector<PictureSize> warmup = {};  // see ServedGroupOptions
  std::function<std::vector<control::JobParameters>()> next_prompts = nullptr;  // see ServedGroupOptions
  RemoteHosts* hosts = nullptr;                                                 // see ServedGroupOptions
  ServedContents* contents = nullptr;  // shared by all groups, outlives the runner; null: there are no other groups
};

class GroupSession final {
 public:
  using OnState = std::function<void(GroupState state, const std::string& reason)>;

  // All arguments outlive the session. `log` gets messages for operators, `on_state` the progress of Open.
  GroupSession(const GroupRunnerOptions& options, const base::EventLog& log, GroupTrace& trace, OnState on_state);

  // Returns when the workers can serve, or an error.
  absl::Status Open();
  // Returns the workers of the open session.
  WorkerGroup& workers() { return *group_; }
  const std::optional<control::MemoryBudget>& device_memory() const {
    return device_memory_;
  }  // memory that the model leaves free
  // Makes one real step of the smallest image and decodes it, while nothing else runs.
  absl::Status MakeProbePicture();
  // Makes two steps of each warm-up size of the options; an error names the size.
  absl::Status MakeWarmupSteps();
  // Called when the guard has stopped the layout: revokes its proof, and the next Open uses one rank.
  void GiveUpLayout(const std::string& reason);
  // Records that the workers have just answered, or that no command is pending.
  void Answered();
  // Ends the workers and discards them.
  void Close();

  // Kills the workers and makes all later starts fail.
  void Kill();
  // Ends the current workers with this reason; returns whether there were any.
  bool End(const std::string& reason);

  bool is_alive() const;            // whether workers are believed to be alive
  parallel::Layout layout() const;  // the layout of the options until GiveUpLayout
  LayoutCertification certification() const;
  std::string contents() const;  // digest of the contents loaded last
  absl::Duration SinceLastAnswer() const;
  absl::Duration ReloadTime() const;  // duration of the last load in Open
  double LoadedPart() const;          // of the current workers; 0 if there are none
  // Returns the memory of the current workers, see GroupInfo.
  std::vector<std::optional<control::DeviceMemory>> DeviceMemories() const;

 private:
  absl::Status CheckLayout();
  // Makes `steps` steps of an internal job; `decode`: decodes its latents afterwards.
  absl::Status MakeSteps(const control::JobParameters& job, bool decode);
  absl::StatusOr<std::shared_ptr<WorkerGroup>> Start(const WorkerGroupOptions& options);
  // Makes `group` the one that Kill kills.
  absl::Status Use(const std::shared_ptr<WorkerGroup>& group);
  WorkerGroupOptions OptionsFor(const parallel::Layout& layout) const;  // for workers that end with this process
  WorkerGroupOptions ServingOptions() const;
  absl::Status Adopt();
  absl::Status Load();
  // Checks what was loaded; FAILED_PRECONDITION if other groups of the model serve different contents.
  absl::Status AcceptContents(const std::string& contents);
  void KeepRecord(bool loaded);

  const GroupRunnerOptions& options_;
  const base::EventLog& log_;
  GroupTrace& trace_;
  const OnState on_state_;
  const GroupRecordFile record_;
  // Used only by the thread.
  CertificateSubject subject_;  // subject of the current layout
  bool may_adopt_ = true;       // until Open has tried it
  std::optional<control::MemoryBudget> device_memory_;

  mutable std::mutex mutex_;
  // Guarded by mutex_; only the thread changes group_.
  std::shared_ptr<WorkerGroup> group_;  // the current workers, for serving or for a proof
  parallel::Layout layout_;
  LayoutCertification certification_ = {.certified = false};
  std::string contents_;
  bool killed_ = false;
  struct {
    absl::Duration reload = absl::Seconds(10);  // default until measured
    absl::Duration answered;                    // time of the last answer on the steady clock
  } times_;
};

}  // namespace tessera::server
