#include "runtime/samplers/golden_scheduler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/weights/safetensors.h"
#include "runtime/samplers/forward_process.h"
#include "runtime/samplers/sampler.h"

namespace tessera {
namespace {

// The value as JSON text that ParseJson reads back. Texts here are the names of options and classes.
std::string ToText(const Json& json) {
  switch (json.type()) {
    case Json::Type::kNull:
      return "null";
    case Json::Type::kBool:
      return *json.AsBool() ? "true" : "false";
    case Json::Type::kInt:
      return absl::StrCat(*json.AsInt());
    case Json::Type::kNumber: {
      const double number = *json.AsNumber();
      if (std::isnan(number)) return "NaN";
      if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
      return absl::StrFormat("%.17g", number);
    }
    case Json::Type::kString:
      return absl::StrCat("\"", *json.AsString(), "\"");
    case Json::Type::kArray: {
      std::string text = "[";
      for (const Json& item : json.items()) absl::StrAppend(&text, text.size() > 1 ? "," : "", ToText(item));
      return text + "]";
    }
    case Json::Type::kObject:
      break;
  }
  std::string text = "{";
  for (const auto& [key, value] : json.members()) {
    absl::StrAppend(&text, text.size() > 1 ? "," : "", "\"", key, "\":", ToText(value));
  }
  return text + "}";
}

// A member by name; a shared null if there is none.
const Json& Member(const Json& json, std::string_view key) {
  static const Json kNull;
  const Json* member = json.Find(key);
  return member == nullptr ? kNull : *member;
}

absl::StatusOr<SamplerConfig> CaseConfig(const Json& arguments) {
  const std::string* class_name = Member(arguments, "class").AsString();
  if (class_name == nullptr) return absl::InvalidArgumentError("the case's arguments must have a class");
  absl::StatusOr<SamplerConfig> parsed = GoldenSamplerConfig(*class_name, Member(arguments, "config"));
  if (!parsed.ok()) return parsed;
  for (const auto& [key, value] : Member(arguments, "step").members()) {
    if (key != "eta" || !value.AsNumber()) {
      return absl::UnimplementedError(absl::StrCat("unknown argument of step(): ", key));
    }
    parsed->eta = *value.AsNumber();
  }
  return parsed;
}

absl::StatusOr<ScheduleOptions> CaseOptions(const Json& arguments, int steps) {
  ScheduleOptions options;
  for (const auto& [key, value] : Member(arguments, "set_timesteps").members()) {
    if (key != "mu" || !value.AsNumber()) {
      return absl::UnimplementedError(absl::StrCat("unknown argument of set_timesteps(): ", key));
    }
    options.mu = *value.AsNumber();
  }
  const Json& given = Member(arguments, "sigmas_given");
  if (given.is_null()) return options;
  if (given.AsString() == nullptr || *given.AsString() != "linspace(1, 1/n, n)") {
    return absl::UnimplementedError(absl::StrCat("unknown sigmas_given: ", given.Describe()));
  }
  std::vector<double> sigmas(steps);
  for (int i = 0; i < steps; ++i) sigmas[i] = 1.0 - static_cast<double>(i) / steps;
  options.sigmas = std::move(sigmas);
  return options;
}

class CaseFile {
 public:
  explicit CaseFile(SafetensorsFile file) : file_(std::move(file)) {}

  bool Has(const std::string& name) const { return file_.Find(name) != nullptr; }

  absl::StatusOr<at::Tensor> Get(const std::string& name) const {
    const StoredTensor* stored = file_.Find(name);
    if (stored == nullptr) return absl::NotFoundError(absl::StrCat("the case's file has no tensor ", name));
    at::ScalarType type = at::kFloat;
    if (stored->type == StoredType::kF64) {
      type = at::kDouble;
    } else if (stored->type == StoredType::kI64) {
      type = at::kLong;
    } else if (stored->type != StoredType::kF32) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is ", StoredTypeName(stored->type)));
    }
    at::Tensor tensor = at::empty(stored->shape, type);
    const auto bytes = std::span(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes());
    if (absl::Status status = file_.Read(*stored, 0, bytes); !status.ok()) return status;
    return tensor;
  }

