#include "runtime/samplers/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "base/macros/planted.h"
#include "runtime/samplers/noise_table.h"

namespace tessera::runtime {
namespace {

constexpr double kRho = 7.0;  // of the Karras sigmas

// Returns n points from first to last, rounded like numpy.linspace.
std::vector<double> Linspace(double first, double last, int64_t n) {
  std::vector<double> points(n, first);
  const double step = n > 1 ? (last - first) / static_cast<double>(n - 1) : 0.0;
  for (int64_t i = 1; i < n; ++i) points[i] = static_cast<double>(i) * step + first;
  if (n > 1) points.back() = last;
  return points;
}

// Rounds ties to even, like numpy.round.
double Round(double x) { return std::nearbyint(x); }

// Returns the table at a fractional index, like numpy.interp: linear, constant beyond the ends.
double Interpolate(const std::vector<float>& table, double index) {
  if (index <= 0) return table.front();
  if (index >= static_cast<double>(table.size() - 1)) return table.back();
  const size_t low = static_cast<size_t>(index);
  const double slope = static_cast<double>(table[low + 1]) - static_cast<double>(table[low]);
  return slope * (index - static_cast<double>(low)) + table[low];
}

// Returns the fractional timestep at which the table reaches a sigma. In double precision except for the difference of
// two logarithms.
double SigmaToTimestep(double sigma, const std::vector<float>& log_table) {
  const double log_sigma = std::log(std::max(sigma, 1e-10));
  size_t low = 0;
  for (size_t i = 0; i < log_table.size(); ++i) {
    if (log_sigma >= static_cast<double>(log_table[i])) low = i;
  }
  low = std::min(low, log_table.size() - 2);
  const float span = log_table[low] - log_table[low + 1];
  const double weight =
      std::clamp((static_cast<double>(log_table[low]) - log_sigma) / static_cast<double>(span), 0.0, 1.0);
  return (1 - weight) * static_cast<double>(low) + weight * static_cast<double>(low + 1);
}

std::vector<double> KarrasSigmas(double sigma_min, double sigma_max, int64_t n) {
  const double low = std::pow(sigma_min, 1 / kRho);
  const double high = std::pow(sigma_max, 1 / kRho);
  std::vector<double> sigmas = Linspace(0, 1, n);
  for (double& sigma : sigmas) sigma = std::pow(high + sigma * (low - high), kRho);
  return sigmas;
}

std::vector<double> ExponentialSigmas(double sigma_min, double sigma_max, int64_t n) {
  std::vector<double> sigmas = Linspace(std::log(sigma_max), std::log(sigma_min), n);
  for (double& sigma : sigmas) sigma = std::exp(sigma);
  return sigmas;
}

// Returns Karras or exponential sigmas between the config's limits, or else between the given ones.
std::vector<double> SpacedSigmas(const SigmaSpacing& options, double sigma_min, double sigma_max, int64_t n) {
  sigma_min = options.sigma_min.value_or(sigma_min);
  sigma_max = options.sigma_max.value_or(sigma_max);
  return options.use_karras_sigmas ? KarrasSigmas(sigma_min, sigma_max, n) : ExponentialSigmas(sigma_min, sigma_max, n);
}

// Returns trailing timesteps: from `last` down by train / steps, rounded, minus 1. Accumulated rounding can add one
// entry below timestep 0, which is dropped.
std::vector<double> Trailing(int64_t train, int64_t last, int steps) {
  const double start = static_cast<double>(last);
  const double ratio = static_cast<double>(train) / steps;
  const double delta = (start - ratio) - start;
  const int64_t count = static_cast<int64_t>(std::ceil(start / ratio));
  std::vector<double> timesteps;
  for (int64_t i = 0; i < count; ++i) {
    const double timestep = Round(start + static_cast<double>(i) * delta) - 1;
    if (timestep >= 0) timesteps.push_back(timestep);
  }
  return timesteps;
}

std::vector<double> Leading(int64_t ratio, int64_t offset, int64_t first, int64_t count) {
  std::vector<double> timesteps(count);
  for (int64_t i = 0; i < count; ++i) timesteps[count - 1 - i] = static_cast<double>((first + i) * ratio + offset);
  return timesteps;
}

// Returns timesteps in descending order; integers unless the spacing is linspace.
std::vector<double> SpacedTimesteps(const NoiseTable& options, int64_t train, int steps) {
  if (options.timestep_spacing == TimestepSpacing::kLeading) {
    return Leading(train / steps, options.steps_offset, 0, steps);
  }
  if (options.timestep_spacing == TimestepSpacing::kTrailing) return Trailing(train, train, steps);
  std::vector<double> timesteps = Linspace(0, static_cast<double>(train - 1), steps);
  std::reverse(timesteps.begin(), timesteps.end());
  return timesteps;
}

absl::StatusOr<Schedule> ScheduleOf(const SamplerConfig& config, const NoiseTable& options, int steps,
                                    const ScheduleOptions&) {
  const int64_t train = config.num_train_timesteps;
  Schedule schedule{.timesteps = SpacedTimesteps(options, train, steps)};
  for (double& timestep : schedule.timesteps) timestep = Round(timestep);
  if (schedule.timesteps.front() >= static_cast<double>(train)) {
    return base::ErrorOfField("steps",
                              absl::StrCat(" is ", steps, "; with timestep_spacing \"leading\" and steps_offset ",
                                           options.steps_offset, " it needs timestep ", schedule.timesteps.front(),
                                           ", and the model has 0 to ", train - 1, "; take fewer steps"));
  }
  if (config.prediction_type == PredictionType::kEpsilon &&
      AlphasCumprod(config)[static_cast<size_t>(schedule.timesteps.front())] == 0) {
    return absl::InvalidArgumentError(
        "scheduler_config.json: field \"rescale_betas_zero_snr\" is true; with prediction_type \"epsilon\" the "
        "schedule "
        "must not begin at pure noise: use timestep_spacing \"leading\" or prediction_type \"v_prediction\"");
  }
  return schedule;
}

absl::StatusOr<Schedule> ScheduleOf(const SamplerConfig& config, const EulerOptions& options, int steps,
                                    const ScheduleOptions&) {
  const std::vector<float> table = SigmaTable(config);
  const std::vector<float> log_table = ReferenceLogs(table);
  Schedule schedule{.timesteps = SpacedTimesteps(options, config.num_train_timesteps, steps)};
  for (double& timestep : schedule.timesteps) timestep = static_cast<float>(timestep);
  if (options.interpolation_type == SigmaInterpolation::kLogLinear) {
    const std::vector<float> logs = LinspaceFloat(log_table.back(), log_table.front(), steps + 1);
    for (float log : logs) schedule.sigmas.push_back(std::exp(log));
  } else {
    for (double timestep : schedule.timesteps) schedule.sigmas.push_back(Interpolate(table, timestep));
  }
  if (options.use_karras_sigmas || options.use_exponential_sigmas) {
    schedule.sigmas = SpacedSigmas(options, schedule.sigmas.back(), schedule.sigmas.front(), steps);
    schedule.timesteps.clear();
    for (double sigma : schedule.sigmas) schedule.timesteps.push_back(SigmaToTimestep(sigma, log_table));
  }
  schedule.sigmas.push_back(options.final_sigmas_type == FinalSigma::kZero ? 0.0 : table.front());
  for (double& sigma : schedule.sigmas) sigma = static_cast<float>(sigma);
  if (options.timestep_type == TimestepType::kContinuous && config.prediction_type == PredictionType::kVelocity) {
    for (size_t i = 0; i < schedule.timesteps.size(); ++i) {
      schedule.timesteps[i] = 0.25f * std::log(static_cast<float>(schedule.sigmas[i]));
    }
  }
  for (double& timestep : schedule.timesteps) timestep = static_cast<float>(timestep);
  const double start = *std::max_element(schedule.sigmas.begin(), schedule.sigmas.end());
  schedule.init_noise_sigma =
      options.timestep_spacing == TimestepSpacing::kLeading ? std::sqrt(start * start + 1) : start;
  return schedule;
}

// Returns one past the last timestep whose log signal-to-noise ratio is at least lambda_min_clipped.
int64_t ClippedTimesteps(const SamplerConfig& config, double lambda_min_clipped) {
  int64_t timesteps = config.num_train_timesteps;
  if (lambda_min_clipped == -std::numeric_limits<double>::infinity()) return timesteps;
  const std::vector<float> alphas = AlphasCumprod(config);
  while (timesteps > 0) {
    const float alpha = alphas[timesteps - 1];
    const float lambda = std::log(std::sqrt(alpha)) - std::log(std::sqrt(1.0f - alpha));
    if (lambda >= static_cast<float>(lambda_min_clipped)) break;
    --timesteps;
  }
  return timesteps;
}

absl::StatusOr<Schedule> ScheduleOf(const SamplerConfig& config, const DpmSolverOptions& options, int steps,
                                    const ScheduleOptions& given) {
  const int64_t train = config.num_train_timesteps;
  const int64_t last = ClippedTimesteps(config, options.lambda_min_clipped);
  if (last < 1) {
    return absl::InvalidArgumentError(absl::StrCat("scheduler_config.json: field \"lambda_min_clipped\" is ",
                                                   options.lambda_min_clipped, "; it leaves no timestep"));
  }
  const std::vector<float> table = SigmaTable(config);
  Schedule schedule;
  if (options.use_karras_sigmas || options.use_exponential_sigmas) {
    const std::vector<float> log_table = ReferenceLogs(table);
    schedule.sigmas = SpacedSigmas(options, table.front(), table.back(), steps);
    for (double sigma : schedule.sigmas) {
      const double timestep = SigmaToTimestep(sigma, log_table);
      const bool round = options.use_karras_sigmas && options.beta_schedule != BetaSchedule::kSquaredCosine;
      schedule.timesteps.push_back(round ? Round(timestep) : std::trunc(timestep));
    }
  } else if (options.use_flow_sigmas) {
    const double shift =
        options.use_dynamic_shifting && given.mu.has_value() ? std::exp(*given.mu) : options.flow_shift;
    const std::vector<double> alphas = Linspace(1, 1.0 / static_cast<double>(train), steps + 1);
    for (int i = steps; i > 0; --i) {
      const double sigma = 1.0 - alphas[i];
      schedule.sigmas.push_back(shift * sigma / (1 + (shift - 1) * sigma));
      schedule.timesteps.push_back(std::trunc(schedule.sigmas.back() * static_cast<double>(train)));
    }
  } else {
    switch (options.timestep_spacing) {
      case TimestepSpacing::kLinspace:
        schedule.timesteps = Linspace(0, static_cast<double>(last - 1), steps + 1);
        schedule.timesteps.erase(schedule.timesteps.begin());
        for (double& timestep : schedule.timesteps) timestep = Round(timestep);
        std::reverse(schedule.timesteps.begin(), schedule.timesteps.end());
        break;
      case TimestepSpacing::kLeading:
        schedule.timesteps = Leading(last / (steps + 1), options.steps_offset, 1, steps);
        break;
      case TimestepSpacing::kTrailing:
        schedule.timesteps = Trailing(train, last, steps);
        break;
    }
    for (double timestep : schedule.timesteps) schedule.sigmas.push_back(Interpolate(table, timestep));
  }
  schedule.sigmas.push_back(options.final_sigmas_type == FinalSigma::kZero ? 0.0 : table.front());
  for (double& sigma : schedule.sigmas) sigma = static_cast<float>(sigma);
  // A multistep solver divides differences by the distance of two levels.
  for (size_t i = 1; i < schedule.timesteps.size(); ++i) {
    if (schedule.sigmas[i] == schedule.sigmas[i - 1]) {
      return base::ErrorOfField("steps", absl::StrCat(" is ", steps, "; the noise levels of steps ", i, " and ", i + 1,
                                                      " coincide; take fewer steps"));
    }
  }
  return schedule;
}

// Applies the shift and the terminal stretch, in T like the reference, which keeps given sigmas in single precision.
template <typename T>
absl::StatusOr<std::vector<double>> ShiftFlowSigmas(const FlowLevels& options, std::vector<T> sigmas, double mu) {
  const T scale = static_cast<T>(options.time_shift_type == TimeShiftType::kExponential ? std::exp(mu) : mu);
  const T shift = static_cast<T>(options.shift);
  const T shift_less_one = static_cast<T>(options.shift - 1);
  for (T& sigma : sigmas) {
    if (base::Planted("shift_missing")) break;
    sigma =
        options.use_dynamic_shifting ? scale / (scale + (1 / sigma - 1)) : shift * sigma / (1 + shift_less_one * sigma);
  }
  if (options.shift_terminal > 0) {
    const T stretch = (1 - sigmas.back()) / static_cast<T>(1 - options.shift_terminal);
    if (!(stretch > 0)) {
      return base::ErrorOfField("steps",
                                absl::StrCat(" is ", sigmas.size(), "; with shift_terminal ", options.shift_terminal,
                                             " the last step must begin below pure noise: take at least 2 steps"));
    }
    for (T& sigma : sigmas) sigma = 1 - (1 - sigma) / stretch;
  }
  return std::vector<double>(sigmas.begin(), sigmas.end());
}

absl::StatusOr<Schedule> ScheduleOf(const SamplerConfig& config, const FlowLevels& options, int steps,
                                    const ScheduleOptions& given) {
  const double train = static_cast<double>(config.num_train_timesteps);
  if (options.use_dynamic_shifting && !given.mu.has_value()) {
    return absl::InvalidArgumentError(
        "scheduler_config.json: field \"use_dynamic_shifting\" is true; the pipeline must give the shift mu");
  }
  if (options.use_dynamic_shifting && options.time_shift_type == TimeShiftType::kLinear && !(*given.mu > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mu is ", *given.mu, "; it must be above 0 with time_shift_type \"linear\""));
  }
  const double mu = given.mu.value_or(0.0);
  absl::StatusOr<std::vector<double>> shifted;
  if (given.sigmas.has_value()) {
    if (static_cast<int>(given.sigmas->size()) != steps) {
      return absl::InvalidArgumentError(absl::StrCat("sigmas has ", given.sigmas->size(), " values; it must have ",
                                                     steps, ", one a step, without the final one"));
    }
    for (double sigma : *given.sigmas) {
      if (!(sigma > 0 && sigma <= 1)) {
        return absl::InvalidArgumentError(
            absl::StrCat("sigmas has the value ", sigma, "; every value must be above 0 and at most 1"));
      }
    }
    shifted = ShiftFlowSigmas(options, std::vector<float>(given.sigmas->begin(), given.sigmas->end()), mu);
  } else {
    // The lowest training level is already shifted; the shift is applied to it once more below.
    std::vector<double> levels = MakeFlowTrainingSchedule(config).sigmas;
    if (base::Planted("shift_applied_once")) levels.back() = 1 / train;
    std::vector<double> sigmas = Linspace(levels.front() * train, levels.back() * train, steps);
    for (double& sigma : sigmas) sigma /= train;
    shifted = ShiftFlowSigmas(options, std::move(sigmas), mu);
  }
  if (!shifted.ok()) return shifted.status();
  Schedule schedule{.sigmas = *std::move(shifted)};
  if (options.use_karras_sigmas || options.use_exponential_sigmas) {
    schedule.sigmas = SpacedSigmas(options, schedule.sigmas.back(), schedule.sigmas.front(), steps);
  }
  for (double& level : schedule.sigmas) {
    float sigma = static_cast<float>(level);
    if (options.invert_sigmas) sigma = 1.0f - sigma;
    level = sigma;
    schedule.timesteps.push_back(sigma * static_cast<float>(config.num_train_timesteps));
  }
  schedule.sigmas.push_back(options.invert_sigmas ? 1.0 : 0.0);
  return schedule;
}

}  // namespace

