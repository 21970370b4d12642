#include "runtime/denoising/patched_latents.h"

#include <utility>

#include "base/macros/planted.h"
#include "models/token_grid.h"
#include "runtime/device/host_memory.h"

namespace tessera::runtime {
namespace {

int64_t LatentsPerToken(const models::LatentGeometry& image) { return image.height / image.grid.height; }

}  // namespace

models::LatentGeometry StripGeometry(const models::LatentGeometry& image, int64_t tokens) {
  const int64_t side = LatentsPerToken(image);
  return {.channels = image.channels, .height = side, .width = tokens * side, .grid = {.height = 1, .width = tokens}};
}

at::Tensor ToStrip(const at::Tensor& latents, const models::LatentGeometry& image) {
  const int64_t side = LatentsPerToken(image);
  const at::Tensor tokens = models::Padded(models::Patchify(latents, side), image.grid.count());
  return models::Unpack(tokens, {.height = 1, .width = image.grid.count()}, side);
}

at::Tensor FromStrip(const at::Tensor& strip, const models::LatentGeometry& image) {
  const int64_t side = LatentsPerToken(image);
  return models::Unpack(models::Patchify(strip, side).narrow(1, 0, image.grid.image()), image.grid, side);
}

at::Tensor WithConditions(const at::Tensor& patches, std::span<const at::Tensor> conditions) {
  if (conditions.empty()) return patches;
  TORCH_CHECK(std::ssize(conditions) == patches.size(0), "a job of the batch has no condition");
  return at::cat({patches, at::cat(at::TensorList(conditions.data(), conditions.size()))}, 2);
}

bool MovesWhole(const DenoiseJob& job) {
  return job.guidance.rescale > 0 || job.guidance.norm_limit > 0 || job.sampler->reads_whole_image();
}

PatchedLatents::PatchedLatents(DenoiseJob& job, std::span<const parallel::TokenSpan> patches)
    : job_(job),
      patches_(patches.begin(), patches.end()),
      side_(LatentsPerToken(job.geometry)),
      whole_(patches.size() == 1 || MovesWhole(job)) {
  if (whole_) return;
  const at::Tensor strip = ToStrip(job.latents.unsqueeze(0), job.geometry);
  for (int patch = 0; patch < static_cast<int>(patches_.size()); ++patch) {
    Piece piece{.sampler = job.sampler->Clone(), .latents = Cut(strip, patch)};
    for (at::Tensor* past : piece.sampler->history()) {
      if (past->defined()) *past = Cut(ToStrip(*past, job.geometry), patch);
    }
    if (job.blend) {
      piece.blend = job.blend->Cut([&](const at::Tensor& image) {
        if (base::Planted("blend_rows_of_the_image")) return Cut(image.reshape(strip.sizes()), patch);
        return Cut(ToStrip(image, job.geometry), patch);
      });
    }
    pieces_.push_back(std::move(piece));
  }
}

int64_t PatchedLatents::tokens(parallel::PatchRange patches) const {
  return patches_[static_cast<size_t>(patches.end) - 1].end - patches_[static_cast<size_t>(patches.begin)].begin;
}

at::Tensor PatchedLatents::Cut(const at::Tensor& strip, int patch) const {
  const parallel::TokenSpan& tokens = patches_[static_cast<size_t>(patch)];
  return strip.narrow(3, tokens.begin * side_, tokens.count() * side_).contiguous();
}

at::Tensor PatchedLatents::ScaledInput(parallel::PatchRange patches) const {
  std::vector<at::Tensor> parts;
  if (whole_) {
    const at::Tensor scaled = job_.sampler->ScaleInput(job_.latents.unsqueeze(0));
    if (patches_.size() == 1) return scaled;
    const at::Tensor strip = ToStrip(scaled, job_.geometry);
    for (int patch = patches.begin; patch < patches.end; ++patch) parts.push_back(Cut(strip, patch));
  } else {
    for (int patch = patches.begin; patch < patches.end; ++patch) {
      const Piece& piece = pieces_[static_cast<size_t>(patch)];
      parts.push_back(piece.sampler->ScaleInput(piece.latents));
    }
  }
  return at::cat(parts, 3);
}

at::Tensor PatchedLatents::Condition(parallel::PatchRange patches) const {
  if (!job_.condition.defined()) return {};
  return job_.condition.narrow(0, patches_[static_cast<size_t>(patches.begin)].begin, tokens(patches));
}

at::Tensor PatchedLatents::Noise(const Sampler& sampler) {
  return ToDevice(job_.noise->ForStep(sampler.step(), job_.latents.sizes(), job_.latents.scalar_type()),
                  job_.latents.device())
      .unsqueeze(0);
}

at::Tensor PatchedLatents::Advance(Sampler& sampler, const at::Tensor& latents,
                                   std::span<const WeightedPrediction> predictions, const at::Tensor& noise,
                                   const std::optional<MaskBlend>& blend) const {
  if (!blend) return sampler.Step(latents, predictions, noise, job_.state);
  const at::Tensor stepped = sampler.Step(latents, predictions, noise);
  return blend->Apply(stepped, sampler.level(sampler.step()), job_.state);
}

void PatchedLatents::Move(parallel::PatchRange patches, std::span<const WeightedPrediction> guided) {
  if (whole_) {
    std::vector<WeightedPrediction> predictions;
    for (const auto& [prediction, weight] : guided) {
      const at::Tensor one = prediction.unsqueeze(0);
      predictions.push_back({patches_.size() == 1 ? one : FromStrip(one, job_.geometry), weight});
    }
    const at::Tensor noise = job_.sampler->needs_noise() ? Noise(*job_.sampler) : at::Tensor();
    const at::Tensor latents = job_.latents.unsqueeze(0);
    job_.latents = Advance(*job_.sampler, latents, predictions, noise, job_.blend).squeeze(0);
    return;
  }
  int64_t column = 0;
  for (int patch = patches.begin; patch < patches.end; ++patch) {
    Piece& piece = pieces_[static_cast<size_t>(patch)];
    const int64_t width = piece.latents.size(3);
    // Noise is drawn for the whole image, once per step.
    if (patch == 0) {
      noise_ = piece.sampler->needs_noise() ? ToStrip(Noise(*piece.sampler), job_.geometry) : at::Tensor();
    }
    std::vector<WeightedPrediction> predictions;
    for (const auto& [prediction, weight] : guided) {
      predictions.push_back({prediction.unsqueeze(0).narrow(3, column, width).contiguous(), weight});
    }
    const at::Tensor noise = noise_.defined() ? Cut(noise_, patch) : at::Tensor();
    piece.latents = Advance(*piece.sampler, piece.latents, predictions, noise, piece.blend);
    column += width;
  }
}

void PatchedLatents::Store() const {
  if (whole_) return;
  std::vector<at::Tensor> latents;
  std::vector<std::vector<at::Tensor>> pasts;  // by tensor of the history
  for (const Piece& piece : pieces_) {
    latents.push_back(piece.latents);
    const std::array<at::Tensor*, 2> history = piece.sampler->history();
    pasts.resize(history.size());
    for (size_t i = 0; i < history.size(); ++i) pasts[i].push_back(*history[i]);
  }
  job_.latents = FromStrip(at::cat(latents, 3), job_.geometry).squeeze(0);
  job_.sampler = pieces_.front().sampler->Clone();
  const std::array<at::Tensor*, 2> history = job_.sampler->history();
  for (size_t i = 0; i < history.size(); ++i) {
    if (history[i]->defined()) *history[i] = FromStrip(at::cat(pasts[i], 3), job_.geometry);
  }
}

}  // namespace tessera::runtime
