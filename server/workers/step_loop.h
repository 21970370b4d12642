// StepLoop executes step plans on the workers of one group: it starts jobs, sends their steps, shows previews, decodes
// and ends them. The plans come from a StepOwner: the server's scheduler, a command, or a verification.
//
// At most kMaxStepsInFlight step commands are unanswered at any time. The decode command of an image is sent directly
// after its last step, and further steps are sent before the picture arrives, so that workers that can decode and
// denoise concurrently do so. Jobs that start together are sent together, and nothing waits for the reply to EndJob, so
// that workers always find the next command queued. Used by one thread, on which the owner is also called.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/scheduling/step_plan.h"
#include "server/trace/group_trace.h"
#include "server/workers/step_workers.h"

namespace tessera::server {

// A task that the loop can run.
struct RunnableTask {
  TracedImage image;
  std::shared_ptr<const control::JobParameters> parameters;  // with the task's seed
};

// Plans a group's work and receives the results.
class StepOwner {
 public:
  virtual ~StepOwner() = default;

  virtual StepPlan Next(GroupId group) = 0;
  // Waits until there may be new work, at most for `timeout`.
  virtual void WaitForWork(GroupId group, absl::Duration timeout) = 0;

  // Called for each task in a plan's `start`. An error means that the task is no longer to be run.
  virtual absl::StatusOr<RunnableTask> Claim(GroupId group, TaskId task) = 0;
  // Returns the numbers of steps after which previews are due, rising.
  virtual std::vector<int32_t> OnStarted(GroupId group, TaskId task, const control::JobStarted& started) = 0;
  // The model's prediction for one of these tasks differs between running in the batch and running alone: tasks like
  // these must not share a batch.
  virtual void OnBatchDiffers(GroupId group, const std::vector<TaskId>& tasks) = 0;
  // One step of all `tasks` is done. Empty `tasks` means that a step failed.
  virtual void OnStepped(GroupId group, const std::vector<TaskId>& tasks, double seconds) = 0;
  virtual void OnPreview(GroupId group, TaskId task, const control::Frames& image) = 0;
  virtual void OnPreviewFailed(GroupId group, TaskId task, const absl::Status& error) {}
  virtual void OnDecoded(GroupId group, TaskId task, control::Frames image, const control::JobStarted& started,
                         double seconds) = 0;
  // The task itself failed. INVALID_ARGUMENT means that the model refuses its request.
  virtual void OnFailed(GroupId group, TaskId task, const absl::Status& error) = 0;
  // A step of several tasks failed and the cause is unknown. `tasks` are those that had not ended meanwhile.
  virtual void OnBatchFailed(GroupId group, const std::vector<TaskId>& tasks, const absl::Status& error) = 0;
  // EndJob has been sent but perhaps not answered: commands sent from now on find no state of the task.
  virtual void OnEnded(GroupId group, TaskId task) = 0;
};

// Decides whether images in a batch do not affect each other's results. Tested once for each batch shape.
class BatchProof {
 public:
  virtual ~BatchProof() = default;
  virtual bool IsProven(const control::JobStarted& started, size_t tasks) const = 0;
  // Tests it on these tasks, which started with `started`, while no step is unanswered.
  virtual absl::StatusOr<bool> Prove(const std::vector<TaskId>& tasks, const control::JobStarted& started) = 0;
};

struct StepLoopOptions {
  GroupId group = 0;
  // A step that fails with DATA_LOSS ends the group. Set it where a single rank could do what this layout cannot.
  bool data_loss_ends_group = false;
  BatchProof* proof = nullptr;               // null: images may always share a batch
  std::function<void()> answered = nullptr;  // called after each reply of the workers
  // Returns the jobs that will start soon. Their prompts are encoded together when a job starts whose prompt was not
  // encoded before. Null: each prompt is encoded when its job starts.
  std::function<std::vector<control::JobParameters>()> next_prompts = nullptr;
};

class StepLoop final {
 public:
  // All arguments outlive the loop.
  StepLoop(StepWorkers& workers, StepOwner& owner, GroupTrace& trace, StepLoopOptions options);

