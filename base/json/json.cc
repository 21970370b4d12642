#include "base/json/json.h"

#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/charconv.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/json/rapidjson_reader.h"
#include "base/text/utf8.h"

namespace tessera::base {

namespace {

constexpr size_t kMaxDepth = 64;
// A value takes about 30 bytes and an empty member of an object about 200, while their text may take three bytes:
// without this bound a file could require many times its size in memory.
constexpr size_t kMaxValues = 4'000'000;

std::string Position(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  return absl::StrCat("line ", line, ", column ", column);
}

}  // namespace

struct Json::Object {
  std::vector<JsonMember> members;
  std::vector<uint32_t> by_key;  // indices into members, sorted by key
};

// Builds the tree from RapidJSON's events. A handler that returns false stops the parser.
class JsonBuilder {
 public:
  explicit JsonBuilder(const rapidjson::MemoryStream& stream) : stream_(stream) {}

  bool Null() { return Add({}); }
  bool Bool(bool value) { return Add(value); }
  // Numbers are received as text. RapidJSON's conversion has undefined behaviour (a zero with an exponent, a huge
  // exponent), and it accepts Inf and -NaN, which no JSON writer produces.
  bool RawNumber(const char* data, rapidjson::SizeType length, bool) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const std::string_view text(data, length);
    if (text == "NaN") return Add(std::numeric_limits<double>::quiet_NaN());
    if (text == "Infinity") return Add(kInfinity);
    if (text == "-Infinity") return Add(-kInfinity);
    int64_t integer = 0;
    const std::from_chars_result whole = std::from_chars(data, data + length, integer);
    if (whole.ec == std::errc() && whole.ptr == data + length) return Add(integer);
    double number = 0;
    const absl::from_chars_result result = absl::from_chars(data, data + length, number);
    if (result.ptr != data + length || text.find_first_of("Nn") != text.npos) {
      return Fail(absl::StrCat("invalid number ", Quote(text), "; did you mean NaN, Infinity or -Infinity?"));
    }
    // A number too small for a double becomes the nearest one, as everywhere.
    if (result.ec != std::errc() && std::abs(number) > 1) return Fail(absl::StrCat("number ", Quote(text), " too big"));
    return Add(number);
  }
  // Not called, because numbers are requested as text.
  bool Int(int) { return false; }
  bool Uint(unsigned) { return false; }
  bool Int64(int64_t) { return false; }
  bool Uint64(uint64_t) { return false; }
  bool Double(double) { return false; }
  bool String(const char* data, rapidjson::SizeType length, bool) {
    auto text = std::make_shared<const std::string>(data, length);
    return CheckSurrogates(*text) && Add(std::move(text));
  }

  bool StartArray() { return Push(); }
  bool EndArray(rapidjson::SizeType) {
    auto items = std::move(frames_.back().items);
    frames_.pop_back();
    if (items.empty()) return Add(std::shared_ptr<const std::vector<Json>>());
    items.shrink_to_fit();
    return Add(std::make_shared<const std::vector<Json>>(std::move(items)));
  }

  bool StartObject() { return Push(); }
  bool Key(const char* data, rapidjson::SizeType length, bool) {
    Frame& frame = frames_.back();
    frame.members.push_back({std::string(data, length), Json()});
    frame.key_ends.push_back(stream_.Tell());
    return CheckSurrogates(frame.members.back().key);
  }
  bool EndObject(rapidjson::SizeType) {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    if (frame.members.empty()) return Add(std::shared_ptr<const Json::Object>());
    auto object = std::make_shared<Json::Object>();
    object->members = std::move(frame.members);
    const std::vector<JsonMember>& members = object->members;
    object->by_key.resize(members.size());
    for (uint32_t i = 0; i < members.size(); ++i) object->by_key[i] = i;
    std::stable_sort(object->by_key.begin(), object->by_key.end(),
                     [&](uint32_t a, uint32_t b) { return members[a].key < members[b].key; });
    const auto duplicate = std::adjacent_find(object->by_key.begin(), object->by_key.end(),
                                              [&](uint32_t a, uint32_t b) { return members[a].key == members[b].key; });
    if (duplicate != object->by_key.end()) {
      error_offset_ = frame.key_ends[duplicate[1]];
      return Fail(absl::StrCat("duplicate key ", Quote(members[*duplicate].key)));
    }
    return Add(std::shared_ptr<const Json::Object>(std::move(object)));
  }

  Json TakeRoot() { return std::move(root_); }
  const std::string& error() const { return error_; }  // empty if the parser itself found the mistake
  std::optional<size_t> error_offset() const { return error_offset_; }

 private:
  struct Frame {
    std::vector<Json> items;
    std::vector<JsonMember> members;
    std::vector<size_t> key_ends;  // offsets of the bytes after the members' keys
  };

  bool Fail(std::string_view error) {
    error_ = error;
    return false;
  }

  bool Push() {
    if (frames_.size() == kMaxDepth) return Fail(absl::StrCat("nested deeper than ", kMaxDepth, " levels"));
    frames_.emplace_back();
    return true;
  }

