#include "server/api/image_request.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/fields/field_error.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/text/random_bytes.h"
#include "control/model/model_description.h"
#include "control/pictures/picture_input.h"
#include "server/api/field_checks.h"
#include "server/api/generation_request.h"
#include "server/api/image_service.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/prompt_tags.h"
#include "server/api/request_fields.h"
#include "server/api/stored_picture.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxShownNames = 32;  // most names listed in an error

struct SizeText {
  std::optional<int64_t> width, height;
};

absl::StatusOr<SizeText> ReadSize(const std::string& size) {
  if (size.empty() || size == "auto") return SizeText();
  const auto refuse = [&] {
    return base::ErrorOfField("size",
                              absl::StrCat(" is ", QuotedValue(size),
                                           "; valid values are 'auto' and WIDTHxHEIGHT in pixels, such as '512x512'"));
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

// A preset multiplies the model's default number of steps by `halves` / 2. Other words do not change it.
struct QualityPreset {
  const char* name;
  int64_t halves;
};
constexpr QualityPreset kQualities[] = {{"low", 1}, {"high", 4}, {"xhigh", 6}, {"max", 8}, {"hd", 4}};

// A preset is relative to the model's default number of steps and never exceeds the limits. A distilled model was
// trained for exactly its default number, which more steps do not improve, so that a preset changes nothing there.
std::optional<int64_t> StepsOfQuality(const std::string& quality, const control::ModelDescription& model,
                                      const RequestLimits& limits) {
  if (model.is_distilled()) return std::nullopt;
  for (const QualityPreset& preset : kQualities) {
    if (quality != preset.name) continue;
    const int64_t most = std::min<int64_t>(model.max_steps, limits.max_steps);
    return std::clamp<int64_t>((model.default_steps * preset.halves + 1) / 2, 1, std::max<int64_t>(most, 1));
  }
  return std::nullopt;
}

// Errors for API values that this server does not support.
absl::Status CheckNotMade(const ImageRequest& request) {
  if (request.output_format == "gif" || request.output_format == "svg") {
    return base::ErrorOfField(
        "output_format",
        absl::StrCat(" is '", request.output_format,
                     "'; this server makes still pictures of pixels, so valid values are png, jpeg, webp"));
  }
  if (request.background == "transparent") {
    return base::ErrorOfField(
        "background",
        " is 'transparent'; pictures have no alpha channel, so valid values are 'auto' and 'opaque', the "
        "nearest is 'opaque'");
  }
  return absl::OkStatus();
}

// Checks the fields that are no parameters of the job.
absl::Status CheckApiFields(const ImageRequest& request) {
  absl::Status status = CheckNotMade(request);
  base::ForEachField(
      [&](const auto& field, const auto& value) {
        if (field.facts.is_parameter || !IsGiven(value)) return;
        if constexpr (std::is_same_v<decltype(value), const std::string&>) {
          if (field.facts.words != nullptr) return status.Update(CheckWord(field.name, value, Words(field.facts)));
        }
        status.Update(base::CheckValue(field.name, std::nullopt, value, field.valid));
      },
      request);
  return status;
}

absl::StatusOr<OutputOptions> ReadOutput(const ImageRequest& request) {
  OutputOptions output;
  if (request.output_format == "jpeg") output.format = ImageFormat::kJpeg;
  if (request.output_format == "webp") output.format = ImageFormat::kWebp;
  if (!request.output_compression.has_value()) return output;
  if (output.format != ImageFormat::kPng) {
    // The encoders' quality scale begins at 1.
    output.quality = static_cast<int32_t>(std::max<int64_t>(1, *request.output_compression));
  } else if (*request.output_compression != 100) {
    return base::ErrorOfField(
        "output_compression",
        absl::StrCat(" is ", *request.output_compression,
                     "; PNG loses nothing, so valid values are 100, or an output_format of jpeg or webp"));
  }
  return output;
}

// Whether the text is the id or an alias of the model.
bool HasName(const ServedModel& model, absl::string_view name) {
  return name == model.id || std::ranges::find(model.aliases, name) != model.aliases.end();
}

const ServedAdapter* FindAdapter(const ServedModel& model, absl::string_view name) {
  const auto adapter = std::ranges::find(model.adapters, name, &ServedAdapter::name);
  return adapter == model.adapters.end() ? nullptr : &*adapter;
}

// Records the current content of each named adapter in the job.
absl::Status PinAdapters(const ServedModel& model, std::vector<control::AdapterUse>& adapters) {
  for (control::AdapterUse& use : adapters) {
    const ServedAdapter* adapter = FindAdapter(model, use.name);
    if (adapter != nullptr) {
      use.digest = adapter->digest;
      continue;
    }
    if (model.adapters.empty()) {
      return base::ErrorOfField("loras[]", absl::StrCat(" ", QuotedValue(use.name), " is unknown; the model ",
                                                        QuotedValue(model.id), " has no adapters here"));
    }
    std::vector<std::string> names;
    for (const ServedAdapter& other : model.adapters) names.push_back(other.name);
    if (names.size() <= kMaxShownNames) return CheckWord("loras[]", use.name, names);
    const std::string nearest = base::NearestName(use.name, names);
    return base::ErrorOfField(
        "loras[]",
        absl::StrCat(" ", QuotedValue(use.name), " is unknown; GET /v1/models lists the ", names.size(), " valid names",
                     nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?")));
  }
  return absl::OkStatus();
}

// Adds the pictures to a job.
absl::Status AddPictures(const ImageRequest& request, const RequestPictures& pictures,
                         const control::PictureRules& model, control::JobParameters& job) {
  job.images = pictures.images;
  job.mask = pictures.mask;
  if (!request.strength.has_value() && !job.images.empty() && control::BeginsFromPicture(model, !job.mask.empty())) {
    job.strength = model.usual_strength;
  }
  return control::CheckPictures(job, model);
}

absl::StatusOr<JobRequest> ValidateUnnamed(const ImageRequest& request, const ServedModel& model,
                                           const RequestLimits& limits, uint64_t random_seed,
                                           const RequestPictures& pictures) {
  if (request.prompt.empty()) {
    return base::ErrorOfField(
        "prompt", absl::StrCat(" is empty; it must be a text of 1 to ", control::kPrompt.most_bytes, " bytes"));
  }
  ASSIGN_OR_RETURN(const SizeText size, ReadSize(request.size));
  const int64_t count = request.count.value_or(1);
  RETURN_IF_ERROR(
      base::CheckValue("count", std::nullopt, count, base::Integer{1, static_cast<uint64_t>(limits.max_images)}));
  RETURN_IF_ERROR(CheckApiFields(request));
  ASSIGN_OR_RETURN(const OutputOptions output, ReadOutput(request));

  ImageRequest sized = request;
  sized.width = size.width;
  sized.height = size.height;
  SetSizeLike(pictures.images, !pictures.mask.empty(), *model.description, sized);
  // A random seed leaves room for the seeds that count up from it.
  sized.seed = request.seed.value_or(random_seed);
  if (!sized.steps.has_value()) sized.steps = StepsOfQuality(request.quality, *model.description, limits);
  ASSIGN_OR_RETURN(control::JobParameters parameters, Validate(sized, *model.description, FieldNames::kApi));
  RETURN_IF_ERROR(PinAdapters(model, parameters.adapters));
  RETURN_IF_ERROR(AddPictures(request, pictures, model.description->pictures, parameters));
  RETURN_IF_ERROR(base::CheckValue("steps", std::nullopt, parameters.steps,
                                   base::Integer{1, static_cast<uint64_t>(limits.max_steps)}));
  const int64_t pixels = int64_t{parameters.width} * parameters.height;
  if (pixels > limits.max_pixels) {
    return base::ErrorOfField("size",
                              absl::StrCat(" is ", parameters.width, "x", parameters.height, ", which is ", pixels,
                                           " pixels; valid values are at most ", limits.max_pixels, " pixels"));
  }
  JobRequest job;
  job.model = model.id;
  job.parameters = std::move(parameters);
  job.count = static_cast<int32_t>(count);
  job.output = output;
  job.partial_images = static_cast<int32_t>(request.partial_images.value_or(0));
  job.priority = static_cast<int32_t>(request.priority.value_or(0));
  if (request.deadline_ms) job.timeout = absl::Milliseconds(*request.deadline_ms);
  job.user = request.safety_identifier.empty() ? request.user : request.safety_identifier;
  return job;
}

}  // namespace

absl::StatusOr<const ServedModel*> FindModel(absl::string_view name, absl::Span<const ServedModel> models) {
  ASSIGN_OR_RETURN(const NamedModel found, FindNamed(name, models));
  return found.model;
}

absl::StatusOr<NamedModel> FindNamed(absl::string_view name, absl::Span<const ServedModel> models) {
  if (models.empty()) return absl::UnavailableError("this server serves no model");
  if (name.empty()) return NamedModel{.model = &models.front()};
  std::vector<std::string> valid;
  for (const ServedModel& model : models) {
    if (HasName(model, name)) return NamedModel{.model = &model};
    valid.push_back(model.id);
    valid.insert(valid.end(), model.aliases.begin(), model.aliases.end());
  }
  for (const ServedModel& model : models) {
    if (const ServedAdapter* adapter = FindAdapter(model, name)) return NamedModel{.model = &model, .adapter = adapter};
    for (const ServedAdapter& adapter : model.adapters) {
      if (valid.size() < kMaxShownNames) valid.push_back(adapter.name);
    }
  }
  if (name == "default") return NamedModel{.model = &models.front()};  // SGLang's clients name no other
  if (IsOpenAiImageModel(name)) {
    const auto model = std::find_if(models.begin(), models.end(),
                                    [](const ServedModel& served) { return served.answers_to_openai_names; });
    if (model != models.end()) return NamedModel{.model = &*model};
  }
  const absl::Status unknown = CheckName("model", name, valid);
  absl::Status status(absl::StatusCode::kNotFound, unknown.message());
  unknown.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
  return status;
}

absl::StatusOr<JobRequest> ValidateImageRequest(const ImageRequest& request, absl::Span<const ServedModel> models,
                                                const RequestLimits& limits, uint64_t random_seed) {
  return ValidateImageRequest(request, models, limits, random_seed, {});
}

absl::StatusOr<JobRequest> ValidateImageRequest(const ImageRequest& request, absl::Span<const ServedModel> models,
                                                const RequestLimits& limits, uint64_t random_seed,
                                                const RequestPictures& pictures) {
  ASSIGN_OR_RETURN(const NamedModel named, FindNamed(request.model, models));
  RETURN_IF_ERROR(named.model->unreadable);
  ImageRequest asked = request;
  if (named.adapter != nullptr) {
    asked.loras.insert(asked.loras.begin(), {.name = named.adapter->name});
  }
  AdapterNames names;
  for (const ServedAdapter& adapter : named.model->adapters) names.emplace(adapter.name, adapter.name);
  if (const absl::Status tags = TakePromptTags(names, asked); !tags.ok()) return Named(tags, FieldNames::kApi);
  absl::StatusOr<JobRequest> job = ValidateUnnamed(asked, *named.model, limits, random_seed, pictures);
  if (!job.ok()) return Named(job.status(), FieldNames::kApi);
  return job;
}

absl::Status NameEditModel(absl::Span<const ServedModel> models, ImageRequest& request) {
  const bool is_open = request.model.empty() || request.model == "default" || IsOpenAiImageModel(request.model);
  if (!is_open) return absl::OkStatus();
  const auto is_named = [&](const ServedModel& model) {
    return HasName(model, request.model) || FindAdapter(model, request.model) != nullptr;
  };
  if (std::ranges::any_of(models, is_named)) return absl::OkStatus();
  if (IsOpenAiImageModel(request.model) && std::ranges::none_of(models, &ServedModel::answers_to_openai_names)) {
    return absl::OkStatus();  // FindNamed refuses it
  }
  std::vector<std::string> others;
  for (const ServedModel& model : models) {
    if (model.description->pictures.use == control::PictureInput::kReference) {
      request.model = model.id;
      return absl::OkStatus();
    }
    if (model.description->pictures.use != control::PictureInput::kNone) others.push_back(QuotedValue(model.id));
  }
  return FieldError(
      "model", absl::StrCat(request.model.empty() ? " is not given" : absl::StrCat(" is ", QuotedValue(request.model)),
                            ", and no model of this server edits pictures by instruction; ",
                            others.empty()
                                ? "add one to its configuration, such as black-forest-labs/FLUX.1-Kontext-dev"
                                : absl::StrCat("name one that begins from a picture: ", absl::StrJoin(others, ", "),
                                               ", or add black-forest-labs/FLUX.1-Kontext-dev to its configuration")));
}

bool IsOpenAiImageModel(absl::string_view name) {
  for (const absl::string_view family : {"gpt-image-", "chatgpt-image-", "dall-e-"}) {
    if (absl::StartsWith(name, family) && name.size() <= kMaxModelNameBytes) return true;
  }
  return false;
}

uint64_t RandomSeed() { return base::RandomNumber<uint64_t>() >> 16; }

std::string OutputFormatName(ImageFormat format) { return absl::AsciiStrToLower(std::string(ImageFormatName(format))); }

std::string MediaType(ImageFormat format) { return absl::StrCat("image/", OutputFormatName(format)); }

}  // namespace tessera::server
