#include "server/http/flat_json.h"

#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>

#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/json/rapidjson_reader.h"
#include "server/api/generation_request.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxMembers = 256;
constexpr size_t kMaxListLength = 4096;
constexpr size_t kMaxShownName = 64;
constexpr size_t kMaxOpenObjects = 8;

// RapidJSON's handler: every call returns whether to continue.
class Collector {
 public:
  explicit Collector(const OtherForms& forms) : forms_(forms) {}

  bool Null() { return skips_ && skipped_depth_ == 0 ? EndSkipped(nullptr) : Add(nullptr); }
  bool Bool(bool value) { return Add(value); }
  bool RawNumber(const char* text, rapidjson::SizeType length, bool) {
    if (skips_) return Add(true);
    const std::optional<base::ParsedNumber> number = base::ReadJsonNumber(text, length);
    number_too_big_ = !number.has_value();
    return number.has_value() && std::visit([this](auto value) { return Add(value); }, *number);
  }
  // Not called, because numbers are requested as text.
  bool Int(int) { return false; }
  bool Uint(unsigned) { return false; }
  bool Int64(int64_t) { return false; }
  bool Uint64(uint64_t) { return false; }
  bool Double(double) { return false; }
  bool String(const char* text, rapidjson::SizeType length, bool) { return Add(std::string(text, length)); }

  bool StartObject() {
    if (skips_) return ++skipped_depth_ > 0;
    if (in_group_) return Refuse(absl::StrCat("member ", QuotedValue(name_), " holds an object with an object in it"));
    if (in_list_) return StartGroup();
    if (in_object_ && forms_.opens && open_.size() < kMaxOpenObjects && forms_.opens(name_)) {
      open_.push_back(name_);
      return true;
    }
    if (in_object_ && forms_.groups && forms_.groups(name_)) {
      members_.push_back({name_, std::vector<JsonScalar>()});
      return StartGroup();
    }
    if (in_object_) {
      holds_object_ = true;
      return false;
    }
    in_object_ = true;
    return true;
  }
  bool Key(const char* text, rapidjson::SizeType length, bool) {
    if (skips_) return true;
    if (in_group_) return KeyOfGroup(std::string(text, length));
    name_.assign(text, length);
    if (forms_.opens) absl::StrReplaceAll({{".", "\\."}}, &name_);
    if (!open_.empty()) name_ = absl::StrCat(open_.back(), ".", name_);
    skips_ = forms_.skips && forms_.skips(name_);
    if (!names_.insert(name_).second) {
      return Refuse(absl::StrCat("member ", QuotedValue(name_), " is given twice"));
    }
    if (names_.size() > kMaxMembers) return Refuse(absl::StrCat("it has more than ", kMaxMembers, " members"));
    return true;
  }
  bool EndObject(rapidjson::SizeType) {
    if (skips_) return --skipped_depth_ > 0 || EndSkipped(true);
    if (in_group_) {
      in_group_ = false;
    } else if (!open_.empty()) {
      open_.pop_back();
    }
    return true;
  }
  bool StartArray() {
    if (skips_) return ++skipped_depth_ > 0;
    if (!in_object_) return RefuseNoObject();
    if (in_group_) return Refuse(absl::StrCat("member ", QuotedValue(name_), " holds an object with a list in it"));
    if (in_list_)
      return Refuse(absl::StrCat("member ", QuotedValue(name_), " holds a list of lists, which no field accepts"));
    in_list_ = true;
    members_.push_back({name_, std::vector<JsonScalar>()});
    return true;
  }
  bool EndArray(rapidjson::SizeType) {
    if (skips_) return --skipped_depth_ > 0 || EndSkipped(true);
    in_list_ = false;
    return true;
  }

  std::vector<FlatJsonMember>& members() { return members_; }
  const std::string& refusal() const { return refusal_; }
  bool number_too_big() const { return number_too_big_; }
  // Returns the member that ended the reading because it contains an object; null if none did.
  const std::string* object_member() const { return holds_object_ ? &name_ : nullptr; }

