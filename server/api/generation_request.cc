#include "server/api/generation_request.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/nearest_name.h"
#include "base/utf8.h"

namespace tessera {
namespace {

// Times the pixels of a model's own size: twice its sides still look well.
constexpr int64_t kFarBeyond = 4;

constexpr size_t kMaxQuotedBytes = 60;
constexpr char kFieldUrl[] = "tessera/field";

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return FieldError(field, absl::StrCat(" is ", value, "; legal is ", low, " to ", high, ", the nearest is ",
                                        std::clamp(value, low, high)));
}

// Also refuses what is no number.
absl::Status CheckNumber(absl::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return FieldError(
      field, absl::StrCat(" is ", value, "; legal is a number from ", low, " to ", high,
                          std::isnan(value) ? "" : absl::StrCat(", the nearest is ", std::clamp(value, low, high))));
}

absl::Status CheckPrompt(absl::string_view field, absl::string_view text) {
  if (text.size() > kMaxPromptBytes) {
    return FieldError(field, absl::StrCat(" has ", text.size(), " bytes; legal is at most ", kMaxPromptBytes));
  }
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return FieldError(field, absl::StrCat(" has a NUL byte at offset ", nul, "; legal is UTF-8 text without NUL"));
  }
  if (const size_t wrong = FirstInvalidUtf8(text); wrong < text.size()) {
    const auto byte = static_cast<unsigned char>(text[wrong]);
    return FieldError(field, absl::StrCat(" is not valid UTF-8: byte 0x", absl::Hex(byte), " at offset ", wrong,
                                          "; legal is UTF-8 text"));
  }
  return absl::OkStatus();
}

