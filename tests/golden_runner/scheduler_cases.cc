// Runs the cases of schedulers: timesteps, sigmas and whole trajectories of a reference sampler on a synthetic model,
// in the format of tests/golden/README.md, "Scheduler files".
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/samplers/forward_process.h"
#include "runtime/samplers/sampler.h"
#include "tests/golden_runner/golden_case.h"
#include "tests/support/training_noise_level.h"

namespace tessera::golden {
namespace {

// A member by name, or a shared null value if it is absent.
const base::Json& Member(const base::Json& json, std::string_view key) {
  static const base::Json kNull;
  const base::Json* member = json.Find(key);
  return member == nullptr ? kNull : *member;
}

absl::StatusOr<runtime::SamplerConfig> CaseConfig(const base::Json& arguments) {
  const std::string* class_name = Member(arguments, "class").AsString();
  if (class_name == nullptr) return absl::InvalidArgumentError("the case's arguments must have a class");
  absl::StatusOr<runtime::SamplerConfig> parsed = SamplerOf(*class_name, Member(arguments, "config"));
  if (!parsed.ok()) return parsed;
  for (const auto& [key, value] : Member(arguments, "step").members()) {
    if (key != "eta" || !value.AsNumber()) {
      return absl::UnimplementedError(absl::StrCat("unknown argument of step(): ", key));
    }
    auto* ddim = parsed->Find<runtime::DdimOptions>();
    if (ddim == nullptr) return absl::UnimplementedError(absl::StrCat("eta for ", *class_name));
    ddim->eta = *value.AsNumber();
  }
  return parsed;
}

absl::StatusOr<runtime::ScheduleOptions> CaseOptions(const base::Json& arguments, int steps) {
  runtime::ScheduleOptions options;
  for (const auto& [key, value] : Member(arguments, "set_timesteps").members()) {
    if (key != "mu" || !value.AsNumber()) {
      return absl::UnimplementedError(absl::StrCat("unknown argument of set_timesteps(): ", key));
    }
    options.mu = *value.AsNumber();
  }
  const base::Json& given = Member(arguments, "sigmas_given");
  if (given.is_null()) return options;
  if (given.AsString() == nullptr || *given.AsString() != "linspace(1, 1/n, n)") {
    return absl::UnimplementedError(absl::StrCat("unknown sigmas_given: ", given.Describe()));
  }
  std::vector<double> sigmas(steps);
  for (int i = 0; i < steps; ++i) sigmas[i] = 1.0 - static_cast<double>(i) / steps;
  options.sigmas = std::move(sigmas);
  return options;
}

at::Tensor ToTensor(std::span<const double> values) {
  return at::tensor(at::ArrayRef<double>(values.data(), values.size()), at::kDouble);
}

// Adds comparisons to a report. Timesteps have a separate tolerance, and integers must be exact.
class Comparison {
 public:
  Comparison(const Case& test_case, Report& report)
      : tolerance_(test_case.Tolerance("fp32")),
        timestep_tolerance_(test_case.Tolerance("fp32_timesteps")),
        report_(report) {}

  void Check(const at::Tensor& expected, const at::Tensor& actual, const std::string& where) {
    report_.Add(where, RelativeError(actual, expected), tolerance_);
  }
  void CheckTimesteps(const at::Tensor& expected, const at::Tensor& actual, const std::string& where) {
    report_.Add(where, RelativeError(actual, expected), expected.scalar_type() == at::kLong ? 0 : timestep_tolerance_);
  }

