#include "client/cli/prompt_options_json.h"

#include "client/cli/output/json_line.h"

namespace tessera {
namespace {

void Add(const char* name, const std::string& text, const std::string& usual, boost::json::object& object) {
  if (text != usual) object[name] = JsonText(text);
}

template <typename Number>
void Add(const char* name, Number value, Number usual, boost::json::object& object) {
  if (value != usual) object[name] = value;
}

}  // namespace

boost::json::object PromptOptionsJson(const PromptOptions& options) {
  const PromptOptions usual;
  boost::json::object object;
  Add("prompt_2", options.prompt_2, usual.prompt_2, object);
  Add("prompt_3", options.prompt_3, usual.prompt_3, object);
  Add("negative_prompt_2", options.negative_prompt_2, usual.negative_prompt_2, object);
  Add("negative_prompt_3", options.negative_prompt_3, usual.negative_prompt_3, object);
  Add("true_cfg_scale", options.true_cfg_scale, usual.true_cfg_scale, object);
  Add("guidance_rescale", options.guidance_rescale, usual.guidance_rescale, object);
  Add("clip_skip", options.clip_skip, usual.clip_skip, object);
  if (!options.skip_layers.layers.empty()) {
    object["skip_layers"] = boost::json::array(options.skip_layers.layers.begin(), options.skip_layers.layers.end());
  }
  Add("skip_layer_scale", options.skip_layers.scale, usual.skip_layers.scale, object);
  Add("skip_layer_start", options.skip_layers.start, usual.skip_layers.start, object);
  Add("skip_layer_stop", options.skip_layers.stop, usual.skip_layers.stop, object);
  Add("original_width", options.original_size.width, usual.original_size.width, object);
  Add("original_height", options.original_size.height, usual.original_size.height, object);
  Add("crop_top", options.original_size.crop_top, usual.original_size.crop_top, object);
  Add("crop_left", options.original_size.crop_left, usual.original_size.crop_left, object);
  return object;
}

}  // namespace tessera
