#include "server/http/image_request_json.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/http/flat_json.h"

namespace tessera {
namespace {

constexpr size_t kMaxShownName = 64;

// Fields of OpenAI's clients for what is not made here.
struct NotMade {
  const char* field;
  const char* reason;
};
constexpr NotMade kNotMade[] = {
    {"frame_count", "this server makes still pictures"},
    {"frame_duration_ms", "this server makes still pictures"},
    {"svg", "this server makes pictures of pixels"},
    {"image", "this server makes pictures from text alone"},
    {"images", "this server makes pictures from text alone"},
    {"mask", "this server makes pictures from text alone"},
    {"input_fidelity", "this server makes pictures from text alone"},
};

bool IsNotMade(absl::string_view name) {
  return std::any_of(std::begin(kNotMade), std::end(kNotMade),
                     [&](const NotMade& other) { return name == other.field; });
}

// What other programs call a field of ours, where the spelling leads nowhere or astray.
constexpr std::pair<const char*, const char*> kOtherNames[] = {
    {"steps", "num_inference_steps"},
    {"step", "num_inference_steps"},
    {"num_steps", "num_inference_steps"},
    {"sampling_steps", "num_inference_steps"},
    {"guidance", "guidance_scale"},
    {"cfg", "guidance_scale"},
    {"cfg_scale", "guidance_scale"},
    {"width", "size"},
    {"height", "size"},
    {"count", "n"},
    {"num_images", "n"},
    {"num_images_per_prompt", "n"},
    {"batch_size", "n"},
    {"scheduler", "sampler"},
    {"sampler_name", "sampler"},
    {"sampler_index", "sampler"},
    {"format", "output_format"},
};

// INVALID_ARGUMENT for a field that no body has.
absl::Status UnknownField(const std::string& name, BodyKind kind) {
  for (const NotMade& other : kNotMade) {
    if (name == other.field) {
      return FieldError(name, absl::StrCat(" is unknown: ", other.reason, "; leave it out"));
    }
  }
  const std::string shown = name.size() <= kMaxShownName ? name : QuotedValue(name);
  const std::vector<std::string> fields = GenerationFields(kind);
  for (const auto& [other, field] : kOtherNames) {
    if (name == other) {
      return FieldError(shown, absl::StrCat(": field ", QuotedValue(name), " is unknown; legal are ",
                                            absl::StrJoin(fields, ", "), "; did you mean '", field, "'?"));
    }
  }
  return FieldError(shown, absl::StrCat(": ", CheckName("field", name, fields).message()));
}

absl::Status WrongType(const FlatJsonMember& member, absl::string_view legal) {
  return FieldError(member.name, absl::StrCat(" is ", JsonTypeName(member), "; legal is ", legal));
}

// A scalar other than null, or nothing.
const JsonScalar* ScalarOf(const FlatJsonMember& member) { return std::get_if<JsonScalar>(&member.value); }

absl::Status Read(const FlatJsonMember& member, std::string& value) {
  const JsonScalar* scalar = ScalarOf(member);
  const std::string* text = scalar == nullptr ? nullptr : std::get_if<std::string>(scalar);
  if (text == nullptr) return WrongType(member, "a string");
  value = *text;
  return absl::OkStatus();
}

absl::Status Read(const FlatJsonMember& member, std::optional<std::string>& value) {
  return Read(member, value.emplace());
}

absl::Status Read(const FlatJsonMember& member, bool& value) {
  const JsonScalar* scalar = ScalarOf(member);
  const bool* flag = scalar == nullptr ? nullptr : std::get_if<bool>(scalar);
  if (flag == nullptr) return WrongType(member, "true or false");
  value = *flag;
  return absl::OkStatus();
}

absl::Status Read(const FlatJsonMember& member, std::optional<bool>& value) { return Read(member, value.emplace()); }

// 20.0 is a whole number, as JSON Schema has it.
std::optional<int64_t> WholeNumber(const JsonScalar& scalar) {
  if (const auto* integer = std::get_if<int64_t>(&scalar)) return *integer;
  const auto* number = std::get_if<double>(&scalar);
  if (number == nullptr || *number != std::trunc(*number) || std::abs(*number) > 9007199254740992.0) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*number);
}

absl::Status Read(const FlatJsonMember& member, std::optional<int64_t>& value) {
  const JsonScalar* scalar = ScalarOf(member);
  if (scalar != nullptr) value = WholeNumber(*scalar);
  if (value.has_value()) return absl::OkStatus();
  if (scalar != nullptr && std::holds_alternative<uint64_t>(*scalar)) {
    return FieldError(member.name,
                      absl::StrCat(" is ", std::get<uint64_t>(*scalar), ", which is more than any legal value"));
  }
  if (scalar != nullptr && std::holds_alternative<double>(*scalar)) {
    return FieldError(member.name, absl::StrCat(" is ", std::get<double>(*scalar), "; legal is a whole number"));
  }
  return WrongType(member, "a whole number");
}

absl::Status Read(const FlatJsonMember& member, std::optional<uint64_t>& value) {
  const JsonScalar* scalar = ScalarOf(member);
  if (scalar != nullptr && std::holds_alternative<uint64_t>(*scalar)) {
    value = std::get<uint64_t>(*scalar);
    return absl::OkStatus();
  }
  std::optional<int64_t> integer;
  absl::Status status = Read(member, integer);
  if (!status.ok()) return status;
  if (*integer < 0) {
    return FieldError(member.name, absl::StrCat(" is ", *integer,
                                                "; legal is a whole number from 0 to 18446744073709551615, the "
                                                "nearest is 0"));
  }
  value = static_cast<uint64_t>(*integer);
  return absl::OkStatus();
}

absl::Status Read(const FlatJsonMember& member, std::optional<double>& value) {
  const JsonScalar* scalar = ScalarOf(member);
  if (scalar != nullptr) {
    if (const auto* number = std::get_if<double>(scalar)) value = *number;
    if (const auto* integer = std::get_if<int64_t>(scalar)) value = static_cast<double>(*integer);
    if (const auto* integer = std::get_if<uint64_t>(scalar)) value = static_cast<double>(*integer);
  }
  return value.has_value() ? absl::OkStatus() : WrongType(member, "a number");
}

absl::Status Read(const FlatJsonMember& member, std::vector<int64_t>& value) {
  const auto* list = std::get_if<std::vector<JsonScalar>>(&member.value);
  if (list == nullptr) return WrongType(member, "a list of whole numbers");
  for (const JsonScalar& scalar : *list) {
    const std::optional<int64_t> integer = WholeNumber(scalar);
    if (!integer.has_value()) return FieldError(member.name, " holds something else than whole numbers");
    value.push_back(*integer);
  }
  return absl::OkStatus();
}

absl::Status Read(const FlatJsonMember& member, ResponseFormat& value) {
  std::string text;
  absl::Status status = Read(member, text);
  if (status.ok()) status = CheckName(member.name, text, {"b64_json", "url"});
  if (text == "url") value = ResponseFormat::kUrl;
  return status;
}

// The fields of the body, by name.
template <typename Visit>
void VisitFields(GenerationBody& body, BodyKind kind, const Visit& visit) {
  ImageRequest& request = body.request;
  GenerationRequest& generation = request.generation;
  visit("prompt", generation.prompt);
  visit("negative_prompt", generation.negative_prompt);
  visit("model", request.model);
  visit("n", request.n);
  visit("size", request.size);
  visit("quality", request.quality);
  visit("complexity", request.complexity);
  visit("seed", request.seed);
  visit("num_inference_steps", generation.steps);
  visit("guidance_scale", generation.guidance_scale);
  visit("true_cfg_scale", generation.true_cfg_scale);
  visit("sampler", generation.sampler);
  visit("output_format", request.output_format);
  visit("output_compression", request.output_compression);
  visit("background", request.background);
  visit("style", request.style);
  visit("moderation", request.moderation);
  visit("user", request.user);
  visit("safety_identifier", request.safety_identifier);
  visit("partial_images", request.partial_images);
  visit("priority", request.priority);
  visit("deadline_ms", request.deadline_ms);
  visit("prompt_2", generation.prompt_2);
  visit("prompt_3", generation.prompt_3);
  visit("negative_prompt_2", generation.negative_prompt_2);
  visit("negative_prompt_3", generation.negative_prompt_3);
  visit("noise", generation.noise);
  visit("clean_caption", generation.clean_caption);
  visit("resolution_binning", generation.resolution_binning);
  visit("max_sequence_length", generation.max_sequence_length);
  visit("guidance_rescale", generation.guidance_rescale);
  visit("clip_skip", generation.clip_skip);
  visit("skip_layers", generation.skip_layers);
  visit("skip_layer_scale", generation.skip_layer_scale);
  visit("skip_layer_start", generation.skip_layer_start);
  visit("skip_layer_stop", generation.skip_layer_stop);
  visit("original_width", generation.original_width);
  visit("original_height", generation.original_height);
  visit("crop_top", generation.crop_top);
  visit("crop_left", generation.crop_left);
  if (kind == BodyKind::kJob) return;
  visit("response_format", body.response_format);
  visit("stream", body.stream);
}

bool IsNull(const FlatJsonMember& member) {
  const JsonScalar* scalar = ScalarOf(member);
  return scalar != nullptr && std::holds_alternative<std::nullptr_t>(*scalar);
}

}  // namespace

