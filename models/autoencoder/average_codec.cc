// AverageCodec is the smallest codec: a latent is the mean of a square of pixels, with a channel for each colour.
#include "models/autoencoder/image_codec.h"
#include "models/autoencoder/latent_norm.h"
#include "models/precision.h"
#include "parallel/image_rows.h"

namespace tessera::models {
namespace {

class AverageCodec final : public ImageCodec {
 public:
  AverageCodec(int64_t factor, double scale) : factor_(factor), norm_(0, scale) {}

  at::Tensor Decode(const at::Tensor& latents, const parallel::ForwardContext& context) const override {
    const parallel::ImageRows rows = RowsOf(latents.size(2), context);
    const at::Tensor pixels = norm_.Invert(rows.Take(latents));
    return rows.Enlarged(factor_).GatherOnFirst(pixels.repeat_interleave(factor_, 2).repeat_interleave(factor_, 3));
  }

  LatentPosterior Encode(const at::Tensor& image, const parallel::ForwardContext& context) const override {
    const parallel::ImageRows rows = RowsOf(image.size(2) / factor_, context);
    const at::Tensor own = rows.Enlarged(factor_).Take(image).to(AccumulationType(image.scalar_type()));
    const at::Tensor means = own.unflatten(3, {-1, factor_}).mean(-1).unflatten(2, {-1, factor_}).mean(3);
    const at::Tensor latents = norm_.Apply(rows.GatherOnAll(means));
    return {.mean = latents, .deviation = at::zeros_like(latents)};
  }

 private:
  static parallel::ImageRows RowsOf(int64_t height, const parallel::ForwardContext& context) {
    return parallel::ImageRows(parallel::EvenRows(height, context.world.size()), context.world);
  }

  int64_t factor_;
  LatentNorm norm_;
};

}  // namespace

absl::StatusOr<ImageCodecConfig> ReadAverageCodec(base::ConfigReader& reader) {
  const int64_t factor = reader.Int("factor", 8, 1, 64);
  const double scale = reader.Number("scaling_factor", 1, 1e-6, 1e6);
  if (!reader.status().ok()) return reader.status();
  return ImageCodecConfig{.latent_channels = 3, .factor = factor, .make = [factor, scale](ParamTable&) {
                            return std::make_unique<AverageCodec>(factor, scale);
                          }};
}

}  // namespace tessera::models
