#include "runtime/samplers/sampler_config.h"

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Names of an enumeration's values. The first name of a value is its own, further ones are aliases.
template <typename Enum>
struct Named {
  std::string_view name;
  Enum value;
};

constexpr Named<SamplerClass> kClasses[] = {
    {"DDPMScheduler", SamplerClass::kDdpm},
    {"DDIMScheduler", SamplerClass::kDdim},
    {"EulerDiscreteScheduler", SamplerClass::kEuler},
    {"DPMSolverMultistepScheduler", SamplerClass::kDpmSolver},
    {"FlowMatchEulerDiscreteScheduler", SamplerClass::kFlowEuler},
};
constexpr Named<PredictionType> kPredictionTypes[] = {
    {"epsilon", PredictionType::kEpsilon},        {"sample", PredictionType::kSample},
    {"v_prediction", PredictionType::kVelocity},  {"flow_prediction", PredictionType::kFlow},
    {"original_sample", PredictionType::kSample},
};
constexpr Named<BetaSchedule> kBetaSchedules[] = {
    {"linear", BetaSchedule::kLinear},
    {"scaled_linear", BetaSchedule::kScaledLinear},
    {"squaredcos_cap_v2", BetaSchedule::kSquaredCosine},
    {"sigmoid", BetaSchedule::kSigmoid},
    {"laplace", BetaSchedule::kLaplace},
};
constexpr Named<TimestepSpacing> kTimestepSpacings[] = {
    {"linspace", TimestepSpacing::kLinspace},
    {"leading", TimestepSpacing::kLeading},
    {"trailing", TimestepSpacing::kTrailing},
};
constexpr Named<VarianceType> kVarianceTypes[] = {
    {"fixed_small", VarianceType::kFixedSmall}, {"fixed_small_log", VarianceType::kFixedSmallLog},
    {"fixed_large", VarianceType::kFixedLarge}, {"fixed_large_log", VarianceType::kFixedLargeLog},
    {"learned", VarianceType::kLearned},        {"learned_range", VarianceType::kLearnedRange},
};
// DEIS and UniPC configurations are read as DPM-Solver++ with midpoints, as the reference does.
constexpr Named<DpmAlgorithm> kDpmAlgorithms[] = {
    {"dpmsolver", DpmAlgorithm::kDpmSolver},        {"dpmsolver++", DpmAlgorithm::kDpmSolverPlusPlus},
    {"sde-dpmsolver", DpmAlgorithm::kSdeDpmSolver}, {"sde-dpmsolver++", DpmAlgorithm::kSdeDpmSolverPlusPlus},
    {"deis", DpmAlgorithm::kDpmSolverPlusPlus},
};
constexpr Named<DpmSolverType> kDpmSolverTypes[] = {
    {"midpoint", DpmSolverType::kMidpoint}, {"heun", DpmSolverType::kHeun},    {"logrho", DpmSolverType::kMidpoint},
    {"bh1", DpmSolverType::kMidpoint},      {"bh2", DpmSolverType::kMidpoint},
};
constexpr Named<FinalSigma> kFinalSigmas[] = {{"zero", FinalSigma::kZero}, {"sigma_min", FinalSigma::kSigmaMin}};
constexpr Named<SigmaInterpolation> kInterpolations[] = {
    {"linear", SigmaInterpolation::kLinear},
    {"log_linear", SigmaInterpolation::kLogLinear},
};
constexpr Named<TimestepType> kTimestepTypes[] = {
    {"discrete", TimestepType::kDiscrete},
    {"continuous", TimestepType::kContinuous},
};
constexpr Named<TimeShiftType> kTimeShiftTypes[] = {
    {"exponential", TimeShiftType::kExponential},
    {"linear", TimeShiftType::kLinear},
};

std::span<const Named<PredictionType>> Names(PredictionType) { return kPredictionTypes; }
std::span<const Named<BetaSchedule>> Names(BetaSchedule) { return kBetaSchedules; }
std::span<const Named<TimestepSpacing>> Names(TimestepSpacing) { return kTimestepSpacings; }
std::span<const Named<VarianceType>> Names(VarianceType) { return kVarianceTypes; }
std::span<const Named<DpmAlgorithm>> Names(DpmAlgorithm) { return kDpmAlgorithms; }
std::span<const Named<DpmSolverType>> Names(DpmSolverType) { return kDpmSolverTypes; }
std::span<const Named<FinalSigma>> Names(FinalSigma) { return kFinalSigmas; }
std::span<const Named<SigmaInterpolation>> Names(SigmaInterpolation) { return kInterpolations; }
std::span<const Named<TimestepType>> Names(TimestepType) { return kTimestepTypes; }
std::span<const Named<TimeShiftType>> Names(TimeShiftType) { return kTimeShiftTypes; }

