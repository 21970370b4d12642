// Compares requests that begin from pictures with a plain loop: its samplers and its blending with masks are formulas
// over whole images, and only the noise tables and the model's predictions are shared with the product.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/layout_runs.h"

namespace tessera {

// The levels of one schedule.
struct PlainLevels {
  bool is_flow = false;
  std::vector<double> sigmas;     // of a flow: before each step and after the last
  std::vector<double> alphas;     // otherwise: the product of (1 - beta) before each step
  std::vector<double> ddim_next;  // and after each, as DDIM has it

  at::Tensor Noisy(const at::Tensor& clean, const at::Tensor& noise, int step) const {
    const double variance = is_flow ? sigmas[step] * sigmas[step] : 1 - alphas[step];
    const double scale = is_flow ? 1 - sigmas[step] : std::sqrt(alphas[step]);
    return clean * scale + noise * std::sqrt(variance);
  }
};

inline PlainLevels PlainLevelsOf(const runtime::SamplerConfig& config, const runtime::Schedule& schedule) {
  PlainLevels levels{.is_flow = runtime::IsFlow(config), .sigmas = schedule.sigmas};
  if (levels.is_flow) return levels;
  const std::vector<float> table = runtime::AlphasCumprod(config);
  const auto steps = static_cast<int64_t>(schedule.timesteps.size());
  for (const double timestep : schedule.timesteps) {
    const int64_t next = static_cast<int64_t>(timestep) - config.num_train_timesteps / steps;
    levels.alphas.push_back(table[static_cast<size_t>(timestep)]);
    levels.ddim_next.push_back(next >= 0 ? table[static_cast<size_t>(next)] : 1.0);
  }
  return levels;
}

// Makes DDIM (for epsilon predictions) or stochastic Euler for flows the sampler of these runs, which begin at
// `first_step`. The plain loop has the formulas of these two.
inline void BeginFromPicturesPlainly(LayoutRuns& runs, int first_step) {
  runs.BeginFromPictures(first_step);
  if (runtime::IsFlow(runs.sampler())) return;
  runs.sampler() = *runtime::WithSampler(runs.sampler(), "ddim");
  auto& ddim = std::get<runtime::DdimOptions>(runs.sampler().options);
  ddim.clip_sample = ddim.thresholding = false;
  ddim.set_alpha_to_one = true;
}

// Returns the largest relative difference of the runs on one rank, after any step, from the plain loop.
inline double ErrorOfPlainLoop(const LayoutRuns& runs, const std::vector<at::Tensor>& serial) {
  double worst = 0;
  runs.OnRanks({}, at::kDouble, [&](const LayoutRuns::Rank& rank) {
    std::vector<runtime::DenoiseJob> jobs = runs.Jobs(rank.family);
    std::vector<at::Tensor> x, clean, noise, mask;
    const PlainLevels levels = PlainLevelsOf(runs.sampler(), jobs[0].sampler->schedule());
    const int first = runs.PictureFor(jobs[0].geometry, 0).first_step, steps = jobs[0].sampler->num_steps();
    for (size_t j = 0; j < jobs.size(); ++j) {
      const runtime::CleanStart start = runs.PictureFor(jobs[j].geometry, j);
      clean.push_back(start.latents);
      mask.push_back(start.mask);
      noise.push_back(runtime::MakeTesseraNoise(j)->Initial(start.latents.sizes(), at::kDouble));
      x.push_back(levels.Noisy(clean[j], noise[j], first));
    }
    for (int step = first; step < steps; ++step) {
      for (size_t j = 0; j < jobs.size(); ++j) {
        jobs[j].latents = x[j];
        jobs[j].next_step = step;
      }
      const std::vector<at::Tensor> predictions = rank.denoiser.Predict(LayoutRuns::Batch(jobs));
      for (size_t j = 0; j < jobs.size(); ++j) {
        if (levels.is_flow) {
          const double now = levels.sigmas[step], next = levels.sigmas[step + 1];
          const at::Tensor drawn = runtime::MakeTesseraNoise(j)->ForStep(step, x[j].sizes(), at::kDouble);
          x[j] = (x[j] - now * predictions[j]) * (1 - next) + next * drawn;
        } else {
          const double now = levels.alphas[step], next = levels.ddim_next[step];
          const at::Tensor x0 = (x[j] - std::sqrt(1 - now) * predictions[j]) / std::sqrt(now);
          x[j] = std::sqrt(next) * x0 + std::sqrt(1 - next) * predictions[j];
        }
        if (!mask[j].defined()) continue;
        const at::Tensor kept = step + 1 < steps ? levels.Noisy(clean[j], noise[j], step + 1) : clean[j];
        x[j] = mask[j] * x[j] + (1 - mask[j]) * kept;
      }
      const double error = LayoutRuns::Relative(serial[static_cast<size_t>(step - first)], at::stack(x));
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  });
  return worst;
}

}  // namespace tessera