absl::Status CheckSide(absl::string_view field, int64_t value, bool binning, const ModelDescription& model) {
  const int64_t multiple = binning ? 1 : model.size_multiple;
  const int64_t low = (model.min_size + multiple - 1) / multiple * multiple;
  const int64_t high = model.max_size / multiple * multiple;
  if (low == high && value != low) {
    return FieldError(field, absl::StrCat(" is ", value, "; legal is only ", low));
  }
  const std::string legal = absl::StrCat(
      "legal are ", multiple > 1 ? absl::StrCat("multiples of ", multiple, " from ") : "", low, " to ", high);
  if (value < low || value > high) {
    return FieldError(field,
                      absl::StrCat(" is ", value, "; ", legal, ", the nearest is ", std::clamp(value, low, high)));
  }
  if (value % multiple != 0) {
    const int64_t below = value / multiple * multiple;
    return FieldError(field,
                      absl::StrCat(" is ", value, "; ", legal, ", the nearest are ", below, " and ", below + multiple));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const std::string& device) {
  absl::string_view number = device;
  int32_t index = 0;
  if (absl::ConsumePrefix(&number, "cuda:")) {
    const bool digits = !number.empty() && std::all_of(number.begin(), number.end(), absl::ascii_isdigit);
    if (digits && absl::SimpleAtoi(number, &index) && index < 1024) return absl::OkStatus();
    return FieldError(
        "device", absl::StrCat(" is ", QuotedValue(device), "; legal are cpu, cuda, and cuda:N with N from 0 to 1023"));
  }
  return CheckName("device", device, {"cpu", "cuda", "cuda:0"});
}

bool Reads(const ModelDescription& model, absl::string_view option) {
  return std::find(model.options.begin(), model.options.end(), option) != model.options.end();
}

// A field of the request that only some models read: `option` is its name in the model's list.
struct OptionalField {
  const char* field;
  const char* option;
  bool given;
  std::string value;
};

absl::Status CheckRead(const OptionalField& field, const ModelDescription& model) {
  if (!field.given || Reads(model, field.option)) return absl::OkStatus();
  return FieldError(
      field.field,
      absl::StrCat(" is ", field.value, "; this model does not read it, so legal is only to leave it out; ",
                   model.options.empty()
                       ? "the model has no options of this kind"
                       : absl::StrCat("the model's options are ", absl::StrJoin(model.options, ", "))));
}

template <typename Number>
OptionalField Field(const char* field, const char* option, const std::optional<Number>& value) {
  return {field, option, value.has_value(), value.has_value() ? absl::StrCat(*value) : ""};
}

OptionalField Field(const char* field, const char* option, const std::string& text) {
  return {field, option, !text.empty(), QuotedValue(text)};
}

// That the model reads every option which is given.
absl::Status CheckOptionsRead(const GenerationRequest& request, const ModelDescription& model) {
  using namespace prompt_option;
  absl::Status status;
  for (const OptionalField& field :
       {Field("prompt 2", kPrompt2, request.prompt_2), Field("negative prompt 2", kPrompt2, request.negative_prompt_2),
        Field("prompt 3", kPrompt3, request.prompt_3), Field("negative prompt 3", kPrompt3, request.negative_prompt_3),
        Field("true CFG scale", kTrueCfgScale, request.true_cfg_scale),
        Field("guidance rescale", kGuidanceRescale, request.guidance_rescale),
        Field("clip skip", kClipSkip, request.clip_skip),
        OptionalField{"skip layers", kSkipLayers, !request.skip_layers.empty(),
                      absl::StrJoin(request.skip_layers, ",")},
        Field("skip layer scale", kSkipLayers, request.skip_layer_scale),
        Field("skip layer start", kSkipLayers, request.skip_layer_start),
        Field("skip layer stop", kSkipLayers, request.skip_layer_stop),
        Field("original width", kOriginalSize, request.original_width),
        Field("original height", kOriginalSize, request.original_height),
        Field("crop top", kOriginalSize, request.crop_top), Field("crop left", kOriginalSize, request.crop_left)}) {
    status.Update(CheckRead(field, model));
  }
  return status;
}

absl::StatusOr<SkipLayerGuidance> SkipLayers(const GenerationRequest& request, const ModelDescription& model) {
  SkipLayerGuidance guidance;
  if (request.skip_layers.empty()) {
    const bool alone = request.skip_layer_scale.has_value() || request.skip_layer_start.has_value() ||
                       request.skip_layer_stop.has_value();
    if (!alone) return guidance;
    return FieldError("skip layers",
                      " are not given; a scale, start or stop of skip layer guidance needs at least one of them");
  }
  guidance.scale = request.skip_layer_scale.value_or(guidance.scale);
  guidance.start = request.skip_layer_start.value_or(guidance.start);
  guidance.stop = request.skip_layer_stop.value_or(guidance.stop);
  absl::Status status;
  for (size_t i = 0; i < request.skip_layers.size(); ++i) {
    const int64_t layer = request.skip_layers[i];
    status.Update(CheckRange("skip layer", layer, 0, std::max(model.blocks, 1) - 1));
    const auto end = request.skip_layers.begin() + static_cast<std::ptrdiff_t>(i);
    if (status.ok() && std::find(request.skip_layers.begin(), end, layer) != end) {
      status.Update(
          FieldError("skip layer", absl::StrCat(" ", layer, " is given twice; legal is every layer at most once")));
    }
    if (!status.ok()) return status;
    guidance.layers.push_back(static_cast<int32_t>(layer));
  }
  status.Update(CheckNumber("skip layer scale", guidance.scale, 0, kMaxGuidanceScale));
  status.Update(CheckNumber("skip layer start", guidance.start, 0, 1));
  status.Update(CheckNumber("skip layer stop", guidance.stop, 0, 1));
  if (status.ok() && guidance.start > guidance.stop) {
    status = FieldError("skip layer start",
                        absl::StrCat(" is ", guidance.start, "; legal is at most the stop, which is ", guidance.stop));
  }
  if (!status.ok()) return status;
  return guidance;
}

absl::StatusOr<PromptOptions> CheckOptions(const GenerationRequest& request, const ModelDescription& model) {
  absl::Status status = CheckOptionsRead(request, model);
  status.Update(CheckPrompt("prompt 2", request.prompt_2));
  status.Update(CheckPrompt("prompt 3", request.prompt_3));
  status.Update(CheckPrompt("negative prompt 2", request.negative_prompt_2));
  status.Update(CheckPrompt("negative prompt 3", request.negative_prompt_3));
  PromptOptions options = {.prompt_2 = request.prompt_2,
                           .prompt_3 = request.prompt_3,
                           .negative_prompt_2 = request.negative_prompt_2,
                           .negative_prompt_3 = request.negative_prompt_3};
  options.true_cfg_scale = request.true_cfg_scale.value_or(options.true_cfg_scale);
  options.guidance_rescale = request.guidance_rescale.value_or(options.guidance_rescale);
  status.Update(CheckNumber("true CFG scale", options.true_cfg_scale, 0, kMaxGuidanceScale));
  status.Update(CheckNumber("guidance rescale", options.guidance_rescale, 0, 1));
  const int64_t clip_skip = request.clip_skip.value_or(0);
  status.Update(CheckRange("clip skip", clip_skip, 0, kMaxClipSkip));
  if (request.original_width.has_value() != request.original_height.has_value()) {
    status.Update(
        request.original_width.has_value()
            ? FieldError("original width", absl::StrCat(" is ", *request.original_width,
                                                        " without an original height; legal is both or neither"))
            : FieldError("original height", absl::StrCat(" is ", *request.original_height,
                                                         " without an original width; legal is both or neither")));
  }
  const int64_t original_width = request.original_width.value_or(0);
  const int64_t original_height = request.original_height.value_or(0);
  const int64_t crop_top = request.crop_top.value_or(0);
  const int64_t crop_left = request.crop_left.value_or(0);
  if (request.original_width) status.Update(CheckRange("original width", original_width, 1, kMaxOriginalSize));
  if (request.original_height) status.Update(CheckRange("original height", original_height, 1, kMaxOriginalSize));
  status.Update(CheckRange("crop top", crop_top, 0, kMaxOriginalSize));
  status.Update(CheckRange("crop left", crop_left, 0, kMaxOriginalSize));
  if (!status.ok()) return status;
  options.clip_skip = static_cast<int32_t>(clip_skip);
  options.original_size = {.height = static_cast<int32_t>(original_height),
                           .width = static_cast<int32_t>(original_width),
                           .crop_top = static_cast<int32_t>(crop_top),
                           .crop_left = static_cast<int32_t>(crop_left)};
  absl::StatusOr<SkipLayerGuidance> skip_layers = SkipLayers(request, model);
  if (!skip_layers.ok()) return skip_layers.status();
  options.skip_layers = *std::move(skip_layers);
  return options;
}

absl::Status CheckSequenceLength(int64_t tokens, const ModelDescription& model) {
  if (model.max_sequence_length == 0) {
    return FieldError("maximum sequence length",
                      absl::StrCat(" is ", tokens, "; this model reads no tokens, so legal is only to leave it out"));
  }
  return CheckRange("maximum sequence length", tokens, 1, model.max_sequence_length);
}

constexpr std::pair<const char*, ComponentPlacement> kPlacements[] = {{"rank0", ComponentPlacement::kRank0},
                                                                      {"cpu", ComponentPlacement::kCpu},
                                                                      {"unload", ComponentPlacement::kUnloaded}};

absl::Status ReadPlacement(absl::string_view field, const std::string& name, ComponentPlacement& placement) {
  std::vector<std::string> names;
  for (const auto& [legal, value] : kPlacements) {
    if (name == legal) placement = value;
    names.emplace_back(legal);
  }
  return CheckName(field, name, names);
}

}  // namespace

