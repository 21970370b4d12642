// MeshForward runs forward passes of a transformer on the ranks of a mesh: blocks are spread over pipe, tokens over
// ring x ulysses, matrices over tensor.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "models/adapters/adapter_set.h"
#include "models/loading/param_table.h"
#include "models/transformer.h"
#include "parallel/attention/stale_store.h"
#include "parallel/plan/mesh.h"
#include "parallel/plan/pipeline_plan.h"
#include "parallel/rank_groups.h"
#include "runtime/denoising/step_recorder.h"

namespace tessera::runtime {

// Returns which blocks each of `stages` pipeline stages runs, based on the blocks' costs
// (FamilyDescription::block_flops): the bounds of a Pipeline. This is the only place that decides it, both for loading
// weights and for running passes. Throws c10::Error for more stages than blocks.
std::vector<int> StageBounds(std::span<const double> block_costs, int stages);

// Returns the part of a transformer with these bounds that a rank of the mesh holds.
models::WeightShare ShareOf(const parallel::Mesh& mesh, int rank, std::span<const int> bounds);

// The inputs of forward passes for rows of a batch, except latents and time: they stay the same during a stream of
// steps.
struct ForwardRows {
  models::TokenGrid grid;
  models::Positions positions;  // of the whole image
  at::Tensor text;              // [b, t, D], all tokens: of the prompt as in PromptState, then of reference pictures
  std::vector<models::TokenGrid> references;  // the grids of these
  at::Tensor text_bias;                       // as in Conditioning
  at::Tensor patches;                         // [b, 0, features]: gives the dtype and shape of patches
  std::vector<int> skipped_blocks;
  int64_t text_work = 0;                      // see TokenCounts
  models::SharedAdapters adapters = nullptr;  // the same for all rows
};

// Returns the modulations of a pass for a block, from Transformer::Modulate, [rows, …] in parts of one or more rows;
// num_blocks() is the head.
using Modulations = absl::FunctionRef<std::vector<at::Tensor>(int block)>;

// Computes one rank's part of the passes over such rows. The operations of a pipeline plan determine the passes and the
// order in which the stages exchange data; every rank of a stage must get the same operations. Tensors between stages
// go from each rank to the one with the same other coordinates.
//
// The arguments outlive this object. Used by one thread.
class MeshForward {
 public:
  // Passes over less than the whole image read the keys and values of the rest from the store that UseStale sets; its
  // epoch must have begun with tokens(). Without a store all passes must be over the whole image.
  MeshForward(const models::Transformer& transformer, const parallel::RankGroups& groups,
              const parallel::Pipeline& pipeline, ForwardRows rows);

  const parallel::TokenLayout& tokens() const { return tokens_; }
  void UseStale(parallel::StaleStore* stale) { stale_ = stale; }
  // Records what the blocks compute; null stops recording.
  void RecordTo(StepRecorder* recorder) { recorder_ = recorder; }

  // Runs a compute operation. `modulations` are those of its step; `patches` [b, tokens of the pass, features] is read
  // by stage 0.
  void Compute(const parallel::StageOp& op, Modulations modulations, const at::Tensor& patches);

  // The head's output of a pass over the whole image for this rank's tokens, on the last stage; SetOutput replaces it.
  const at::Tensor& output() const { return pass_.output; }
  void SetOutput(at::Tensor output) { pass_.output = std::move(output); }

  // Appends the transfers of a message over the pipe. A received tensor is available once they have completed.
  void AddTransfers(const parallel::StageOp& op, std::vector<parallel::Transfer>& transfers);

  // Returns the head's output for the tokens of the pass [b, tokens, features], by global index, equal on all ranks of
  // the stage. On stage 0, after the last stage has computed it and it has been received.
  at::Tensor Result(const parallel::StageOp& op);

  // Returns a tensor with the shape of Result and arbitrary values, on any stage.
  at::Tensor ResultLike(int64_t tokens) const;

 private:
  int stage() const { return groups_.pipe.rank(); }
  bool is_last_stage() const { return stage() + 1 == groups_.pipe.size(); }
  const models::Positions& PositionsOf(parallel::PatchRange patches);
  models::BlockState EmbedPass(const parallel::StageOp& op, const at::Tensor& patches);
  at::Tensor TextOf(parallel::PatchRange patches) const;
  // The tokens of reference pictures among this rank's rows of a text of which it has `rows`.
  int64_t ReferencesIn(int64_t rows) const;
  std::vector<parallel::TokenRun> ImageRuns(parallel::PatchRange patches) const;
  void Record(const parallel::StageOp& op, int block, const models::BlockState& state) const;
  // Returns contiguous memory for a message [b, rows, features of like], the same memory for each call with the same
  // key.
  at::Tensor Buffer(const parallel::StageOp& op, int part, const at::Tensor& like, int64_t rows);

  const models::Transformer& transformer_;
  const parallel::RankGroups& groups_;
  const parallel::Pipeline pipeline_;
  const ForwardRows rows_;
  const bool joint_;  // text takes part in the attention over image tokens
  const parallel::TokenLayout tokens_;
  parallel::StaleStore* stale_ = nullptr;
  StepRecorder* recorder_ = nullptr;
  parallel::ForwardContext plain_;  // for parts without attention over image tokens
  parallel::LocalAttention no_attention_;
  models::BlockState embedded_;                              // this rank's text, and an image without tokens
  std::map<std::pair<int, int>, models::Positions> placed_;  // of this rank's tokens, by the patches of a pass
  std::map<std::tuple<parallel::StageOp::Kind, int, int, int>, at::Tensor> buffers_;  // by kind, patches, part
  struct {
    models::BlockState received;                                     // for the next operation
    models::BlockState sent;                                         // the result of the last compute operation
    at::Tensor output;                                               // the head's output for this rank's tokens
    std::map<std::pair<int, int>, std::map<int, at::Tensor>> skips;  // received skips, by step and first patch
  } pass_;
};

// Runs the messages ops[begin] … of one slot as one exchange, for the passes of all these rows. Returns the index of
// the first operation that is not part of it.
size_t ExchangeSlot(std::span<const parallel::StageOp> ops, size_t begin, std::span<MeshForward* const> forwards,
                    parallel::Communicator& pipe);

// Returns the head's output for the whole image [b, n, features], equal on every rank. Every rank passes the same rows
// and patches [b, n, features], and holds its shard of the weights of its stage's blocks. The image goes through the
// stages as a whole, which is exact.
at::Tensor ForwardOnMesh(const models::Transformer& transformer, ForwardRows rows, Modulations modulations,
                         const at::Tensor& patches, const parallel::RankGroups& groups,
                         std::span<const int> stage_bounds);

}  // namespace tessera::runtime
