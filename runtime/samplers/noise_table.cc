#include "runtime/samplers/noise_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/samplers/schedule.h"

namespace tessera::runtime {
namespace {

template <typename T>
std::vector<T> LinspaceFromEnds(T first, T last, int64_t n) {
  std::vector<T> points(n, first);
  if (n < 2) return points;
  const T step = (last - first) / static_cast<T>(n - 1);
  for (int64_t i = 0; i < n; ++i) {
    points[i] = i < n / 2 ? std::fma(step, static_cast<T>(i), first) : std::fma(-step, static_cast<T>(n - 1 - i), last);
  }
  return points;
}

// Returns betas from a function of the cumulative product over time 0 … 1, capped at 0.999.
template <typename T, typename AlphaBar>
std::vector<T> BetasFromAlphaBar(int64_t n, AlphaBar alpha_bar) {
  std::vector<T> betas(n);
  const double count = static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    const double now = alpha_bar(static_cast<double>(i) / count);
    const double next = alpha_bar(static_cast<double>(i + 1) / count);
    betas[i] = static_cast<T>(std::min(1 - next / now, 0.999));
  }
  return betas;
}

template <typename T>
std::vector<T> CumulativeProduct(const std::vector<T>& betas) {
  std::vector<T> products;
  products.reserve(betas.size());
  double product = 1.0;  // the reference accumulates in double precision and stores T
  for (T beta : betas) {
    product *= static_cast<double>(T{1} - beta);
    products.push_back(static_cast<T>(product));
  }
  return products;
}

// Algorithm 1 of "Common Diffusion Noise Schedules and Sample Steps are Flawed": the square roots of the cumulative
// products are shifted so that the last is 0, and scaled so that the first is unchanged.
template <typename T>
std::vector<T> RescaleToZeroSnr(const std::vector<T>& betas) {
  std::vector<T> bars = CumulativeProduct(betas);
  for (T& bar : bars) bar = std::sqrt(bar);
  const T first = bars.front();
  const T last = bars.back();
  const T scale = first / (first - last);
  for (T& bar : bars) {
    bar = (bar - last) * scale;
    bar = bar * bar;
  }
  std::vector<T> rescaled(bars.size());
  rescaled[0] = 1 - bars[0];
  for (size_t i = 1; i < bars.size(); ++i) rescaled[i] = 1 - bars[i] / bars[i - 1];
  return rescaled;
}

template <typename T>
std::vector<T> ScheduledBetas(const NoiseTable& table, int64_t n) {
  if (!table.trained_betas.empty()) return std::vector<T>(table.trained_betas.begin(), table.trained_betas.end());
  switch (table.beta_schedule) {
    case BetaSchedule::kLinear:
      break;
    case BetaSchedule::kScaledLinear: {
      std::vector<T> betas =
          LinspaceFromEnds(static_cast<T>(std::sqrt(table.beta_start)), static_cast<T>(std::sqrt(table.beta_end)), n);
      for (T& beta : betas) beta = beta * beta;
      return betas;
    }
    case BetaSchedule::kSquaredCosine:
      return BetasFromAlphaBar<T>(n, [](double t) {
        const double cosine = std::cos((t + 0.008) / 1.008 * std::numbers::pi / 2);
        return cosine * cosine;
      });
    case BetaSchedule::kSigmoid: {
      std::vector<T> betas = LinspaceFromEnds(T{-6}, T{6}, n);
      for (T& beta : betas) {
        beta = 1 / (1 + std::exp(-beta)) * static_cast<T>(table.beta_end - table.beta_start) +
               static_cast<T>(table.beta_start);
      }
      return betas;
    }
    case BetaSchedule::kLaplace:
      return BetasFromAlphaBar<T>(n, [](double t) {
        const double lambda = -0.5 * std::copysign(1.0, 0.5 - t) * std::log(1 - 2 * std::fabs(0.5 - t) + 1e-6);
        const double snr = std::exp(lambda);
        return std::sqrt(snr / (1 + snr));
      });
  }
  return LinspaceFromEnds(static_cast<T>(table.beta_start), static_cast<T>(table.beta_end), n);
}

template <typename T>
std::vector<T> TableBetas(const SamplerConfig& config) {
  const NoiseTable& table = *config.Find<NoiseTable>();
  std::vector<T> betas = ScheduledBetas<T>(table, config.num_train_timesteps);
  return table.rescale_betas_zero_snr ? RescaleToZeroSnr(betas) : betas;
}

template <typename T>
std::vector<T> TableAlphas(const SamplerConfig& config) {
  std::vector<T> alphas = CumulativeProduct(TableBetas<T>(config));
  if (const auto* sigmas = config.Find<TableSigmas>(); sigmas != nullptr && sigmas->rescale_betas_zero_snr) {
    alphas.back() = static_cast<T>(0x1p-24);  // keeps the first sigma finite
  }
  return alphas;
}

// Uses range reduction to (1/sqrt 2, sqrt 2] and a rational approximation with the coefficients of numpy's tables.
float ReferenceLog(float value) {
  constexpr float kNumerator[] = {2.589979117907922693523e-02f, 3.808837741388407920751e-01f,
                                  1.480000633576506585156e+00f, 2.112677543073053063722e+00f,
                                  9.999999999999998702752e-01f, 0.0f};
  constexpr float kDenominator[] = {5.875095403124574342950e-03f, 1.546476374983906719538e-01f,
                                    9.864942958519418960339e-01f, 2.453006071784736363091e+00f,
                                    2.612677543073109236779e+00f, 1.0f};
  int exponent = 0;
  float mantissa = std::frexp(value, &exponent);
  if (mantissa <= std::numbers::sqrt2_v<float> / 2) {
    mantissa += mantissa;
    --exponent;
  }
  const float x = mantissa - 1.0f;
  float numerator = kNumerator[0];
  float denominator = kDenominator[0];
  for (int i = 1; i < 6; ++i) {
    numerator = std::fma(numerator, x, kNumerator[i]);
    denominator = std::fma(denominator, x, kDenominator[i]);
  }
  return std::fma(static_cast<float>(exponent), std::numbers::ln2_v<float>, numerator / denominator);
}

}  // namespace

std::vector<float> LinspaceFloat(double first, double last, int64_t n) {
  return LinspaceFromEnds(static_cast<float>(first), static_cast<float>(last), n);
}

std::vector<float> Betas(const SamplerConfig& config) { return TableBetas<float>(config); }
std::vector<float> AlphasCumprod(const SamplerConfig& config) { return TableAlphas<float>(config); }
std::vector<double> ExactAlphasCumprod(const SamplerConfig& config) { return TableAlphas<double>(config); }

std::vector<float> SigmaTable(const SamplerConfig& config) {
  std::vector<float> sigmas = AlphasCumprod(config);
  for (float& sigma : sigmas) sigma = std::sqrt((1.0f - sigma) / sigma);
  return sigmas;
}

std::vector<float> ReferenceLogs(const std::vector<float>& values) {
  std::vector<float> logs;
  logs.reserve(values.size());
  for (float value : values) logs.push_back(ReferenceLog(value));
  return logs;
}

}  // namespace tessera::runtime
