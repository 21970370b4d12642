// Transformer is the interface of a diffusion transformer: embed the patches, run a list of blocks over one state,
// apply a head. Because the state is all that passes between blocks, any contiguous range of them can run on another
// rank (a pipeline stage).
//
// All inputs of a pass other than latents are computed by four functions, one per lifetime: Place depends on the
// image's size, Read on the prompt, EmbedStep and Modulate on the prompt and a timestep. Each row of their results is a
// function of the same row of the arguments, so a caller that runs many images and steps can compute each once.
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

// The inputs of one forward pass.
struct TransformerInput {
  at::Tensor patches;              // [b, n, channels·p·p], features as Patchify orders them, for the tokens of `span`
  TokenGrid grid;                  // of the whole image
  parallel::TokenSpan span;        // the tokens of the image that `patches` holds
  at::Tensor timestep;             // [b] in fp64, on the scale 0 … 1000; each family rounds as its reference does
  at::Tensor text;                 // [b, t, text width]; undefined for a family without text
  int64_t absent_text = 0;         // tokens of joint text that a pass over a part of the image leaves out
  at::Tensor text_mask;            // [b, t], 1 for tokens and 0 for padding; undefined if there is no padding
  std::vector<at::Tensor> extras;  // [b, …] each: the other inputs of the family, as in ConditioningRow
  std::vector<at::Tensor> references;      // [b, m, features] each: the patches of pictures that the model looks at
  std::vector<TokenGrid> reference_grids;  // of each
};

// The positions of tokens, one row per token. A row depends only on its token, on the size of the image and on the
// length of a joint text.
struct Positions {
  at::Tensor embedded;  // [tokens, …], read by Embed: what it adds to embedded patches; undefined if it reads nothing
  at::Tensor cos, sin;  // [tokens, d/2] of rotary positions in max(fp32, dtype); undefined if there are none

  Positions Of(parallel::TokenSpan span) const;
};

// Concatenates positions in order.
Positions Join(std::span<const Positions> parts);

// A prompt after the model has read it.
struct PromptState {
  at::Tensor text;    // [b, t, D]; undefined for a family without text
  at::Tensor vector;  // [b, …]: the prompt's part in EmbedStep; undefined if it has none
};

// The embedding of a prompt at a timestep.
struct StepEmbedding {
  at::Tensor vector;  // [rows, …]: the timestep and all other conditioning that is one vector
  at::Tensor shared;  // [rows, …]: specific to the family; Modulate computes from it
};

// The state that blocks pass on.
struct BlockState {
  at::Tensor image;                 // [b, n, D]
  at::Tensor text;                  // [b, t, D]; the tokens of reference pictures follow those of the text
  std::map<int, at::Tensor> skips;  // outputs kept for later blocks, by the index of the block that produced them
};

// The inputs that a block or the head reads and does not change.
struct Conditioning {
  at::Tensor modulation;        // [b, …]: the result of Modulate for this block
  at::Tensor text_bias;         // [b, t], added to attention scores over text; undefined if there is none
  int64_t references = 0;       // the last rows of BlockState::text that are tokens of reference pictures
  bool has_references = false;  // whether the pass computes such tokens, on this rank or on another one
  // The rows of reference tokens in this rank's attention over text and image, directly after those of its text. Tensor
  // ranks that share the tokens out between products have all of their rows in attention.
  parallel::TokenSpan attended_references;
  at::Tensor cos, sin;  // as in Positions; those of joint text come first
};

class Transformer {
 public:
  virtual ~Transformer() = default;

  virtual int num_blocks() const = 0;
  // Whether text tokens take part in the attention over image tokens and are therefore spread over ranks like them. If
  // not, every rank has the whole text.
  virtual bool joint_text() const { return false; }
  virtual std::vector<parallel::LongSkip> long_skips() const { return {}; }
  // Features of one token in the head's result: p·p·out_channels.
  virtual int64_t output_features() const = 0;

