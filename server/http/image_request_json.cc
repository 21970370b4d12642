#include "server/http/image_request_json.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/macros/status_macros.h"
#include "base/text/number_text.h"
#include "server/api/field_checks.h"
#include "server/api/request_fields.h"
#include "server/http/flat_json.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxShownFieldName = 64;
constexpr size_t kMaxSchemeBytes = 16;

// Fields of OpenAI's clients that this server does not support.
struct NotMade {
  const char* field;
  const char* reason;
};
constexpr NotMade kNotMade[] = {
    {"frame_count", "this server makes still pictures"},
    {"frame_duration_ms", "this server makes still pictures"},
    {"svg", "this server makes pictures of pixels"},
};

// Fields that generations do not have: they make pictures from text alone.
constexpr const char* kOfPictures[] = {"images", "mask", "strength", "input_fidelity"};
constexpr char kElsewhere[] = "POST /v1/images/edits makes images from pictures";

bool IsOfPictures(absl::string_view name) {
  return name == "image" || std::ranges::find(kOfPictures, name) != std::end(kOfPictures);
}

bool IsNotMade(absl::string_view name) {
  return std::any_of(std::begin(kNotMade), std::end(kNotMade),
                     [&](const NotMade& other) { return name == other.field; });
}

// Names that other programs use for a field, where a suggestion by spelling would find none or a wrong one.
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
    {"lora", "loras"},
    {"adapters", "loras"},
    {"adapter", "loras"},
    {"lora_weights", "loras"},
    {"image", "images"},
    {"input_image", "images"},
    {"init_image", "images"},
    {"mask_image", "mask"},
    {"denoising_strength", "strength"},
};

// INVALID_ARGUMENT for a field that no body has.
absl::Status UnknownMember(const std::string& name, BodyKind kind) {
  if (kind == BodyKind::kGeneration && IsOfPictures(name)) {
    return FieldError(name, absl::StrCat(" is unknown: ", kElsewhere, "; leave it out"));
  }
  return UnknownField(name, GenerationFields(kind));
}

absl::Status WrongType(const FlatJsonMember& member, absl::string_view valid) {
  return FieldError(member.name, absl::StrCat(" is ", JsonTypeName(member), "; it must be ", valid));
}

// Returns the scalar, or null for a list.
const JsonScalar* ScalarOf(const FlatJsonMember& member) { return std::get_if<JsonScalar>(&member.value); }

absl::Status Read(const FlatJsonMember& member, std::string& value) {
  const JsonScalar* scalar = ScalarOf(member);
  const std::string* text = scalar == nullptr ? nullptr : std::get_if<std::string>(scalar);
  if (text == nullptr) return WrongType(member, "a string");
  value = *text;
  return absl::OkStatus();
}

absl::Status Read(const FlatJsonMember& member, bool& value) {
  const JsonScalar* scalar = ScalarOf(member);
  const bool* flag = scalar == nullptr ? nullptr : std::get_if<bool>(scalar);
  if (flag == nullptr) return WrongType(member, "true or false");
  value = *flag;
  return absl::OkStatus();
}

// `range` continues the message after "a whole number".
absl::Status Read(const FlatJsonMember& member, int64_t& value, absl::string_view range = "") {
  const JsonScalar* scalar = ScalarOf(member);
  const std::optional<int64_t> whole = scalar == nullptr ? std::nullopt : WholeNumber(*scalar);
  if (whole.has_value()) {
    value = *whole;
    return absl::OkStatus();
  }
  if (scalar != nullptr && std::holds_alternative<uint64_t>(*scalar)) {
    return FieldError(member.name,
                      absl::StrCat(" is ", std::get<uint64_t>(*scalar), ", which is more than any valid value"));
  }
  if (scalar != nullptr && std::holds_alternative<double>(*scalar)) {
    return FieldError(member.name, absl::StrCat(" is ", base::NumberText(std::get<double>(*scalar)),
                                                "; it must be a whole number", range));
  }
  return WrongType(member, absl::StrCat("a whole number", range));
}

