// PipeFusion (Fang et al., 2024) as data: what each pipeline stage computes, sends and receives, and in which order.
// Pure.
//
// The blocks of a transformer are divided into stages. A *pass* is one run through all of them: over the whole image in
// the warm-up steps, over one patch in later ones, in which keys and values of the other patches are from the previous
// step. Stage 0 embeds and holds the latents; the last stage has the head and sends its prediction to stage 0, which
// updates the latents of the same patch. So the next step of that patch can begin as soon as its prediction has
// arrived, and with at least as many patches as stages no stage is idle between steps.
//
// The plan has a clock of slots. Stage s runs pass m in slot T(m) + s, where T(m) is the earliest slot in which stage 0
// is free and has the input of m. All messages are exchanged by both sides at the end of the slot in which their
// content was computed. So at most one message of a kind is in transit from one stage to another, and every stage
// receives a long skip when it is sent and keeps it until it is read. Every stage lists the messages of one slot in the
// same order. It follows that there is no deadlock even if each Send waits for its Recv: the first message that is not
// yet exchanged has both its sides waiting for it. Messages with equal `slot` may also be issued as one group.
//
// One thread per rank issues communication, in plan order. Shapes follow from the operation and are never negotiated.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/plan/long_skip.h"
#include "parallel/plan/token_layout.h"

namespace tessera::parallel {

struct Pipeline {
  std::vector<int> bounds;  // ascending, from 0 to the number of blocks: stage s runs bounds[s] … bounds[s + 1] − 1
  int patches = 1;
  std::vector<LongSkip> skips;

  int stages() const { return static_cast<int>(bounds.size()) - 1; }
  int StageOf(int block) const;
};

// One timestep of a batch of jobs.
struct PipeStep {
  int64_t job = 0;  // the batch
  int step = 0;
  bool whole = true;     // a warm-up step: one pass over the whole image
  bool barrier = false;  // the prediction of the whole image must be known before any latents change
};

struct StageOp {
  enum class Kind : uint8_t {
    kCompute,  // this stage's blocks; on stage 0 the embedding first, on the last stage the head after them
    kSendState,
    kReceiveState,  // the tensors between neighbouring blocks, without long skips
    kSendSkips,
    kReceiveSkips,  // the outputs of `blocks`, sent directly to the stage that reads them
    kSendResult,
    kReceiveResult,  // the prediction, from the last stage to stage 0; no message if there is one stage
    kBarrier,        // every pass of the step has ended on this stage; stage 0 knows the whole prediction
    kFlush,          // no message is in transit; the next step may belong to another batch
  };

  Kind kind = Kind::kCompute;
  int64_t job = 0;
  int step = 0;
  PatchRange patches;       // of the pass; text rows run with it if with_text()
  int peer = -1;            // the other stage of a message
  int64_t slot = 0;         // the same on both sides of a message
  std::vector<int> blocks;  // ascending: the outputs that kSendSkips and kReceiveSkips transfer, in this order

  bool is_message() const { return peer >= 0; }
  bool operator==(const StageOp&) const = default;
};

// The plan of one stage, produced step by step as steps are commanded. Every rank must make the same calls. A value
// type.
//
// A stage takes part in exchanges of the following step before its own part of a step has ended, so some operations of
// a step are returned by the next call. With at least as many patches as stages, all computation of a step has been
// returned by the call for the next one, so that two steps in flight keep the pipeline full. A step over the whole
// image or with a barrier is returned completely.
//
// All stages return their messages up to the same slot, so both sides of a message are returned by the same call: a
// stage never waits for an operation that another stage executes only under the next command. A rank that has executed
// the returned operations may wait for commands, take part in collectives of other kinds, or drop the stream.
class PipelinePlanner {
 public:
  // Returns InvalidArgument if the bounds do not ascend from 0, there are no patches, a skip names a block that does
  // not exist, or the stage does not exist.
  static absl::StatusOr<PipelinePlanner> Create(const Pipeline& pipeline, int stage);

  // Returns the operations that `step` determines. FailedPrecondition unless it follows the last step of its job, or is
  // the first step after a flush.
  absl::StatusOr<std::vector<StageOp>> Step(const PipeStep& step);

  // Returns the remaining operations, and kFlush.
  std::vector<StageOp> Flush();

 private:
  struct Pass {
    int64_t job;
    int step;
    PatchRange patches;
    int64_t start;  // slot in which stage 0 computes it
    bool barrier_after;
  };
  struct SkipEdge {
    int from, to;  // stages
    std::vector<int> blocks;
  };
  struct Message;

  PipelinePlanner(const Pipeline& pipeline, int stage);
  void Append(const PipeStep& step, PatchRange patches, bool last);
  void Emit(int64_t end, std::vector<StageOp>& ops);
  void EmitCompute(std::vector<StageOp>& ops) const;
  void EmitMessages(std::vector<StageOp>& ops) const;
  void EmitBarrier(std::vector<StageOp>& ops) const;

  int stages_;
  int patches_;
  int stage_;
  std::vector<SkipEdge> edges_;

  std::deque<Pass> passes_;     // passes that may still have operations in a future slot
  std::vector<int64_t> ready_;  // by patch: first slot in which stage 0 has the input of the next step
  int64_t next_start_ = 0;      // first slot in which stage 0 is free
  int64_t slot_ = 0;            // first slot that is not completely returned
  bool computed_ = false;       // the computation of `slot_` has been returned, its messages have not
  bool flushed_ = true;
  int64_t job_ = 0;
  int step_ = 0;
};

// Returns the plan of the whole stream at once, with a flush at each change of job and at the end.
absl::StatusOr<std::vector<StageOp>> PipeFusionPlan(const Pipeline& pipeline, int stage,
                                                    std::span<const PipeStep> stream);

// Returns the steps of one job: the first `warmup` steps whole, the rest patch by patch.
std::vector<PipeStep> StepsOfJob(int64_t job, int steps, int warmup);

}  // namespace tessera::parallel
