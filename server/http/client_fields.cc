#include "server/http/client_fields.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "base/text/number_text.h"
#include "server/api/field_checks.h"
#include "server/http/client_tables.h"

namespace tessera::server {
namespace {

constexpr int64_t kMostSidePixels = 999999999;
constexpr size_t kMaxWarnedBytes = 440;
constexpr char kExtraArgsWord[] = "sd_cpp_extra_args";
constexpr char kExtraArgsBegin[] = "<sd_cpp_extra_args>", kExtraArgsEnd[] = "</sd_cpp_extra_args>";

// Whether the value of a member may be one picture, given as an object.
bool HoldsPicture(absl::string_view name) { return name == "image" || name == "images" || name == "mask"; }

bool IsNothing(const FlatJsonMember& member) {
  const auto* scalar = std::get_if<JsonScalar>(&member.value);
  if (scalar != nullptr) {
    const auto* text = std::get_if<std::string>(scalar);
    return std::holds_alternative<std::nullptr_t>(*scalar) || (text != nullptr && text->empty());
  }
  const auto* scalars = std::get_if<std::vector<JsonScalar>>(&member.value);
  return scalars != nullptr && scalars->empty();
}

const std::string* TextOf(const FlatJsonMember& member) {
  const auto* scalar = std::get_if<JsonScalar>(&member.value);
  return scalar == nullptr ? nullptr : std::get_if<std::string>(scalar);
}

std::optional<double> NumberOf(const JsonScalar& scalar) {
  if (const auto* integer = std::get_if<int64_t>(&scalar)) return static_cast<double>(*integer);
  if (const auto* natural = std::get_if<uint64_t>(&scalar)) return static_cast<double>(*natural);
  if (const auto* number = std::get_if<double>(&scalar)) return *number;
  return std::nullopt;
}

bool AreEqual(const FlatJsonMember& a, const FlatJsonMember& b) {
  const auto* left = std::get_if<JsonScalar>(&a.value);
  const auto* right = std::get_if<JsonScalar>(&b.value);
  if (a.value == b.value || left == nullptr || right == nullptr) return a.value == b.value;
  const std::optional<double> number = NumberOf(*left);
  return number.has_value() && number == NumberOf(*right);
}

// A value in a message.
std::string ShownValue(const FlatJsonMember& member) {
  const auto* scalar = std::get_if<JsonScalar>(&member.value);
  if (scalar == nullptr) return "a list";
  return std::visit(
      [](const auto& value) -> std::string {
        using Value = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          return QuotedValue(value);
        } else if constexpr (std::is_same_v<Value, bool>) {
          return value ? "true" : "false";
        } else if constexpr (std::is_same_v<Value, double>) {
          return base::NumberText(value);
        } else if constexpr (std::is_same_v<Value, std::nullptr_t>) {
          return "null";
        } else {
          return absl::StrCat(value);
        }
      },
      *scalar);
}

absl::Status WrongType(absl::string_view name, const FlatJsonMember& member, absl::string_view valid) {
  return FieldError(name, absl::StrCat(" is ", JsonTypeName(member), "; it must be ", valid));
}

// Refuses what could be the path or the address of a file: adapters have names here.
absl::Status CheckAdapterName(absl::string_view field, absl::string_view name) {
  const bool is_file = std::ranges::any_of(
      std::initializer_list<absl::string_view>{".safetensors", ".gguf", ".ckpt", ".pt", ".pth", ".bin"},
      [&](absl::string_view end) { return absl::EndsWithIgnoreCase(name, end); });
  if (!is_file && !name.empty() && name[0] != '.' && name[0] != '~' && name.find_first_of("/\\:") == name.npos) {
    return absl::OkStatus();
  }
  return FieldError(field, absl::StrCat(" is ", QuotedValue(name),
                                        "; adapters are named, by the names in GET /v1/models, so no path and no URL "
                                        "is valid"));
}

// Collects the members of a body under this API's names.
class Translator {
 public:
  Translator(absl::Span<const ForeignClient> clients, absl::Span<const std::string> own)
      : clients_(clients), own_(own) {}

