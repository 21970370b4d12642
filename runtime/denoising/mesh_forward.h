// Forward passes of a transformer on the ranks of a mesh: blocks are spread over the pipe, tokens over ring x ulysses,
// matrices over tensor.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "models/loading/param_table.h"
#include "models/transformer.h"
#include "parallel/attention/stale_store.h"
#include "parallel/plan/mesh.h"
#include "parallel/plan/pipeline_plan.h"
#include "parallel/rank_groups.h"
#include "runtime/denoising/step_recorder.h"

namespace tessera::runtime {

// Which blocks each of `stages` pipeline stages runs, from what the blocks cost (FamilyDescription::block_flops): the
// bounds of a Pipeline. The one place that decides this; whoever loads weights and whoever runs passes ask here. Throws
// c10::Error for more stages than blocks.
std::vector<int> StageBounds(std::span<const double> block_costs, int stages);

// What a rank of the mesh holds of a transformer with these bounds.
models::WeightShare ShareOf(const parallel::Mesh& mesh, int rank, std::span<const int> bounds);

// Rows of a batch as forward passes see them, but for latents and time: what stays while a stream of steps lasts.
struct ForwardRows {
  models::TransformerInput
      input;  // whole text; `patches` [b, 0, features] says dtype and shape; `timestep` is not read
  std::vector<int> skipped_blocks;
  int64_t text_work = 0;  // as TokenCounts has it
};

// One rank's part in the passes over such rows. The operations of a pipeline plan say which passes, and in which order
// the stages exchange what; every rank of a stage is given the same ones. Tensors between stages go from each rank to
// the one with the same other coordinates.
//
// What it is given outlives it. Used by one thread.
class MeshForward {
 public:
  // `stale`: where passes over less than the image find the keys and values of the rest; its epoch has begun with
  // tokens(). Null: all passes are over the whole image.
  MeshForward(const models::Transformer& transformer, const parallel::RankGroups& groups,
              const parallel::Pipeline& pipeline, ForwardRows rows);

  const parallel::TokenLayout& tokens() const { return tokens_; }
  void UseStale(parallel::StaleStore* stale) { stale_ = stale; }
  // Keeps what the blocks compute; null: nothing.
  void RecordTo(StepRecorder* recorder) { recorder_ = recorder; }

  // A compute operation. `timestep` [b], of the step; `patches` [b, tokens of the pass, features], read by stage 0.
  void Compute(const parallel::StageOp& op, const at::Tensor& timestep, const at::Tensor& patches);

  // A message. Flushes and barriers are no business of these passes.
  void Exchange(const parallel::StageOp& op);

  // On stage 0, after the last stage has computed and its result has been received: the head's output for the tokens of
  // the pass [b, tokens, features], by global index, equal on all ranks of the stage.
  at::Tensor Result(const parallel::StageOp& op);

  // An empty tensor of its shape, on any stage that has computed.
  at::Tensor ResultLike(int64_t tokens);

 private:
  using Rotary = std::pair<at::Tensor, at::Tensor>;  // cos, sin

  int stage() const { return groups_.pipe.rank(); }
  bool is_last_stage() const { return stage() + 1 == groups_.pipe.size(); }
  models::TransformerInput InputFor(parallel::TokenSpan span, bool with_text) const;
  const models::Conditioning& ConditionStep(const parallel::StageOp& op, const at::Tensor& timestep);
  Rotary RotaryOf(parallel::PatchRange patches, const at::Tensor& timestep);
  models::BlockState EmbedPass(const parallel::StageOp& op, const at::Tensor& patches) const;
  at::Tensor TextOf(parallel::PatchRange patches) const;
  void Record(const parallel::StageOp& op, int block, const models::BlockState& state) const;
  void ReceiveLike(at::Tensor& tensor, const at::Tensor& like, int64_t rows, int from);

  const models::Transformer& transformer_;
  const parallel::RankGroups& groups_;
  const parallel::Pipeline pipeline_;
  const std::vector<int> skipped_;
  const bool joint_;  // text takes part in the attention over image tokens
  const parallel::TokenLayout tokens_;
  models::TransformerInput input_;  // with this rank's text
  parallel::StaleStore* stale_ = nullptr;
  StepRecorder* recorder_ = nullptr;
  parallel::ForwardContext plain_;  // for what has no attention over image tokens
  parallel::LocalAttention no_attention_;
  models::BlockState embedded_;  // text, and an image without tokens

  struct {
    std::optional<int> number;
    models::Conditioning conditioning;  // without positions
  } step_;                              // the last one that was conditioned
  struct {
    std::vector<Rotary> patches;  // of this rank's tokens of each patch; made when first needed
    Rotary text;
  } rotary_;
  struct {
    models::BlockState received;                                     // for the next one
    models::BlockState sent;                                         // of the one last computed
    at::Tensor output;                                               // of the head for this rank's tokens
    std::map<std::pair<int, int>, std::map<int, at::Tensor>> skips;  // received, by step and first patch
  } pass_;
};

// The head's result for the whole image [b, n, features], equal on every rank. Every rank passes the same whole input
// and holds its shard of the weights of its stage's blocks. The image goes through the stages at once, which is exact.
at::Tensor ForwardOnMesh(const models::Transformer& transformer, const models::TransformerInput& input,
                         const parallel::RankGroups& groups, std::span<const int> stage_bounds,
                         std::span<const int> skipped_blocks = {});

}  // namespace tessera::runtime
