#include "runtime/engine/model_info.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "base/fields/enum_names.h"
#include "base/macros/status_macros.h"
#include "control/host/device.h"
#include "control/model/group_share.h"
#include "control/model/memory_fit.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/placement.h"
#include "models/families/family_description.h"
#include "models/loading/component.h"
#include "models/tokenizers/tokenizer.h"

namespace tessera::runtime {
namespace {

control::ModelComponent DescribeComponent(control::ModelComponent component, const models::WeightFolder& weights) {
  component.bytes = weights.total_bytes();
  component.files = weights.files();
  std::set<std::string> types, forms;
  for (const auto& [tensor, location] : weights.tensors()) {
    component.parameters += static_cast<uint64_t>(location.tensor.elements());
    types.insert(absl::AsciiStrToLower(models::StoredTypeName(location.tensor.type)));
    if (location.quantization != nullptr) forms.insert(models::FormName(*location.quantization));
  }
  component.quantization = absl::StrJoin(forms, ", ");
  component.dtype = types.size() == 1 ? *types.begin() : "mixed";
  return component;
}

}  // namespace

absl::StatusOr<SamplerConfig> ReadSamplerConfig(const models::ModelFolder& folder, std::vector<std::string>& warnings) {
  SamplerConfig config;
  const auto parse = [](base::ConfigReader& reader) { return ParseSamplerConfig(reader); };
  RETURN_IF_ERROR(models::ReadConfig(folder, "scheduler", parse, config, warnings));
  return config;
}

absl::StatusOr<control::ModelDescription> DescribeModel(const models::ModelFolder& folder, std::string_view family,
                                                        const models::FamilyDescription& description,
                                                        const SamplerConfig& sampler) {
  control::ModelDescription info;
  info.pipeline = folder.class_name();
  info.family = family;
  ASSIGN_OR_RETURN(info.digest, folder.Digest());
  for (const auto& [name, listed] : folder.components()) {
    control::ModelComponent component{.name = name, .role = listed.role, .class_name = listed.class_name};
    const absl::StatusOr<std::string> path = folder.ComponentPath(name);
    if (!path.ok()) continue;
    // Components that generation needs must have readable weights; otherwise the error is returned.
    if (listed.role == control::ComponentRole::kOther && !folder.HasWeights(name)) {
      component.files = models::TokenizerFiles(component.class_name, *path);
      if (!component.files.empty()) info.components.push_back(std::move(component));
      continue;
    }
    ASSIGN_OR_RETURN(const models::WeightFolder weights, folder.Weights(name));
    info.components.push_back(DescribeComponent(std::move(component), weights));
  }
  info.size_multiple = static_cast<int32_t>(description.size_multiple);
  info.min_size = static_cast<int32_t>(std::max(description.min_size, description.size_multiple));
  info.max_size = static_cast<int32_t>(description.max_size);
  info.default_height = static_cast<int32_t>(description.default_height);
  info.default_width = static_cast<int32_t>(description.default_width);
  info.default_steps = static_cast<int32_t>(description.default_steps);
  info.max_steps = static_cast<int32_t>(sampler.num_train_timesteps);
  info.default_guidance_scale = description.default_guidance_scale;
  info.base_model = description.base_model;
  info.default_resolution_binning = description.default_resolution_binning;
  info.can_bin = description.can_bin;
  info.default_clean_caption = description.default_clean_caption;
  info.pictures = description.pictures;
  info.default_max_sequence_length = static_cast<int32_t>(description.default_max_sequence_length);
  info.max_sequence_length = static_cast<int32_t>(description.max_sequence_length);
  info.options = description.options;
  info.default_sampler = SamplerName(sampler);
  info.samplers = ValidSamplers(sampler);
  info.heads = static_cast<int32_t>(description.heads);
  info.blocks = static_cast<int32_t>(description.blocks);
  info.transformer = {.exchange = description.exchange, .block_flops = description.block_flops};
  info.cost = description.cost;
  info.weights = description.weights;
  for (const auto& [component, products] : description.adaptable.components) {
    for (const models::ProductSpec& product : products) {
      info.products.push_back({.component = component,
                               .name = product.name,
                               .out = product.out,
                               .in = product.in,
                               .aliases = product.aliases});
    }
  }
  info.original_names = base::EnumName(description.adaptable.originals);
  info.warnings = description.warnings;
  return info;
}

namespace {

control::ImageWork DefaultWorkOf(const models::FamilyDescription& model) {
  const control::JobParameters job = {.height = static_cast<int32_t>(model.default_height),
                                      .width = static_cast<int32_t>(model.default_width),
                                      .guidance_scale = model.default_guidance_scale,
                                      .resolution_binning = model.default_resolution_binning};
  return control::WorkOf(model.cost, job);
}

}  // namespace

int64_t RunBytes(const models::FamilyDescription& model, control::Dtype dtype, const parallel::MeshShape& mesh,
                 control::DeviceKind device) {
  return static_cast<int64_t>(std::ceil(
      control::PeakBytes(model.cost, DefaultWorkOf(model), /*images=*/1, control::ShareOf(mesh, device, dtype))));
}

control::FitQuery FitQueryOf(const models::FamilyDescription& model, control::Dtype dtype,
                             const parallel::MeshShape& mesh, control::DeviceKind device) {
  const control::ImageWork work = DefaultWorkOf(model);
  const control::GroupShare share = control::ShareOf(mesh, device, dtype);
  const auto ranks = static_cast<double>(share.sequence * share.tensor * share.cfg * share.pipe);
  return {.element_bytes = share.element_bytes,
          .tensor = share.tensor,
          .step_bytes = control::StepBytes(model.cost, work, /*images=*/1, share),
          .decode_bytes = control::DecodeBytes(model.cost, work, share),
          .step_flops = control::StepFlops(model.cost, work) / ranks};
}

}  // namespace tessera::runtime
