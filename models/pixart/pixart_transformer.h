// PixArtTransformer implements PixArt-alpha and PixArt-Sigma (Chen et al., 2023 and 2024): blocks of self-attention,
// cross-attention over T5 text and an MLP, all modulated by one shared vector plus a table per block.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "models/layers/embedding.h"
#include "models/layers/linear.h"
#include "models/layers/patch_embed.h"
#include "models/pixart/pixart_config.h"
#include "models/transformer.h"

namespace tessera::models {

// If the configuration has additional conditions, the extras are one tensor [b, 3] of height and width in pixels and
// height / width; otherwise there are none.
class PixArtTransformer final : public Transformer {
 public:
  PixArtTransformer(const PixArtConfig& config, ParamTable& table);
  ~PixArtTransformer() override;

  int num_blocks() const override { return static_cast<int>(config_.layers); }
  int64_t output_features() const override;
  Positions Place(TokenGrid grid, int64_t text, at::Device device) const override;
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
  struct BlockLayers;

  PixArtConfig config_;
  at::ScalarType dtype_;
  PatchEmbed patch_embed_;
  EmbeddingMlp timestep_embedder_;
  std::unique_ptr<EmbeddingMlp> resolution_embedder_, aspect_ratio_embedder_;
  Linear modulation_;  // shared by all blocks: [D] → [6 D]
  Linear caption_first_, caption_second_;
  std::vector<BlockLayers> blocks_;
  at::Tensor output_table_;  // [2, D]: shift, scale
  Linear output_projection_;
};

}  // namespace tessera::models