std::string QuotedValue(absl::string_view value) {
  std::string shown = ReplaceInvalidUtf8(value.substr(0, kMaxQuotedBytes));
  for (char& c : shown) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return absl::StrCat("'", shown, value.size() > kMaxQuotedBytes ? "…'" : "'");
}

std::string ErrorField(const absl::Status& status) {
  const auto payload = status.GetPayload(kFieldUrl);
  return payload.has_value() ? std::string(*payload) : "";
}

absl::Status FieldError(absl::string_view field, absl::string_view rest) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, rest));
  status.SetPayload(kFieldUrl, absl::Cord(field));
  return status;
}

absl::Status CheckName(absl::string_view field, absl::string_view value, absl::Span<const std::string> legal) {
  if (std::find(legal.begin(), legal.end(), value) != legal.end()) return absl::OkStatus();
  const std::string nearest = NearestName(value, legal);
  return FieldError(field, absl::StrCat(" ", QuotedValue(value), " is unknown; legal are ", absl::StrJoin(legal, ", "),
                                        nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?")));
}

absl::StatusOr<JobParameters> Validate(const GenerationRequest& request, const ModelDescription& model) {
  JobParameters job;
  job.resolution_binning = request.resolution_binning.value_or(model.default_resolution_binning && model.can_bin);
  if (job.resolution_binning && !model.can_bin) {
    return FieldError("resolution binning", " is on; this model has no table of sizes, so legal is only off");
  }
  job.clean_caption = request.clean_caption.value_or(model.default_clean_caption);

  const int64_t width = request.width.value_or(model.default_width);
  const int64_t height = request.height.value_or(model.default_height);
  const int64_t steps = request.steps.value_or(model.default_steps);
  const int64_t tokens = request.max_sequence_length.value_or(model.default_max_sequence_length);
  absl::Status status = CheckPrompt("prompt", request.prompt);
  status.Update(CheckPrompt("negative prompt", request.negative_prompt.value_or("")));
  status.Update(CheckSide("width", width, job.resolution_binning, model));
  status.Update(CheckSide("height", height, job.resolution_binning, model));
  status.Update(CheckRange("steps", steps, 1, model.max_steps));
  status.Update(CheckRange("count", request.count, 1, kMaxImageCount));
  if (request.max_sequence_length.has_value()) status.Update(CheckSequenceLength(tokens, model));
  absl::StatusOr<PromptOptions> options = CheckOptions(request, model);
  status.Update(options.status());
  job.guidance_scale = request.guidance_scale.value_or(model.default_guidance_scale);
  if (!std::isfinite(job.guidance_scale) || job.guidance_scale < 0 || job.guidance_scale > kMaxGuidanceScale) {
    status.Update(FieldError(
        "guidance",
        absl::StrCat(" is ", job.guidance_scale, "; legal is a number from 0 to ", kMaxGuidanceScale,
                     std::isnan(job.guidance_scale)
                         ? absl::StrCat(", the model's default is ", model.default_guidance_scale)
                         : absl::StrCat(", the nearest is ", job.guidance_scale < 0 ? 0 : kMaxGuidanceScale))));
  }
  if (!request.sampler.empty()) status.Update(CheckName("sampler", request.sampler, model.samplers));
  status.Update(CheckName("noise", request.noise, {"tessera", "torch-cpu"}));
  if (request.count > 1 && request.seed > std::numeric_limits<uint64_t>::max() - (request.count - 1)) {
    status.Update(
        FieldError("seed", absl::StrCat(" is ", request.seed, "; with count ", request.count, " legal is at most ",
                                        std::numeric_limits<uint64_t>::max() - (request.count - 1))));
  }
  if (!status.ok()) return status;

  job.prompt = request.prompt;
  job.negative_prompt = request.negative_prompt;
  job.options = *std::move(options);
  job.width = static_cast<int32_t>(width);
  job.height = static_cast<int32_t>(height);
  job.steps = static_cast<int32_t>(steps);
  job.seed = request.seed;
  job.sampler = request.sampler;
  job.noise = request.noise;
  job.max_sequence_length = static_cast<int32_t>(tokens);
  return job;
}

std::vector<std::string> SizeWarnings(const JobParameters& job, const ModelDescription& model) {
  const int64_t own = int64_t{model.default_width} * model.default_height;
  if (own == 0 || int64_t{job.width} * job.height <= kFarBeyond * own) return {};
  return {absl::StrCat("size: ", job.width, "x", job.height, " is far beyond the ", model.default_width, "x",
                       model.default_height, " that the model was made for; expect a poor picture and a long time")};
}

std::string PlacementName(ComponentPlacement placement) {
  for (const auto& [name, value] : kPlacements) {
    if (value == placement) return name;
  }
  return "";
}

absl::StatusOr<LoadParameters> Validate(const PlacementRequest& request, const std::string& model) {
  absl::Status status = CheckName("dtype", request.dtype, {"fp64", "fp32", "bf16"});
  status.Update(CheckDevice(request.device));
  status.Update(CheckRange("threads", request.threads, 0, kMaxThreads));
  LoadParameters placement;
  status.Update(ReadPlacement("placement of the text encoders", request.text_encoders, placement.text_encoders));
  status.Update(ReadPlacement("placement of the autoencoder", request.autoencoder, placement.autoencoder));
  status.Update(CheckRange("prompt cache (MiB)", request.prompt_cache_mib, 0, kMaxPromptCacheMib));
  if (!status.ok()) return status;
  placement.model = model;
  placement.dtype = request.dtype;
  placement.device = request.device;
  placement.threads = static_cast<int32_t>(request.threads);
  placement.prompt_cache_bytes = static_cast<uint64_t>(request.prompt_cache_mib) << 20;
  placement.stream_blocks = request.stream_blocks;
  return placement;
}

}  // namespace tessera
