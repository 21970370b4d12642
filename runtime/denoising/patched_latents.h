// One job's latents and sampler while its image is denoised patch by patch.
//
// A patch is a run of tokens, no rectangle of the image. Its latents are kept as a *strip* [b, channels, p, tokens ·
// p], the tokens side by side, p latents a token and side: an image one token high, to which everything elementwise and
// everything that works on tokens can be done as to a whole one. With one patch the image stays as it is.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <span>
#include <vector>

#include "parallel/plan/token_layout.h"
#include "runtime/denoising/denoise_job.h"

namespace tessera::runtime {

// The geometry of a strip of `tokens` tokens of such an image.
models::LatentGeometry StripGeometry(const models::LatentGeometry& image, int64_t tokens);

// Latents of a whole image [b, c, h, w] ↔ the strip of all its tokens. Pure data movement.
at::Tensor ToStrip(const at::Tensor& latents, const models::LatentGeometry& image);
at::Tensor FromStrip(const at::Tensor& strip, const models::LatentGeometry& image);

// Whether a job's patches cannot be moved one by one, because something is computed over the whole image.
bool MovesWhole(const DenoiseJob& job);

// Used by one thread; the job outlives it and is not moved.
class PatchedLatents {
 public:
  // `patches`: the tokens of each, without a gap.
  PatchedLatents(DenoiseJob& job, std::span<const parallel::TokenSpan> patches);

  // Whether all patches are moved at once.
  bool whole() const { return whole_; }

  int64_t tokens(parallel::PatchRange patches) const;

  // What the model is given of these patches [1, c, h, w], a strip where there are several patches.
  at::Tensor ScaledInput(parallel::PatchRange patches) const;

  // One step of the sampler for these patches, with their predictions [c, h, w], strips where there are several
  // patches. All patches if whole(), else each patch in turn, before any takes the next step.
  void Move(parallel::PatchRange patches, std::span<const WeightedPrediction> guided);

  // Puts latents and sampler back into the job. All patches are at the same step.
  void Store() const;

 private:
  struct Piece {
    std::unique_ptr<Sampler> sampler;
    at::Tensor latents;  // [1, c, p, tokens · p]
  };

  at::Tensor Noise(const Sampler& sampler);  // [1, c, h, w] of the whole image, for the next step
  at::Tensor Cut(const at::Tensor& strip, int patch) const;

  DenoiseJob& job_;
  std::vector<parallel::TokenSpan> patches_;
  int64_t side_;  // latents a token
  bool whole_;
  std::vector<Piece> pieces_;  // by patch; none if whole_: then the job's own latents move
  at::Tensor noise_;           // strip, for the step that patches are taking
};

}  // namespace tessera::runtime