  // Executes the owner's next plan. An error means that the group must be restarted; nothing in it continues.
  absl::Status Turn();
  // Waits for all pending replies except those to decode commands.
  absl::Status FinishSteps();

  bool has_made_images() const { return has_made_images_; }

 private:
  struct Running {
    RunnableTask task;
    control::JobStarted started;
    std::vector<int32_t> preview_after = {};  // steps, rising
    int32_t sent = 0;                         // steps
  };
  // A step command that has been sent.
  struct Flight {
    uint64_t sequence = 0;
    std::vector<TaskId> tasks;
    std::vector<TaskId> apart;  // those of `tasks` that are stepped one by one afterwards
    int32_t count = 1;          // number of steps; 1 if `apart` is not empty
    int32_t completed = 0;      // steps of the first task after this command
    absl::Time sent;
    absl::Time ended = absl::InfiniteFuture();  // upper bound
  };

  struct Starting {
    uint64_t sequence = 0;
    TaskId task = 0;
    RunnableTask claimed;
    absl::Time sent;
  };

  struct Decoding {
    uint64_t sequence = 0;
    TaskId task = 0;
    absl::Time sent;
  };

  absl::Status Start(const std::vector<TaskId>& tasks);
  // The task fails, unless the group does.
  absl::Status FailStart(TaskId task, const absl::Status& reason);
  absl::Status WaitForStart(Starting starting);
  absl::Status EncodeAhead();
  // Makes `steps` steps with the previews that are due between them. Removes tasks that fail from `tasks`.
  absl::Status MakeSteps(std::vector<TaskId>& tasks, int32_t steps);
  // Sends the next steps in one command: at most `most`, and none beyond the next preview. Returns how many were sent.
  absl::StatusOr<int32_t> SendSteps(std::vector<TaskId>& tasks, int32_t most);
  absl::StatusOr<bool> MayShare(std::vector<TaskId>& tasks);
  absl::StatusOr<std::vector<double>> WaitFor(const Flight& flight);  // the seconds that each step took
  absl::Status WaitForSteps();
  // Waits for the replies to the EndJob commands that were sent before the command `before`.
  absl::Status WaitForEnds(uint64_t before = std::numeric_limits<uint64_t>::max());
  void OnStepped(const Flight& flight, const std::vector<double>& seconds);
  void OnNotStepped(int32_t steps);
  absl::Status FailStep(const Flight& flight, const absl::Status& error);
  bool IsDead(const absl::Status& status) const;
  // Whether this step error means that the group must be restarted.
  bool EndsGroup(const absl::Status& step) const;
  static bool IsPreviewDue(const Running& running);
  int32_t StepsToPreview(const std::vector<TaskId>& tasks, int32_t most) const;
  absl::Status ShowPreviews(const std::vector<TaskId>& tasks);
  // Returns `picture`, or UNAVAILABLE if it does not include all steps that were sent.
  absl::StatusOr<control::DecodedPicture> OfAllSteps(TaskId task,
                                                     absl::StatusOr<control::DecodedPicture> picture) const;
  absl::Status SendDecode(TaskId task);
  absl::Status WaitForDecode(const Decoding& decoding);
  // Waits for a step or a picture, whichever is answered first.
  absl::Status WaitForAnswer();
  absl::Status End(TaskId task);
  void Answered() const;

  StepWorkers& workers_;
  StepOwner& owner_;
  GroupTrace& trace_;
  const StepLoopOptions options_;
  std::map<TaskId, Running> running_;
  std::vector<Flight> flights_;      // in order
  std::vector<Decoding> decodings_;  // in order
  std::deque<uint64_t> endings_;     // sequence numbers of EndJob commands, in order
  bool has_made_images_ = false;
  bool encodes_ahead_;  // the workers' prompt cache holds several prompts
};

}  // namespace tessera::server
