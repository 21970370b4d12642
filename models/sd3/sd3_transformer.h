// Sd3Transformer implements the MM-DiT of Stable Diffusion 3 and 3.5 (Esser et al., 2024): joint blocks with separate
// weights for text and image, some with a second attention over only the image; learned positions are a table of the
// checkpoint.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/layers/embedding.h"
#include "models/layers/linear.h"
#include "models/layers/patch_embed.h"
#include "models/sd3/sd3_config.h"
#include "models/transformer.h"

namespace tessera::models {

// The extras are the pooled text [b, pooled width].
class Sd3Transformer final : public Transformer {
 public:
  Sd3Transformer(const Sd3Config& config, ParamTable& table);
  ~Sd3Transformer() override;

  int num_blocks() const override { return static_cast<int>(config_.layers); }
  bool joint_text() const override { return true; }
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
  struct Projection;
  struct Mlp;
  struct JointBlock;

  Sd3Config config_;
  at::ScalarType dtype_;
  PatchEmbed patch_embed_;
  at::Tensor positions_;  // [1, side², D]
  EmbeddingMlp timestep_embedder_, pooled_embedder_;
  Linear text_in_;
  std::vector<JointBlock> blocks_;
  Linear output_modulation_, output_projection_;
};

}  // namespace tessera::models