double EmpiricalShiftMu(int64_t tokens, int steps) {
  constexpr int64_t kLargeImage = 4300;
  const double n = static_cast<double>(tokens);
  const double at_200_steps = 0.00016927 * n + 0.45666666;
  if (tokens > kLargeImage) return at_200_steps;
  const double at_10_steps = 8.73809524e-05 * n + 1.89833333;
  const double slope = (at_200_steps - at_10_steps) / 190;
  return slope * steps + (at_200_steps - 200 * slope);
}

// numpy: start + i · step, with the last value exact.
std::vector<double> LinearSigmas(int steps) {
  std::vector<double> sigmas(static_cast<size_t>(steps));
  const double last = 1.0 / steps, step = steps > 1 ? (last - 1.0) / (steps - 1) : 0;
  for (int i = 0; i < steps; ++i) sigmas[i] = i * step + 1.0;
  if (steps > 1) sigmas.back() = last;
  return sigmas;
}

// torch counts from the nearer end.
std::vector<double> SingleLinearSigmas(int steps) {
  const float last = 1.0f / static_cast<float>(steps);
  const float step = steps > 1 ? (last - 1.0f) / static_cast<float>(steps - 1) : 0;
  std::vector<double> sigmas;
  for (int i = 0; i < steps; ++i) {
    const float from_last = last - step * static_cast<float>(steps - 1 - i);
    sigmas.push_back(i < steps / 2 ? 1.0f + step * static_cast<float>(i) : from_last);
  }
  return sigmas;
}