 private:
  bool Refuse(std::string refusal) {
    refusal_ = std::move(refusal);
    return false;
  }
  bool EndSkipped(JsonScalar value) {
    skips_ = false;
    members_.push_back({name_, std::move(value)});
    return true;
  }
  bool StartGroup() {
    auto& value = members_.back().value;
    if (const auto* scalars = std::get_if<std::vector<JsonScalar>>(&value)) {
      if (!scalars->empty()) return RefuseMixedList();
      value = std::vector<JsonGroup>();
    }
    auto& groups = std::get<std::vector<JsonGroup>>(value);
    if (groups.size() == kMaxListLength) return RefuseLongList();
    groups.emplace_back();
    return in_group_ = true;
  }
  bool KeyOfGroup(std::string name) {
    JsonGroup& group = std::get<std::vector<JsonGroup>>(members_.back().value).back();
    for (const auto& [other, value] : group) {
      if (other == name) {
        return Refuse(
            absl::StrCat("member ", QuotedValue(name), " is given twice in an object of ", QuotedValue(name_)));
      }
    }
    if (group.size() == kMaxMembers) return Refuse(absl::StrCat("it has more than ", kMaxMembers, " members"));
    group.emplace_back(std::move(name), nullptr);
    return true;
  }

  bool RefuseLongList() {
    return Refuse(absl::StrCat("member ", QuotedValue(name_), " holds more than ", kMaxListLength, " values"));
  }
  bool RefuseMixedList() {
    return Refuse(absl::StrCat("member ", QuotedValue(name_), " holds a list of objects and other values"));
  }
  bool RefuseNoObject() { return Refuse("it is not an object"); }

  bool Add(JsonScalar value) {
    if (skips_) return skipped_depth_ > 0 || EndSkipped(true);
    if (!in_object_) return RefuseNoObject();
    if (in_group_) {
      std::get<std::vector<JsonGroup>>(members_.back().value).back().back().second = std::move(value);
      return true;
    }
    if (!in_list_) {
      members_.push_back({name_, std::move(value)});
      return true;
    }
    auto* list = std::get_if<std::vector<JsonScalar>>(&members_.back().value);
    if (list == nullptr) return RefuseMixedList();
    if (list->size() == kMaxListLength) return RefuseLongList();
    list->push_back(std::move(value));
    return true;
  }

  const OtherForms& forms_;
  std::vector<FlatJsonMember> members_;
  std::vector<std::string> open_;  // the names of the members whose objects are open
  std::set<std::string> names_;
  std::string name_;
  std::string refusal_;
  bool number_too_big_ = false;
  bool in_object_ = false, in_list_ = false, in_group_ = false, holds_object_ = false;
  bool skips_ = false;        // the value of name_ is read over
  size_t skipped_depth_ = 0;  // of its open lists and objects
};

}  // namespace

absl::StatusOr<std::vector<FlatJsonMember>> ReadFlatJson(absl::string_view text, const OtherForms& forms) {
  constexpr unsigned kFlags =
      rapidjson::kParseNumbersAsStringsFlag | rapidjson::kParseValidateEncodingFlag | rapidjson::kParseIterativeFlag;
  // RapidJSON would treat it as the end of the text.
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the body is not valid JSON at byte ", nul, ": a NUL byte"));
  }
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::EncodedInputStream<rapidjson::UTF8<>, rapidjson::MemoryStream> input(stream);
  base::JsonReader reader;
  Collector collector(forms);
  const rapidjson::ParseResult result = reader.Parse<kFlags>(input, collector);
  if (const std::string* member = collector.object_member(); member != nullptr) {
    return FieldError(member->size() <= kMaxShownName ? *member : QuotedValue(*member),
                      " holds an object, which no field accepts");
  }
  if (!collector.refusal().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the JSON body is refused: ", collector.refusal()));
  }
  if (result.IsError()) {
    const char* const reason = collector.number_too_big() ? "The number is too large for a double."
                                                          : rapidjson::GetParseError_En(result.Code());
    return absl::InvalidArgumentError(
        absl::StrCat("the body is not valid JSON at byte ", result.Offset(), ": ", reason));
  }
  return std::move(collector.members());
}

std::optional<int64_t> WholeNumber(const JsonScalar& scalar) {
  if (const auto* integer = std::get_if<int64_t>(&scalar)) return *integer;
  const auto* number = std::get_if<double>(&scalar);
  if (number == nullptr || *number != std::trunc(*number) || std::abs(*number) > 9007199254740992.0) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*number);
}

bool IsNull(const FlatJsonMember& member) {
  const auto* scalar = std::get_if<JsonScalar>(&member.value);
  return scalar != nullptr && std::holds_alternative<std::nullptr_t>(*scalar);
}

std::string JsonTypeName(const FlatJsonMember& member) {
  const auto* scalar = std::get_if<JsonScalar>(&member.value);
  if (std::holds_alternative<std::vector<JsonGroup>>(member.value)) return "a list of objects";
  if (scalar == nullptr) return "a list";
  static constexpr const char* kNames[] = {"null",           "true or false", "a whole number",
                                           "a whole number", "a number",      "a string"};
  return kNames[scalar->index()];
}

}  // namespace tessera::server
