#include "control/model/model_description.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "control/parameters/job_parameters.h"
#include "control/pictures/reference_size.h"

namespace tessera::control {

absl::Status CheckRules(const TransformerShape& shape) {
  const parallel::ExchangeModel& exchange = shape.exchange;
  if (exchange.blocks.size() != shape.block_flops.size()) {
    return base::ErrorOfField("block_flops", absl::StrCat(" has ", shape.block_flops.size(), " entries for ",
                                                          exchange.blocks.size(), " blocks"));
  }
  if (!shape.known()) return absl::OkStatus();
  for (const auto& [name, value] :
       {std::pair{"exchange.width", exchange.width}, std::pair{"exchange.output_features", exchange.output_features},
        std::pair{"exchange.prediction_features", exchange.prediction_features}}) {
    if (value < 1) return base::ErrorOfField(name, absl::StrCat(" is ", value, "; it must be at least 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckRules(const ModelDescription& model) {
  if (model.max_size / model.size_multiple * model.size_multiple < model.min_size) {
    return base::ErrorOfField("max_size", absl::StrCat(" is ", model.max_size, "; the model needs a multiple of ",
                                                       model.size_multiple, " from ", model.min_size, " to it"));
  }
  const size_t blocks = model.transformer.exchange.blocks.size();
  if (model.transformer.known() && blocks != static_cast<size_t>(model.blocks)) {
    return base::ErrorOfField("transformer",
                              absl::StrCat(" has ", blocks, " blocks, and the model has ", model.blocks));
  }
  return absl::OkStatus();
}

std::string QuantizationOf(const ModelDescription& model) {
  const auto transformer = std::ranges::find(model.components, ComponentRole::kTransformer, &ModelComponent::role);
  return transformer == model.components.end() ? "" : transformer->quantization;
}

uint64_t ParametersOf(const ModelDescription& model, ComponentRole role) {
  uint64_t parameters = 0;
  for (const ModelComponent& component : model.components) {
    if (component.role == role) parameters += component.parameters;
  }
  return parameters;
}

JobParameters DefaultJob(const ModelDescription& model) {
  return {.height = model.default_height,
          .width = model.default_width,
          .steps = model.default_steps,
          .guidance_scale = model.default_guidance_scale,
          .clean_caption = model.default_clean_caption,
          .resolution_binning = model.default_resolution_binning && model.can_bin,
          .max_sequence_length = model.default_max_sequence_length};
}

ImageSize SizeLike(const ModelDescription& model, ImageSize picture) {
  const double area = static_cast<double>(model.default_height) * model.default_width;
  const double ratio = static_cast<double>(picture.width) / static_cast<double>(picture.height);
  const int64_t multiple = model.size_multiple;
  const int64_t low = (model.min_size + multiple - 1) / multiple * multiple,
                high = model.max_size / multiple * multiple;
  const auto side = [&](double length) {
    return std::clamp(static_cast<int64_t>(std::nearbyint(length)) / multiple * multiple, low, high);
  };
  return {.height = side(std::sqrt(area / ratio)), .width = side(std::sqrt(area * ratio))};
}

ImageSize SizeOfPictures(const ModelDescription& model, std::span<const PictureUse> pictures, bool has_mask) {
  std::vector<PictureSize> sizes;
  for (const PictureUse& picture : pictures) sizes.push_back({.width = picture.width, .height = picture.height});
  const bool from_first = BeginsFromPicture(model.pictures, has_mask);
  if (const std::optional<PictureSize> size = SizeOfResult(model.pictures.fit, sizes, from_first)) {
    return {.height = size->height, .width = size->width};
  }
  return SizeLike(model, {.height = pictures.front().height, .width = pictures.front().width});
}

ImageWork DefaultWork(const ModelDescription& model) { return WorkOf(model.cost, DefaultJob(model)); }

}  // namespace tessera::control