template <typename Enum>
std::string NameOf(Enum value) {
  for (const auto& [name, other] : Names(value)) {
    if (other == value) return std::string(name);
  }
  return "";
}

template <typename Enum>
std::string ValidNames(std::span<const Named<Enum>> names) {
  std::vector<std::string> valid;
  std::vector<Enum> seen;
  for (const auto& [name, value] : names) {
    if (std::find(seen.begin(), seen.end(), value) != seen.end()) continue;
    seen.push_back(value);
    valid.emplace_back(name);
  }
  return absl::StrJoin(valid, ", ");
}

// What a number may be. The same for every class.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
};
constexpr double kTiny = std::numeric_limits<double>::min();  // lower bound of what must be positive
constexpr Range kPositive = {kTiny, 1e6};

// Calls visit(name, member[, range]) for every field of the file.
template <typename Visitor>
void ForEachField(Visitor&& visit) {
  using C = SamplerConfig;
  visit("num_train_timesteps", &C::num_train_timesteps, Range{2, 100000});
  visit("prediction_type", &C::prediction_type, Range{});
  visit("beta_schedule", &C::beta_schedule, Range{});
  visit("beta_start", &C::beta_start, Range{kTiny, 1});
  visit("beta_end", &C::beta_end, Range{kTiny, 1});
  visit("trained_betas", &C::trained_betas, Range{});
  visit("rescale_betas_zero_snr", &C::rescale_betas_zero_snr, Range{});
  visit("timestep_spacing", &C::timestep_spacing, Range{});
  visit("steps_offset", &C::steps_offset, Range{0, 100000});
  visit("clip_sample", &C::clip_sample, Range{});
  visit("clip_sample_range", &C::clip_sample_range, kPositive);
  visit("thresholding", &C::thresholding, Range{});
  visit("dynamic_thresholding_ratio", &C::dynamic_thresholding_ratio, Range{0, 1});
  visit("sample_max_value", &C::sample_max_value, kPositive);
  visit("variance_type", &C::variance_type, Range{});
  visit("set_alpha_to_one", &C::set_alpha_to_one, Range{});
  visit("use_karras_sigmas", &C::use_karras_sigmas, Range{});
  visit("use_exponential_sigmas", &C::use_exponential_sigmas, Range{});
  visit("use_beta_sigmas", &C::use_beta_sigmas, Range{});
  visit("sigma_min", &C::sigma_min, kPositive);
  visit("sigma_max", &C::sigma_max, kPositive);
  visit("final_sigmas_type", &C::final_sigmas_type, Range{});
  visit("interpolation_type", &C::interpolation_type, Range{});
  visit("timestep_type", &C::timestep_type, Range{});
  visit("algorithm_type", &C::algorithm_type, Range{});
  visit("solver_type", &C::solver_type, Range{});
  visit("solver_order", &C::solver_order, Range{1, 3});
  visit("lower_order_final", &C::lower_order_final, Range{});
  visit("euler_at_final", &C::euler_at_final, Range{});
  visit("use_lu_lambdas", &C::use_lu_lambdas, Range{});
  visit("use_flow_sigmas", &C::use_flow_sigmas, Range{});
  visit("flow_shift", &C::flow_shift, kPositive);
  visit("lambda_min_clipped", &C::lambda_min_clipped, Range{});
  visit("shift", &C::shift, kPositive);
  visit("use_dynamic_shifting", &C::use_dynamic_shifting, Range{});
  visit("time_shift_type", &C::time_shift_type, Range{});
  visit("base_shift", &C::base_shift, Range{-1e3, 1e3});
  visit("max_shift", &C::max_shift, Range{-1e3, 1e3});
  visit("base_image_seq_len", &C::base_image_seq_len, Range{1, 1e9});
  visit("max_image_seq_len", &C::max_image_seq_len, Range{1, 1e9});
  visit("shift_terminal", &C::shift_terminal, Range{0, 0.999999});
  visit("invert_sigmas", &C::invert_sigmas, Range{});
  visit("stochastic_sampling", &C::stochastic_sampling, Range{});
}

