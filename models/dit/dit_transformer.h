// DitTransformer implements DiT (Peebles and Xie, 2023): self-attention and an MLP, modulated by timestep and class;
// every block embeds both with its own weights.
#pragma once

#include <memory>
#include <vector>

#include "models/dit/dit_config.h"
#include "models/layers/embedding.h"
#include "models/layers/linear.h"
#include "models/layers/patch_embed.h"
#include "models/transformer.h"

namespace tessera::models {

// There is no text. The extras are the class [b] int64, config.classes for no class.
class DitTransformer final : public Transformer {
 public:
  DitTransformer(const DitConfig& config, ParamTable& table);
  ~DitTransformer() override;

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

  // Returns the timestep and class as block `index` embeds them: [rows, D].
  at::Tensor BlockEmbedding(int index, const StepEmbedding& step, const parallel::ForwardContext& context) const;

 private:
  struct Embedder;
  struct BlockLayers;

  DitConfig config_;
  at::ScalarType dtype_;
  PatchEmbed patch_embed_;
  std::vector<Embedder> embedders_;  // one per block
  std::vector<BlockLayers> blocks_;
  Linear output_modulation_, output_projection_;
};

}  // namespace tessera::models
