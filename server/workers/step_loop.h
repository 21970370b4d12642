// Carries out step plans on the workers of one group: starts jobs, sends their steps, shows previews, decodes and ends
// them, whoever plans it: the server's scheduler, a command, or a verification.
//
// The steps of at most kMaxStepsInFlight commands are unanswered at any time. A picture is asked for right behind its
// last step, and the next steps are sent before it is there: workers that can make it beside them do. Jobs that start
// together are sent together, and nothing waits for the answer to the end of one, so that workers find the next
// command when they are done with one. Used by one thread; its owner is called on it.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <map>
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

// A task as the loop needs it.
struct RunnableTask {
  TracedImage image;
  control::JobParameters parameters;   // with the task's own seed
  std::vector<int32_t> preview_after;  // steps, rising
};

// Plans what a group does, and hears what becomes of it.
class StepOwner {
 public:
  virtual ~StepOwner() = default;

  virtual StepPlan Next(GroupId group) = 0;
  // Waits until there may be something new, at most for the timeout.
  virtual void WaitForWork(GroupId group, absl::Duration timeout) = 0;

  // Of a task in a plan's `start`; an error: there is nothing to run any more.
  virtual absl::StatusOr<RunnableTask> Claim(GroupId group, TaskId task) = 0;
  virtual void OnStarted(GroupId group, TaskId task, const control::JobStarted& started) = 0;
  // What the model predicts for one of them is not the same beside the others as by itself: they and their like are to
  // share no batch.
  virtual void OnBatchDiffers(GroupId group, const std::vector<TaskId>& tasks) = 0;
  // A step of all of them is done; of none: one has failed.
  virtual void OnStepped(GroupId group, const std::vector<TaskId>& tasks, double seconds) = 0;
  virtual void OnPreview(GroupId group, TaskId task, const control::Image& image) = 0;
  virtual void OnPreviewFailed(GroupId group, TaskId task, const absl::Status& error) {}
  virtual void OnDecoded(GroupId group, TaskId task, control::Image image, const control::JobStarted& started,
                         double seconds) = 0;
  // The task has failed by itself; INVALID_ARGUMENT: the model refuses its request.
  virtual void OnFailed(GroupId group, TaskId task, const absl::Status& error) = 0;
  // A step of several tasks failed, and nobody knows whose fault it is: those of them that were not ended meanwhile.
  virtual void OnBatchFailed(GroupId group, const std::vector<TaskId>& tasks, const absl::Status& error) = 0;
  // Its EndJob is sent, though perhaps not answered: what is sent from here on finds nothing of the task.
  virtual void OnEnded(GroupId group, TaskId task) = 0;
};

// Whether images leave each other alone in a batch, which is tried once for each shape of batch.
class BatchProof {
 public:
  virtual ~BatchProof() = default;
  virtual bool IsProven(const control::JobStarted& started, size_t tasks) const = 0;
  // Tries it on these tasks, which have started so, while no step is unanswered.
  virtual absl::StatusOr<bool> Prove(const std::vector<TaskId>& tasks, const control::JobStarted& started) = 0;
};

struct StepLoopOptions {
  GroupId group = 0;
  // One rank may do what the layout cannot: a step that lost data ends the group.
  bool data_loss_ends_group = false;
  BatchProof* proof = nullptr;               // null: images may always share a batch
  std::function<void()> answered = nullptr;  // after each answer of the workers
  // Jobs that will be started soon, whose prompts are encoded together when one has come that was not; null: each is
  // encoded when its job starts.
  std::function<std::vector<control::JobParameters>()> next_prompts = nullptr;
};

class StepLoop final {
 public:
  // All that is passed outlives it.
  StepLoop(StepWorkers& workers, StepOwner& owner, GroupTrace& trace, StepLoopOptions options);

  // Does what the owner plans next. An error: the group is of no more use, and nothing in it goes on.
  absl::Status Turn();
  // Waits for all that is unanswered but pictures.
  absl::Status FinishSteps();

  bool has_made_images() const { return has_made_images_; }

 private:
  struct Running {
    RunnableTask task;
    control::JobStarted started;
    int32_t sent = 0;  // steps
  };
  // A command to make steps.
  struct Flight {
    uint64_t sequence = 0;
    std::vector<TaskId> tasks;
    std::vector<TaskId> apart;  // those of them that are stepped after it, one by one
    int32_t count = 1;          // of the steps; 1 where some are apart
    int32_t completed = 0;      // steps of the first task, with these
    absl::Time sent;
    absl::Time ended = absl::InfiniteFuture();  // at the latest
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
  absl::Status WaitForStart(Starting starting);
  absl::Status EncodeAhead();
  // So many steps, with the previews that are due between them. Leaves out tasks that fail before.
  absl::Status MakeSteps(std::vector<TaskId>& tasks, int32_t steps);
  // At most so many of them, in one command: as many as go together. How many were sent.
  absl::StatusOr<int32_t> SendSteps(std::vector<TaskId>& tasks, int32_t most);
  absl::StatusOr<bool> MayShare(std::vector<TaskId>& tasks);
  absl::StatusOr<std::vector<double>> WaitFor(const Flight& flight);  // the seconds that each step took
  absl::Status WaitForSteps();
  // For the ends of jobs that were sent before a command.
  absl::Status WaitForEnds(uint64_t before = std::numeric_limits<uint64_t>::max());
  void OnStepped(const Flight& flight, const std::vector<double>& seconds);
  void OnNotStepped(int32_t steps);
  absl::Status FailStep(const Flight& flight, const absl::Status& error);
  bool IsDead(const absl::Status& status) const;
  // Whether the group is of no more use after a step that ended so.
  bool EndsGroup(const absl::Status& step) const;
  static bool IsPreviewDue(const Running& running);
  int32_t StepsToPreview(const std::vector<TaskId>& tasks, int32_t most) const;
  absl::Status ShowPreviews(const std::vector<TaskId>& tasks);
  // The picture that the workers answered with; UNAVAILABLE if it is not of all steps that were sent.
  absl::StatusOr<control::DecodedPicture> OfAllSteps(TaskId task,
                                                     absl::StatusOr<control::DecodedPicture> picture) const;
  absl::Status SendDecode(TaskId task);
  absl::Status WaitForDecode(const Decoding& decoding);
  // For a step or a picture, whichever is there first.
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
  std::deque<uint64_t> endings_;     // commands to end a job, in order
  bool has_made_images_ = false;
  bool encodes_ahead_;  // the workers have room for several prompts
};

}  // namespace tessera::server
