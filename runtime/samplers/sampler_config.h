// SamplerConfig holds a sampler and its options: those in a model's scheduler_config.json, changed by a user's
// --sampler. Plain values, no LibTorch.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::runtime {

enum class PredictionType { kEpsilon, kSample, kVelocity, kFlow };
enum class BetaSchedule { kLinear, kScaledLinear, kSquaredCosine, kSigmoid, kLaplace };
enum class TimestepSpacing { kLinspace, kLeading, kTrailing };
enum class VarianceType { kFixedSmall, kFixedSmallLog, kFixedLarge, kFixedLargeLog, kLearned, kLearnedRange };
enum class DpmAlgorithm { kDpmSolver, kDpmSolverPlusPlus, kSdeDpmSolver, kSdeDpmSolverPlusPlus };
enum class DpmSolverType { kMidpoint, kHeun };
enum class FinalSigma { kZero, kSigmaMin };
enum class SigmaInterpolation { kLinear, kLogLinear };
enum class TimestepType { kDiscrete, kContinuous };
enum class TimeShiftType { kExponential, kLinear };

// Fields are named as in scheduler_config.json. Fields that several classes share are in a part from which their
// options derive, so that a class has a field if and only if its options have that part.

// The noise table that diffusion models are trained with, and the selection of timesteps from it. Flows have none.
struct NoiseTable {
  BetaSchedule beta_schedule = BetaSchedule::kLinear;
  double beta_start = 0.0001;
  double beta_end = 0.02;
  std::vector<double> trained_betas;  // replaces the schedule if not empty
  bool rescale_betas_zero_snr = false;
  TimestepSpacing timestep_spacing = TimestepSpacing::kLeading;
  int64_t steps_offset = 0;
};

struct Thresholding {
  bool thresholding = false;
  double dynamic_thresholding_ratio = 0.995;
  double sample_max_value = 1.0;
};

struct Clipping : Thresholding {
  bool clip_sample = true;
  double clip_sample_range = 1.0;
};

struct Variance {
  VarianceType variance_type = VarianceType::kFixedSmall;
};

struct SigmaSpacing {
  bool use_karras_sigmas = false;
  bool use_exponential_sigmas = false;
  bool use_beta_sigmas = false;     // not supported
  std::optional<double> sigma_min;  // limits of the Karras and exponential sigmas, in place of the schedule's
  std::optional<double> sigma_max;
};

// Sigmas that are computed from the noise table.
struct TableSigmas : NoiseTable, SigmaSpacing {
  TableSigmas() { timestep_spacing = TimestepSpacing::kLinspace; }
  FinalSigma final_sigmas_type = FinalSigma::kZero;
};

struct DynamicShift {
  bool use_dynamic_shifting = false;  // by ScheduleOptions::mu, which the pipeline computes from the image's size
  TimeShiftType time_shift_type = TimeShiftType::kExponential;
  double base_shift = 0.5;  // like the three below: the pipeline reads it to compute mu
  double max_shift = 1.15;
  int64_t base_image_seq_len = 256;
  int64_t max_image_seq_len = 4096;
};

// The levels of a rectified flow.
struct FlowLevels : SigmaSpacing, DynamicShift {
  double shift = 1.0;
  double shift_terminal = 0.0;  // 0: none
  bool invert_sigmas = false;
};

struct DdpmOptions : NoiseTable, Clipping, Variance {};

struct DdimOptions : NoiseTable, Clipping {
  bool set_alpha_to_one = true;
  double eta = 0.0;  // not in the file: 0 is deterministic, 1 as noisy as DDPM
};

struct EulerOptions : TableSigmas {
  SigmaInterpolation interpolation_type = SigmaInterpolation::kLinear;
  TimestepType timestep_type = TimestepType::kDiscrete;
};

struct DpmSolverOptions : TableSigmas, Thresholding, Variance, DynamicShift {
  DpmAlgorithm algorithm_type = DpmAlgorithm::kDpmSolverPlusPlus;
  DpmSolverType solver_type = DpmSolverType::kMidpoint;
  int64_t solver_order = 2;
  bool lower_order_final = true;
  bool euler_at_final = false;
  bool use_lu_lambdas = false;  // not supported
  bool use_flow_sigmas = false;
  double flow_shift = 1.0;
  double lambda_min_clipped = -std::numeric_limits<double>::infinity();
};

struct FlowEulerOptions : FlowLevels {
  bool stochastic_sampling = false;
};

using SamplerOptions = std::variant<DdpmOptions, DdimOptions, EulerOptions, DpmSolverOptions, FlowEulerOptions>;

struct SamplerConfig {
  SamplerOptions options;  // the alternative determines the class
  int64_t num_train_timesteps = 1000;
  PredictionType prediction_type = PredictionType::kEpsilon;  // kFlow for classes without a noise table
  base::Json file;  // the source; WithSampler parses it again for the fields of another class

  // Returns the part if the class has it, otherwise null; SamplerConfig itself is a part of every class.
  template <typename Part>
  const Part* Find() const {
    if constexpr (std::is_same_v<Part, SamplerConfig>) return this;
    return std::visit(
        [](const auto& own) -> const Part* {
          if constexpr (std::is_base_of_v<Part, std::decay_t<decltype(own)>>) return &own;
          return nullptr;
        },
        options);
  }
  template <typename Part>
  Part* Find() {
    return const_cast<Part*>(std::as_const(*this).Find<Part>());
  }
};

// Returns a config with the class's defaults and these options.
SamplerConfig DefaultSamplerConfig(SamplerOptions options);

// Parses a scheduler_config.json; "_class_name" determines the class. Checks every field of any of the classes; all
// others are in reader.UnknownFields(). Returns InvalidArgument with the field, its value and the valid values for an
// unknown class, unsupported options, values out of range, and options that contradict each other.
absl::StatusOr<SamplerConfig> ParseSamplerConfig(base::ConfigReader& reader);
// Like the above, for a config without the class name.
absl::StatusOr<SamplerConfig> ParseSamplerConfig(base::ConfigReader& reader, const std::string& class_name);

// Returns InvalidArgument unless the options are valid together for the class. Called by ParseSamplerConfig and
// WithSampler.
absl::Status ValidateSamplerConfig(const SamplerConfig& config);

// Whether the model predicts the velocity of a rectified flow: timesteps are 1000 sigma, and the sample is (1 - sigma)
// x0 + sigma noise.
bool IsFlow(const SamplerConfig& config);

// Returns the config for another sampler's name (one of ValidSamplers). A different class takes the fields that the
// file sets and the class has, and its defaults for all others. Returns InvalidArgument with the valid names for any
// other name; a flow model has only flow samplers, and other models have none of them.
absl::StatusOr<SamplerConfig> WithSampler(const SamplerConfig& model_config, std::string_view name);

// Returns the names that WithSampler accepts for this config.
std::vector<std::string> ValidSamplers(const SamplerConfig& config);

// Returns "ddpm", "ddim", "euler", "flow-euler", "dpm++2-karras", …
std::string SamplerName(const SamplerConfig& config);

// Convert between the type and its spelling in the file.
std::string PredictionTypeName(PredictionType type);
std::optional<PredictionType> PredictionTypeOf(std::string_view name);

}  // namespace tessera::runtime
