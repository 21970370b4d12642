#include "server/api/unused_parameters.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"

namespace tessera::server {
namespace {

constexpr char kNeedsGuidance[] = "it needs a guidance above 1";
constexpr char kNeedsTrueCfg[] = "it needs a true CFG scale above 1";

// Returns why skip-layer guidance has no effect in any step; empty if it has an effect.
std::string WhySkipLayersRest(const control::JobParameters& job) {
  const control::SkipLayerGuidance& skip = job.options.skip_layers;
  if (job.guidance_scale <= 1) return kNeedsGuidance;
  if (skip.scale == 0) return "its scale is 0";
  for (int32_t step = 0; step < job.steps; ++step) {
    if (job.steps * skip.start < step && step < job.steps * skip.stop) return "";
  }
  return absl::StrCat("none of the ", job.steps, job.steps == 1 ? " step" : " steps", " lies between its start ",
                      skip.start, " and its stop ", skip.stop);
}

}  // namespace

bool TakesGuidance(const control::ModelDescription& model) { return model.default_guidance_scale != 0; }

std::vector<std::string> DropUnusedParameters(control::JobParameters& job, const control::ModelDescription& model) {
  const control::PromptOptions usual;
  control::PromptOptions& options = job.options;
  std::vector<std::string> said;
  const auto drop = [&said](const std::string& what, auto& value, const auto& default_value, const std::string& why) {
    if (value == default_value) return;
    said.push_back(absl::StrCat(what, " is not used: ", why));
    value = default_value;
  };
  if (!TakesGuidance(model)) {
    drop(absl::StrCat("guidance ", job.guidance_scale), job.guidance_scale, model.default_guidance_scale,
         "this model takes no guidance scale");
  }
  if (!model.default_clean_caption) {
    drop("caption cleaning", job.clean_caption, false, "this model has none");
  }
  const bool true_cfg = model.cost.guidance_is_input;
  const std::string scale = absl::StrCat("true CFG scale ", options.true_cfg_scale);
  if (!job.negative_prompt.has_value()) {
    drop(scale, options.true_cfg_scale, usual.true_cfg_scale, "it needs a negative prompt, which may be empty");
  } else if (options.true_cfg_scale < 1) {
    drop(scale, options.true_cfg_scale, usual.true_cfg_scale, "it begins above 1");
  }
  if (!control::IsGuided(model.cost, job)) {
    const std::string why = true_cfg ? kNeedsTrueCfg : kNeedsGuidance;
    // Without true CFG, the model uses an empty negative prompt anyway.
    if (true_cfg || !job.negative_prompt.value_or("").empty()) {
      drop("the negative prompt", job.negative_prompt, std::optional<std::string>(), why);
    }
    drop("the second negative prompt", options.negative_prompt_2, usual.negative_prompt_2, why);
    drop("the third negative prompt", options.negative_prompt_3, usual.negative_prompt_3, why);
  }
  if (!control::IsGuided(model.cost, job)) {
    drop(absl::StrCat("CFG normalization ", options.cfg_normalization), options.cfg_normalization,
         usual.cfg_normalization, kNeedsGuidance);
    drop(absl::StrCat("CFG truncation ", options.cfg_truncation), options.cfg_truncation, usual.cfg_truncation,
         kNeedsGuidance);
  }
  if (job.guidance_scale <= 1) {
    drop(absl::StrCat("guidance rescale ", options.guidance_rescale), options.guidance_rescale, usual.guidance_rescale,
         kNeedsGuidance);
  }
  if (!options.skip_layers.layers.empty()) {
    if (const std::string why = WhySkipLayersRest(job); !why.empty()) {
      drop("skip-layer guidance", options.skip_layers, usual.skip_layers, why);
    }
  }
  return said;
}

}  // namespace tessera::server
