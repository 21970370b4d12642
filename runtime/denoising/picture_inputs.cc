#include "runtime/denoising/picture_inputs.h"

#include <utility>

#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_frames.h"
#include "control/pictures/picture_input.h"
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

// [1, h, w] for the latents; undefined without a mask.
at::Tensor BlendedMask(const PictureInputs& inputs, const control::PictureRules& rules,
                       const models::LatentGeometry& geometry) {
  if (!inputs.mask.defined()) return {};
  return MaskOfLatents(inputs.mask, rules.mask, geometry.height, geometry.width).squeeze(0);
}

// Begins a job whose model looks at the pictures, and with a mask begins from the first of them.
absl::Status LookAtPictures(DenoiseJob& job, models::Family& family, const control::PictureRules& rules,
                            const PictureInputs& inputs, const parallel::ForwardContext& context) {
  at::Tensor first;  // [c, h, w]
  for (const at::Tensor& picture : inputs.pictures) {
    ASSIGN_OR_RETURN(const at::Tensor latents, ReferenceLatents(picture, family, context));
    if (!first.defined()) first = latents.squeeze(0);
    job.references.push_back(ReferencePatches(latents, family).squeeze(0));
    job.reference_grids.push_back(family.Geometry(picture.size(2), picture.size(3)).grid);
  }
  if (control::BeginsFromPicture(rules, inputs.mask.defined())) {
    BeginFromPicture(
        job, family,
        {.latents = first, .first_step = inputs.first_step, .mask = BlendedMask(inputs, rules, job.geometry)});
  } else {
    DrawInitialLatents(job, family);
  }
  return absl::OkStatus();
}

}  // namespace

at::Tensor PictureValues(const control::Frames& picture) {
  const at::Tensor bytes = at::from_blob(const_cast<uint8_t*>(picture.bytes.data()),
                                         {1, picture.height, picture.width, picture.channels}, at::kByte);
  return bytes.permute({0, 3, 1, 2}).to(at::kFloat).contiguous() / 255 * 2 - 1;
}

absl::StatusOr<at::Tensor> ReferenceLatents(const at::Tensor& picture, models::Family& family,
                                            const parallel::ForwardContext& context) {
  ASSIGN_OR_RETURN(models::LatentPosterior posterior, family.EncodeImage(picture, context));
  return std::move(posterior.mean);
}

at::Tensor ReferencePatches(const at::Tensor& latents, const models::Family& family) {
  return family.ToPatches(latents).to(family.dtype());
}

at::Tensor MaskOfLatents(const at::Tensor& mask, control::MaskRule rule, int64_t height, int64_t width) {
  const int64_t factor = mask.size(2) / height;
  if (base::Planted("mask_averaged")) return at::avg_pool2d(mask, factor);
  const at::Tensor squares = mask.reshape({1, 1, height, factor, width, factor});
  if (rule == control::MaskRule::kMiddlePixels) {
    return squares.slice(5, factor / 2 - 1, factor / 2 + 1).slice(3, factor / 2 - 1, factor / 2 + 1).mean({3, 5});
  }
  return squares.select(5, 0).select(3, 0);
}

at::Tensor MaskChannels(const at::Tensor& mask, int64_t height, int64_t width) {
  const int64_t factor = mask.size(2) / height;
  return mask.reshape({1, height, factor, width, factor})
      .permute({0, 2, 4, 1, 3})
      .reshape({1, factor * factor, height, width});
}

absl::Status BeginFromPictures(DenoiseJob& job, models::Family& family, const control::PictureRules& rules,
                               const PictureInputs& inputs, const parallel::ForwardContext& context) {
  const c10::InferenceMode no_gradients;
  if (rules.use == control::PictureInput::kReference) return LookAtPictures(job, family, rules, inputs, context);
  const models::LatentGeometry& geometry = job.geometry;
  const at::Tensor& picture = inputs.pictures.front();
  ASSIGN_OR_RETURN(const at::Tensor clean, SampleOf(picture, kPicture, job, family, context));
  const bool blends = rules.use == control::PictureInput::kStart;
  BeginFromPicture(job, family,
                   {.latents = clean.squeeze(0),
                    .first_step = inputs.first_step,
                    .mask = blends ? BlendedMask(inputs, rules, geometry) : at::Tensor()});
  if (rules.use != control::PictureInput::kFill) return absl::OkStatus();
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
