#include "models/autoencoder/image_network.h"

#include <cmath>
#include <utility>

#include "kernels/ops.h"
#include "parallel/functional.h"

namespace tessera::models {

class ImageNetwork::Layer {
 public:
  virtual ~Layer() = default;

  // x: the rows of `image`, [b, c, h, w].
  virtual at::Tensor Forward(const at::Tensor& x, const parallel::ForwardContext& context,
                             const parallel::ImageRows& image, int64_t band_bytes) const = 0;
  // Returns the distribution of Forward's result.
  virtual parallel::ImageRows RowsAfter(const parallel::ImageRows& image) const { return image; }
};

class ImageNetwork::Conv final : public Layer {
 public:
  Conv(BandedConv conv, std::unique_ptr<ImageNorm> norm) : conv_(std::move(conv)), norm_(std::move(norm)) {}

  at::Tensor Forward(const at::Tensor& x, const parallel::ForwardContext& /*context*/, const parallel::ImageRows& image,
                     int64_t band_bytes) const override {
    return conv_.Forward(x, norm_.get(), image, band_bytes);
  }
  parallel::ImageRows RowsAfter(const parallel::ImageRows& image) const override { return conv_.RowsAfter(image); }

 private:
  BandedConv conv_;
  std::unique_ptr<ImageNorm> norm_;
};

class ImageNetwork::Residual final : public Layer {
 public:
  Residual(const ImageNetwork& network, const ParamScope& scope, int64_t in, int64_t out)
      : norm1_(network.style_.norm(scope / "norm1", in)),
        norm2_(network.style_.norm(scope / "norm2", out)),
        conv1_(network.MakeConv(scope / "conv1", in, out, 3)),
        conv2_(network.MakeConv(scope / "conv2", out, out, 3)) {
    if (in != out) shortcut_.emplace(network.MakeConv(scope / "conv_shortcut", in, out, 1));
  }

  at::Tensor Forward(const at::Tensor& x, const parallel::ForwardContext& /*context*/, const parallel::ImageRows& image,
                     int64_t band_bytes) const override {
    at::Tensor y = conv1_.Forward(x, norm1_.get(), image, band_bytes);
    y = conv2_.Forward(y, norm2_.get(), image, band_bytes);
    return y.add_(shortcut_ ? shortcut_->Forward(x, nullptr, image, band_bytes) : x);
  }

 private:
  std::unique_ptr<ImageNorm> norm1_, norm2_;
  BandedConv conv1_, conv2_;
  std::optional<BandedConv> shortcut_;
};

// With one head only the queries can be distributed, so every rank reads all keys and values.
class ImageNetwork::Attention final : public Layer {
 public:
  Attention(std::unique_ptr<ImageNorm> norm, Product qkv, Product out)
      : norm_(std::move(norm)), qkv_(std::move(qkv)), out_(std::move(out)) {}

  at::Tensor Forward(const at::Tensor& x, const parallel::ForwardContext& context, const parallel::ImageRows& image,
                     int64_t band_bytes) const override {
    const int64_t b = x.size(0), c = x.size(1), n = x.size(2) * x.size(3);
    const at::Tensor tokens =
        norm_->Measure(x, image, band_bytes)(x, /*silu=*/false).flatten(2).transpose(1, 2);  // [b, n, c]
    const at::Tensor projected = n > 0 ? qkv_(tokens, context) : at::empty({b, 0, 3 * c}, x.options());
    std::vector<int64_t> pixels = image.rows().vec();
    for (int64_t& rows : pixels) rows *= x.size(3);
    const std::vector<at::Tensor> keys_values =
        parallel::GatherDim(projected.narrow(-1, c, 2 * c), 1, pixels, image.group())
            .unsqueeze(2)
            .chunk(2, -1);  // [b, all, 1, c]
    if (n == 0) return x;
    const double scale = 1 / std::sqrt(static_cast<double>(c));
    const at::Tensor read = tessera::kernels::Attention(projected.narrow(-1, 0, c).unsqueeze(2), keys_values[0],
                                                        keys_values[1], std::nullopt, scale);
    return x + out_(read.squeeze(2), context).transpose(1, 2).reshape(x.sizes());
  }

 private:
  std::unique_ptr<ImageNorm> norm_;
  Product qkv_, out_;
};

ImageNetwork::ImageNetwork(Style style) : style_(std::move(style)) {}
ImageNetwork::~ImageNetwork() = default;
ImageNetwork::ImageNetwork(ImageNetwork&&) noexcept = default;

BandedConv ImageNetwork::MakeConv(const ParamScope& scope, int64_t in, int64_t out, int64_t kernel) const {
  return BandedConv(scope, in, out, {.kernel = kernel, .frames = style_.causal ? kernel : 0});
}

void ImageNetwork::AddConv(const ParamScope& scope, int64_t in, int64_t out, int64_t kernel,
                           const std::optional<ParamScope>& norm) {
  layers_.push_back(std::make_unique<Conv>(MakeConv(scope, in, out, kernel), norm ? style_.norm(*norm, in) : nullptr));
}

void ImageNetwork::AddResampling(const ParamScope& scope, int64_t in, int64_t out, Resample resample) {
  layers_.push_back(std::make_unique<Conv>(BandedConv(scope, in, out, {.resample = resample}), nullptr));
}

void ImageNetwork::AddResidual(const ParamScope& scope, int64_t in, int64_t out) {
  layers_.push_back(std::make_unique<Residual>(*this, scope, in, out));
}

void ImageNetwork::AddAttention(std::unique_ptr<ImageNorm> norm, Product qkv, Product out) {
  layers_.push_back(std::make_unique<Attention>(std::move(norm), std::move(qkv), std::move(out)));
}

at::Tensor ImageNetwork::Forward(at::Tensor x, const parallel::ForwardContext& context, parallel::ImageRows& image,
                                 int64_t band_bytes) const {
  for (const std::unique_ptr<Layer>& layer : layers_) {
    x = layer->Forward(x, context, image, band_bytes);
    image = layer->RowsAfter(image);
  }
  return x;
}

}  // namespace tessera::models
