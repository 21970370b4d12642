// What a diffusion transformer is to the rest of the project: embed, a list of blocks over one state, a head. Any
// contiguous range of blocks can run elsewhere (a pipeline stage), because the state is all that passes between them.
//
// Shapes: b batch, n tokens of the span, t text tokens, D width of the model.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <span>
#include <vector>

#include "models/token_grid.h"
#include "parallel/forward_context.h"
#include "parallel/plan/long_skip.h"

namespace tessera::models {

struct TransformerInput {
  at::Tensor patches;              // [b, n, channels·p·p], features as Patchify orders them, for the tokens of `span`
  TokenGrid grid;                  // of the whole image
  parallel::TokenSpan span;        // which of its tokens `patches` holds
  at::Tensor timestep;             // [b] in fp64, on the scale 0 … 1000: each family rounds as its reference does
  at::Tensor text;                 // [b, t, text width]; undefined for a family without text
  at::Tensor text_mask;            // [b, t], 1 for tokens and 0 for padding; undefined: no padding
  std::vector<at::Tensor> extras;  // [b, …] each: all else that conditions the family, as ConditioningRow has it
};

// What passes from block to block.
struct BlockState {
  at::Tensor image;                 // [b, n, D]
  at::Tensor text;                  // [b, t, D]
  std::map<int, at::Tensor> skips;  // outputs kept for later blocks, by the block that made them
};

// What every block reads and none changes.
struct Conditioning {
  at::Tensor embedding;   // [b, …], of the timestep and all else that is one vector
  at::Tensor modulation;  // the family's own: what its blocks scale and shift by
  at::Tensor text_bias;   // [b, t], added to attention scores over text; undefined: none
  // [tokens, d/2] of rotary positions in max(fp32, dtype), the joint text's first; undefined: none. A token's row
  // depends on that token alone.
  at::Tensor cos, sin;
};

class Transformer {
 public:
  virtual ~Transformer() = default;

  virtual int num_blocks() const = 0;
  // Whether text tokens take part in the attention over image tokens, so that they are spread over ranks like these.
  // Where they do not, every rank has the whole text.
  virtual bool joint_text() const { return false; }
  virtual std::vector<parallel::LongSkip> long_skips() const { return {}; }
  virtual Conditioning Condition(const TransformerInput& input, const parallel::ForwardContext& context) const = 0;
  virtual BlockState Embed(const TransformerInput& input, const parallel::ForwardContext& context) const = 0;
  virtual void Block(int index, BlockState& state, const Conditioning& conditioning,
                     const parallel::ForwardContext& context) const = 0;

  // [b, n, p·p·out_channels], features as Unpatchify reads them.
  virtual at::Tensor Head(const BlockState& state, const Conditioning& conditioning,
                          const parallel::ForwardContext& context) const = 0;
};

// Embed, every block but those in `skipped_blocks`, head.
at::Tensor RunTransformer(const Transformer& transformer, const TransformerInput& input,
                          const parallel::ForwardContext& context, std::span<const int> skipped_blocks = {});

}  // namespace tessera::models