Schedule MakeFlowTrainingSchedule(const SamplerConfig& config) {
  const FlowLevels& levels = *config.Find<FlowLevels>();
  const float train = static_cast<float>(config.num_train_timesteps);
  const float shift = static_cast<float>(levels.shift);
  const float shift_less_one = static_cast<float>(levels.shift - 1);
  Schedule schedule;
  for (int64_t t = config.num_train_timesteps; t > 0; --t) {
    float sigma = static_cast<float>(t) / train;
    if (!levels.use_dynamic_shifting) sigma = shift * sigma / (1 + shift_less_one * sigma);
    schedule.sigmas.push_back(sigma);
    schedule.timesteps.push_back(sigma * train);
  }
  return schedule;
}

absl::StatusOr<Schedule> MakeSchedule(const SamplerConfig& config, int steps, const ScheduleOptions& options) {
  if (steps < 1 || steps > config.num_train_timesteps) {
    return base::ErrorOfField("steps", absl::StrCat(" is ", steps, "; it must be 1 to ", config.num_train_timesteps));
  }
  if (options.sigmas.has_value() && !IsFlow(config)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sigmas are given; the sampler ", SamplerName(config), " makes its own from the noise table"));
  }
  if (options.mu.has_value() && !std::isfinite(*options.mu)) {
    return absl::InvalidArgumentError(absl::StrCat("mu is ", *options.mu, "; it must be finite"));
  }
  absl::StatusOr<Schedule> schedule =
      std::visit([&](const auto& own) { return ScheduleOf(config, own, steps, options); }, config.options);
  if (!schedule.ok()) return schedule.status();
  const auto finite = [](double x) { return std::isfinite(x); };
  if (!std::all_of(schedule->sigmas.begin(), schedule->sigmas.end(), finite) ||
      !std::all_of(schedule->timesteps.begin(), schedule->timesteps.end(), finite)) {
    return absl::InvalidArgumentError(
        "scheduler_config.json: the noise table has no finite sigmas; check beta_start, beta_end and trained_betas");
  }
  return schedule;
}

double DynamicShiftMu(const DynamicShift& options, int64_t tokens) {
  const double slope = (options.max_shift - options.base_shift) /
                       static_cast<double>(options.max_image_seq_len - options.base_image_seq_len);
  return options.base_shift + slope * static_cast<double>(tokens - options.base_image_seq_len);
}

}  // namespace tessera::runtime