// Reads a seed: -1 means any, as in other programs, so it is the same as absent.
absl::Status Read(const FlatJsonMember& member, std::optional<uint64_t>& value) {
  const JsonScalar* scalar = ScalarOf(member);
  if (scalar != nullptr && std::holds_alternative<uint64_t>(*scalar)) {
    value = std::get<uint64_t>(*scalar);
    return absl::OkStatus();
  }
  constexpr absl::string_view kRange = " from 0 to 18446744073709551615, or -1 for any";
  int64_t integer = 0;
  RETURN_IF_ERROR(Read(member, integer, kRange));
  if (integer < -1) {
    return FieldError(member.name,
                      absl::StrCat(" is ", integer, "; it must be a whole number", kRange, ", the nearest is -1"));
  }
  if (integer >= 0) value = static_cast<uint64_t>(integer);
  return absl::OkStatus();
}

absl::Status Read(const FlatJsonMember& member, double& value) {
  const JsonScalar* scalar = ScalarOf(member);
  if (scalar == nullptr) return WrongType(member, "a number");
  return std::visit(
      [&]<class Scalar>(const Scalar& number) {
        if constexpr (!std::is_arithmetic_v<Scalar> || std::is_same_v<Scalar, bool>) {
          return WrongType(member, "a number");
        } else {
          value = static_cast<double>(number);
          return absl::OkStatus();
        }
      },
      *scalar);
}

absl::Status Read(const FlatJsonMember& member, std::vector<int64_t>& value) {
  const auto* list = std::get_if<std::vector<JsonScalar>>(&member.value);
  if (list == nullptr) return WrongType(member, "a list of whole numbers");
  for (const JsonScalar& scalar : *list) {
    const std::optional<int64_t> integer = WholeNumber(scalar);
    if (!integer.has_value()) return FieldError(member.name, " has an entry that is not a whole number");
    value.push_back(*integer);
  }
  return absl::OkStatus();
}

template <class Value>
absl::Status Read(const FlatJsonMember& member, std::optional<Value>& value) {
  return Read(member, value.emplace());
}

// Reads a file that is given in base64.
absl::Status ReadBytes(const FlatJsonMember& member, std::string& value) {
  std::string text;
  RETURN_IF_ERROR(Read(member, text));
  if (absl::Base64Unescape(text, &value)) return absl::OkStatus();
  return FieldError(member.name, " is no valid base64");
}

// A picture may be given as its URL or its file in base64 alone.
absl::Status ReadText(const std::string& list, const std::string& text, PictureSource& source) {
  if (IsPictureUrl(text)) {
    source.image_url = text;
    return absl::OkStatus();
  }
  return ReadBytes({.name = list, .value = JsonScalar(text)}, source.data);
}

// A value of this kind in messages.
const char* ExampleOf(const base::Text&) { return "\"style\""; }
const char* ExampleOf(const base::Bytes&) { return "\"aGVsbG8=\""; }
const char* ExampleOf(const base::Number&) { return "0.8"; }

template <base::Described Item>
absl::Status ReadItem(const std::string& list, const JsonGroup& group, Item& item) {
  std::vector<std::string> fields, missing;
  base::ForEachFieldOf<Item>([&](const auto& field) {
    fields.emplace_back(field.name);
    if (base::IsRequired(field.valid)) missing.emplace_back(field.name);
  });
  for (const auto& [key, scalar] : group) {
    const std::string& name = key;  // clang 14 captures no structured binding
    const FlatJsonMember member = {.name = absl::StrCat(list, "[].", name), .value = scalar};
    if (std::ranges::count(fields, name) == 0) {
      return FieldError(list, absl::StrCat(": ", CheckName("field", name, fields).message()));
    }
    std::erase(missing, name);
    absl::Status status;
    base::ForEachField(
        [&](const auto& field, auto& value) {
          if (name != field.name || (IsNull(member) && !base::IsRequired(field.valid))) return;
          if constexpr (std::is_same_v<decltype(field.valid), base::Bytes>) {
            status = ReadBytes(member, value);
          } else {
            status = Read(member, value);
          }
        },
        item);
    RETURN_IF_ERROR(status);
  }
  if (missing.empty()) return absl::OkStatus();
  return FieldError(list, absl::StrCat(" holds an object without a ", missing[0], "; it must have one"));
}