template <typename T>
void ReadField(ConfigReader& reader, std::string_view name, Range range, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = reader.Bool(name, value);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    value = reader.Int(name, value, static_cast<int64_t>(range.min), static_cast<int64_t>(range.max));
  } else if constexpr (std::is_same_v<T, double>) {
    value = reader.Number(name, value, range.min, range.max);
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    const bool has = reader.Has(name);
    const double number = reader.Number(name, 1.0, range.min, range.max);
    if (has) value = number;
  } else if constexpr (std::is_same_v<T, std::vector<double>>) {
    value = reader.Numbers(name, value);
  } else {
    const std::string text = reader.String(name, NameOf(value));
    for (const auto& [valid, meaning] : Names(value)) {
      if (valid == text) {
        value = meaning;
        return;
      }
    }
    reader.AddError(name, absl::StrCat("it must be one of ", ValidNames(Names(value))));
  }
}

absl::Status Refused(const std::string& field, const std::string& value, const std::string& valid) {
  return absl::InvalidArgumentError(
      absl::StrCat("scheduler_config.json: field \"", field, "\" is ", value, "; ", valid));
}

absl::Status ValidateDpmSolver(const SamplerConfig& config) {
  const bool plus_plus = config.algorithm_type == DpmAlgorithm::kDpmSolverPlusPlus ||
                         config.algorithm_type == DpmAlgorithm::kSdeDpmSolverPlusPlus;
  const std::string algorithm = absl::StrCat("\"", NameOf(config.algorithm_type), "\"");
  if (config.use_lu_lambdas) {
    return Refused("use_lu_lambdas", "true", "it must be false; use_karras_sigmas is the nearest choice");
  }
  if (config.variance_type == VarianceType::kLearned || config.variance_type == VarianceType::kLearnedRange) {
    return Refused("variance_type", absl::StrCat("\"", NameOf(config.variance_type), "\""),
                   "it must be null: the pipeline drops a learned variance before the sampler");
  }
  if (!plus_plus && config.final_sigmas_type == FinalSigma::kZero) {
    return Refused("final_sigmas_type", "\"zero\"",
                   absl::StrCat("it must be \"sigma_min\" for algorithm_type ", algorithm,
                                ", or use algorithm_type \"dpmsolver++\""));
  }
  if (config.algorithm_type == DpmAlgorithm::kSdeDpmSolver && config.solver_order == 3) {
    return Refused("solver_order", "3",
                   "it must be 1 or 2 for algorithm_type \"sde-dpmsolver\", or use \"sde-dpmsolver++\"");
  }
  if (config.prediction_type == PredictionType::kFlow && !config.use_flow_sigmas) {
    return Refused("prediction_type", "\"flow_prediction\"", "it needs use_flow_sigmas: true");
  }
  if (config.prediction_type == PredictionType::kFlow && !plus_plus) {
    return Refused("algorithm_type", algorithm,
                   "it must be dpmsolver++ or sde-dpmsolver++ for prediction_type \"flow_prediction\"");
  }
  if (config.use_flow_sigmas && (config.use_karras_sigmas || config.use_exponential_sigmas)) {
    return Refused("use_flow_sigmas", "true",
                   "it must be false with use_karras_sigmas or use_exponential_sigmas, which follow the noise table");
  }
  if (config.use_dynamic_shifting && config.time_shift_type != TimeShiftType::kExponential) {
    return Refused("time_shift_type", "\"linear\"",
                   "it must be \"exponential\" for DPMSolverMultistepScheduler with use_dynamic_shifting");
  }
  return absl::OkStatus();
}

// DPM-Solver names by order and sigmas; order 0: the config's own.
struct DpmName {
  std::string_view name;
  int order;
  bool karras;
};
constexpr DpmName kDpmNames[] = {
    {"dpm++1", 1, false},       {"dpm++2", 2, false},       {"dpm++3", 3, false},      {"dpm++1-karras", 1, true},
    {"dpm++2-karras", 2, true}, {"dpm++3-karras", 3, true}, {"dpm++-karras", 0, true},
};

}  // namespace

