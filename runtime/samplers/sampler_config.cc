#include "runtime/samplers/sampler_config.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/enum_names.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace tessera::runtime {

constexpr auto NamesOf(PredictionType) { return std::array{"epsilon", "sample", "v_prediction", "flow_prediction"}; }
constexpr auto NamesOf(BetaSchedule) {
  return std::array{"linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid", "laplace"};
}
constexpr auto NamesOf(TimestepSpacing) { return std::array{"linspace", "leading", "trailing"}; }
constexpr auto NamesOf(VarianceType) {
  return std::array{"fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log", "learned", "learned_range"};
}
constexpr auto NamesOf(DpmAlgorithm) {
  return std::array{"dpmsolver", "dpmsolver++", "sde-dpmsolver", "sde-dpmsolver++"};
}
constexpr auto NamesOf(DpmSolverType) { return std::array{"midpoint", "heun"}; }
constexpr auto NamesOf(FinalSigma) { return std::array{"zero", "sigma_min"}; }
constexpr auto NamesOf(SigmaInterpolation) { return std::array{"linear", "log_linear"}; }
constexpr auto NamesOf(TimestepType) { return std::array{"discrete", "continuous"}; }
constexpr auto NamesOf(TimeShiftType) { return std::array{"exponential", "linear"}; }

namespace {

// Aliases. DEIS and UniPC configurations are read as DPM-Solver++ with midpoints, like in the reference.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {{"original_sample", "sample"},
                                                                      {"deis", "dpmsolver++"},
                                                                      {"logrho", "midpoint"},
                                                                      {"bh1", "midpoint"},
                                                                      {"bh2", "midpoint"}};

// The valid range of a number, the same for every class.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
};
constexpr double kTiny = std::numeric_limits<double>::min();  // lower bound of values that must be positive
constexpr Range kPositive = {kTiny, 1e6};

// Calls visit(name, member, range) for every field of the file. The member's class is the part that has it.
template <typename Visitor>
void ForEachField(Visitor&& visit) {
  visit("num_train_timesteps", &SamplerConfig::num_train_timesteps, Range{2, 100000});
  visit("prediction_type", &SamplerConfig::prediction_type, Range{});
  visit("beta_schedule", &NoiseTable::beta_schedule, Range{});
  visit("beta_start", &NoiseTable::beta_start, Range{kTiny, 1});
  visit("beta_end", &NoiseTable::beta_end, Range{kTiny, 1});
  visit("trained_betas", &NoiseTable::trained_betas, Range{});
  visit("rescale_betas_zero_snr", &NoiseTable::rescale_betas_zero_snr, Range{});
  visit("timestep_spacing", &NoiseTable::timestep_spacing, Range{});
  visit("steps_offset", &NoiseTable::steps_offset, Range{0, 100000});
  visit("clip_sample", &Clipping::clip_sample, Range{});
  visit("clip_sample_range", &Clipping::clip_sample_range, kPositive);
  visit("thresholding", &Thresholding::thresholding, Range{});
  visit("dynamic_thresholding_ratio", &Thresholding::dynamic_thresholding_ratio, Range{0, 1});
  visit("sample_max_value", &Thresholding::sample_max_value, kPositive);
  visit("variance_type", &Variance::variance_type, Range{});
  visit("set_alpha_to_one", &DdimOptions::set_alpha_to_one, Range{});
  visit("use_karras_sigmas", &SigmaSpacing::use_karras_sigmas, Range{});
  visit("use_exponential_sigmas", &SigmaSpacing::use_exponential_sigmas, Range{});
  visit("use_beta_sigmas", &SigmaSpacing::use_beta_sigmas, Range{});
  visit("sigma_min", &SigmaSpacing::sigma_min, kPositive);
  visit("sigma_max", &SigmaSpacing::sigma_max, kPositive);
  visit("final_sigmas_type", &TableSigmas::final_sigmas_type, Range{});
  visit("interpolation_type", &EulerOptions::interpolation_type, Range{});
  visit("timestep_type", &EulerOptions::timestep_type, Range{});
  visit("algorithm_type", &DpmSolverOptions::algorithm_type, Range{});
  visit("solver_type", &DpmSolverOptions::solver_type, Range{});
  visit("solver_order", &DpmSolverOptions::solver_order, Range{1, 3});
  visit("lower_order_final", &DpmSolverOptions::lower_order_final, Range{});
  visit("euler_at_final", &DpmSolverOptions::euler_at_final, Range{});
  visit("use_lu_lambdas", &DpmSolverOptions::use_lu_lambdas, Range{});
  visit("use_flow_sigmas", &DpmSolverOptions::use_flow_sigmas, Range{});
  visit("flow_shift", &DpmSolverOptions::flow_shift, kPositive);
  visit("lambda_min_clipped", &DpmSolverOptions::lambda_min_clipped, Range{});
  visit("shift", &FlowLevels::shift, kPositive);
  visit("use_dynamic_shifting", &DynamicShift::use_dynamic_shifting, Range{});
  visit("time_shift_type", &DynamicShift::time_shift_type, Range{});
  visit("base_shift", &DynamicShift::base_shift, Range{-1e3, 1e3});
  visit("max_shift", &DynamicShift::max_shift, Range{-1e3, 1e3});
  visit("base_image_seq_len", &DynamicShift::base_image_seq_len, Range{1, 1e9});
  visit("max_image_seq_len", &DynamicShift::max_image_seq_len, Range{1, 1e9});
  visit("shift_terminal", &FlowLevels::shift_terminal, Range{0, 0.999999});
  visit("invert_sigmas", &FlowLevels::invert_sigmas, Range{});
  visit("stochastic_sampling", &FlowEulerOptions::stochastic_sampling, Range{});
}