std::vector<std::string> GenerationFields(BodyKind kind) {
  GenerationBody body;
  std::vector<std::string> names;
  VisitFields(body, kind, [&](absl::string_view name, auto&) { names.emplace_back(name); });
  return names;
}

absl::StatusOr<GenerationBody> ReadGenerationBody(absl::string_view json, BodyKind kind) {
  absl::StatusOr<std::vector<FlatJsonMember>> members = ReadFlatJson(json);
  if (!members.ok()) {
    const std::string member = ErrorField(members.status());
    return IsNotMade(member) ? UnknownField(member, kind) : members.status();
  }
  GenerationBody body;
  bool has_prompt = false;
  for (const FlatJsonMember& member : *members) {
    bool known = false;
    absl::Status status;
    VisitFields(body, kind, [&](absl::string_view name, auto& value) {
      if (name != member.name) return;
      known = true;
      if (!IsNull(member)) status = Read(member, value);
    });
    if (!known) {
      if (IsNull(member) && IsNotMade(member.name)) continue;
      return UnknownField(member.name, kind);
    }
    if (!status.ok()) return status;
    if (member.name == "prompt" && !IsNull(member)) has_prompt = true;
  }
  if (!has_prompt) return FieldError("prompt", " is missing; legal is a text");
  if (kind == BodyKind::kGeneration && !body.stream && body.request.partial_images.value_or(0) > 0) {
    return FieldError("partial_images", " is given without \"stream\": true; legal is both, or neither");
  }
  return body;
}

}  // namespace tessera
