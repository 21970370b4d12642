// Runs the cases of training: losses and gradients, optimizer steps, and the densities of noise levels.
#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "models/families/families.h"
#include "models/loading/load_options.h"
#include "runtime/training/density.h"
#include "runtime/training/gradients.h"
#include "runtime/training/objective.h"
#include "runtime/training/optimizer.h"
#include "runtime/training/trained_adapter.h"
#include "runtime/training/training_pass.h"
#include "tests/golden_runner/golden_component.h"
#include "tests/support/random_tensor.h"

namespace tessera::golden {
namespace {

using runtime::TrainingBatch;

// A golden model and the objective of a case.
struct TrainedModel {
  std::unique_ptr<models::Family> family;
  std::string name;  // of the family
  std::set<std::string> parameters;
  runtime::SamplerConfig scheduler;
  runtime::ObjectiveOptions options;  // of the case
};

// Returns the objective of the case and the weighting of its errors.
absl::StatusOr<runtime::ObjectiveOptions> ObjectiveOptionsOf(const Case& test_case) {
  using runtime::PredictionType;
  runtime::ObjectiveOptions options{.snr_gamma = test_case.Number("min_snr_gamma", 0)};
  if (const std::string scheme = test_case.Text("weighting"); !scheme.empty()) {
    const auto known = base::EnumOf<control::WeightingScheme>(scheme);
    if (!known) return absl::InvalidArgumentError(absl::StrCat("weighting \"", scheme, "\" is unknown"));
    options.density.scheme = *known;
  }
  if (test_case.arguments.Find("objective") == nullptr) return options;
  const std::string objective = test_case.Text("objective");
  if (objective == "epsilon") {
    options.prediction_type = PredictionType::kEpsilon;
  } else if (objective == "v") {
    options.prediction_type = PredictionType::kVelocity;
  } else if (objective == "flow") {
    options.prediction_type = PredictionType::kFlow;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("objective \"", objective, "\" is unknown; valid values are epsilon, v and flow"));
  }
  return options;
}

absl::StatusOr<TrainedModel> OpenTrainedModel(const Case& test_case) {
  ASSIGN_OR_RETURN(const runtime::ObjectiveOptions options, ObjectiveOptionsOf(test_case));
  ASSIGN_OR_RETURN(models::ModelFolder folder,
                   models::ModelFolder::Open(test_case.Path("../pipelines/" + test_case.Text("pipeline"))));
  ASSIGN_OR_RETURN(const models::FamilyEntry* entry, models::FindFamily(folder.class_name()));
  TrainedModel model{
      .family = {}, .name = std::string(entry->family), .parameters = {}, .scheduler = {}, .options = options};
  ASSIGN_OR_RETURN(
      model.family,
      entry->load(folder,
                  {.dtype = at::kDouble, .device = test_case.device, .for_training = true, .encodes_prompts = false}));
  for (const models::Param& param : model.family->parameters()) model.parameters.insert(param.spec.name);
  ASSIGN_OR_RETURN(base::ConfigReader reader, folder.Config("scheduler"));
  ASSIGN_OR_RETURN(model.scheduler, runtime::ParseSamplerConfig(reader));
  return model;
}

// Returns the result of Family::Encode for prompt `i`, with the encoder states of the case.
models::ConditioningRow RowOf(const TrainedModel& model, const Tensors& in, const std::string& prefix, int64_t i,
                              double guidance) {
  const auto of = [&](const char* name) { return in.at(prefix + name)[i].to(model.family->device()); };
  const auto wide = [&](const char* name) { return of(name).to(at::kDouble); };
  const auto values = [&](std::vector<double> list) {
    return at::tensor(list, at::kDouble).to(model.family->device());
  };
  const at::Tensor& latents = in.at(prefix + "latents");
  const double height = static_cast<double>(latents.size(2) * 8), width = static_cast<double>(latents.size(3) * 8);
  if (model.name == "dit") return {.text = {}, .extras = {of("labels")}};
  models::ConditioningRow row{.text = wide("text"), .extras = {}};
  if (model.name == "pixart") {
    row.text = row.text.narrow(0, 0, of("text_mask").sum().item<int64_t>());
    if (model.parameters.contains("adaln_single.emb.resolution_embedder.linear_1.weight")) {
      row.extras = {values({height, width, height / width})};
    }
  } else if (model.name == "hunyuandit") {
    row.extras = {wide("text_2"), of("text_mask"), of("text_mask_2")};
    if (model.parameters.contains("time_extra_emb.style_embedder.weight")) {
      row.extras.push_back(values({height, width, height, width, 0, 0}));
    }
  } else {
    row.extras = {wide("pooled")};
    if (model.parameters.contains("time_text_embed.guidance_embedder.linear_1.weight")) {
      row.extras.push_back(at::scalar_tensor(guidance, row.text.options()));
    }
  }
  return row;
}

TrainingBatch BatchOf(const Case& test_case, const TrainedModel& model, const runtime::Objective& objective,
                      const Tensors& in, const std::string& prefix) {
  const at::Tensor x0 = in.at(prefix + "latents").to(at::kDouble), noise = in.at(prefix + "noise").to(at::kDouble);
  std::vector<runtime::TrainingLevel> levels;
  const base::Json* given = test_case.arguments.Find(objective.is_flow() ? "sigmas" : "timesteps");
  TORCH_CHECK(given != nullptr && given->items().size() == static_cast<size_t>(x0.size(0)),
              "the case has no level for each of its ", x0.size(0), " samples");
  TrainingBatch batch;
  for (int64_t i = 0; i < x0.size(0); ++i) {
    const double level = given->items()[static_cast<size_t>(i)].AsNumber().value();
    levels.push_back(objective.is_flow() ? objective.AtSigma(level)
                                         : objective.AtTimestep(static_cast<int64_t>(level)));
    batch.rows.push_back(RowOf(model, in, prefix, i, test_case.Number("guidance", 3.5)));
  }
  batch.sample = objective.Make(x0, noise, levels);
  return batch;
}

// Draws the inputs of a file under `prefix` again in fp64. The file stores them in fp32, and that rounding changes the
// results by more than the tolerances. Each input has a separate generator, as in goldenlib/common.py, which generated
// the goldens. An input is replaced if its rounded draw equals the stored tensor. Returns whether all were.
absl::StatusOr<bool> DrawAgain(const Case& test_case, const std::string& name, const std::string& prefix,
                               Tensors& gold) {
  ASSIGN_OR_RETURN(const std::string text,
                   base::ReadWholeFile(test_case.Path("cases.json"), "cases.json", base::kMaxJsonBytes));
  ASSIGN_OR_RETURN(const base::Json manifest, base::ParseJson(text, "cases.json"));
  const base::Json* seed = manifest.Find("seed");
  if (seed == nullptr || !seed->AsInt()) return false;
  bool all = true;
  for (auto& [key, value] : gold) {
    if (!key.starts_with(prefix) || value.scalar_type() != at::kFloat) continue;
    const std::string digest =
        base::Sha256Of(absl::StrCat(*seed->AsInt(), "/", name, "/", key.substr(prefix.size()))).substr(0, 7);
    uint64_t number = 0;
    for (size_t i = digest.size(); i-- > 0;) number = number << 8 | static_cast<uint8_t>(digest[i]);
    const at::Tensor drawn = Random(value.sizes(), number);
    all = all && at::equal(drawn.to(at::kFloat), value);
    if (at::equal(drawn.to(at::kFloat), value)) value = drawn;
  }
  return all;
}

// Returns the error relative to the largest value of the tensor, or relative to 1e-8 of the model's largest value if
// the tensor holds only rounding errors.
double ErrorOf(const at::Tensor& actual, const at::Tensor& expected, double largest) {
  const double own = expected.numel() == 0 ? 0 : expected.to(at::kDouble).abs().max().item<double>();
  return AbsoluteError(actual, expected) / std::max(own, 1e-8 * largest);
}

double Largest(const Tensors& gold, const std::string& prefix) {
  double largest = 1e-300;
  for (const auto& [name, value] : gold) {
    if (name.starts_with(prefix)) largest = std::max(largest, value.to(at::kDouble).abs().max().item<double>());
  }
  return largest;
}

}  // namespace

