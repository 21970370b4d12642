#include "runtime/denoising/picture_inputs.h"

#include <utility>

#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "control/parameters/picture_input.h"
#include "models/precision.h"

namespace tessera::runtime {
namespace {

// The places of a picture and of the same picture without what its mask covers in the job's draws.
constexpr int kPicture = 0, kMaskedPicture = 1;

// Draws latents of a picture from what the autoencoder encodes it as: [1, c, h, w].
absl::StatusOr<at::Tensor> SampleOf(const at::Tensor& picture, int draw, DenoiseJob& job, models::Family& family,
                                    const parallel::ForwardContext& context) {
  ASSIGN_OR_RETURN(const models::LatentPosterior posterior, family.EncodeImage(picture, context));
  if (base::Planted("mean_of_the_picture")) return posterior.mean;
  const at::Tensor noise =
      job.noise->ForPicture(draw, posterior.mean.sizes().slice(1), models::AccumulationType(family.dtype()));
  return posterior.mean + posterior.deviation * noise.unsqueeze(0).to(posterior.mean.options());
}

}  // namespace

at::Tensor MaskOfLatents(const at::Tensor& mask, int64_t height, int64_t width) {
  const int64_t factor = mask.size(2) / height;
  if (base::Planted("mask_averaged")) return at::avg_pool2d(mask, factor);
  return mask.reshape({1, 1, height, factor, width, factor}).select(5, 0).select(3, 0);
}

at::Tensor MaskChannels(const at::Tensor& mask, int64_t height, int64_t width) {
  const int64_t factor = mask.size(2) / height;
  return mask.reshape({1, height, factor, width, factor})
      .permute({0, 2, 4, 1, 3})
      .reshape({1, factor * factor, height, width});
}

absl::Status BeginFromPictures(DenoiseJob& job, models::Family& family, control::PictureInput use,
                               const PictureInputs& inputs, const parallel::ForwardContext& context) {
  const c10::InferenceMode no_gradients;
  if (use == control::PictureInput::kReference) {
    for (const at::Tensor& picture : inputs.pictures) {
      ASSIGN_OR_RETURN(const models::LatentPosterior posterior, family.EncodeImage(picture, context));
      job.references.push_back(family.ToPatches(posterior.mean).squeeze(0).to(family.dtype()));
      job.reference_grids.push_back(family.Geometry(picture.size(2), picture.size(3)).grid);
    }
    DrawInitialLatents(job, family);
    return absl::OkStatus();
  }
  const models::LatentGeometry& geometry = job.geometry;
  const at::Tensor& picture = inputs.pictures.front();
  ASSIGN_OR_RETURN(const at::Tensor clean, SampleOf(picture, kPicture, job, family, context));
  const bool blends = use == control::PictureInput::kStart && inputs.mask.defined();
  BeginFromPicture(
      job, family,
      {.latents = clean.squeeze(0),
       .first_step = inputs.first_step,
       .mask = blends ? MaskOfLatents(inputs.mask, geometry.height, geometry.width).squeeze(0) : at::Tensor()});
  if (use != control::PictureInput::kFill) return absl::OkStatus();
  const at::Tensor kept = picture * (1 - inputs.mask);
  ASSIGN_OR_RETURN(const at::Tensor masked, SampleOf(kept, kMaskedPicture, job, family, context));
  std::vector<at::Tensor> features = {
      family.ToPatches(masked),
      family.ToPatches(MaskChannels(inputs.mask, geometry.height, geometry.width).to(masked.options()))};
  if (base::Planted("fill_channels_swapped")) std::swap(features[0], features[1]);
  job.condition = at::cat(features, 2).squeeze(0).to(family.dtype());
  return absl::OkStatus();
}

}  // namespace tessera::runtime