  // Whether several threads may run passes at the same time.
  virtual bool serves_threads() const { return true; }

  // Returns the positions of all tokens of an image, row by row, next to `text` tokens of joint text. They are computed
  // in fp64 on the host unless they are a table of the weights.
  virtual Positions Place(TokenGrid grid, int64_t text, at::Device device) const = 0;
  // Returns the positions of `tokens` tokens of joint text next to an image of that grid.
  virtual Positions PlaceText(int64_t tokens, TokenGrid grid, at::Device device) const { return {}; }

  // Returns the positions of the tokens of reference pictures of these grids, one picture after another, for a model
  // that attends to such tokens (FLUX.1 Kontext). They are embedded as patches are, and the blocks process them as
  // tokens of the image, but they go with the joint text: each rank has a share of them, and they are computed with the
  // first patch of an image.
  virtual Positions PlaceReferences(std::span<const TokenGrid> grids, at::Device device) const {
    TORCH_CHECK(false, "this model reads no reference pictures");
  }

  // Reads a prompt. Text and extras are those of TransformerInput.
  virtual PromptState Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                           const parallel::ForwardContext& context) const = 0;

  // timesteps [rows] as in TransformerInput; `prompt` [rows, …] or [1, …] is PromptState::vector.
  virtual StepEmbedding EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                  const parallel::ForwardContext& context) const = 0;

  // Returns the shifts, scales and gates of block `index`, [rows, …]; those of the head for num_blocks().
  virtual at::Tensor Modulate(int index, const StepEmbedding& step, const parallel::ForwardContext& context) const = 0;

  // patches [b, n, channels·p·p] of any tokens, with their rows of Positions::embedded → [b, n, D].
  virtual at::Tensor Embed(const at::Tensor& patches, const at::Tensor& positions,
                           const parallel::ForwardContext& context) const = 0;
  virtual void Block(int index, BlockState& state, const Conditioning& conditioning,
                     const parallel::ForwardContext& context) const = 0;

  // Returns [b, n, output_features], features as Unpatchify reads them.
  virtual at::Tensor Head(const BlockState& state, const Conditioning& conditioning,
                          const parallel::ForwardContext& context) const = 0;
};

// Returns the positions of the joint text and of the references that follow it.
Positions PlaceJointText(const Transformer& transformer, int64_t text_tokens, TokenGrid grid,
                         std::span<const TokenGrid> references, at::Device device);

// The number of tokens of text [b, t, …] that take part in the attention over image tokens.
int64_t JointTokens(const Transformer& transformer, const at::Tensor& text);

// The number of tokens of pictures of these grids.
int64_t TokensOf(std::span<const TokenGrid> grids);

// mask [b, t], 1 for tokens and 0 for padding → the bias that excludes padding from attention: 0 for tokens and −10000
// for padding, as in the reference, in `dtype`.
at::Tensor MaskedTextBias(const at::Tensor& mask, at::ScalarType dtype);

// Holds the inputs of one forward pass on one rank, part by part.
class ForwardPass {
 public:
  ForwardPass(const Transformer& transformer, const TransformerInput& input, const parallel::ForwardContext& context);

  const StepEmbedding& step() const { return step_; }
  // Returns the conditioning of block `index`, or of the head for num_blocks().
  Conditioning ConditioningOf(int index) const;
  // Returns the state before the first block.
  BlockState Begin() const;

 private:
  const Transformer& transformer_;
  const TransformerInput& input_;
  const parallel::ForwardContext& context_;
  const PromptState prompt_;
  Positions positions_;  // of the span
  const StepEmbedding step_;
  Conditioning conditioning_;  // without modulation
};

// Runs every block except those in `skipped_blocks`, then the head.
at::Tensor RunTransformer(const Transformer& transformer, const TransformerInput& input,
                          const parallel::ForwardContext& context, std::span<const int> skipped_blocks = {});

}  // namespace tessera::models
