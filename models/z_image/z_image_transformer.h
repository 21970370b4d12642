// ZImageTransformer implements Z-Image (Tongyi-MAI, 2025): one stream of image and text with the same weights for both,
// after layers that refine each alone. Norms before and after attention and MLP, rotary positions over three axes.
#pragma once

#include <optional>
#include <vector>

#include "models/layers/linear.h"
#include "models/transformer.h"
#include "models/z_image/z_image_config.h"

namespace tessera::models {

// Texts are padded to a multiple of ZImageConfig::kTokensPadded; the only extra is the number of tokens without padding
// [b]. Images have the padding of their grid. Blocks are the layers that refine the image, then
// those over image and text; the text is refined when it is read.
class ZImageTransformer final : public Transformer {
 public:
  ZImageTransformer(const ZImageConfig& config, ParamTable& table);
  ~ZImageTransformer() override;

  int num_blocks() const override { return static_cast<int>(config_.refiners + config_.layers); }
  bool joint_text() const override { return true; }
  int64_t output_features() const override;
  Positions Place(TokenGrid grid, int64_t text, at::Device device) const override;
  Positions PlaceText(int64_t tokens, TokenGrid grid, at::Device device) const override;
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
  struct Layer;

  Positions PlaceAt(const at::Tensor& frames, const at::Tensor& rows, const at::Tensor& columns,
                    at::Device device) const;

  ZImageConfig config_;
  at::ScalarType dtype_;
  Linear image_in_;
  at::Tensor image_padding_, text_padding_;  // [1, D]
  at::Tensor text_norm_;                     // [text width]
  Linear text_in_, timestep_first_, timestep_second_;
  std::vector<Layer> text_layers_, layers_;
  Linear output_scale_, output_projection_;
};

}  // namespace tessera::models
