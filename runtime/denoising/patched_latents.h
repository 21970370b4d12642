// PatchedLatents holds one job's latents and sampler while its image is denoised patch by patch.
//
// A patch is a run of tokens, not a rectangle of the image. Its latents are stored as a *strip* [b, channels, p, tokens
// · p] of adjacent tokens with p latents per token side. This is an image one token high, so elementwise and token
// operations apply to it as to a whole image. With one patch the image is stored unchanged.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "parallel/plan/token_layout.h"
#include "runtime/denoising/denoise_job.h"

namespace tessera::runtime {

// Returns the geometry of a strip of `tokens` tokens of such an image.
models::LatentGeometry StripGeometry(const models::LatentGeometry& image, int64_t tokens);

// Convert between latents of a whole image [b, c, h, w] and the strip of all its tokens. Pure data movement.
at::Tensor ToStrip(const at::Tensor& latents, const models::LatentGeometry& image);
at::Tensor FromStrip(const at::Tensor& strip, const models::LatentGeometry& image);

// Appends the jobs' conditions [1, n, features] to their patches [jobs, n, features]. Without any, returns the patches.
at::Tensor WithConditions(const at::Tensor& patches, std::span<const at::Tensor> conditions);

// Whether a job's patches cannot be updated one by one because something is computed over the whole image.
bool MovesWhole(const DenoiseJob& job);

// Used by one thread; the job outlives it and keeps its address.
class PatchedLatents {
 public:
  // `patches` are the tokens of each patch, without a gap between them.
  PatchedLatents(DenoiseJob& job, std::span<const parallel::TokenSpan> patches);

  // Whether all patches are updated at once.
  bool whole() const { return whole_; }

  int64_t tokens(parallel::PatchRange patches) const;

  // Returns the model's input for these patches [1, c, h, w], a strip if there are several patches.
  at::Tensor ScaledInput(parallel::PatchRange patches) const;

  // Returns the rows of the job's condition for these patches [tokens, features]; undefined if it has none.
  at::Tensor Condition(parallel::PatchRange patches) const;

  // Runs one sampler step and the job's rule for these patches with their predictions [c, h, w], which are strips if
  // there are several patches. If whole(), for all patches; otherwise for each patch in turn, before any of them takes
  // the next step.
  void Move(parallel::PatchRange patches, std::span<const WeightedPrediction> guided);

  // Puts latents and sampler back into the job. All patches must be at the same step.
  void Store() const;

 private:
  struct Piece {
    std::unique_ptr<Sampler> sampler;
    at::Tensor latents;              // [1, c, p, tokens · p]
    std::optional<MaskBlend> blend;  // of tensors of that shape
  };

  at::Tensor Noise(const Sampler& sampler);  // [1, c, h, w] of the whole image, for the next step
  at::Tensor Cut(const at::Tensor& strip, int patch) const;
  // Returns the latents after the sampler's next step and the job's rule.
  at::Tensor Advance(Sampler& sampler, const at::Tensor& latents, std::span<const WeightedPrediction> predictions,
                     const at::Tensor& noise, const std::optional<MaskBlend>& blend) const;

  DenoiseJob& job_;
  std::vector<parallel::TokenSpan> patches_;
  int64_t side_;  // latents per token side
  bool whole_;
  std::vector<Piece> pieces_;  // by patch; empty if whole_, when the job's latents are updated directly
  at::Tensor noise_;           // strip, for the step that the patches are taking
};

}  // namespace tessera::runtime