 private:
  SafetensorsFile file_;
};

at::Tensor ToTensor(std::span<const double> values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.data_ptr<double>());
  return tensor;
}

class Comparison {
 public:
  Comparison(double tolerance, double timestep_tolerance)
      : tolerance_(tolerance), timestep_tolerance_(timestep_tolerance) {}

  void Check(const at::Tensor& expected, const at::Tensor& actual, const std::string& where) {
    Compare(expected, actual, tolerance_, where);
  }

  void CheckTimesteps(const at::Tensor& expected, const at::Tensor& actual, const std::string& where) {
    Compare(expected, actual, expected.scalar_type() == at::kLong ? 0.0 : timestep_tolerance_, where);
  }

  const GoldenSchedulerResult& result() const { return result_; }

 private:
  void Compare(const at::Tensor& expected, const at::Tensor& actual, double tolerance, const std::string& where) {
    ++result_.comparisons;
    double error = std::numeric_limits<double>::infinity();
    if (actual.sizes() == expected.sizes()) {
      const at::Tensor reference = expected.to(at::kDouble);
      const double difference = (actual.to(at::kDouble) - reference).abs().max().item<double>();
      const double scale = reference.abs().max().item<double>();
      if (difference == 0) {
        error = 0;
      } else if (std::isfinite(difference) && scale > 0) {
        error = difference / scale;
      }
    }
    const double excess = error == 0 ? 0 : error / tolerance;
    if (result_.where.empty() || excess > worst_) {
      worst_ = excess;
      result_.error = error;
      result_.tolerance = tolerance;
      result_.where = where;
    }
  }

  double tolerance_;
  double timestep_tolerance_;
  double worst_ = 0.0;  // error over tolerance
  GoldenSchedulerResult result_;
};

// The file's model: 0.3 x + 0.5 cos(0.1 j + 0.37 i), j the flat index, rounded to fp32.
at::Tensor SyntheticModel(const at::Tensor& input, int step) {
  const at::Tensor index = at::arange(input.numel(), at::kDouble).view(input.sizes());
  const at::Tensor phase = at::cos(index * 0.1 + 0.37 * step);
  return (input.to(at::kDouble) * 0.3 + phase * 0.5).to(at::kFloat);
}

// What a trajectory of n steps is compared with.
struct Trajectory {
  at::Tensor start;         // [batch, ...]
  at::Tensor timesteps;     // [steps]
  at::Tensor model_output;  // [steps, batch, ...]
  at::Tensor prev_sample;
  at::Tensor scaled_input;  // undefined where the input is the sample
  at::Tensor noise;         // [draws, batch, ...] or undefined
};

absl::Status Walk(Sampler& sampler, const Trajectory& golden, bool by_formula, at::ScalarType dtype,
                  const std::string& prefix, Comparison& comparison) {
  const std::string driver = by_formula ? ", model by formula" : ", recorded model outputs";
  at::Tensor sample = golden.start.to(dtype);
  int64_t draws = 0;
  for (int i = 0; i < sampler.num_steps(); ++i) {
    const std::string index = absl::StrCat("[", i, "]", driver);
    comparison.CheckTimesteps(golden.timesteps[i].view({1}), at::full({1}, sampler.timestep(), at::kDouble),
                              prefix + "timestep" + index);
    const at::Tensor input = sampler.ScaleInput(sample);
    if (golden.scaled_input.defined()) {
      comparison.Check(golden.scaled_input[i], input, prefix + "scaled_input" + index);
    } else if (!input.equal(sample)) {
      return absl::InvalidArgumentError(absl::StrCat(prefix, "scaled_input is missing"));
    }
    at::Tensor noise;
    if (sampler.needs_noise()) {
      if (!golden.noise.defined() || draws == golden.noise.size(0)) {
        return absl::InvalidArgumentError(absl::StrCat(prefix, "noise has too few draws"));
      }
      noise = golden.noise[draws++].to(dtype);
    }
    const at::Tensor output = by_formula ? SyntheticModel(input, i) : golden.model_output[i];
    sample = sampler.Step(sample, output, noise);
    comparison.Check(golden.prev_sample[i], sample, prefix + "prev_sample" + index);
  }
  return absl::OkStatus();
}

