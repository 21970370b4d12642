#include "runtime/samplers/sampler_config.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fields/enum_names.h"
#include "base/fields/field_error.h"
#include "base/fields/fields.h"
#include "base/macros/status_macros.h"

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

constexpr double kTiny = std::numeric_limits<double>::min();  // lower bound of values that must be positive
constexpr base::Number kPositive = {kTiny, 1e6};

// The fields of the file, whose valid values are the same for every class. The member's class is the part that has it.
constexpr auto kFileFields =
    std::tuple(base::Field("num_train_timesteps", &SamplerConfig::num_train_timesteps, base::Integer{2, 100000}),
               base::Field("prediction_type", &SamplerConfig::prediction_type),
               base::Field("beta_schedule", &NoiseTable::beta_schedule),
               base::Field("beta_start", &NoiseTable::beta_start, base::Number{kTiny, 1}),
               base::Field("beta_end", &NoiseTable::beta_end, base::Number{kTiny, 1}),
               base::Field("trained_betas", &NoiseTable::trained_betas),
               base::Field("rescale_betas_zero_snr", &NoiseTable::rescale_betas_zero_snr),
               base::Field("timestep_spacing", &NoiseTable::timestep_spacing),
               base::Field("steps_offset", &NoiseTable::steps_offset, base::Integer{0, 100000}),
               base::Field("clip_sample", &Clipping::clip_sample),
               base::Field("clip_sample_range", &Clipping::clip_sample_range, kPositive),
               base::Field("thresholding", &Thresholding::thresholding),
               base::Field("dynamic_thresholding_ratio", &Thresholding::dynamic_thresholding_ratio, base::Number{0, 1}),
               base::Field("sample_max_value", &Thresholding::sample_max_value, kPositive),
               base::Field("variance_type", &Variance::variance_type),
               base::Field("set_alpha_to_one", &DdimOptions::set_alpha_to_one),
               base::Field("use_karras_sigmas", &SigmaSpacing::use_karras_sigmas),
               base::Field("use_exponential_sigmas", &SigmaSpacing::use_exponential_sigmas),
               base::Field("use_beta_sigmas", &SigmaSpacing::use_beta_sigmas),
               base::Field("sigma_min", &SigmaSpacing::sigma_min, kPositive),
               base::Field("sigma_max", &SigmaSpacing::sigma_max, kPositive),
               base::Field("final_sigmas_type", &TableSigmas::final_sigmas_type),
               base::Field("interpolation_type", &EulerOptions::interpolation_type),
               base::Field("timestep_type", &EulerOptions::timestep_type),
               base::Field("algorithm_type", &DpmSolverOptions::algorithm_type),
               base::Field("solver_type", &DpmSolverOptions::solver_type),
               base::Field("solver_order", &DpmSolverOptions::solver_order, base::Integer{1, 3}),
               base::Field("lower_order_final", &DpmSolverOptions::lower_order_final),
               base::Field("euler_at_final", &DpmSolverOptions::euler_at_final),
               base::Field("use_lu_lambdas", &DpmSolverOptions::use_lu_lambdas),
               base::Field("use_flow_sigmas", &DpmSolverOptions::use_flow_sigmas),
               base::Field("flow_shift", &DpmSolverOptions::flow_shift, kPositive),
               base::Field("lambda_min_clipped", &DpmSolverOptions::lambda_min_clipped),
               base::Field("shift", &FlowLevels::shift, kPositive),
               base::Field("use_dynamic_shifting", &DynamicShift::use_dynamic_shifting),
               base::Field("time_shift_type", &DynamicShift::time_shift_type),
               base::Field("base_shift", &DynamicShift::base_shift, base::Number{-1e3, 1e3}),
               base::Field("max_shift", &DynamicShift::max_shift, base::Number{-1e3, 1e3}),
               base::Field("base_image_seq_len", &DynamicShift::base_image_seq_len, base::Integer{1, 1000000000}),
               base::Field("max_image_seq_len", &DynamicShift::max_image_seq_len, base::Integer{1, 1000000000}),
               base::Field("shift_terminal", &FlowLevels::shift_terminal, base::Number{0, 0.999999}),
               base::Field("invert_sigmas", &FlowLevels::invert_sigmas),
               base::Field("stochastic_sampling", &FlowEulerOptions::stochastic_sampling));

template <class T, class Valid>
void ReadField(base::ConfigReader& reader, std::string_view name, const Valid& valid, T& value) {
  if constexpr (std::is_same_v<Valid, base::Flag>) {
    value = reader.Bool(name, value);
  } else if constexpr (std::is_same_v<Valid, base::Integer>) {
    value = reader.Int(name, value, valid.low, static_cast<int64_t>(valid.high));
  } else if constexpr (base::kIsOptional<T>) {
    const bool has = reader.Has(name);
    const double number = reader.Number(name, 1.0, valid.low, valid.high);
    if (has) value = number;
  } else if constexpr (std::is_same_v<Valid, base::Number>) {
    value = reader.Number(name, value, valid.low, valid.high);
  } else if constexpr (base::kIsList<T>) {
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
  const auto read = [&]<class Part, class T, class Valid>(const base::Field<Part, T, Valid>& field) {
    Part another;
    Part* own = config.Find<Part>();
    ReadField(reader, field.name, field.valid, (own == nullptr ? &another : own)->*field.member);
  };
  std::apply([&](const auto&... fields) { (read(fields), ...); }, kFileFields);
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
