// Begins jobs from given pictures: image to image, inpainting, FLUX.1 Fill, and reference pictures (FLUX.1 Kontext,
// FLUX.2).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/families/family.h"
#include "parallel/forward_context.h"
#include "runtime/denoising/denoise_job.h"

namespace tessera::control {
enum class MaskRule : uint8_t;
struct Frames;
struct PictureRules;
}  // namespace tessera::control

namespace tessera::runtime {

// The pictures of a job, the same on every rank. Values of pictures are in [−1, 1].
struct PictureInputs {
  // [1, 3, H, W] each. For PictureInput::kStart and kFill, and with a mask for kReference, the first is of the image's
  // size. Others have sizes that the autoencoder encodes.
  std::vector<at::Tensor> pictures;
  // [1, 1, H, W] of the image's size: 1 where the picture is changed, 0 where it is kept. Required by kFill; undefined:
  // kStart changes the picture everywhere.
  at::Tensor mask;
  int first_step = 0;  // of the sampler's schedule; earlier steps are left out
};

// Returns the pixels of an RGB picture [1, 3, height, width] in [−1, 1], in fp32.
at::Tensor PictureValues(const control::Frames& picture);

// Returns the latents [1, c, h, w] of a picture [1, 3, H, W] that the model looks at: the mean of what the autoencoder
// encodes it as. Collective over context.world. Returns the errors of Family::EncodeImage.
absl::StatusOr<at::Tensor> ReferenceLatents(const at::Tensor& picture, models::Family& family,
                                            const parallel::ForwardContext& context);

// Returns the patches [b, m, features] of such latents [b, c, h, w], in the dtype of the model.
at::Tensor ReferencePatches(const at::Tensor& latents, const models::Family& family);

// mask [1, 1, H, W] → [1, 1, h, w] for latents of that size, each with the value of its square by `rule`. The sides are
// multiples of those of the latents, and even ones for the pixels in the middle.
at::Tensor MaskOfLatents(const at::Tensor& mask, control::MaskRule rule, int64_t height, int64_t width);

// mask [1, 1, H, W] → [1, f·f, h, w], as FLUX.1 Fill reads it: the pixels of a latent's square of f x f, row by row,
// are its channels.
at::Tensor MaskChannels(const at::Tensor& mask, int64_t height, int64_t width);

// Encodes the pictures and draws the job's initial latents from them; in place of DrawInitialLatents. The draws are in
// the order of the reference pipelines: the sample of the picture, the initial noise, the sample of the masked picture.
// Pictures that the model looks at are the means of what they are encoded as, and nothing is drawn for them.
// Collective over context.world. Returns the errors of Family::EncodeImage.
absl::Status BeginFromPictures(DenoiseJob& job, models::Family& family, const control::PictureRules& rules,
                               const PictureInputs& inputs, const parallel::ForwardContext& context);

}  // namespace tessera::runtime