  // `from_prompt` is set for the JSON that a prompt of sd-cpp contains.
  absl::Status Read(absl::string_view json, bool from_prompt);
  absl::StatusOr<TranslatedBody> Finish();

 private:
  // A value of the body, and the client's name for it.
  struct Given {
    std::string name;
    FlatJsonMember member;
  };

  absl::string_view WithoutContainer(absl::string_view name) const;
  const ClientField* Find(absl::string_view name) const;
  bool IsOwn(absl::string_view name) const { return std::ranges::find(own_, name) != own_.end(); }
  // The entry of the tables that says what the member means; null if it is an own or an unknown field.
  const ClientField* MeaningOf(absl::string_view name, bool from_prompt) const;
  bool Opens(absl::string_view name) const;

  absl::Status Add(FlatJsonMember member, bool from_prompt);
  absl::Status AddOwn(Given given, bool from_prompt);
  absl::Status AddSide(absl::string_view side, Given given);
  absl::Status AddAdapters(Given given);
  absl::Status AddClipSkip(Given given);
  absl::Status TakeExtraArgs(std::string& prompt);
  void Ignore(std::string name);

  absl::Status FinishSize();
  absl::Status FinishAdapter();

  const absl::Span<const ForeignClient> clients_;
  const absl::Span<const std::string> own_;
  std::vector<Given> given_;  // the names of their members are unique
  std::optional<Given> width_, height_, adapter_, scale_;
  TranslatedBody body_;
};

absl::Status Disagreement(absl::string_view name, const FlatJsonMember& value, absl::string_view other,
                          const FlatJsonMember& other_value) {
  return FieldError(name, absl::StrCat(" is ", ShownValue(value), ", but ", other, " is ", ShownValue(other_value),
                                       "; give one of them, or the same value"));
}

template <class Value>
absl::Status Keep(std::optional<Value>& kept, Value given) {
  if (!kept.has_value()) {
    kept = std::move(given);
    return absl::OkStatus();
  }
  if (AreEqual(kept->member, given.member)) return absl::OkStatus();
  return Disagreement(given.name, given.member, kept->name, kept->member);
}

absl::string_view Translator::WithoutContainer(absl::string_view name) const {
  for (const ForeignClient client : clients_) {
    for (const absl::string_view container : ClientTableOf(client).containers) {
      absl::string_view rest = name;
      if (absl::ConsumePrefix(&rest, container) && absl::ConsumePrefix(&rest, ".")) return rest;
    }
  }
  return name;
}

const ClientField* Translator::Find(absl::string_view name) const {
  for (const ForeignClient client : clients_) {
    for (const ClientField& field : ClientTableOf(client).fields) {
      if (name == field.name) return &field;
    }
  }
  return nullptr;
}

const ClientField* Translator::MeaningOf(absl::string_view name, bool from_prompt) const {
  const absl::string_view inner = from_prompt ? name : WithoutContainer(name);
  return !from_prompt && IsOwn(inner) ? nullptr : Find(inner);
}

bool Translator::Opens(absl::string_view name) const {
  const absl::string_view inner = WithoutContainer(name);
  for (const ForeignClient client : clients_) {
    const ClientTable table = ClientTableOf(client);
    if (std::ranges::find(table.containers, name) != table.containers.end()) return true;
    for (const ClientField& field : table.fields) {
      absl::string_view rest = field.name;
      if (absl::ConsumePrefix(&rest, inner) && absl::StartsWith(rest, ".")) return true;
    }
  }
  return false;
}

absl::Status Translator::Read(absl::string_view json, bool from_prompt) {
  OtherForms forms = {.groups = HoldsPicture};
  if (!clients_.empty()) {
    forms.opens = [this](absl::string_view name) { return Opens(name); };
    forms.skips = [this, from_prompt](absl::string_view name) {
      const ClientField* field = MeaningOf(name, from_prompt);
      return field != nullptr && field->meaning == Meaning::kIgnored;
    };
  }
  absl::StatusOr<std::vector<FlatJsonMember>> members = ReadFlatJson(json, forms);
  if (!members.ok() && from_prompt && ErrorField(members.status()).empty()) {
    return FieldError("prompt", absl::StrCat(": in ", kExtraArgsBegin, ", ", members.status().message()));
  }
  RETURN_IF_ERROR(members.status());
  for (FlatJsonMember& member : *members) RETURN_IF_ERROR(Add(std::move(member), from_prompt));
  return absl::OkStatus();
}

void Translator::Ignore(std::string name) {
  if (std::ranges::find(body_.ignored, name) == body_.ignored.end()) body_.ignored.push_back(std::move(name));
}

absl::Status Translator::Add(FlatJsonMember member, bool from_prompt) {
  const ClientField* field = MeaningOf(member.name, from_prompt);
  Given given = {.name = member.name, .member = std::move(member)};
  if (field == nullptr) {
    if (IsNull(given.member) && Opens(given.name)) return absl::OkStatus();
    const std::string inner(WithoutContainer(given.name));
    if (IsOwn(inner)) given.member.name = inner;
    return AddOwn(std::move(given), from_prompt);
  }
  if (IsNull(given.member)) return absl::OkStatus();
  switch (field->meaning) {
    case Meaning::kField:
      given.member.name = field->field;
      return AddOwn(std::move(given), from_prompt);
    case Meaning::kSide:
      return AddSide(field->field, std::move(given));
    case Meaning::kAdapters:
      return AddAdapters(std::move(given));
    case Meaning::kClipSkip:
      return AddClipSkip(std::move(given));
    case Meaning::kScale:
      return Keep(scale_, std::move(given));
    case Meaning::kAdapter: {
      const std::string* name = TextOf(given.member);
      if (name == nullptr) return WrongType(given.name, given.member, "the name of an adapter");
      RETURN_IF_ERROR(CheckAdapterName(given.name, *name));
      return Keep(adapter_, std::move(given));
    }
    case Meaning::kPicture:
      if (IsNothing(given.member)) return absl::OkStatus();
      if (const std::string own = field->field; !own.empty() && IsOwn(own)) {
        given.member.name = own;
        return AddOwn(std::move(given), from_prompt);
      }
      return FieldError(given.name, " is unknown: POST /v1/images/edits makes images from pictures; leave it out");
    case Meaning::kIgnored:
      Ignore(field->name);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status Translator::AddOwn(Given given, bool from_prompt) {
  const std::string& field = given.member.name;
  auto* scalar = std::get_if<JsonScalar>(&given.member.value);
  auto* text = scalar == nullptr ? nullptr : std::get_if<std::string>(scalar);
  const bool may_have_json =
      field == "prompt" && !from_prompt && std::ranges::find(clients_, ForeignClient::kSdCpp) != clients_.end();
  if (text != nullptr && may_have_json) RETURN_IF_ERROR(TakeExtraArgs(*text));
  const auto same = std::ranges::find_if(given_, [&](const Given& other) { return other.member.name == field; });
  if (same == given_.end()) {
    given_.push_back(std::move(given));
    return absl::OkStatus();
  }
  if (IsNull(given.member) || AreEqual(same->member, given.member)) return absl::OkStatus();
  if (!IsNull(same->member)) return Disagreement(given.name, given.member, same->name, same->member);
  *same = std::move(given);
  return absl::OkStatus();
}

absl::Status Translator::AddSide(absl::string_view side, Given given) {
  const auto* scalar = std::get_if<JsonScalar>(&given.member.value);
  const std::optional<int64_t> pixels = scalar == nullptr ? std::nullopt : WholeNumber(*scalar);
  const bool is_number = scalar != nullptr && NumberOf(*scalar).has_value();
  if (!is_number) return WrongType(given.name, given.member, "a whole number of pixels");
  if (!pixels.has_value() || *pixels < 1 || *pixels > kMostSidePixels) {
    return FieldError(given.name,
                      absl::StrCat(" is ", ShownValue(given.member), "; it must be a whole number from 1 to ",
                                   kMostSidePixels, ", in pixels"));
  }
  given.member.value = JsonScalar(*pixels);
  return Keep(side == "width" ? width_ : height_, std::move(given));
}

absl::Status Translator::AddAdapters(Given given) {
  if (IsNothing(given.member)) return absl::OkStatus();
  const auto* groups = std::get_if<std::vector<JsonGroup>>(&given.member.value);
  if (groups == nullptr) {
    return WrongType(given.name, given.member, "a list such as [{\"name\": \"style\", \"multiplier\": 0.8}]");
  }
  std::vector<JsonGroup> loras;
  for (const JsonGroup& group : *groups) {
    std::optional<Given> name, scale;
    for (const auto& [key, value] : group) {
      Given part = {.name = absl::StrCat(given.name, "[].", key), .member = {.name = key, .value = value}};
      if (key == "is_high_noise") {
        Ignore("lora[].is_high_noise");
      } else if (IsNull(part.member)) {
        continue;
      } else if (key == "name" || key == "path") {
        if (TextOf(part.member) == nullptr) return WrongType(part.name, part.member, "the name of an adapter");
        RETURN_IF_ERROR(CheckAdapterName(part.name, *TextOf(part.member)));
        RETURN_IF_ERROR(Keep(name, std::move(part)));
      } else if (key == "multiplier") {
        if (!NumberOf(value).has_value()) return WrongType(part.name, part.member, "a number");
        scale = std::move(part);
      } else {
        return FieldError(given.name, CheckName("", key, {"name", "path", "multiplier", "is_high_noise"}).message());
      }
    }
    if (!name.has_value()) return FieldError(given.name, " holds an object without a name; it must have one");
    JsonGroup& lora = loras.emplace_back();
    lora.emplace_back("name", std::get<JsonScalar>(name->member.value));
    if (scale.has_value()) lora.emplace_back("scale", std::get<JsonScalar>(scale->member.value));
  }
  given.member = {.name = "loras", .value = std::move(loras)};
  return AddOwn(std::move(given), false);
}

absl::Status Translator::AddClipSkip(Given given) {
  const auto* scalar = std::get_if<JsonScalar>(&given.member.value);
  const std::optional<int64_t> layer = scalar == nullptr ? std::nullopt : WholeNumber(*scalar);
  if (!layer.has_value()) return WrongType(given.name, given.member, "a whole number");
  if (*layer <= 0) return absl::OkStatus();
  given.member = {.name = "clip_skip", .value = JsonScalar(*layer - 1)};
  return AddOwn(std::move(given), true);
}

// Takes the JSON out of the prompt. sd-cpp reads the first of several elements; here, only one is valid.
absl::Status Translator::TakeExtraArgs(std::string& prompt) {
  const size_t begin = prompt.find(kExtraArgsBegin);
  if (begin == prompt.npos) return absl::OkStatus();
  const size_t json = begin + sizeof(kExtraArgsBegin) - 1, end = prompt.find(kExtraArgsEnd, json);
  if (end == prompt.npos) {
    return FieldError("prompt", absl::StrCat(" has ", kExtraArgsBegin, " without its end, ", kExtraArgsEnd));
  }
  const std::string arguments = prompt.substr(json, end - json);
  const std::string before(absl::StripTrailingAsciiWhitespace(absl::string_view(prompt).substr(0, begin)));
  const std::string after(
      absl::StripLeadingAsciiWhitespace(absl::string_view(prompt).substr(end + sizeof(kExtraArgsEnd) - 1)));
  prompt = absl::StrCat(before, before.empty() || after.empty() ? "" : " ", after);
  RETURN_IF_ERROR(CheckNoExtraArgs("prompt", prompt));
  if (absl::StripAsciiWhitespace(arguments).empty()) return absl::OkStatus();
  return Read(arguments, true);
}

absl::Status Translator::FinishSize() {
  if (!width_.has_value() && !height_.has_value()) return absl::OkStatus();
  if (!width_.has_value() || !height_.has_value()) {
    const Given& one = width_.has_value() ? *width_ : *height_;
    return FieldError(one.name, absl::StrCat(" is given without ", width_.has_value() ? "height" : "width",
                                             "; valid values are both, or neither"));
  }
  body_.client_names["size: width"] = width_->name;
  body_.client_names["size: height"] = height_->name;
  const FlatJsonMember size = {
      .name = "size", .value = JsonScalar(absl::StrCat(ShownValue(width_->member), "x", ShownValue(height_->member)))};
  const auto own = std::ranges::find_if(given_, [](const Given& other) { return other.member.name == "size"; });
  if (own == given_.end()) {
    given_.push_back({.name = absl::StrCat(width_->name, " and ", height_->name), .member = size});
  } else if (IsNothing(own->member) || (TextOf(own->member) != nullptr && *TextOf(own->member) == "auto")) {
    *own = {.name = absl::StrCat(width_->name, " and ", height_->name), .member = size};
  } else if (TextOf(own->member) != nullptr && *TextOf(own->member) != *TextOf(size)) {
    return FieldError(width_->name,
                      absl::StrCat(" and ", height_->name, " are ", *TextOf(size), ", but ", own->name, " is ",
                                   ShownValue(own->member), "; give one of them, or the same value"));
  }
  return absl::OkStatus();
}

absl::Status Translator::FinishAdapter() {
  if (scale_.has_value() && !adapter_.has_value()) {
    return FieldError(scale_->name, " is given without the name of an adapter; valid values are both, or neither");
  }
  if (!adapter_.has_value()) return absl::OkStatus();
  JsonGroup lora = {{"name", std::get<JsonScalar>(adapter_->member.value)}};
  if (scale_.has_value()) {
    const auto* scale = std::get_if<JsonScalar>(&scale_->member.value);
    if (scale == nullptr || !NumberOf(*scale).has_value()) return WrongType(scale_->name, scale_->member, "a number");
    lora.emplace_back("scale", *scale);
  }
  return AddOwn({.name = adapter_->name, .member = {.name = "loras", .value = std::vector<JsonGroup>{std::move(lora)}}},
                false);
}

absl::StatusOr<TranslatedBody> Translator::Finish() {
  RETURN_IF_ERROR(FinishSize());
  RETURN_IF_ERROR(FinishAdapter());
  for (Given& given : given_) {
    if (given.name != given.member.name) body_.client_names[given.member.name] = given.name;
    body_.members.push_back(std::move(given.member));
  }
  return std::move(body_);
}

}  // namespace

absl::StatusOr<TranslatedBody> ReadClientJson(absl::string_view json, absl::Span<const ForeignClient> clients,
                                              absl::Span<const std::string> own) {
  Translator translator(clients, own);
  RETURN_IF_ERROR(translator.Read(json, false));
  return translator.Finish();
}

absl::Status WithClientName(const absl::Status& status, const ClientNames& names) {
  if (ErrorField(status).empty()) return status;
  for (const auto& [beginning, name] : names) {
    absl::string_view rest = status.message();
    if (!absl::ConsumePrefix(&rest, beginning)) continue;
    const bool longer = !rest.empty() && (absl::ascii_isalnum(static_cast<unsigned char>(rest[0])) || rest[0] == '_');
    // The two sides of a size: the error is about the first.
    const size_t field = std::min(name.find(' '), name.size());
    if (!longer) return FieldError(name.substr(0, field), absl::StrCat(name.substr(field), rest));
  }
  return status;
}

std::string IgnoredFieldsWarning(absl::Span<const std::string> ignored) {
  std::string text = "299 - \"ignored, without a meaning here: ";
  size_t shown = 0;
  for (; shown < ignored.size() && text.size() + ignored[shown].size() <= kMaxWarnedBytes; ++shown) {
    absl::StrAppend(&text, shown == 0 ? "" : ", ", ignored[shown]);
  }
  if (shown < ignored.size()) absl::StrAppend(&text, ", and ", ignored.size() - shown, " more");
  return absl::StrCat(text, "\"");
}

absl::Status CheckNoExtraArgs(absl::string_view field, absl::string_view text) {
  if (!absl::StrContains(absl::AsciiStrToLower(text), kExtraArgsWord)) return absl::OkStatus();
  return FieldError(field, absl::StrCat(" has ", kExtraArgsWord,
                                        "; one element of that name is valid, in a prompt of POST "
                                        "/v1/images/generations, if the server's clients are configured with sd-cpp"));
}

}  // namespace tessera::server