// The shape of such a list, for messages: [{"name": …, "scale": …}].
template <base::Described Item>
std::string ShapeOfList() {
  std::vector<std::string> members;
  base::ForEachFieldOf<Item>(
      [&](const auto& field) { members.push_back(absl::StrCat("\"", field.name, "\": ", ExampleOf(field.valid))); });
  return absl::StrCat("[{", absl::StrJoin(members, ", "), "}]");
}

template <base::Described Item>
absl::Status Read(const FlatJsonMember& member, std::vector<Item>& value) {
  const auto* groups = std::get_if<std::vector<JsonGroup>>(&member.value);
  const auto* scalars = std::get_if<std::vector<JsonScalar>>(&member.value);
  if (scalars != nullptr && scalars->empty()) return absl::OkStatus();
  if constexpr (requires(Item & item) { ReadText("", "", item); }) {
    const JsonScalar* one = ScalarOf(member);
    const auto texts = one != nullptr       ? absl::MakeConstSpan(one, 1)
                       : scalars != nullptr ? absl::MakeConstSpan(*scalars)
                                            : absl::Span<const JsonScalar>();
    for (const JsonScalar& scalar : texts) {
      const auto* text = std::get_if<std::string>(&scalar);
      if (text == nullptr) return WrongType(member, "pictures: texts, or objects");
      RETURN_IF_ERROR(ReadText(member.name, *text, value.emplace_back()));
    }
    if (groups == nullptr) return absl::OkStatus();
  }
  if (groups == nullptr) return WrongType(member, absl::StrCat("a list such as ", ShapeOfList<Item>()));
  for (const JsonGroup& group : *groups) RETURN_IF_ERROR(ReadItem(member.name, group, value.emplace_back()));
  return absl::OkStatus();
}

absl::Status Read(const FlatJsonMember& member, ResponseFormat& value) {
  std::string text;
  absl::Status status = Read(member, text);
  if (status.ok()) status = CheckName(member.name, text, {"b64_json", "url"});
  if (text == "url") value = ResponseFormat::kUrl;
  return status;
}

template <class Value>
constexpr BodyField::Kind KindOf() {
  using Kind = BodyField::Kind;
  if constexpr (base::kIsOptional<Value>) {
    return KindOf<typename Value::value_type>();
  } else if constexpr (std::is_same_v<Value, std::vector<PictureSource>>) {
    return Kind::kPictures;
  } else if constexpr (base::kIsList<Value>) {
    return Kind::kList;
  } else if constexpr (std::is_same_v<Value, bool>) {
    return Kind::kFlag;
  } else if constexpr (std::is_integral_v<Value>) {
    return Kind::kWholeNumber;
  } else if constexpr (std::is_floating_point_v<Value>) {
    return Kind::kNumber;
  } else {
    return Kind::kText;
  }
}

// Calls visit(name, value) for every field of the body.
template <typename Visit>
void VisitFields(GenerationBody& body, BodyKind kind, const Visit& visit) {
  base::ForEachField(
      [&](const auto& field, auto& value) {
        const std::string name = ApiName(field.facts);
        if (field.facts.half || (kind == BodyKind::kGeneration && IsOfPictures(name))) return;
        visit(name, value);
      },
      body.request);
  if (kind == BodyKind::kJob) return;
  visit("response_format", body.response_format);
  visit("stream", body.stream);
}

}  // namespace

