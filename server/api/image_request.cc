#include "server/api/image_request.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/utf8.h"

namespace tessera {
namespace {

// Names of the validator's fields, and what the API calls them.
constexpr std::pair<const char*, const char*> kApiNames[] = {
    {"negative prompt", "negative_prompt"},
    {"width", "size"},
    {"height", "size"},
    {"steps", "num_inference_steps"},
    {"count", "n"},
    {"guidance", "guidance_scale"},
    {"maximum sequence length", "max_sequence_length"},
    {"max sequence length", "max_sequence_length"},
    {"resolution binning", "resolution_binning"},
    {"prompt 2", "prompt_2"},
    {"prompt 3", "prompt_3"},
    {"negative prompt 2", "negative_prompt_2"},
    {"negative prompt 3", "negative_prompt_3"},
    {"true CFG scale", "true_cfg_scale"},
    {"guidance rescale", "guidance_rescale"},
    {"clip skip", "clip_skip"},
    {"skip layers", "skip_layers"},
    {"skip layer", "skip_layers"},
    {"skip layer scale", "skip_layer_scale"},
    {"skip layer start", "skip_layer_start"},
    {"skip layer stop", "skip_layer_stop"},
    {"original width", "original_width"},
    {"original height", "original_height"},
    {"crop top", "crop_top"},
    {"crop left", "crop_left"},
};

// The same error in the names of the API.
absl::Status InApiNames(const absl::Status& status) {
  const std::string field = ErrorField(status);
  for (const auto& [name, api_name] : kApiNames) {
    if (field != name) continue;
    absl::string_view rest = status.message().substr(field.size());
    // A side keeps its own name behind that of the size.
    if (api_name == absl::string_view("size")) return FieldError("size", absl::StrCat(": ", field, rest));
    return FieldError(api_name, rest);
  }
  return status;
}

// The longest name of a field, the validator's or the API's, that a sentence begins with; empty: none.
absl::string_view FieldAtStartOf(absl::string_view sentence) {
  absl::string_view found;
  const auto consider = [&](absl::string_view name) {
    const bool begins = absl::StartsWith(sentence, name) && sentence.size() > name.size();
    if (begins && (sentence[name.size()] == ' ' || sentence[name.size()] == ':') && name.size() > found.size()) {
      found = name;
    }
  };
  for (const auto& [name, api_name] : kApiNames) {
    consider(name);
    consider(api_name);
  }
  for (const char* name : {"prompt", "sampler", "seed"}) consider(name);
  return found;
}

struct SizeText {
  std::optional<int64_t> width, height;
};

absl::StatusOr<SizeText> ReadSize(const std::string& size) {
  if (size.empty() || size == "auto") return SizeText();
  const auto refuse = [&] {
    return FieldError("size", absl::StrCat(" is ", QuotedValue(size),
                                           "; legal are 'auto' and WIDTHxHEIGHT in pixels, such as '512x512'"));
  };
  const std::vector<std::string> sides = absl::StrSplit(size, 'x');
  if (sides.size() != 2) return refuse();
  SizeText result;
  for (const std::string& side : sides) {
    int64_t pixels = 0;
    const bool digits = !side.empty() && side.size() <= 9 && std::all_of(side.begin(), side.end(), absl::ascii_isdigit);
    if (!digits || !absl::SimpleAtoi(side, &pixels)) return refuse();
    (result.width.has_value() ? result.height : result.width) = pixels;
  }
  return result;
}

absl::Status CheckBetween(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return FieldError(field, absl::StrCat(" is ", value, "; legal is ", low, " to ", high, ", the nearest is ",
                                        std::clamp(value, low, high)));
}

// One of a few words, or nothing.
absl::Status CheckWord(absl::string_view field, const std::string& value, absl::Span<const std::string> legal) {
  return value.empty() ? absl::OkStatus() : CheckName(field, value, legal);
}

// How often the model's own number of steps, in halves; 0: it is left alone.
struct QualityPreset {
  const char* name;
  int64_t halves;
};
constexpr QualityPreset kQualities[] = {{"auto", 0},  {"low", 1}, {"medium", 0},   {"high", 4},
                                        {"xhigh", 6}, {"max", 8}, {"standard", 0}, {"hd", 4}};

// A preset is a part of the model's own number of steps, so that it suits models of 4 steps and of 50. It asks for no
// more than is allowed.
absl::StatusOr<std::optional<int64_t>> StepsOfQuality(const std::string& quality, const ModelDescription& model,
                                                      const RequestLimits& limits) {
  std::vector<std::string> names;
  for (const QualityPreset& preset : kQualities) {
    if (quality != preset.name) {
      names.emplace_back(preset.name);
      continue;
    }
    if (preset.halves == 0) return std::nullopt;
    const int64_t most = std::min<int64_t>(model.max_steps, limits.max_steps);
    return std::clamp<int64_t>((model.default_steps * preset.halves + 1) / 2, 1, std::max<int64_t>(most, 1));
  }
  if (absl::Status status = CheckWord("quality", quality, names); !status.ok()) return status;
  return std::nullopt;
}

absl::Status CheckFormat(const std::string& format) {
  for (const char* other : {"gif", "svg"}) {
    if (format == other) {
      return FieldError("output_format",
                        absl::StrCat(" is '", format,
                                     "'; this server makes still pictures of pixels, so legal are png, "
                                     "jpeg, webp"));
    }
  }
  return CheckWord("output_format", format, {"png", "jpeg", "webp"});
}

absl::StatusOr<OutputOptions> ReadOutput(const ImageRequest& request) {
  OutputOptions output;
  absl::Status status = CheckFormat(request.output_format);
  if (request.output_format == "jpeg") output.format = ImageFormat::kJpeg;
  if (request.output_format == "webp") output.format = ImageFormat::kWebp;
  if (request.output_compression.has_value()) {
    status.Update(CheckBetween("output_compression", *request.output_compression, 0, 100));
    if (output.format == ImageFormat::kPng && *request.output_compression != 100) {
      status.Update(
          FieldError("output_compression",
                     absl::StrCat(" is ", *request.output_compression,
                                  "; PNG loses nothing, so legal is 100, or an output_format of jpeg or webp")));
    }
    // The encoders' scale begins at 1.
    if (status.ok() && output.format != ImageFormat::kPng) {
      output.quality = static_cast<int32_t>(std::max<int64_t>(1, *request.output_compression));
    }
  }
  if (request.background == "transparent") {
    status.Update(FieldError("background",
                             " is 'transparent'; pictures have no alpha channel, so legal are 'auto' and 'opaque', the "
                             "nearest is 'opaque'"));
  }
  status.Update(CheckWord("background", request.background, {"auto", "opaque"}));
  if (!status.ok()) return status;
  return output;
}

absl::Status CheckUser(absl::string_view field, const std::string& user) {
  if (user.size() > kMaxUserBytes) {
    return FieldError(field, absl::StrCat(" has ", user.size(), " bytes; legal is at most ", kMaxUserBytes));
  }
  if (user.find('\0') != std::string::npos || FirstInvalidUtf8(user) < user.size()) {
    return FieldError(field, " is not UTF-8 text without NUL");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefusalOfModel(const absl::Status& status) {
  const absl::string_view field = FieldAtStartOf(status.message());
  if (field.empty()) return absl::InvalidArgumentError(status.message());
  return InApiNames(FieldError(field, status.message().substr(field.size())));
}

absl::StatusOr<const ServedModel*> FindModel(absl::string_view name, absl::Span<const ServedModel> models) {
  if (models.empty()) return absl::UnavailableError("this server serves no model");
  if (name.empty()) return &models.front();
  std::vector<std::string> legal;
  for (const ServedModel& model : models) {
    if (name == model.id || std::find(model.aliases.begin(), model.aliases.end(), name) != model.aliases.end()) {
      return &model;
    }
    legal.push_back(model.id);
    legal.insert(legal.end(), model.aliases.begin(), model.aliases.end());
  }
  if (IsOpenAiImageModel(name)) {
    const auto model = std::find_if(models.begin(), models.end(),
                                    [](const ServedModel& served) { return served.answers_to_openai_names; });
    if (model != models.end()) return &*model;
  }
  const absl::Status unknown = CheckName("model", name, legal);
  absl::Status status(absl::StatusCode::kNotFound, unknown.message());
  unknown.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
  return status;
}

absl::StatusOr<JobRequest> ValidateImageRequest(const ImageRequest& request, absl::Span<const ServedModel> models,
                                                const RequestLimits& limits, uint64_t random_seed) {
  const absl::StatusOr<const ServedModel*> model = FindModel(request.model, models);
  if (!model.ok()) return model.status();
  if (!(*model)->unreadable.ok()) return (*model)->unreadable;
  const ModelDescription& description = (*model)->description;
  if (request.generation.prompt.empty()) {
    return FieldError("prompt", " is empty; legal is a text of 1 to " + std::to_string(kMaxPromptBytes) + " bytes");
  }
  const absl::StatusOr<SizeText> size = ReadSize(request.size);
  if (!size.ok()) return size.status();
  const absl::StatusOr<std::optional<int64_t>> preset = StepsOfQuality(request.quality, description, limits);
  if (!preset.ok()) return preset.status();
  const absl::StatusOr<OutputOptions> output = ReadOutput(request);
  if (!output.ok()) return output.status();
  const int64_t count = request.n.value_or(1);
  const int64_t partial_images = request.partial_images.value_or(0);
  const int64_t priority = request.priority.value_or(0);
  absl::Status status = CheckBetween("n", count, 1, limits.max_images);
  status.Update(CheckBetween("partial_images", partial_images, 0, kMaxPartialImages));
  status.Update(CheckBetween("priority", priority, kMinPriority, kMaxPriority));
  if (request.deadline_ms) status.Update(CheckBetween("deadline_ms", *request.deadline_ms, 1, kMaxPatienceMs));
  status.Update(CheckWord("style", request.style, {"vivid", "natural"}));
  status.Update(CheckWord("moderation", request.moderation, {"auto", "low"}));
  status.Update(CheckWord("complexity", request.complexity, {"low", "medium", "high"}));
  status.Update(CheckUser("user", request.user));
  status.Update(CheckUser("safety_identifier", request.safety_identifier));
  if (!status.ok()) return status;

  GenerationRequest generation = request.generation;
  generation.width = size->width;
  generation.height = size->height;
  generation.count = count;
  // A random seed leaves room for those that count up from it.
  generation.seed = request.seed.value_or(random_seed);
  if (!generation.steps.has_value()) generation.steps = *preset;
  absl::StatusOr<JobParameters> parameters = Validate(generation, description);
  if (!parameters.ok()) return InApiNames(parameters.status());
  if (parameters->steps > limits.max_steps) {
    return CheckBetween("num_inference_steps", parameters->steps, 1, limits.max_steps);
  }
  const int64_t pixels = int64_t{parameters->width} * parameters->height;
  if (pixels > limits.max_pixels) {
    return FieldError("size", absl::StrCat(" is ", parameters->width, "x", parameters->height, ", which is ", pixels,
                                           " pixels; legal is at most ", limits.max_pixels, " pixels"));
  }
  JobRequest job;
  job.model = (*model)->id;
  job.parameters = *std::move(parameters);
  job.count = static_cast<int32_t>(count);
  job.output = *output;
  job.partial_images = static_cast<int32_t>(partial_images);
  job.priority = static_cast<int32_t>(priority);
  if (request.deadline_ms) job.patience = absl::Milliseconds(*request.deadline_ms);
  job.user = request.safety_identifier.empty() ? request.user : request.safety_identifier;
  return job;
}

bool IsOpenAiImageModel(absl::string_view name) {
  for (const absl::string_view family : {"gpt-image-", "chatgpt-image-", "dall-e-"}) {
    if (absl::StartsWith(name, family) && name.size() <= kMaxModelNameBytes) return true;
  }
  return false;
}

uint64_t RandomSeed() {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) std::abort();  // cannot be short below 256 bytes
  return seed >> 16;
}

std::string OutputFormatName(ImageFormat format) {
  switch (format) {
    case ImageFormat::kPng:
      return "png";
    case ImageFormat::kJpeg:
      return "jpeg";
    case ImageFormat::kWebp:
      return "webp";
  }
  return "";
}

std::string MediaType(ImageFormat format) { return absl::StrCat("image/", OutputFormatName(format)); }

}  // namespace tessera