 private:
  double tolerance_, timestep_tolerance_;
  Report& report_;
};

// The synthetic model of the file: 0.3 x + 0.5 cos(0.1 j + 0.37 i), where j is the flat index and i the step, rounded
// to fp32.
at::Tensor SyntheticModel(const at::Tensor& input, int step) {
  const at::Tensor index = at::arange(input.numel(), at::kDouble).view(input.sizes());
  const at::Tensor phase = at::cos(index * 0.1 + 0.37 * step);
  return (input.to(at::kDouble) * 0.3 + phase * 0.5).to(at::kFloat);
}

// The expected values of a trajectory of n steps.
struct Trajectory {
  at::Tensor start;         // [batch, ...]
  at::Tensor timesteps;     // [steps]
  at::Tensor model_output;  // [steps, batch, ...]
  at::Tensor prev_sample;
  at::Tensor scaled_input;  // undefined if the input is the sample
  at::Tensor noise;         // [draws, batch, ...] or undefined
};

absl::Status Walk(runtime::Sampler& sampler, const Trajectory& golden, bool by_formula, at::ScalarType dtype,
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

absl::Status RunSteps(const Tensors& file, const runtime::SamplerConfig& config, const base::Json& arguments, int steps,
                      at::ScalarType dtype, Comparison& comparison) {
  const std::string prefix = absl::StrCat("n", steps, ".");
  absl::StatusOr<runtime::ScheduleOptions> options = CaseOptions(arguments, steps);
  if (!options.ok()) return options.status();
  absl::StatusOr<std::unique_ptr<runtime::Sampler>> sampler = runtime::Sampler::Create(config, steps, *options);
  if (!sampler.ok()) return sampler.status();

  Trajectory golden;
  for (auto [name, tensor, required] :
       {std::tuple("start", &golden.start, true), std::tuple("timesteps", &golden.timesteps, true),
        std::tuple("model_output", &golden.model_output, true), std::tuple("prev_sample", &golden.prev_sample, true),
        std::tuple("scaled_input", &golden.scaled_input, false), std::tuple("noise", &golden.noise, false)}) {
    if (required || file.contains(prefix + name)) *tensor = file.at(prefix + name);
  }
  const runtime::Schedule& schedule = (*sampler)->schedule();
  comparison.CheckTimesteps(golden.timesteps, ToTensor(schedule.timesteps), prefix + "timesteps");
  if (golden.timesteps.dim() != 1 || golden.timesteps.size(0) != (*sampler)->num_steps() ||
      golden.prev_sample.size(0) != (*sampler)->num_steps() || golden.model_output.size(0) != (*sampler)->num_steps()) {
    return absl::OkStatus();  // the timesteps differ, or the tensors do not match them
  }
  comparison.Check(file.at(prefix + "init_noise_sigma"), at::full({1}, (*sampler)->init_noise_sigma(), at::kDouble),
                   prefix + "init_noise_sigma");
  if (file.contains(prefix + "sigmas")) {
    comparison.Check(file.at(prefix + "sigmas"), ToTensor(schedule.sigmas), prefix + "sigmas");
  }
  for (bool by_formula : {false, true}) {
    const std::unique_ptr<runtime::Sampler> walker = (*sampler)->Clone();
    if (absl::Status status = Walk(*walker, golden, by_formula, dtype, prefix, comparison); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Returns the noise levels of the reference's add_noise. Before its timesteps are set, its DPM-Solver pairs descending
// timesteps with ascending sigmas, so timestep t gets the level of T - 1 - t. With flow sigmas it reads the same table
// as if it held flow sigmas.
std::vector<runtime::NoiseLevel> ReferenceLevels(const runtime::SamplerConfig& config, const at::Tensor& timesteps) {
  const at::Tensor times = timesteps.to(at::kDouble).contiguous();
  std::vector<runtime::NoiseLevel> levels;
  for (const double time : std::span(times.data_ptr<double>(), static_cast<size_t>(times.numel()))) {
    runtime::SamplerConfig table = config;
    auto* solver = table.Find<runtime::DpmSolverOptions>();
    const bool mirrored = solver != nullptr;
    const bool flow = mirrored && std::exchange(solver->use_flow_sigmas, false);
    runtime::NoiseLevel level =
        TrainingNoiseLevel(table, mirrored ? static_cast<double>(config.num_train_timesteps) - 1 - time : time);
    if (flow) {
      const double sigma = level.sigma / level.alpha;
      level = {1 - sigma, sigma};
    }
    levels.push_back(level);
  }
  return levels;
}

absl::Status RunForwardProcess(const Tensors& file, const runtime::SamplerConfig& config, at::ScalarType dtype,
                               Comparison& comparison) {
  for (const std::string prefix : {"add_noise.", "scale_noise."}) {
    if (!file.contains(prefix + "out")) continue;
    at::Tensor x0, noise, timesteps, out;
    for (auto [name, tensor] : {std::pair("x0", &x0), std::pair("noise", &noise), std::pair("timesteps", &timesteps),
                                std::pair("out", &out)}) {
      *tensor = file.at(prefix + name);
    }
    const std::vector<runtime::NoiseLevel> levels = ReferenceLevels(config, timesteps);
    comparison.Check(out, runtime::AddNoise(x0.to(dtype), noise.to(dtype), levels), prefix + "out");
    if (file.contains(prefix + "velocity")) {
      comparison.Check(file.at(prefix + "velocity"), runtime::Velocity(x0.to(dtype), noise.to(dtype), levels),
                       prefix + "velocity");
    }
  }
  return absl::OkStatus();
}

void RunTables(const Tensors& file, const runtime::SamplerConfig& config, Comparison& comparison) {
  std::vector<std::pair<std::string, std::vector<double>>> tables;
  if (config.Find<runtime::FlowLevels>() != nullptr) {
    runtime::Schedule training = runtime::MakeFlowTrainingSchedule(config);
    tables = {{"train.timesteps", training.timesteps}, {"train.sigmas", training.sigmas}};
  } else {
    const std::vector<float> betas = runtime::Betas(config);
    const std::vector<float> alphas = runtime::AlphasCumprod(config);
    tables = {{"betas", {betas.begin(), betas.end()}}, {"alphas_cumprod", {alphas.begin(), alphas.end()}}};
  }
  for (const auto& [name, values] : tables) {
    if (file.contains(name)) comparison.Check(file.at(name), ToTensor(values), name);
  }
}

}  // namespace

absl::StatusOr<runtime::SamplerConfig> SamplerOf(const std::string& class_name, const base::Json& config) {
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromJson(config, "scheduler_config.json");
  return reader.ok() ? runtime::ParseSamplerConfig(*reader, class_name) : reader.status();
}

absl::StatusOr<Report> RunScheduler(const Case& test_case) {
  absl::StatusOr<runtime::SamplerConfig> config = CaseConfig(test_case.arguments);
  if (!config.ok()) return config.status();
  const absl::StatusOr<Tensors> file = ReadTensors(test_case.Path(test_case.file));
  if (!file.ok()) return file.status();
  Report report;
  Comparison comparison(test_case, report);
  RunTables(*file, *config, comparison);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    if (absl::Status status = RunForwardProcess(*file, *config, dtype, comparison); !status.ok()) return status;
    for (const base::Json& steps : Member(test_case.arguments, "step_counts").items()) {
      const std::optional<int64_t> count = steps.AsInt();
      if (!count || *count < 1 || *count > 100000) {
        return absl::InvalidArgumentError(absl::StrCat("step_counts has ", steps.Describe()));
      }
      absl::Status status = RunSteps(*file, *config, test_case.arguments, static_cast<int>(*count), dtype, comparison);
      if (!status.ok()) return status;
    }
  }
  return report;
}

}  // namespace tessera::golden