  // The parser checks the text, but writes an escaped lone surrogate as three bytes that are not UTF-8.
  bool CheckSurrogates(std::string_view text) {
    for (size_t at = text.find('\xED'); at != text.npos; at = text.find('\xED', at + 1)) {
      if (Utf8SequenceLength({text.data() + at, text.size() - at}) == 0)
        return Fail("half of a surrogate pair in a string");
    }
    return true;
  }

  template <typename T>
  bool Add(T value) {
    Json json;
    json.value_ = std::move(value);
    return Add(std::move(json));
  }
  bool Add(Json json) {
    if (++values_ > kMaxValues) return Fail(absl::StrCat("more than ", kMaxValues, " values"));
    if (frames_.empty()) {
      root_ = std::move(json);
    } else if (Frame& frame = frames_.back(); frame.members.empty()) {
      frame.items.push_back(std::move(json));
    } else {
      frame.members.back().value = std::move(json);
    }
    return true;
  }

  const rapidjson::MemoryStream& stream_;
  std::vector<Frame> frames_;
  Json root_;
  size_t values_ = 0;
  std::string error_;
  std::optional<size_t> error_offset_;
};

std::optional<bool> Json::AsBool() const {
  const bool* value = std::get_if<bool>(&value_);
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<int64_t> Json::AsInt() const {
  const int64_t* value = std::get_if<int64_t>(&value_);
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<double> Json::AsNumber() const {
  if (const auto integer = AsInt()) return static_cast<double>(*integer);
  const double* value = std::get_if<double>(&value_);
  return value ? std::optional(*value) : std::nullopt;
}

const std::string* Json::AsString() const {
  const auto* value = std::get_if<std::shared_ptr<const std::string>>(&value_);
  return value ? value->get() : nullptr;
}

std::span<const Json> Json::items() const {
  const auto* value = std::get_if<std::shared_ptr<const std::vector<Json>>>(&value_);
  if (!value || !*value) return {};
  return **value;
}

std::span<const JsonMember> Json::members() const {
  const auto* value = std::get_if<std::shared_ptr<const Object>>(&value_);
  if (!value || !*value) return {};
  return (*value)->members;
}

const Json* Json::Find(std::string_view key) const {
  const auto* value = std::get_if<std::shared_ptr<const Object>>(&value_);
  if (!value || !*value) return nullptr;
  const Object& object = **value;
  const auto found = std::lower_bound(object.by_key.begin(), object.by_key.end(), key,
                                      [&](uint32_t i, std::string_view k) { return object.members[i].key < k; });
  if (found == object.by_key.end() || object.members[*found].key != key) return nullptr;
  return &object.members[*found].value;
}

std::string Json::Describe() const {
  switch (type()) {
    case Type::kNull:
      return "null";
    case Type::kBool:
      return *AsBool() ? "true" : "false";
    case Type::kInt:
      return absl::StrCat(*AsInt());
    case Type::kNumber: {
      const double value = *AsNumber();
      if (std::isnan(value)) return "NaN";
      if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
      const std::string text = absl::StrCat(value);
      return text.find_first_of(".e") == text.npos ? text + ".0" : text;  // distinguishes it from an integer
    }
    case Type::kString:
      return Quote(*AsString());
    case Type::kArray:
      return absl::StrCat("a list of ", items().size(), items().size() == 1 ? " value" : " values");
    case Type::kObject:
      return absl::StrCat("an object of ", members().size(), members().size() == 1 ? " field" : " fields");
  }
  return "";
}

absl::StatusOr<Json> ParseJson(std::string_view text, const std::string& what, size_t max_bytes) {
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", text.size(), " bytes of JSON; at most ", max_bytes, " are valid"));
  }
  constexpr unsigned kFlags = rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag |
                              rapidjson::kParseNanAndInfFlag | rapidjson::kParseNumbersAsStringsFlag;
  rapidjson::MemoryStream stream(text.data(), text.size());
  JsonReader reader;
  JsonBuilder builder(stream);
  const rapidjson::ParseResult result = reader.Parse<kFlags>(stream, builder);
  const auto error = [&](size_t offset, const std::string& message) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", Position(text, offset), ": ", message));
  };
  if (!builder.error().empty()) return error(builder.error_offset().value_or(result.Offset()), builder.error());
  if (result.IsError()) {
    return error(result.Offset(), std::string(absl::StripSuffix(rapidjson::GetParseError_En(result.Code()), ".")));
  }
  // The parser treats a NUL as the end of the text.
  if (stream.Tell() != text.size()) return error(stream.Tell(), "bytes after the end of the JSON value");
  return builder.TakeRoot();
}

std::string Quote(std::string_view text, size_t max_bytes) {
  std::string quoted = "\"";
  while (!text.empty()) {
    if (quoted.size() > max_bytes) return quoted + "…\"";
    const size_t length = Utf8SequenceLength({text.data(), text.size()});
    const unsigned char byte = static_cast<unsigned char>(text[0]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      absl::StrAppendFormat(&quoted, "\\x%02x", byte);
    } else {
      if (byte == '"' || byte == '\\') quoted += '\\';
      quoted.append(text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return quoted + "\"";
}

}  // namespace tessera::base