std::string PredictionTypeName(PredictionType type) { return NameOf(type); }

SamplerConfig DefaultSamplerConfig(SamplerClass sampler) {
  SamplerConfig config{.sampler = sampler};
  if (sampler == SamplerClass::kEuler || sampler == SamplerClass::kDpmSolver) {
    config.timestep_spacing = TimestepSpacing::kLinspace;
  }
  if (sampler == SamplerClass::kFlowEuler) config.prediction_type = PredictionType::kFlow;
  return config;
}

bool IsFlow(const SamplerConfig& config) {
  return config.sampler == SamplerClass::kFlowEuler ||
         (config.sampler == SamplerClass::kDpmSolver && config.use_flow_sigmas);
}

absl::Status ValidateSamplerConfig(const SamplerConfig& config) {
  const SamplerClass sampler = config.sampler;
  if (sampler == SamplerClass::kEuler || sampler == SamplerClass::kDpmSolver || sampler == SamplerClass::kFlowEuler) {
    if (config.use_beta_sigmas) {
      return Refused("use_beta_sigmas", "true", "it must be false; use_karras_sigmas is the nearest choice");
    }
    if (config.use_karras_sigmas && config.use_exponential_sigmas) {
      return Refused("use_karras_sigmas", "true", "only one of it and use_exponential_sigmas can be true");
    }
    if (config.sigma_min && config.sigma_max && *config.sigma_min > *config.sigma_max) {
      return Refused("sigma_min", absl::StrCat(*config.sigma_min),
                     absl::StrCat("it must not be above sigma_max, ", *config.sigma_max));
    }
  }
  if (sampler == SamplerClass::kFlowEuler) return absl::OkStatus();

  if (sampler != SamplerClass::kDdpm &&
      (config.beta_schedule == BetaSchedule::kSigmoid || config.beta_schedule == BetaSchedule::kLaplace)) {
    return Refused("beta_schedule", absl::StrCat("\"", NameOf(config.beta_schedule), "\""),
                   "it must be linear, scaled_linear or squaredcos_cap_v2 for every class but DDPMScheduler");
  }
  if (!config.trained_betas.empty()) {
    if (static_cast<int64_t>(config.trained_betas.size()) != config.num_train_timesteps) {
      return Refused("trained_betas", absl::StrCat("a list of ", config.trained_betas.size(), " values"),
                     absl::StrCat("it must have num_train_timesteps = ", config.num_train_timesteps, " values"));
    }
    for (double beta : config.trained_betas) {
      if (!(beta > 0 && beta < 1)) {
        return Refused("trained_betas", absl::StrCat("a list with ", beta), "every value must be in (0, 1)");
      }
    }
  }
  if (config.prediction_type == PredictionType::kFlow && sampler != SamplerClass::kDpmSolver) {
    return Refused("prediction_type", "\"flow_prediction\"",
                   "it must be epsilon, sample or v_prediction for this class");
  }
  if (sampler == SamplerClass::kDdpm && config.variance_type != VarianceType::kFixedSmall &&
      config.variance_type != VarianceType::kFixedSmallLog && config.variance_type != VarianceType::kFixedLarge) {
    return Refused("variance_type", absl::StrCat("\"", NameOf(config.variance_type), "\""),
                   "it must be fixed_small, fixed_small_log or fixed_large");
  }
  if (sampler == SamplerClass::kDpmSolver) return ValidateDpmSolver(config);
  return absl::OkStatus();
}

absl::StatusOr<SamplerConfig> ParseSamplerConfig(ConfigReader& reader) {
  const std::string class_name = reader.RequiredString("_class_name");
  return reader.status().ok() ? ParseSamplerConfig(reader, class_name) : reader.status();
}

absl::StatusOr<SamplerConfig> ParseSamplerConfig(ConfigReader& reader, const std::string& class_name) {
  const auto* known = std::find_if(std::begin(kClasses), std::end(kClasses),
                                   [&](const auto& candidate) { return candidate.name == class_name; });
  if (known == std::end(kClasses)) {
    reader.AddError("_class_name", absl::StrCat("it must be one of ", ValidNames<SamplerClass>(kClasses)));
    return reader.status();
  }
  SamplerConfig config = DefaultSamplerConfig(known->value);
  ForEachField([&](std::string_view name, auto member, Range range) {
    if (reader.Has(name)) config.given.emplace(name);
    ReadField(reader, name, range, config.*member);
  });
  if (config.sampler == SamplerClass::kFlowEuler) config.prediction_type = PredictionType::kFlow;
  if (!reader.status().ok()) return reader.status();
  RETURN_IF_ERROR(ValidateSamplerConfig(config));
  return config;
}