absl::Status RunSteps(const CaseFile& file, const SamplerConfig& config, const Json& arguments, int steps,
                      at::ScalarType dtype, Comparison& comparison) {
  const std::string prefix = absl::StrCat("n", steps, ".");
  absl::StatusOr<ScheduleOptions> options = CaseOptions(arguments, steps);
  if (!options.ok()) return options.status();
  absl::StatusOr<std::unique_ptr<Sampler>> sampler = Sampler::Create(config, steps, *options);
  if (!sampler.ok()) return sampler.status();

  Trajectory golden;
  for (auto [name, tensor, required] :
       {std::tuple("start", &golden.start, true), std::tuple("timesteps", &golden.timesteps, true),
        std::tuple("model_output", &golden.model_output, true), std::tuple("prev_sample", &golden.prev_sample, true),
        std::tuple("scaled_input", &golden.scaled_input, false), std::tuple("noise", &golden.noise, false)}) {
    if (!required && !file.Has(prefix + name)) continue;
    absl::StatusOr<at::Tensor> loaded = file.Get(prefix + name);
    if (!loaded.ok()) return loaded.status();
    *tensor = *loaded;
  }
  absl::StatusOr<at::Tensor> start_scale = file.Get(prefix + "init_noise_sigma");
  if (!start_scale.ok()) return start_scale.status();

  const Schedule& schedule = (*sampler)->schedule();
  comparison.CheckTimesteps(golden.timesteps, ToTensor(schedule.timesteps), prefix + "timesteps");
  if (golden.timesteps.dim() != 1 || golden.timesteps.size(0) != (*sampler)->num_steps() ||
      golden.prev_sample.size(0) != (*sampler)->num_steps() || golden.model_output.size(0) != (*sampler)->num_steps()) {
    return absl::OkStatus();  // the comparison of timesteps has failed, or the file is not a trajectory of them
  }
  comparison.Check(*start_scale, at::full({1}, (*sampler)->init_noise_sigma(), at::kDouble),
                   prefix + "init_noise_sigma");
  if (file.Has(prefix + "sigmas")) {
    absl::StatusOr<at::Tensor> sigmas = file.Get(prefix + "sigmas");
    if (!sigmas.ok()) return sigmas.status();
    comparison.Check(*sigmas, ToTensor(schedule.sigmas), prefix + "sigmas");
  }
  for (bool by_formula : {false, true}) {
    const std::unique_ptr<Sampler> walker = (*sampler)->Clone();
    if (absl::Status status = Walk(*walker, golden, by_formula, dtype, prefix, comparison); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// The levels of the reference's add_noise. Its DPM-Solver, before timesteps are set, pairs falling timesteps with
// rising sigmas, so that timestep t gets the level of T - 1 - t; with flow sigmas it reads the same table as if it were
// flow's.
absl::StatusOr<std::vector<NoiseLevel>> ReferenceLevels(const SamplerConfig& config, const at::Tensor& timesteps) {
  const at::Tensor times = timesteps.to(at::kDouble).contiguous();
  std::vector<NoiseLevel> levels;
  for (const double time : std::span(times.data_ptr<double>(), static_cast<size_t>(times.numel()))) {
    SamplerConfig table = config;
    table.use_flow_sigmas = false;
    const bool mirrored = config.sampler == SamplerClass::kDpmSolver;
    absl::StatusOr<NoiseLevel> level =
        TrainingNoiseLevel(table, mirrored ? static_cast<double>(config.num_train_timesteps) - 1 - time : time);
    if (!level.ok()) return level.status();
    if (config.use_flow_sigmas) {
      const double sigma = level->sigma / level->alpha;
      level = NoiseLevel{1 - sigma, sigma};
    }
    levels.push_back(*level);
  }
  return levels;
}

absl::Status RunForwardProcess(const CaseFile& file, const SamplerConfig& config, at::ScalarType dtype,
                               Comparison& comparison) {
  for (const std::string prefix : {"add_noise.", "scale_noise."}) {
    if (!file.Has(prefix + "out")) continue;
    at::Tensor x0, noise, timesteps, out;
    for (auto [name, tensor] : {std::pair("x0", &x0), std::pair("noise", &noise), std::pair("timesteps", &timesteps),
                                std::pair("out", &out)}) {
      absl::StatusOr<at::Tensor> loaded = file.Get(prefix + name);
      if (!loaded.ok()) return loaded.status();
      *tensor = *loaded;
    }
    absl::StatusOr<std::vector<NoiseLevel>> levels = ReferenceLevels(config, timesteps);
    if (!levels.ok()) return levels.status();
    comparison.Check(out, AddNoise(x0.to(dtype), noise.to(dtype), *levels), prefix + "out");
    if (file.Has(prefix + "velocity")) {
      absl::StatusOr<at::Tensor> velocity = file.Get(prefix + "velocity");
      if (!velocity.ok()) return velocity.status();
      comparison.Check(*velocity, Velocity(x0.to(dtype), noise.to(dtype), *levels), prefix + "velocity");
    }
  }
  return absl::OkStatus();
}

absl::Status RunTables(const CaseFile& file, const SamplerConfig& config, Comparison& comparison) {
  std::vector<std::pair<std::string, std::vector<double>>> tables;
  if (config.sampler == SamplerClass::kFlowEuler) {
    Schedule training = MakeFlowTrainingSchedule(config);
    tables = {{"train.timesteps", training.timesteps}, {"train.sigmas", training.sigmas}};
  } else {
    const std::vector<float> betas = Betas(config);
    const std::vector<float> alphas = AlphasCumprod(config);
    tables = {{"betas", {betas.begin(), betas.end()}}, {"alphas_cumprod", {alphas.begin(), alphas.end()}}};
  }
  for (const auto& [name, values] : tables) {
    if (!file.Has(name)) continue;
    absl::StatusOr<at::Tensor> expected = file.Get(name);
    if (!expected.ok()) return expected.status();
    comparison.Check(*expected, ToTensor(values), name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SamplerConfig> GoldenSamplerConfig(const std::string& class_name, const Json& config) {
  if (!config.is_object()) return absl::InvalidArgumentError("the scheduler's config must be an object");
  std::string text = ToText(config);
  text.insert(1, absl::StrCat("\"_class_name\":\"", class_name, config.members().empty() ? "\"" : "\","));
  absl::StatusOr<ConfigReader> reader = ConfigReader::FromText(text, "scheduler_config.json");
  return reader.ok() ? ParseSamplerConfig(*reader) : reader.status();
}

absl::StatusOr<GoldenSchedulerResult> RunGoldenScheduler(const Json& arguments, const Json& tolerance,
                                                         const std::string& path, at::ScalarType dtype) {
  const std::optional<double> allowed = Member(tolerance, "fp32").AsNumber();
  const std::optional<double> timesteps_allowed = Member(tolerance, "fp32_timesteps").AsNumber();
  if (!allowed || !timesteps_allowed) {
    return absl::InvalidArgumentError("the case's tolerance must have fp32 and fp32_timesteps");
  }
  absl::StatusOr<SamplerConfig> config = CaseConfig(arguments);
  if (!config.ok()) return config.status();
  absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(path, "scheduler case");
  if (!opened.ok()) return opened.status();
  const CaseFile file(*std::move(opened));

  Comparison comparison(*allowed, *timesteps_allowed);
  if (absl::Status status = RunTables(file, *config, comparison); !status.ok()) return status;
  if (absl::Status status = RunForwardProcess(file, *config, dtype, comparison); !status.ok()) return status;
  for (const Json& steps : Member(arguments, "step_counts").items()) {
    const std::optional<int64_t> count = steps.AsInt();
    if (!count || *count < 1 || *count > 100000) {
      return absl::InvalidArgumentError(absl::StrCat("step_counts has ", steps.Describe()));
    }
    absl::Status status = RunSteps(file, *config, arguments, static_cast<int>(*count), dtype, comparison);
    if (!status.ok()) return status;
  }
  return comparison.result();
}

}  // namespace tessera