absl::StatusOr<Report> RunTrainingLoss(const Case& test_case) {
  ASSIGN_OR_RETURN(const TrainedModel model, OpenTrainedModel(test_case));
  ASSIGN_OR_RETURN(Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  ASSIGN_OR_RETURN(const runtime::Objective objective, runtime::Objective::Create(model.scheduler, model.options));
  ASSIGN_OR_RETURN(const bool exact, DrawAgain(test_case, test_case.Text("name"), "in.", gold));
  const TrainingBatch batch = BatchOf(test_case, model, objective, gold, "in.");
  const double rounded = test_case.Tolerance("fp64_stored_as_fp32"),
               fp64 = exact ? test_case.Tolerance("fp64") : rounded;
  Report report;
  report.Add("noisy", RelativeError(batch.sample.noisy, gold.at("noisy")), fp64);
  report.Add("target", RelativeError(batch.sample.target, gold.at("target")), fp64);
  report.Add("timestep", RelativeError(batch.sample.timesteps, gold.at("timestep")), fp64);
  report.Add("weight", RelativeError(at::tensor(batch.sample.weights, at::kDouble), gold.at("weight")), fp64);
  const double largest = Largest(gold, "grad.");
  for (const bool recompute : {false, true}) {
    OneRank rank;
    runtime::TrainingPass pass(*model.family, rank.groups, {.recompute = recompute});
    const at::Tensor losses = pass.Run(batch, static_cast<double>(batch.rows.size()));
    report.Add("per_sample", RelativeError(losses, gold.at("per_sample")), fp64);
    report.Add("loss", RelativeError(losses.mean(), gold.at("loss")), fp64);
    runtime::Gradients gradients(model.family->parameters());
    gradients.Collect();
    const auto expected =
        std::ranges::count_if(gold, [](const auto& entry) { return entry.first.starts_with("grad."); });
    report.Add("number of parameters", static_cast<size_t>(expected) == gradients.params().size() ? 0 : 1, 0);
    for (size_t i = 0; i < gradients.params().size(); ++i) {
      const std::string name = "grad." + gradients.params()[i].spec.name;
      if (!gold.contains(name)) return absl::NotFoundError(absl::StrCat("there is no ", name));
      report.Add(name, ErrorOf(gradients.Of(i), gold.at(name), largest), rounded);
    }
  }
  return report;
}

absl::StatusOr<Report> RunTrainingSteps(const Case& test_case) {
  ASSIGN_OR_RETURN(const TrainedModel model, OpenTrainedModel(test_case));
  ASSIGN_OR_RETURN(Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  ASSIGN_OR_RETURN(const runtime::Objective objective, runtime::Objective::Create(model.scheduler, model.options));
  const base::Json* steps = test_case.arguments.Find("steps");
  if (steps == nullptr) return absl::InvalidArgumentError("the case has no steps");
  const Case of_steps{.root = test_case.root, .file = test_case.file, .kind = test_case.kind, .arguments = *steps};
  const base::Json* betas = steps->Find("betas");
  if (betas == nullptr || betas->items().size() != 2) return absl::InvalidArgumentError("the case has not two betas");

  OneRank rank;
  const runtime::TrainingGroups groups = runtime::TrainingGroups::Alone(rank.group);
  runtime::TrainingPass pass(*model.family, groups.model);
  runtime::Gradients gradients(model.family->parameters());
  runtime::AdamW optimizer(gradients, {.beta1 = betas->items()[0].AsNumber().value(),
                                       .beta2 = betas->items()[1].AsNumber().value(),
                                       .eps = of_steps.Number("eps", 1e-8),
                                       .weight_decay = of_steps.Number("weight_decay", 0),
                                       .ema_decay = of_steps.Number("ema", 0)});
  const double rounded = test_case.Tolerance("fp64_stored_as_fp32");
  Report report;
  for (int64_t step = 0; step < of_steps.Int("count", 0); ++step) {
    const std::string prefix = absl::StrCat("step", step, ".in.");
    ASSIGN_OR_RETURN(const bool exact,
                     DrawAgain(test_case, absl::StrCat(test_case.Text("name"), "/step", step), prefix, gold));
    const double fp64 = exact ? test_case.Tolerance("fp64") : rounded;
    const TrainingBatch batch = BatchOf(test_case, model, objective, gold, prefix);
    const at::Tensor losses = pass.Run(batch, static_cast<double>(batch.rows.size()));
    report.Add("losses", RelativeError(losses.mean(), gold.at("losses")[step]), fp64);
    gradients.Collect();
    gradients.Synchronize(groups);
    const double norm = gradients.GlobalNorm(groups);
    report.Add("gradient_norms", RelativeError(at::scalar_tensor(norm, at::kDouble), gold.at("gradient_norms")[step]),
               fp64);
    gradients.Clip(norm, of_steps.Number("clip", 0));
    optimizer.Step(of_steps.Number("lr", 0));
    gradients.Clear();
  }
  for (const runtime::OptimizerState& state : optimizer.state()) {
    const std::string& name = state.param->spec.name;
    report.Add("param." + name, RelativeError(state.param->Value().detach(), gold.at("param." + name)), rounded);
    report.Add("ema." + name, RelativeError(state.ema, gold.at("ema." + name)), rounded);
  }
  return report;
}

absl::StatusOr<Report> RunTrainedAdapter(const Case& test_case) {
  ASSIGN_OR_RETURN(const TrainedModel model, OpenTrainedModel(test_case));
  ASSIGN_OR_RETURN(Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  ASSIGN_OR_RETURN(const Tensors file,
                   ReadTensors(test_case.Path(test_case.Text("name") + "/pytorch_lora_weights.safetensors")));
  ASSIGN_OR_RETURN(const runtime::Objective objective, runtime::Objective::Create(model.scheduler, model.options));
  ASSIGN_OR_RETURN(const bool exact, DrawAgain(test_case, test_case.Text("name"), "in.", gold));
  const TrainingBatch batch = BatchOf(test_case, model, objective, gold, "in.");
  runtime::AdapterOptions options{.rank = test_case.Int("rank", 0), .alpha = test_case.Number("alpha", 0)};
  const base::Json* targets = test_case.arguments.Find("targets");
  if (targets == nullptr) return absl::InvalidArgumentError("the case has no targets");
  for (const base::Json& target : targets->items()) options.targets.push_back(*target.AsString());
  ASSIGN_OR_RETURN(const runtime::TrainedAdapter adapter,
                   runtime::MakeTrainedAdapter(model.family->parameters(), {}, options));
  Report report;
  report.Add("number of factors", file.size() == adapter.params.size() ? 0 : 1, 0);
  for (const models::Param& param : adapter.params) {
    const at::NoGradGuard no_gradients;
    param.Value().copy_(file.at("transformer." + param.spec.name));
  }

  const double rounded = test_case.Tolerance("fp64_stored_as_fp32"),
               fp64 = exact ? test_case.Tolerance("fp64") : rounded;
  const double divisor = static_cast<double>(batch.rows.size()), largest = Largest(gold, "grad.");
  OneRank rank;
  const at::Tensor without = runtime::TrainingPass(*model.family, rank.groups).Evaluate(batch);
  report.Add("loss_without", RelativeError(without.mean(), gold.at("loss_without")), fp64);
  for (const bool recompute : {false, true}) {
    runtime::TrainingPass pass(*model.family, rank.groups, {.recompute = recompute, .adapters = &adapter.factors});
    report.Add("loss", RelativeError(pass.Run(batch, divisor).mean(), gold.at("loss")), fp64);
    runtime::Gradients gradients(adapter.params);
    gradients.Collect();
    for (size_t i = 0; i < adapter.params.size(); ++i) {
      const std::string name = "grad." + adapter.params[i].spec.name;
      report.Add(name, ErrorOf(gradients.Of(i), gold.at(name), largest), rounded);
    }
  }
  return report;
}

// The reference computes with fp32 inputs in fp32, so only seven digits agree.
absl::StatusOr<Report> RunDensity(const Case& test_case) {
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  constexpr double kTolerance = 2e-6;
  const auto compare = [&](Report& report, const char* name, const char* of, const auto& function) {
    const at::Tensor from = gold.at(of).to(at::kDouble).contiguous();
    at::Tensor values = at::empty_like(from);
    for (int64_t i = 0; i < from.numel(); ++i) {
      values.mutable_data_ptr<double>()[i] = function(from.const_data_ptr<double>()[i]);
    }
    report.Add(name, RelativeError(values, gold.at(name)),
               gold.at(name).scalar_type() == at::kDouble ? 1e-12 : kTolerance);
  };
  using runtime::WeightingScheme;
  Report report;
  compare(report, "logit_normal", "normal", [](double normal) {
    return runtime::Quantile({.scheme = WeightingScheme::kLogitNormal}, {.normal = normal});
  });
  const double mode_scale = test_case.Number("mode_scale", 1.29);
  compare(report, "mode", "u", [&](double u) {
    return runtime::Quantile({.scheme = WeightingScheme::kMode, .mode_scale = mode_scale}, {.uniform = u});
  });
  compare(report, "shift_3", "u", [](double u) { return runtime::ShiftLevel(u, 3); });
  const double mu = runtime::DynamicShiftMu({}, 1024);
  compare(report, "flux_shift_1024_tokens", "u", [&](double u) { return runtime::ShiftLevel(u, std::exp(mu)); });
  compare(report, "weight.sigma_sqrt", "sigma",
          [](double sigma) { return runtime::LevelWeight(WeightingScheme::kSigmaSqrt, sigma); });
  compare(report, "weight.cosmap", "sigma",
          [](double sigma) { return runtime::LevelWeight(WeightingScheme::kCosmap, sigma); });
  return report;
}

}  // namespace tessera::golden