std::vector<std::string> ValidSamplers(const SamplerConfig& config) {
  if (IsFlow(config)) {
    if (config.use_dynamic_shifting && config.time_shift_type == TimeShiftType::kLinear) return {"flow-euler"};
    return {"flow-euler", "dpm++", "dpm++1", "dpm++2", "dpm++3", "dpm++-sde"};
  }
  std::vector<std::string> names = {"ddpm", "ddim", "euler", "dpm++"};
  for (const DpmName& dpm : kDpmNames) names.emplace_back(dpm.name);
  names.push_back("dpm++-sde");
  return names;
}

absl::StatusOr<SamplerConfig> WithSampler(const SamplerConfig& model_config, std::string_view name) {
  const std::vector<std::string> valid = ValidSamplers(model_config);
  if (std::find(valid.begin(), valid.end(), name) == valid.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampler is ", Quote(name), "; this model predicts ",
                     IsFlow(model_config) ? std::string("a flow") : PredictionTypeName(model_config.prediction_type),
                     " and takes one of ", absl::StrJoin(valid, ", ")));
  }
  const SamplerClass sampler = name == "ddpm"         ? SamplerClass::kDdpm
                               : name == "ddim"       ? SamplerClass::kDdim
                               : name == "euler"      ? SamplerClass::kEuler
                               : name == "flow-euler" ? SamplerClass::kFlowEuler
                                                      : SamplerClass::kDpmSolver;
  const bool flow = IsFlow(model_config);
  SamplerConfig config = model_config;
  if (sampler != model_config.sampler) {
    config = DefaultSamplerConfig(sampler);
    config.given = model_config.given;
    config.eta = model_config.eta;
    ForEachField([&](std::string_view field, auto member, Range) {
      if (model_config.given.contains(field)) config.*member = model_config.*member;
    });
    config.prediction_type = model_config.prediction_type;
    if (flow && sampler == SamplerClass::kDpmSolver) {
      config.use_flow_sigmas = true;
      config.flow_shift = model_config.shift;
      config.use_karras_sigmas = config.use_exponential_sigmas = false;
    } else if (flow) {
      config.prediction_type = PredictionType::kFlow;
      config.shift = model_config.flow_shift;
    }
  }
  if (sampler == SamplerClass::kDpmSolver) {
    config.algorithm_type =
        name == "dpm++-sde" ? DpmAlgorithm::kSdeDpmSolverPlusPlus : DpmAlgorithm::kDpmSolverPlusPlus;
    for (const DpmName& dpm : kDpmNames) {
      if (dpm.name != name) continue;
      if (dpm.order > 0) config.solver_order = dpm.order;
      config.use_karras_sigmas = dpm.karras;
      if (dpm.karras) config.use_exponential_sigmas = false;
    }
  }
  RETURN_IF_ERROR(ValidateSamplerConfig(config));
  return config;
}

std::string SamplerName(const SamplerConfig& config) {
  switch (config.sampler) {
    case SamplerClass::kDdpm:
      return "ddpm";
    case SamplerClass::kDdim:
      return "ddim";
    case SamplerClass::kEuler:
      return "euler";
    case SamplerClass::kFlowEuler:
      return "flow-euler";
    case SamplerClass::kDpmSolver:
      break;
  }
  const bool sde = config.algorithm_type == DpmAlgorithm::kSdeDpmSolver ||
                   config.algorithm_type == DpmAlgorithm::kSdeDpmSolverPlusPlus;
  const bool plus_plus = config.algorithm_type == DpmAlgorithm::kDpmSolverPlusPlus ||
                         config.algorithm_type == DpmAlgorithm::kSdeDpmSolverPlusPlus;
  if (sde) return plus_plus ? "dpm++-sde" : "dpm-sde";
  return absl::StrCat(plus_plus ? "dpm++" : "dpm", config.solver_order, config.use_karras_sigmas ? "-karras" : "");
}

}  // namespace tessera
