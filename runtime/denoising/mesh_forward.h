// Forward passes of a transformer on the ranks of a mesh: blocks are spread over the pipe, tokens over ring x ulysses,
// matrices over tensor.
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

// Which blocks each of `stages` pipeline stages runs, from what the blocks cost (FamilyDescription::block_flops): the
// bounds of a Pipeline. The one place that decides this; whoever loads weights and whoever runs passes ask here. Throws
// c10::Error for more stages than blocks.
std::vector<int> StageBounds(std::span<const double> block_costs, int stages);

// What a rank of the mesh holds of a transformer with these bounds.
models::WeightShare ShareOf(const parallel::Mesh& mesh, int rank, std::span<const int> bounds);

// Rows of a batch as forward passes see them, but for latents and time: what stays while a stream of steps lasts.
struct ForwardRows {
  models::TokenGrid grid;
  models::Positions positions;  // of the whole image
  at::Tensor text;              // [b, t, D], whole, as PromptState has it
  at::Tensor text_bias;         // as Conditioning has it
  at::Tensor patches;           // [b, 0, features]: of what dtype and shape they are
  std::vector<int> skipped_blocks;
  int64_t text_work = 0;                      // as TokenCounts has it
  models::SharedAdapters adapters = nullptr;  // of all these rows
};

// The modulations of a pass by block, as Transformer::Modulate makes them, [rows, …] in parts of one row or more;
// num_blocks() for the head.
using Modulations = absl::FunctionRef<std::vector<at::Tensor>(int block)>;

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

  // A compute operation. `modulations` are those of its step; `patches` [b, tokens of the pass, features], read by
  // stage 0.
  void Compute(const parallel::StageOp& op, Modulations modulations, const at::Tensor& patches);

  // What a pass over the whole image has made on the last stage: of the head for this rank's tokens, and what is to be
  // taken for it.
  const at::Tensor& output() const { return pass_.output; }
  void SetOutput(at::Tensor output) { pass_.output = std::move(output); }

  // The transfers of a message, over the pipe. Where it receives, what it brings is there once they are done.
  void AddTransfers(const parallel::StageOp& op, std::vector<parallel::Transfer>& transfers);

  // On stage 0, after the last stage has computed and its result has been received: the head's output for the tokens of
  // the pass [b, tokens, features], by global index, equal on all ranks of the stage.
  at::Tensor Result(const parallel::StageOp& op);

  // A tensor of its shape, of any values, on any stage.
  at::Tensor ResultLike(int64_t tokens) const;

 private:
  int stage() const { return groups_.pipe.rank(); }
  bool is_last_stage() const { return stage() + 1 == groups_.pipe.size(); }
  const models::Positions& PositionsOf(parallel::PatchRange patches);
  models::BlockState EmbedPass(const parallel::StageOp& op, const at::Tensor& patches);
  at::Tensor TextOf(parallel::PatchRange patches) const;
  std::vector<parallel::TokenRun> ImageRuns(parallel::PatchRange patches) const;
  void Record(const parallel::StageOp& op, int block, const models::BlockState& state) const;
  // Contiguous memory for a message [b, rows, features of like], the same each time that it comes.
  at::Tensor Buffer(const parallel::StageOp& op, int part, const at::Tensor& like, int64_t rows);

  const models::Transformer& transformer_;
  const parallel::RankGroups& groups_;
  const parallel::Pipeline pipeline_;
  const ForwardRows rows_;
  const bool joint_;  // text takes part in the attention over image tokens
  const parallel::TokenLayout tokens_;
  parallel::StaleStore* stale_ = nullptr;
  StepRecorder* recorder_ = nullptr;
  parallel::ForwardContext plain_;  // for what has no attention over image tokens
  parallel::LocalAttention no_attention_;
  models::BlockState embedded_;                              // this rank's text, and an image without tokens
  std::map<std::pair<int, int>, models::Positions> placed_;  // of this rank's tokens, by the patches of a pass
  std::map<std::tuple<parallel::StageOp::Kind, int, int, int>, at::Tensor> buffers_;  // by kind, patches, part
  struct {
    models::BlockState received;                                     // for the next one
    models::BlockState sent;                                         // of the one last computed
    at::Tensor output;                                               // of the head for this rank's tokens
    std::map<std::pair<int, int>, std::map<int, at::Tensor>> skips;  // received, by step and first patch
  } pass_;
};

// Runs the messages ops[begin] … of one slot as one exchange, for the passes of all these rows. The first operation
// that is not one of them.
size_t ExchangeSlot(std::span<const parallel::StageOp> ops, size_t begin, std::span<MeshForward* const> forwards,
                    parallel::Communicator& pipe);

// The head's result for the whole image [b, n, features], equal on every rank. Every rank passes the same rows and
// patches [b, n, features], and holds its shard of the weights of its stage's blocks. The image goes through the stages
// at once, which is exact.
at::Tensor ForwardOnMesh(const models::Transformer& transformer, ForwardRows rows, Modulations modulations,
                         const at::Tensor& patches, const parallel::RankGroups& groups,
                         std::span<const int> stage_bounds);

}  // namespace tessera::runtime
