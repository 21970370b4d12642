// Flux2Transformer implements FLUX.2 (Black Forest Labs, 2025): double-stream blocks with separate weights for text and
// image and one joint attention, then single-stream blocks over both, whose attention and MLP are parallel. Unlike
// FLUX.1 it has one modulation for all blocks of a kind, SwiGLU instead of GELU, rotary positions over four axes, also
// of the text, and no biases.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/flux2/flux2_config.h"
#include "models/layers/embedding.h"
#include "models/layers/linear.h"
#include "models/transformer.h"

namespace tessera::models {

// The only extra is the guidance scale [b], if config.guidance is set.
class Flux2Transformer final : public Transformer {
 public:
  Flux2Transformer(const Flux2Config& config, ParamTable& table);
  ~Flux2Transformer() override;

  int num_blocks() const override { return static_cast<int>(config_.double_blocks + config_.single_blocks); }
  bool joint_text() const override { return true; }
  int64_t output_features() const override { return config_.channels; }
  Positions Place(TokenGrid grid, int64_t text, at::Device device) const override;
  Positions PlaceText(int64_t tokens, TokenGrid grid, at::Device device) const override;
  Positions PlaceReferences(std::span<const TokenGrid> grids, at::Device device) const override;
  PromptState Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                   const parallel::ForwardContext& context) const override;
  // StepEmbedding::shared [rows, 17 D] holds the modulations of the image, the text, the single blocks and the head,
  // which Modulate returns parts of. If references are isolated, those of the image and the single blocks at timestep 0
  // follow, and Modulate returns them after the others.
  StepEmbedding EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                          const parallel::ForwardContext& context) const override;
  at::Tensor Modulate(int index, const StepEmbedding& step, const parallel::ForwardContext& context) const override;
  at::Tensor Embed(const at::Tensor& patches, const at::Tensor& positions,
                   const parallel::ForwardContext& context) const override;
  void Block(int index, BlockState& state, const Conditioning& conditioning,
             const parallel::ForwardContext& context) const override;
  at::Tensor Head(const BlockState& state, const Conditioning& conditioning,
                  const parallel::ForwardContext& context) const override;

 private:
  struct Stream;
  struct DoubleBlock;
  struct SingleBlock;

  // Positions of the tokens of a grid whose first coordinate is `picture`.
  Positions PlaceGrid(TokenGrid grid, int64_t picture, at::Device device) const;
  at::Tensor SinusoidOf(const at::Tensor& thousandths) const;
  // Whether the pass has references that attend only to one another.
  bool Isolates(const Conditioning& conditioning) const {
    return config_.isolates_references && conditioning.has_references;
  }
  void RunDouble(int index, BlockState& state, const Conditioning& conditioning,
                 const parallel::ForwardContext& context) const;
  void RunSingle(int index, BlockState& state, const Conditioning& conditioning,
                 const parallel::ForwardContext& context) const;
  // Returns the attention of block `index`, [b, tokens, h·d]. `references` are the projections of this rank's tokens of
  // references, which are `projections` from row `first` on.
  at::Tensor Attend(int index, std::vector<parallel::Projection> projections, parallel::Projection references,
                    int64_t first, const Conditioning& conditioning, const parallel::ForwardContext& context) const;

  Flux2Config config_;
  at::ScalarType dtype_;
  Linear image_in_, text_in_;
  EmbeddingMlp timestep_embedder_;
  std::optional<EmbeddingMlp> guidance_embedder_;
  Linear image_modulation_, text_modulation_, single_modulation_;
  std::vector<DoubleBlock> double_blocks_;
  std::vector<SingleBlock> single_blocks_;
  Linear output_modulation_, output_projection_;
};

}  // namespace tessera::models