absl::Status UnknownField(const std::string& name, absl::Span<const std::string> fields) {
  for (const NotMade& other : kNotMade) {
    if (name == other.field) {
      return FieldError(name, absl::StrCat(" is unknown: ", other.reason, "; leave it out"));
    }
  }
  const std::string shown = name.size() <= kMaxShownFieldName ? name : QuotedValue(name);
  for (const auto& [other, field] : kOtherNames) {
    if (name == other && std::ranges::count(fields, field) > 0) {
      return FieldError(shown, absl::StrCat(": field", base::UnknownName(name, fields, field)));
    }
  }
  return FieldError(shown, absl::StrCat(": ", CheckName("field", name, fields).message()));
}

absl::Status ReadMembers(const std::vector<FlatJsonMember>& members, BodyKind kind, GenerationBody& body) {
  bool has_prompt = false;
  for (const FlatJsonMember& member : members) {
    bool known = false;
    absl::Status status;
    VisitFields(body, kind, [&](const std::string& name, auto& value) {
      if (name != member.name) return;
      known = true;
      if (!IsNull(member)) status = Read(member, value);
    });
    if (!known) {
      if (IsNull(member) && (IsNotMade(member.name) || IsOfPictures(member.name))) continue;
      return UnknownMember(member.name, kind);
    }
    RETURN_IF_ERROR(status);
    if (const JsonScalar* scalar = ScalarOf(member);
        absl::StrContains(member.name, "prompt") && scalar != nullptr && std::holds_alternative<std::string>(*scalar)) {
      RETURN_IF_ERROR(CheckNoExtraArgs(member.name, std::get<std::string>(*scalar)));
    }
    if (member.name == "prompt" && !IsNull(member)) has_prompt = true;
  }
  if (!has_prompt) return FieldError("prompt", " is missing; it must be a text");
  if (kind != BodyKind::kJob && !body.stream && body.request.partial_images.value_or(0) > 0) {
    return FieldError("partial_images", " is given without \"stream\": true; valid values are both, or neither");
  }
  return absl::OkStatus();
}

namespace {

// OpenAI's name for the pictures of an edit is that of its form.
absl::Status RenameImage(std::vector<FlatJsonMember>& members, ClientNames& names) {
  const auto image = std::ranges::find(members, "image", &FlatJsonMember::name);
  if (image == members.end()) return absl::OkStatus();
  if (std::ranges::find(members, "images", &FlatJsonMember::name) != members.end()) {
    return FieldError("image", " and images are given; give one of them");
  }
  image->name = "images";
  names.emplace("images", "image");
  return absl::OkStatus();
}

}  // namespace

bool IsPictureUrl(absl::string_view text) {
  return absl::StartsWith(text, "data:") || absl::StrContains(text.substr(0, kMaxSchemeBytes), "://");
}

std::vector<BodyField> BodyFields(BodyKind kind) {
  GenerationBody body;
  std::vector<BodyField> fields;
  VisitFields(body, kind, [&]<class Value>(const std::string& name, const Value&) {
    fields.push_back({.name = name, .kind = KindOf<Value>()});
  });
  return fields;
}

std::vector<std::string> GenerationFields(BodyKind kind) {
  std::vector<std::string> names;
  for (BodyField& field : BodyFields(kind)) names.push_back(std::move(field.name));
  return names;
}

absl::StatusOr<GenerationBody> ReadGenerationBody(absl::string_view json, BodyKind kind,
                                                  absl::Span<const ForeignClient> clients) {
  absl::StatusOr<TranslatedBody> translated =
      ReadClientJson(json, clients, clients.empty() ? std::vector<std::string>() : GenerationFields(kind));
  if (!translated.ok()) {
    const std::string member = ErrorField(translated.status());
    const bool is_refused = IsNotMade(member) || (kind == BodyKind::kGeneration && IsOfPictures(member));
    return is_refused ? UnknownMember(member, kind) : translated.status();
  }
  GenerationBody body = {.client_names = std::move(translated->client_names),
                         .ignored = std::move(translated->ignored)};
  if (kind == BodyKind::kEdit) RETURN_IF_ERROR(RenameImage(translated->members, body.client_names));
  if (const absl::Status read = ReadMembers(translated->members, kind, body); !read.ok()) {
    return WithClientName(read, body.client_names);
  }
  return body;
}

}  // namespace tessera::server
