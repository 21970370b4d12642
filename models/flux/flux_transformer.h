// FluxTransformer implements FLUX.1 (Black Forest Labs, 2024): double-stream blocks with separate weights for text and
// image and one joint attention, then single-stream blocks over both; rotary positions over three axes.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/flux/flux_config.h"
#include "models/layers/embedding.h"
#include "models/layers/linear.h"
#include "models/transformer.h"

namespace tessera::models {

// The extras are the pooled text [b, pooled width] and, if config.guidance is set, the guidance scale [b].
class FluxTransformer final : public Transformer {
 public:
  FluxTransformer(const FluxConfig& config, ParamTable& table);
  ~FluxTransformer() override;

  int num_blocks() const override { return static_cast<int>(config_.double_blocks + config_.single_blocks); }
  bool joint_text() const override { return true; }
  int64_t output_features() const override;
  Positions Place(TokenGrid grid, int64_t text, at::Device device) const override;
  Positions PlaceText(int64_t tokens, TokenGrid grid, at::Device device) const override;
  Positions PlaceReferences(std::span<const TokenGrid> grids, at::Device device) const override;
  PromptState Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                   const parallel::ForwardContext& context) const override;
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

  FluxConfig config_;
  at::ScalarType dtype_;
  Linear image_in_, text_in_;
  EmbeddingMlp timestep_embedder_, pooled_embedder_;
  std::optional<EmbeddingMlp> guidance_embedder_;
  std::vector<DoubleBlock> double_blocks_;
  std::vector<SingleBlock> single_blocks_;
  Linear output_modulation_, output_projection_;
};

}  // namespace tessera::models