template <typename T>
void ReadField(base::ConfigReader& reader, std::string_view name, Range range, T& value) {
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
    const std::string text = reader.String(name, base::EnumName(value));
    const auto* alias = std::ranges::find(kAliases, text, [](const auto& pair) { return pair.first; });
    const std::optional<T> known = base::EnumOf<T>(alias == std::end(kAliases) ? text : alias->second);
    value = known.value_or(value);
    if (!known) reader.AddError(name, absl::StrCat("it must be one of ", absl::StrJoin(base::EnumNames<T>(), ", ")));
  }
}

// Reads the fields of the config's class, and checks those of other classes.
void ReadFields(base::ConfigReader& reader, SamplerConfig& config) {
  config.file = reader.json();
  ForEachField([&]<typename Part, typename T>(std::string_view name, T Part::*member, Range range) {
    Part another;
    Part* own = config.Find<Part>();
    ReadField(reader, name, range, (own == nullptr ? &another : own)->*member);
  });
  if (config.Find<NoiseTable>() == nullptr) config.prediction_type = PredictionType::kFlow;
}

// The classes in the order of SamplerOptions, with their names in the file and for a user.
struct SamplerClass {
  std::string_view file_name;
  std::string_view name;  // DPM-Solver has the names in kDpmNames
  SamplerOptions (*defaults)();
};
constexpr SamplerClass kClasses[] = {
    {"DDPMScheduler", "ddpm", [] { return SamplerOptions(DdpmOptions()); }},
    {"DDIMScheduler", "ddim", [] { return SamplerOptions(DdimOptions()); }},
    {"EulerDiscreteScheduler", "euler", [] { return SamplerOptions(EulerOptions()); }},
    {"DPMSolverMultistepScheduler", "", [] { return SamplerOptions(DpmSolverOptions()); }},
    {"FlowMatchEulerDiscreteScheduler", "flow-euler", [] { return SamplerOptions(FlowEulerOptions()); }},
};
static_assert(std::size(kClasses) == std::variant_size_v<SamplerOptions>);

