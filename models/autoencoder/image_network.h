// ImageNetwork is the encoder or the decoder of an autoencoder: layers that are applied to an image one after another,
// each in exact bands of rows (banded_conv.h). Their parameters are added to a table in the order of the layers.
//
// Inference only: activations are overwritten in place, so gradients cannot pass through.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "models/autoencoder/banded_conv.h"
#include "models/autoencoder/image_norm.h"
#include "parallel/forward_context.h"

namespace tessera::models {

class ImageNetwork {
 public:
  // What the layers of one class of autoencoders have in common.
  struct Style {
    // Makes the norm before a convolution.
    std::function<std::unique_ptr<ImageNorm>(const ParamScope& scope, int64_t channels)> norm;
    // Convolutions, except resampling ones, are stored as causal convolutions of videos (ConvOptions::frames) that are
    // as long in time as they are wide.
    bool causal = false;
  };
  // A product of the channels of tokens: [b, n, in] → [b, n, out].
  using Product = std::function<at::Tensor(const at::Tensor& tokens, const parallel::ForwardContext& context)>;

  explicit ImageNetwork(Style style);
  ~ImageNetwork();
  ImageNetwork(ImageNetwork&&) noexcept;

  // A convolution, of SiLU(norm(x)) if `norm` is the scope of a norm.
  void AddConv(const ParamScope& scope, int64_t in, int64_t out, int64_t kernel = 3,
               const std::optional<ParamScope>& norm = std::nullopt);
  // A 3 x 3 convolution that changes the image's size.
  void AddResampling(const ParamScope& scope, int64_t in, int64_t out, Resample resample);
  // x + conv2(SiLU(norm2(conv1(SiLU(norm1(x)))))); a 1 x 1 convolution conv_shortcut of x if `in` and `out` differ.
  void AddResidual(const ParamScope& scope, int64_t in, int64_t out);
  // x + out(attention(qkv(norm(x)))) with one head over all pixels; `qkv` gives queries, keys and values side by side.
  void AddAttention(std::unique_ptr<ImageNorm> norm, Product qkv, Product out);

  // x: this rank's rows of `image`, [b, c, h, w] → its rows of the result, whose distribution `image` becomes.
  at::Tensor Forward(at::Tensor x, const parallel::ForwardContext& context, parallel::ImageRows& image,
                     int64_t band_bytes) const;

 private:
  class Layer;
  class Conv;
  class Residual;
  class Attention;

  BandedConv MakeConv(const ParamScope& scope, int64_t in, int64_t out, int64_t kernel) const;

  Style style_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace tessera::models
