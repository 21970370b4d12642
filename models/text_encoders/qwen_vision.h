// QwenVision is the vision tower of Qwen2.5-VL (Bai et al., 2025): it reads patches of pictures and returns one token
// for each unit of them. RMSNorm, rotary positions over rows and columns, attention within windows in most layers and
// over one whole picture in the others, SwiGLU, and a merger of the patches of each unit.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "models/layers/linear.h"
#include "models/text_encoders/text_encoder.h"

namespace tessera::models {

// Called after each part with its name and result, in the order of the windows: "patch_embed", "block.0", …, "merger".
using VisionRecorder = std::function<void(const std::string& part, const at::Tensor& result)>;

// Used by one thread.
class QwenVision final {
 public:
  // The blocks of the table from `first_block` on are the tower's layers.
  QwenVision(const VisionConfig& config, int64_t first_block, ParamTable& table);

  // Returns [units, out width] in the order of PatchGrid, one picture after another. `weights` is that of
  // TextEncoderInput; the caller has brought the frame.
  at::Tensor Forward(std::span<const EncoderPicture> pictures, WeightResidency* weights,
                     const parallel::ForwardContext& context, const VisionRecorder& record = nullptr) const;

 private:
  struct Layer {
    Layer(ParamTable& table, const std::string& name, const VisionConfig& config);
    at::Tensor attention_norm, mlp_norm;  // [width]
    Linear qkv, out, gate_and_value, mlp_out;
  };

  VisionConfig config_;
  int64_t first_block_;
  at::Tensor patch_in_;  // [width, channels, frames, patch, patch]
  std::vector<Layer> layers_;
  at::Tensor merger_norm_;  // [width]
  Linear merger_in_, merger_out_;
};

}  // namespace tessera::models