absl::Status Refused(const std::string& field, const std::string& value, const std::string& valid) {
  return absl::InvalidArgumentError(
      absl::StrCat("scheduler_config.json: field \"", field, "\" is ", value, "; ", valid));
}

bool IsPlusPlus(DpmAlgorithm algorithm) {
  return algorithm == DpmAlgorithm::kDpmSolverPlusPlus || algorithm == DpmAlgorithm::kSdeDpmSolverPlusPlus;
}

absl::Status ValidateDpmSolver(const DpmSolverOptions& options, PredictionType prediction) {
  const bool plus_plus = IsPlusPlus(options.algorithm_type);
  const std::string algorithm = absl::StrCat("\"", base::EnumName(options.algorithm_type), "\"");
  if (options.use_lu_lambdas) {
    return Refused("use_lu_lambdas", "true", "it must be false; use_karras_sigmas is the nearest choice");
  }
  if (options.variance_type == VarianceType::kLearned || options.variance_type == VarianceType::kLearnedRange) {
    return Refused("variance_type", absl::StrCat("\"", base::EnumName(options.variance_type), "\""),
                   "it must be null: the pipeline drops a learned variance before the sampler");
  }
  if (!plus_plus && options.final_sigmas_type == FinalSigma::kZero) {
    return Refused("final_sigmas_type", "\"zero\"",
                   absl::StrCat("it must be \"sigma_min\" for algorithm_type ", algorithm,
                                ", or use algorithm_type \"dpmsolver++\""));
  }
  if (options.algorithm_type == DpmAlgorithm::kSdeDpmSolver && options.solver_order == 3) {
    return Refused("solver_order", "3",
                   "it must be 1 or 2 for algorithm_type \"sde-dpmsolver\", or use \"sde-dpmsolver++\"");
  }
  if (prediction == PredictionType::kFlow && !options.use_flow_sigmas) {
    return Refused("prediction_type", "\"flow_prediction\"", "it needs use_flow_sigmas: true");
  }
  if (prediction == PredictionType::kFlow && !plus_plus) {
    return Refused("algorithm_type", algorithm,
                   "it must be dpmsolver++ or sde-dpmsolver++ for prediction_type \"flow_prediction\"");
  }
  if (options.use_flow_sigmas && (options.use_karras_sigmas || options.use_exponential_sigmas)) {
    return Refused("use_flow_sigmas", "true",
                   "it must be false with use_karras_sigmas or use_exponential_sigmas, which follow the noise table");
  }
  if (options.use_dynamic_shifting && options.time_shift_type != TimeShiftType::kExponential) {
    return Refused("time_shift_type", "\"linear\"",
                   "it must be \"exponential\" for DPMSolverMultistepScheduler with use_dynamic_shifting");
  }
  return absl::OkStatus();
}

// The names of DPM-Solver, with the options that each implies.
struct DpmName {
  std::string_view name;
  std::optional<int> order;
  std::optional<bool> karras;
  bool stochastic = false;
};
constexpr DpmName kDpmNames[] = {
    {"dpm++"},
    {"dpm++1", 1, false},
    {"dpm++2", 2, false},
    {"dpm++3", 3, false},
    {"dpm++1-karras", 1, true},
    {"dpm++2-karras", 2, true},
    {"dpm++3-karras", 3, true},
    {"dpm++-karras", {}, true},
    {"dpm++-sde", {}, {}, true},
};

// Gives a sampler of another class the shift of a flow model.
void TakeShift(const SamplerConfig& from, SamplerConfig& to) {
  const auto* levels = from.Find<FlowLevels>();
  const double shift = levels != nullptr ? levels->shift : from.Find<DpmSolverOptions>()->flow_shift;
  if (auto* own = to.Find<FlowLevels>()) own->shift = shift;
  if (auto* solver = to.Find<DpmSolverOptions>()) {
    solver->use_flow_sigmas = true;
    solver->flow_shift = shift;
    solver->use_karras_sigmas = solver->use_exponential_sigmas = false;
  }
}

}  // namespace

