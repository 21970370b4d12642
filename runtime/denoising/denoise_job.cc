#include "runtime/denoising/denoise_job.h"

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/precision.h"
#include "runtime/device/host_memory.h"

namespace tessera::runtime {
absl::StatusOr<std::unique_ptr<Sampler>> MakeSampler(const SamplerConfig& config, int steps,
                                                     const models::Family& family,
                                                     const models::LatentGeometry& geometry) {
  ScheduleOptions options;
  if (const auto* shift = config.Find<DynamicShift>(); shift != nullptr && shift->use_dynamic_shifting) {
    const int64_t tokens = geometry.grid.image();
    const bool empirical = family.has_empirical_shift() && !base::Planted("empirical_shift_missing");
    options.mu = empirical ? EmpiricalShiftMu(tokens, steps) : DynamicShiftMu(*shift, tokens);
  }
  if (IsFlow(config) && steps > 0) {
    if (family.flow_sigmas() == models::FlowSigmas::kLinear) options.sigmas = LinearSigmas(steps);
    if (family.flow_sigmas() == models::FlowSigmas::kSingleLinear) options.sigmas = SingleLinearSigmas(steps);
  }
  return Sampler::Create(config, steps, options);
}

PreparedBranch& PrepareBranch(DenoiseJob& job, size_t branch, const models::Family& family,
                              const parallel::RankGroups& groups) {
  if (!job.timesteps.defined()) {
    std::vector<double> timesteps;
    for (int step = 0; step < job.sampler->num_steps(); ++step) timesteps.push_back(job.sampler->timestep(step));
    job.timesteps = ToDevice(at::tensor(timesteps, at::kDouble), family.device());
  }
  job.prepared.resize(job.guidance.branches.size());
  std::unique_ptr<PreparedBranch>& prepared = job.prepared[branch];
  if (prepared == nullptr) {
    prepared = std::make_unique<PreparedBranch>(family.transformer(), job.guidance.branches[branch].row, job.references,
                                                job.timesteps, job.adapters, groups);
  }
  return *prepared;
}

namespace {

// Returns the job's initial noise in host memory.
at::Tensor InitialNoise(const DenoiseJob& job, const models::Family& family) {
  const models::LatentGeometry& g = job.geometry;
  return job.noise->Initial({g.channels, g.height, g.width}, models::AccumulationType(family.dtype()));
}

}  // namespace

void DrawInitialLatents(DenoiseJob& job, const models::Family& family) {
  job.latents = ToDevice(InitialNoise(job, family) * job.sampler->init_noise_sigma(), family.device());
}

void BeginFromPicture(DenoiseJob& job, const models::Family& family, const CleanStart& start) {
  const at::Tensor noise = ToDevice(InitialNoise(job, family), family.device());
  const at::Tensor clean = start.latents.to(noise.options());
  TORCH_CHECK(clean.sizes() == noise.sizes(), "the picture's latents ", clean.sizes(), " are not of the job's shape, ",
              noise.sizes());
  job.sampler->BeginAt(start.first_step);
  job.next_step = start.first_step;
  const NoiseLevel level = job.sampler->level(start.first_step);
  job.latents = kernels::WeightedSums({clean, noise}, {level.alpha, level.sigma}, std::nullopt).front();
  if (!start.mask.defined()) return;
  const at::Tensor mask = start.mask.to(noise.options()).expand(noise.sizes()).contiguous();
  const at::Tensor blended = base::Planted("blend_noise_redrawn") ? noise.flip({0}) : noise;
  job.blend = {.mask = mask.unsqueeze(0), .clean = clean.unsqueeze(0), .noise = blended.unsqueeze(0)};
}

bool IsFinite(const DenoiseJob& job) { return !job.state.defined() || job.state[0].item<int64_t>() != 0; }

at::Tensor FreshState(at::Device device) { return at::ones({2}, at::TensorOptions(at::kLong).device(device)); }

}  // namespace tessera::runtime
