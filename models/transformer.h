// What a diffusion transformer is to the rest of the project: embed, a list of blocks over one state, a head. Any
// contiguous range of blocks can run elsewhere (a pipeline stage), because the state is all that passes between them.
//
// What a pass reads besides latents is made in four functions, by how long it stays true: what follows from the image's
// size (Place), from the prompt (Read), from the prompt and a timestep (EmbedStep, Modulate). Each row of their results
// is a function of that row's arguments alone, so whoever makes many images and steps computes each once.
//
// Shapes: b batch, n image tokens, t text tokens, D width of the model.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <span>
#include <vector>

#include "models/token_grid.h"
#include "parallel/forward_context.h"
#include "parallel/plan/long_skip.h"
#include "parallel/plan/token_span.h"

namespace tessera::models {

// All that one forward pass is given.
struct TransformerInput {
  at::Tensor patches;              // [b, n, channels·p·p], features as Patchify orders them, for the tokens of `span`
  TokenGrid grid;                  // of the whole image
  parallel::TokenSpan span;        // which of its tokens `patches` holds
  at::Tensor timestep;             // [b] in fp64, on the scale 0 … 1000: each family rounds as its reference does
  at::Tensor text;                 // [b, t, text width]; undefined for a family without text
  at::Tensor text_mask;            // [b, t], 1 for tokens and 0 for padding; undefined: no padding
  std::vector<at::Tensor> extras;  // [b, …] each: all else that conditions the family, as ConditioningRow has it
};

// Where tokens are: a row a token, which depends on that token and on the size of its image alone.
struct Positions {
  at::Tensor embedded;  // [tokens, D], added to the embedded patches; undefined: nothing is
  at::Tensor cos, sin;  // [tokens, d/2] of rotary positions in max(fp32, dtype); undefined: none

  Positions Of(parallel::TokenSpan span) const;
};

// One after another.
Positions Join(std::span<const Positions> parts);

// What a prompt says, read by the model.
struct PromptState {
  at::Tensor text;    // [b, t, D]; undefined for a family without text
  at::Tensor vector;  // [b, …]: the prompt's part in EmbedStep; undefined: it has none
};

// A prompt at a timestep.
struct StepEmbedding {
  at::Tensor vector;  // [rows, …]: the timestep and all else that is one vector
  at::Tensor shared;  // [rows, …]: the family's own, from which Modulate goes on
};

// What passes from block to block.
struct BlockState {
  at::Tensor image;                 // [b, n, D]
  at::Tensor text;                  // [b, t, D]
  std::map<int, at::Tensor> skips;  // outputs kept for later blocks, by the block that made them
};

// What a block, or the head, reads and does not change.
struct Conditioning {
  at::Tensor modulation;  // [b, …]: its own, of Modulate
  at::Tensor text_bias;   // [b, t], added to attention scores over text; undefined: none
  at::Tensor cos, sin;    // of the tokens, as Positions has them, the joint text's first
};

class Transformer {
 public:
  virtual ~Transformer() = default;

  virtual int num_blocks() const = 0;
  // Whether text tokens take part in the attention over image tokens, so that they are spread over ranks like these.
  // Where they do not, every rank has the whole text.
  virtual bool joint_text() const { return false; }
  virtual std::vector<parallel::LongSkip> long_skips() const { return {}; }
  // Features of a token in the head's result: p·p·out_channels.
  virtual int64_t output_features() const = 0;

  // Whether several threads may make passes at once.
  virtual bool serves_threads() const { return true; }

  // Of all tokens of an image, row by row; computed in fp64 on the host where that is not a table of the weights.
  virtual Positions Place(TokenGrid grid, at::Device device) const = 0;
  // Of `tokens` tokens of joint text.
  virtual Positions PlaceText(int64_t tokens, at::Device device) const { return {}; }

  // Text and extras as TransformerInput has them.
  virtual PromptState Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                           const parallel::ForwardContext& context) const = 0;

  // timesteps [rows] as TransformerInput has them; `prompt` [rows, …] or [1, …], of PromptState.
  virtual StepEmbedding EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                  const parallel::ForwardContext& context) const = 0;

  // What block `index` shifts, scales and gates by, [rows, …]; of the head for num_blocks().
  virtual at::Tensor Modulate(int index, const StepEmbedding& step, const parallel::ForwardContext& context) const = 0;

  // patches [b, n, channels·p·p] of any tokens, and their rows of Positions::embedded → [b, n, D].
  virtual at::Tensor Embed(const at::Tensor& patches, const at::Tensor& positions,
                           const parallel::ForwardContext& context) const = 0;
  virtual void Block(int index, BlockState& state, const Conditioning& conditioning,
                     const parallel::ForwardContext& context) const = 0;

  // [b, n, output_features], features as Unpatchify reads them.
  virtual at::Tensor Head(const BlockState& state, const Conditioning& conditioning,
                          const parallel::ForwardContext& context) const = 0;
};

// mask [b, t], 1 for tokens and 0 for padding → what is added to attention scores so that padding takes no part:
// −10000 there, as the reference has it, in dtype.
at::Tensor MaskedTextBias(const at::Tensor& mask, at::ScalarType dtype);

// One forward pass on one rank, in its parts.
class ForwardPass {
 public:
  ForwardPass(const Transformer& transformer, const TransformerInput& input, const parallel::ForwardContext& context);

  const StepEmbedding& step() const { return step_; }
  // What block `index`, or with num_blocks() the head, is given.
  Conditioning ConditioningOf(int index) const;
  // The state before the first block.
  BlockState Begin() const;

 private:
  const Transformer& transformer_;
  const TransformerInput& input_;
  const parallel::ForwardContext& context_;
  Positions positions_;  // of the span
  const PromptState prompt_;
  const StepEmbedding step_;
  Conditioning conditioning_;  // without modulation
};

// Every block but those in `skipped_blocks`, and the head.
at::Tensor RunTransformer(const Transformer& transformer, const TransformerInput& input,
                          const parallel::ForwardContext& context, std::span<const int> skipped_blocks = {});

}  // namespace tessera::models
