// Cases of training: losses and gradients, steps of the optimizer, and the densities of noise levels.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/families/families.h"
#include "runtime/training/density.h"
#include "runtime/training/gradients.h"
#include "runtime/training/objective.h"
#include "runtime/training/optimizer.h"
#include "runtime/training/training_pass.h"
#include "tests/golden_runner/golden_component.h"

namespace tessera::golden {
namespace {

using runtime::TrainingBatch;

// A model of the goldens, with what is made of a case's tensors for it.
struct TrainedModel {
  std::unique_ptr<models::Family> family;
  std::string name;  // of the family
  std::set<std::string> parameters;
  runtime::SamplerConfig scheduler;
};

absl::StatusOr<TrainedModel> OpenTrainedModel(const Case& test_case) {
  ASSIGN_OR_RETURN(models::ModelFolder folder,
                   models::ModelFolder::Open(test_case.Path("../pipelines/" + test_case.Text("pipeline"))));
  ASSIGN_OR_RETURN(const models::FamilyEntry* entry, models::FindFamily(folder.class_name()));
  TrainedModel model{.family = {}, .name = std::string(entry->family), .parameters = {}, .scheduler = {}};
  ASSIGN_OR_RETURN(
      model.family,
      entry->load(folder,
                  {.dtype = at::kDouble, .device = test_case.device, .for_training = true, .encodes_prompts = false}));
  for (const models::Param& param : model.family->parameters()) model.parameters.insert(param.spec.name);
  ASSIGN_OR_RETURN(base::ConfigReader reader, folder.Config("scheduler"));
  ASSIGN_OR_RETURN(model.scheduler, runtime::ParseSamplerConfig(reader));
  return model;
}

// What Family::Encode would make of prompt `i`, were its states those of the case.
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

absl::StatusOr<runtime::Objective> ObjectiveOf(const Case& test_case, const TrainedModel& model) {
  runtime::ObjectiveOptions options{.snr_gamma = test_case.Number("min_snr_gamma", 0)};
  if (const std::string scheme = test_case.Text("weighting"); !scheme.empty()) {
    const auto known = base::EnumOf<control::WeightingScheme>(scheme);
    if (!known) return absl::InvalidArgumentError(absl::StrCat("weighting \"", scheme, "\" is unknown"));
    options.density.scheme = *known;
  }
  return runtime::Objective::Create(model.scheduler, options);
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

// Relative to the largest value of the tensor; where that is rounding alone, to the whole model's.
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
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  ASSIGN_OR_RETURN(const runtime::Objective objective, ObjectiveOf(test_case, model));
  TrainingBatch batch = BatchOf(test_case, model, objective, gold, "in.");
  const double fp64 = test_case.Tolerance("fp64"), rounded = test_case.Tolerance("fp64_stored_as_fp32");
  Report report;
  // The inputs were rounded to fp32 where they were stored, and behind what was computed from them.
  report.Add("noisy", RelativeError(batch.sample.noisy, gold.at("noisy")), rounded);
  report.Add("target", RelativeError(batch.sample.target, gold.at("target")), rounded);
  batch.sample.noisy = gold.at("noisy");
  batch.sample.target = gold.at("target");
  const double of_loss = gold.contains("in.text") && gold.at("in.text").scalar_type() == at::kFloat ? rounded : fp64;
  report.Add("timestep", RelativeError(batch.sample.timesteps, gold.at("timestep")), fp64);
  report.Add("weight", RelativeError(at::tensor(batch.sample.weights, at::kDouble), gold.at("weight")), fp64);
  const double largest = Largest(gold, "grad.");
  for (const bool recompute : {false, true}) {
    OneRank rank;
    runtime::TrainingPass pass(*model.family, rank.groups, {.recompute = recompute});
    const at::Tensor losses = pass.Run(batch, static_cast<double>(batch.rows.size()));
    report.Add("per_sample", RelativeError(losses, gold.at("per_sample")), of_loss);
    report.Add("loss", RelativeError(losses.mean(), gold.at("loss")), of_loss);
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
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  ASSIGN_OR_RETURN(const runtime::Objective objective, ObjectiveOf(test_case, model));
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
  // Everything follows from inputs that were rounded where they were stored.
  const double rounded = test_case.Tolerance("fp64_stored_as_fp32");
  Report report;
  for (int64_t step = 0; step < of_steps.Int("count", 0); ++step) {
    const TrainingBatch batch = BatchOf(test_case, model, objective, gold, absl::StrCat("step", step, ".in."));
    const at::Tensor losses = pass.Run(batch, static_cast<double>(batch.rows.size()));
    report.Add("losses", RelativeError(losses.mean(), gold.at("losses")[step]), rounded);
    gradients.Collect();
    gradients.Synchronize(groups);
    const double norm = gradients.GlobalNorm(groups);
    report.Add("gradient_norms", RelativeError(at::scalar_tensor(norm, at::kDouble), gold.at("gradient_norms")[step]),
               rounded);
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

// The reference computes what is made of fp32 numbers in fp32: an eighth digit.
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
