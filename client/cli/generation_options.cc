#include "client/cli/generation_options.h"

#include <sys/random.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/option_text.h"

namespace tessera {
namespace {

// Small enough to be typed again.
absl::StatusOr<uint64_t> RandomSeed() {
  uint32_t seed = 0;
  if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) return absl::InternalError("no random numbers for a seed");
  return seed;
}

absl::Status SetInteger(absl::string_view field, const std::string& text, std::optional<int64_t>& value) {
  if (text.empty()) return absl::OkStatus();
  absl::StatusOr<int64_t> parsed = ParseInteger(field, text);
  if (parsed.ok()) value = *parsed;
  return parsed.status();
}

absl::Status SetNumber(absl::string_view field, const std::string& text, std::optional<double>& value) {
  if (text.empty()) return absl::OkStatus();
  absl::StatusOr<double> parsed = ParseNumber(field, text);
  if (parsed.ok()) value = *parsed;
  return parsed.status();
}

absl::Status SetSize(absl::string_view field, const std::string& text, std::optional<int64_t>& width,
                     std::optional<int64_t>& height) {
  if (text.empty()) return absl::OkStatus();
  absl::StatusOr<TypedSize> size = ParseSize(field, text);
  if (!size.ok()) return size.status();
  width = size->width;
  height = size->height;
  return absl::OkStatus();
}

absl::Status SetSkipLayers(const std::string& text, std::vector<int64_t>& layers) {
  if (text.empty()) return absl::OkStatus();
  absl::StatusOr<std::vector<int64_t>> parsed = ParseIntegers("skip layers", text);
  if (!parsed.ok()) return parsed.status();
  layers = *std::move(parsed);
  return absl::OkStatus();
}

absl::Status SetCorner(const std::string& text, std::optional<int64_t>& top, std::optional<int64_t>& left) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<int64_t>> corner = ParseIntegers("crop", text);
  if (!corner.ok() || corner->size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat("crop is '", text, "'; legal is TOP,LEFT in pixels, such as 0,64"));
  }
  top = (*corner)[0];
  left = (*corner)[1];
  return absl::OkStatus();
}

}  // namespace

void AddGenerationOptions(CLI::App& app, GenerationOptions& options) {
  AddText(app,
          {.names = "prompt", .help = "What the image shows; may be empty", .required = true, .may_be_empty = true},
          options.prompt);
  AddText(app, {"-s,--size", "Size in pixels: WIDTHxHEIGHT (default: the model's)", "WxH"}, options.size);
  AddText(app, {.names = "--width", .help = "Width in pixels", .type = "N", .excludes = "--size"}, options.width);
  AddText(app, {.names = "--height", .help = "Height in pixels", .type = "N", .excludes = "--size"}, options.height);
  AddText(app, {"--steps", "Denoising steps (default: the model's)", "N"}, options.steps);
  AddText(app, {"--guidance", "Guidance scale (default: the model's)", "X"}, options.guidance);
  AddText(app, {.names = "--negative", .help = "What the image shall not show; may be empty", .may_be_empty = true},
          options.negative_prompt);
  AddText(app, {"--seed", "Seed of the first image (default: random, and said)", "N"}, options.seed);
  AddText(app, {"-n,--count", "Images to make, with seeds counting up (default: 1)", "N"}, options.count);
  AddText(app, {"--sampler", "Sampler (default: the model's; `tessera inspect` lists them)", "NAME"}, options.sampler);
  AddText(app, {"--noise", "tessera or torch-cpu (default: tessera)", "NAME"}, options.noise);
  AddSwitch(app, "clean-caption", "Clean the prompt as the model's authors did", options.clean_caption);
  AddSwitch(app, "binning", "Denoise at the nearest size of the model's table", options.resolution_binning);
  AddText(app, {"--max-sequence-length", "Tokens of the prompt (default: the model's)", "N"},
          options.max_sequence_length);

  // What only some models read.
  AddText(app, {"--prompt-2", "Prompt for the second text encoder (default: the same as the first)"}, options.prompt_2);
  AddText(app, {"--prompt-3", "Prompt for the third text encoder (default: the same as the first)"}, options.prompt_3);
  AddText(app, {"--negative-2", "Negative prompt for the second text encoder (default: the same as the first)"},
          options.negative_prompt_2);
  AddText(app, {"--negative-3", "Negative prompt for the third text encoder (default: the same as the first)"},
          options.negative_prompt_3);
  AddText(app, {"--true-cfg", "Scale of true classifier-free guidance; needs --negative (default: 1, off)", "X"},
          options.true_cfg);
  AddText(app,
          {"--guidance-rescale", "How far guidance keeps the deviation of the prediction, 0 to 1 (default: 0)", "X"},
          options.guidance_rescale);
  AddText(app, {"--clip-skip", "Further layers of CLIP to leave out (default: 0)", "N"}, options.clip_skip);
  AddText(app, {"--skip-layers", "Blocks for skip-layer guidance, such as 7,8,9 (default: none, off)", "N,N"},
          options.skip_layers);
  AddText(app, {"--skip-layer-scale", "Its scale (default: 2.8)", "X"}, options.skip_layer_scale);
  AddText(app, {"--skip-layer-start", "The part of the steps where it begins, 0 to 1 (default: 0.01)", "X"},
          options.skip_layer_start);
  AddText(app, {"--skip-layer-stop", "The part of the steps where it ends, 0 to 1 (default: 0.2)", "X"},
          options.skip_layer_stop);
  AddText(app, {"--original-size", "Size that the image is said to be cut from (default: the model's)", "WxH"},
          options.original_size);
  AddText(app, {"--crop-top-left", "Where it is said to be cut from (default: 0,0)", "TOP,LEFT"},
          options.crop_top_left);
}