std::string PredictionTypeName(PredictionType type) { return base::EnumName(type); }

std::optional<PredictionType> PredictionTypeOf(std::string_view name) { return base::EnumOf<PredictionType>(name); }

SamplerConfig DefaultSamplerConfig(SamplerOptions options) {
  SamplerConfig config{.options = std::move(options)};
  if (config.Find<NoiseTable>() == nullptr) config.prediction_type = PredictionType::kFlow;
  return config;
}

bool IsFlow(const SamplerConfig& config) {
  const auto* solver = config.Find<DpmSolverOptions>();
  return config.Find<NoiseTable>() == nullptr || (solver != nullptr && solver->use_flow_sigmas);
}

absl::Status ValidateSamplerConfig(const SamplerConfig& config) {
  if (const auto* sigmas = config.Find<SigmaSpacing>()) {
    if (sigmas->use_beta_sigmas) {
      return Refused("use_beta_sigmas", "true", "it must be false; use_karras_sigmas is the nearest choice");
    }
    if (sigmas->use_karras_sigmas && sigmas->use_exponential_sigmas) {
      return Refused("use_karras_sigmas", "true", "only one of it and use_exponential_sigmas can be true");
    }
    if (sigmas->sigma_min && sigmas->sigma_max && *sigmas->sigma_min > *sigmas->sigma_max) {
      return Refused("sigma_min", absl::StrCat(*sigmas->sigma_min),
                     absl::StrCat("it must not be above sigma_max, ", *sigmas->sigma_max));
    }
  }
  const auto* table = config.Find<NoiseTable>();
  if (table == nullptr) return absl::OkStatus();

  const auto* ddpm = config.Find<DdpmOptions>();
  const auto* solver = config.Find<DpmSolverOptions>();
  if (ddpm == nullptr &&
      (table->beta_schedule == BetaSchedule::kSigmoid || table->beta_schedule == BetaSchedule::kLaplace)) {
    return Refused("beta_schedule", absl::StrCat("\"", base::EnumName(table->beta_schedule), "\""),
                   "it must be linear, scaled_linear or squaredcos_cap_v2 for every class but DDPMScheduler");
  }
  if (!table->trained_betas.empty()) {
    if (static_cast<int64_t>(table->trained_betas.size()) != config.num_train_timesteps) {
      return Refused("trained_betas", absl::StrCat("a list of ", table->trained_betas.size(), " values"),
                     absl::StrCat("it must have num_train_timesteps = ", config.num_train_timesteps, " values"));
    }
    for (double beta : table->trained_betas) {
      if (!(beta > 0 && beta < 1)) {
        return Refused("trained_betas", absl::StrCat("a list with ", beta), "every value must be in (0, 1)");
      }
    }
  }
  if (solver != nullptr) return ValidateDpmSolver(*solver, config.prediction_type);
  if (config.prediction_type == PredictionType::kFlow) {
    return Refused("prediction_type", "\"flow_prediction\"",
                   "it must be epsilon, sample or v_prediction for this class");
  }
  if (ddpm != nullptr && ddpm->variance_type != VarianceType::kFixedSmall &&
      ddpm->variance_type != VarianceType::kFixedSmallLog && ddpm->variance_type != VarianceType::kFixedLarge) {
    return Refused("variance_type", absl::StrCat("\"", base::EnumName(ddpm->variance_type), "\""),
                   "it must be fixed_small, fixed_small_log or fixed_large");
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplerConfig> ParseSamplerConfig(base::ConfigReader& reader) {
  const std::string class_name = reader.RequiredString("_class_name");
  return reader.status().ok() ? ParseSamplerConfig(reader, class_name) : reader.status();
}

absl::StatusOr<SamplerConfig> ParseSamplerConfig(base::ConfigReader& reader, const std::string& class_name) {
  const auto* known = std::ranges::find(kClasses, class_name, &SamplerClass::file_name);
  if (known == std::end(kClasses)) {
    const auto add_name = [](std::string* out, const SamplerClass& candidate) {
      absl::StrAppend(out, std::string(candidate.file_name));
    };
    reader.AddError("_class_name", absl::StrCat("it must be one of ", absl::StrJoin(kClasses, ", ", add_name)));
    return reader.status();
  }
  SamplerConfig config = DefaultSamplerConfig(known->defaults());
  ReadFields(reader, config);
  if (!reader.status().ok()) return reader.status();
  RETURN_IF_ERROR(ValidateSamplerConfig(config));
  return config;
}

std::vector<std::string> ValidSamplers(const SamplerConfig& config) {
  const bool flow = IsFlow(config);
  std::vector<std::string> names;
  for (const SamplerClass& candidate : kClasses) {
    const SamplerConfig other = DefaultSamplerConfig(candidate.defaults());
    if (!candidate.name.empty() && IsFlow(other) == flow) names.emplace_back(candidate.name);
  }
  const auto* shift = config.Find<DynamicShift>();
  if (flow && shift->use_dynamic_shifting && shift->time_shift_type == TimeShiftType::kLinear) return names;
  for (const DpmName& dpm : kDpmNames) {
    if (!flow || !dpm.karras.value_or(false)) names.emplace_back(dpm.name);
  }
  return names;
}

absl::StatusOr<SamplerConfig> WithSampler(const SamplerConfig& model_config, std::string_view name) {
  const std::vector<std::string> valid = ValidSamplers(model_config);
  const bool flow = IsFlow(model_config);
  if (std::find(valid.begin(), valid.end(), name) == valid.end()) {
    return base::ErrorOfField(
        "sampler", absl::StrCat(" is ", base::Quote(name), "; this model predicts ",
                                flow ? std::string("a flow") : PredictionTypeName(model_config.prediction_type),
                                " and takes one of ", absl::StrJoin(valid, ", ")));
  }
  const auto* dpm = std::ranges::find(kDpmNames, name, &DpmName::name);
  const auto* named = std::ranges::find(kClasses, dpm == std::end(kDpmNames) ? name : "", &SamplerClass::name);
  SamplerConfig config = DefaultSamplerConfig(named->defaults());
  if (config.options.index() == model_config.options.index()) {
    config = model_config;
  } else {
    if (!model_config.file.is_null()) {
      ASSIGN_OR_RETURN(base::ConfigReader reader,
                       base::ConfigReader::FromJson(model_config.file, "scheduler_config.json"));
      ReadFields(reader, config);
    }
    if (config.Find<NoiseTable>() != nullptr) config.prediction_type = model_config.prediction_type;
    if (flow) TakeShift(model_config, config);
  }
  if (auto* solver = config.Find<DpmSolverOptions>()) {
    solver->algorithm_type = dpm->stochastic ? DpmAlgorithm::kSdeDpmSolverPlusPlus : DpmAlgorithm::kDpmSolverPlusPlus;
    solver->solver_order = dpm->order.value_or(solver->solver_order);
    solver->use_karras_sigmas = dpm->karras.value_or(solver->use_karras_sigmas);
    if (dpm->karras.value_or(false)) solver->use_exponential_sigmas = false;
  }
  RETURN_IF_ERROR(ValidateSamplerConfig(config));
  return config;
}

std::string SamplerName(const SamplerConfig& config) {
  const auto* solver = config.Find<DpmSolverOptions>();
  if (solver == nullptr) return std::string(kClasses[config.options.index()].name);
  const std::string name = IsPlusPlus(solver->algorithm_type) ? "dpm++" : "dpm";
  if (solver->algorithm_type == DpmAlgorithm::kSdeDpmSolver ||
      solver->algorithm_type == DpmAlgorithm::kSdeDpmSolverPlusPlus) {
    return name + "-sde";
  }
  return absl::StrCat(name, solver->solver_order, solver->use_karras_sigmas ? "-karras" : "");
}

}  // namespace tessera::runtime