absl::StatusOr<GenerationRequest> RequestOf(const GenerationOptions& options) {
  GenerationRequest request;
  request.prompt = options.prompt;
  request.negative_prompt = options.negative_prompt;
  request.prompt_2 = options.prompt_2;
  request.prompt_3 = options.prompt_3;
  request.negative_prompt_2 = options.negative_prompt_2;
  request.negative_prompt_3 = options.negative_prompt_3;
  request.sampler = options.sampler;
  if (!options.noise.empty()) request.noise = options.noise;
  request.clean_caption = options.clean_caption;
  request.resolution_binning = options.resolution_binning;
  std::optional<int64_t> count;
  absl::Status status = SetSize("size", options.size, request.width, request.height);
  status.Update(SetInteger("width", options.width, request.width));
  status.Update(SetInteger("height", options.height, request.height));
  status.Update(SetInteger("steps", options.steps, request.steps));
  status.Update(SetInteger("count", options.count, count));
  status.Update(SetInteger("maximum sequence length", options.max_sequence_length, request.max_sequence_length));
  status.Update(SetNumber("guidance", options.guidance, request.guidance_scale));
  status.Update(SetNumber("true CFG scale", options.true_cfg, request.true_cfg_scale));
  status.Update(SetNumber("guidance rescale", options.guidance_rescale, request.guidance_rescale));
  status.Update(SetInteger("clip skip", options.clip_skip, request.clip_skip));
  status.Update(SetSkipLayers(options.skip_layers, request.skip_layers));
  status.Update(SetNumber("skip layer scale", options.skip_layer_scale, request.skip_layer_scale));
  status.Update(SetNumber("skip layer start", options.skip_layer_start, request.skip_layer_start));
  status.Update(SetNumber("skip layer stop", options.skip_layer_stop, request.skip_layer_stop));
  status.Update(SetSize("original size", options.original_size, request.original_width, request.original_height));
  status.Update(SetCorner(options.crop_top_left, request.crop_top, request.crop_left));
  if (!status.ok()) return status;
  request.count = count.value_or(1);
  absl::StatusOr<uint64_t> seed = options.seed.empty() ? RandomSeed() : ParseSeed(options.seed);
  if (!seed.ok()) return seed.status();
  request.seed = *seed;
  return request;
}

}  // namespace tessera
