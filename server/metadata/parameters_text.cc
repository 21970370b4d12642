#include "server/metadata/parameters_text.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <set>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/fields/json_fields.h"
#include "base/macros/status_macros.h"
#include "server/api/request_fields.h"

namespace tessera::server {
namespace {

constexpr std::string_view kNegativePromptPrefix = "Negative prompt:";
constexpr char kSteps[] = "Steps";
constexpr char kSeed[] = "Seed";
constexpr char kSize[] = "Size";
constexpr char kExactPrompt[] = "Exact prompt";
constexpr char kExactNegativePrompt[] = "Exact negative prompt";
constexpr char kVersion[] = "Version";
constexpr char kHasNegativePrompt[] = "Has negative prompt";
constexpr size_t kHashDigits = 10;

// A pair that has the values of two fields.
struct TwoValues {
  const char* key;
  std::string_view first, second;  // names of the fields
  char separator;
  const char* valid;
};
constexpr TwoValues kTwoValues[] = {
    {kSize, "width", "height", 'x', "WIDTHxHEIGHT"},
    {"Original size", "original_width", "original_height", 'x', "WIDTHxHEIGHT"},
    {"Crop top left", "crop_top", "crop_left", ' ', "two whole numbers with a blank between"},
};

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string_view Strip(std::string_view text) {
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

std::string Quoted(std::string_view value) {
  return boost::json::serialize(boost::json::string(value.data(), value.size()));
}

bool NeedsQuotes(std::string_view value) {
  return Strip(value).size() != value.size() || std::any_of(value.begin(), value.end(), [](char c) {
           return c == ',' || c == ':' || c == '"' || absl::ascii_iscntrl(static_cast<unsigned char>(c));
         });
}

template <typename Number>
bool ReadNumber(std::string_view text, Number& value) {
  const std::from_chars_result end = std::from_chars(text.data(), text.data() + text.size(), value);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

// Paths are of one machine and are not written.
bool IsPath(const base::Text& valid) { return valid.is_path; }
template <class Valid>
bool IsPath(const Valid&) {
  return false;
}

// Items of a list are separated by one blank, and the fields of an item by colons.
template <class Value>
bool ReadText(std::string_view text, Value& value) {
  if constexpr (base::kIsOptional<Value>) {
    return ReadText(text, value.emplace());
  } else if constexpr (std::is_same_v<Value, std::string>) {
    value = text;
    return true;
  } else if constexpr (std::is_same_v<Value, bool>) {
    value = text == "true";
    return value || text == "false";
  } else if constexpr (base::kIsList<Value>) {
    for (const absl::string_view item : absl::StrSplit(absl::string_view(text.data(), text.size()), ' ')) {
      if (!ReadText({item.data(), item.size()}, value.emplace_back())) return false;
    }
    return true;
  } else if constexpr (base::Described<Value>) {
    const std::vector<std::string> parts = absl::StrSplit(absl::string_view(text.data(), text.size()), ':');
    size_t next = 0;
    bool ok = true;
    base::ForEachField(
        [&](const auto& field, auto& part) {
          if (!IsPath(field.valid)) ok = ok && next < parts.size() && ReadText(parts[next++], part);
        },
        value);
    return ok && next == parts.size();
  } else {
    return ReadNumber(text, value) && std::isfinite(static_cast<double>(value));
  }
}

// Returns the texts that ReadText accepts, for messages.
template <class Value>
std::string ValidTexts() {
  if constexpr (base::kIsOptional<Value>) {
    return ValidTexts<typename Value::value_type>();
  } else if constexpr (std::is_same_v<Value, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<Value, std::vector<int32_t>>) {
    return "whole numbers with one blank between them";
  } else if constexpr (base::kIsList<Value>) {
    std::vector<std::string> names;
    base::ForEachFieldOf<typename Value::value_type>([&](const auto& field) {
      if (!IsPath(field.valid)) names.push_back(absl::AsciiStrToUpper(field.name));
    });
    return absl::StrCat(absl::StrJoin(names, ":"), " with one blank between several");
  } else if constexpr (std::is_same_v<Value, double>) {
    return "a finite number";
  } else {
    return std::is_same_v<Value, uint64_t> ? "a whole number from 0 to 18446744073709551615" : "a whole number";
  }
}

template <class Value>
std::string TextOf(const Value& value) {
  if constexpr (base::kIsOptional<Value>) {
    return value.has_value() ? TextOf(*value) : "";
  } else if constexpr (base::kIsList<Value>) {
    return absl::StrJoin(value, " ", [](std::string* out, const auto& item) { out->append(TextOf(item)); });
  } else if constexpr (base::Described<Value>) {
    std::vector<std::string> parts;
    base::ForEachField(
        [&](const auto& field, const auto& part) {
          if (!IsPath(field.valid)) parts.push_back(TextOf(part));
        },
        value);
    return absl::StrJoin(parts, ":");
  } else if constexpr (std::is_same_v<Value, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<Value, double>) {
    return base::ShortestDigits(value);
  } else {
    return absl::StrCat(value);
  }
}

struct Prompts {
  std::string positive;
  std::optional<std::string> negative;
};

void AppendLine(std::string_view line, std::string& text) {
  if (!text.empty()) text.push_back('\n');
  text.append(line);
}

// Reads the lines before the pairs like other programs do.
Prompts ReadPlainPrompts(std::string_view text) {
  Prompts prompts;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = Strip(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.starts_with(kNegativePromptPrefix)) {
      if (!prompts.negative.has_value()) prompts.negative.emplace();
      line = Strip(line.substr(kNegativePromptPrefix.size()));
    }
    AppendLine(line, prompts.negative.has_value() ? *prompts.negative : prompts.positive);
  }
  return prompts;
}

std::string PlainPrompts(const ImageParameters& parameters) {
  std::string text = parameters.prompt;
  if (parameters.negative_prompt.has_value()) {
    AppendLine(absl::StrCat(std::string(kNegativePromptPrefix), " ", *parameters.negative_prompt), text);
  }
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

bool IsValidKey(std::string_view key) {
  const auto is_word = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  return key.size() >= 2 && is_word(key.front()) && key.back() != ' ' &&
         std::all_of(key.begin(), key.end(), [&](char c) { return is_word(c) || c == ' ' || c == '-' || c == '/'; });
}

absl::Status Malformed(std::string_view key, std::string_view value, std::string_view valid) {
  constexpr size_t kShownBytes = 60;
  return absl::InvalidArgumentError(absl::StrCat("parameters: ", std::string(key), " is \"",
                                                 std::string(value.substr(0, kShownBytes)), "\"; valid values are ",
                                                 std::string(valid)));
}

// Returns the length of the JSON string that `text` begins with, quotes included; 0 if it does not end.
size_t QuotedLength(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return 0;
}

absl::StatusOr<std::string> Unquoted(std::string_view key, std::string_view quoted) {
  boost::json::error_code error;
  boost::json::parse_options options;
  options.allow_invalid_utf8 = true;
  const boost::json::value value = boost::json::parse(quoted, error, {}, options);
  if (error || !value.is_string()) return Malformed(key, quoted, "a JSON string after a quotation mark");
  return std::string(value.get_string().data(), value.get_string().size());
}

absl::StatusOr<std::map<std::string, std::string>> ReadPairs(std::string_view line) {
  std::map<std::string, std::string> pairs;
  line = Strip(line);
  while (!line.empty()) {
    const size_t colon = line.find(':');
    const std::string key(Strip(line.substr(0, colon)));
    if (colon == std::string_view::npos || key.empty() || key.find(',') != std::string::npos) {
      return absl::InvalidArgumentError("parameters: the last line is not a list of \"Key: value\" pairs");
    }
    line = Strip(line.substr(colon + 1));
    size_t length = 0;
    std::string value;
    if (line.starts_with("\"")) {
      length = QuotedLength(line);
      ASSIGN_OR_RETURN(value, Unquoted(key, line.substr(0, length)));
    } else {
      length = std::min(line.find(','), line.size());
      value = Strip(line.substr(0, length));
    }
    line = Strip(line.substr(length));
    if (!line.empty() && line.front() != ',') {
      return Malformed(key, line, "a comma after the value");
    }
    if (!line.empty()) line = Strip(line.substr(1));
    if (!pairs.emplace(key, std::move(value)).second) {
      return absl::InvalidArgumentError(absl::StrCat("parameters: ", key, " is given twice"));
    }
  }
  return pairs;
}

// INVALID_ARGUMENT for a value that no text may have.
absl::Status CheckWritten(const std::string& key, double number) {
  if (std::isfinite(number)) return absl::OkStatus();
  return Malformed(key, base::ShortestDigits(number), ValidTexts<double>());
}
template <class Value>
absl::Status CheckWritten(const std::string& key, const Value& value) {
  absl::Status status;
  if constexpr (base::kIsOptional<Value>) {
    if (value.has_value()) status = CheckWritten(key, *value);
  } else if constexpr (requires { base::Fields<typename Value::value_type>(); }) {
    status = base::CheckValue(key, std::nullopt, value, base::List<base::Nested>());
    if (!status.ok()) status = absl::InvalidArgumentError(absl::StrCat("parameters: ", status.message()));
  }
  return status;
}

// Takes pairs out by name and keeps the first error. A missing pair leaves its value unchanged.
class PairReader final {
 public:
  explicit PairReader(std::map<std::string, std::string> pairs) : pairs_(std::move(pairs)) {}

  bool Has(const std::string& key) const { return pairs_.count(key) != 0; }

  void Require(const char* key) {
    if (!Has(key)) Fail(absl::InvalidArgumentError(absl::StrCat("parameters: ", key, " is missing")));
  }

  template <class Value>
  void Read(const std::string& key, Value& value) {
    const std::optional<std::string> text = Take(key);
    if (!text) return;
    value = Value();
    if (!ReadText(*text, value) || !CheckWritten(key, value).ok()) Fail(Malformed(key, *text, ValidTexts<Value>()));
  }

  template <class Value>
  void ReadOneOfTwo(const TwoValues& two, bool is_second, Value& value) {
    if (!Has(two.key)) return;
    const std::string text = is_second ? *Take(two.key) : pairs_[two.key];
    const size_t end = text.find(two.separator);
    const std::string_view one = is_second ? std::string_view(text).substr(std::min(end, text.size() - 1) + 1)
                                           : std::string_view(text).substr(0, end);
    if (end == std::string::npos || !ReadText(one, value)) Fail(Malformed(two.key, text, two.valid));
  }

  void Fail(absl::Status status) { status_.Update(std::move(status)); }
  const absl::Status& status() const { return status_; }
  std::map<std::string, std::string> TakeRest() { return std::move(pairs_); }

 private:
  std::optional<std::string> Take(const std::string& key) {
    auto node = pairs_.extract(key);
    return node.empty() ? std::nullopt : std::optional(std::move(node.mapped()));
  }

  std::map<std::string, std::string> pairs_;
  absl::Status status_;
};

const TwoValues* FindTwoValues(std::string_view name) {
  const auto* two =
      std::ranges::find_if(kTwoValues, [&](const TwoValues& two) { return two.first == name || two.second == name; });
  return two == std::end(kTwoValues) ? nullptr : two;
}

// Returns the key of a field; empty for the prompts, which have lines.
std::string KeyOf(std::string_view name) {
  if (name == "prompt" || name == "negative_prompt") return "";
  if (const TwoValues* two = FindTwoValues(name)) return two->key;
  const RequestFacts* facts = FindField({name.data(), name.size()});
  return facts == nullptr ? std::string(name) : MetadataKey(*facts);
}

bool IsFieldName(std::string_view key) {
  bool found =
      std::set<std::string_view>{kExactPrompt, kExactNegativePrompt, kVersion, kHasNegativePrompt}.contains(key);
  base::ForEachFieldOf<ImageParameters>([&](const auto& field) { found = found || KeyOf(field.name) == key; });
  return found;
}

// Adds the pairs of fields that differ from their defaults, and those that every text has.
template <base::Described Struct>
absl::Status AddPairs(const Struct& values, Pairs& pairs) {
  const Struct usual;
  absl::Status status;
  std::string first;  // the value of the first of two fields
  bool first_is_given = false;
  base::ForEachField(
      [&](const auto& field, const auto& value, const auto& usual_value) {
        const std::string key = KeyOf(field.name);
        const TwoValues* two = FindTwoValues(field.name);
        bool is_given = value != usual_value || key == kSteps || key == kSeed || key == kSize;
        if (two != nullptr && two->first == field.name) {
          first = TextOf(value) + two->separator;
          first_is_given = is_given;
          return;
        }
        is_given = is_given || (two != nullptr && first_is_given);
        if (!is_given || key.empty()) return;
        status.Update(CheckWritten(key, value));
        pairs.emplace_back(key, (two != nullptr ? first : "") + TextOf(value));
      },
      values, usual);
  return status;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> OptionPairs(const control::PromptOptions& options) {
  Pairs pairs;
  (void)AddPairs(options, pairs);  // pairs that are not valid are shown too
  return pairs;
}

absl::StatusOr<std::string> FormatParameters(const ImageParameters& parameters) {
  for (const auto& [key, value] : parameters.extra) {
    if (!IsValidKey(key)) return Malformed("an extra key", key, "at least two of A-Z a-z 0-9 _ - / and blanks inside");
    if (IsFieldName(key)) {
      return Malformed("an extra key", key, "a name that is not a field's");
    }
  }
  std::string text = PlainPrompts(parameters);
  const Prompts plain = ReadPlainPrompts(Strip(text));

  ImageParameters shown = parameters;
  for (std::string* digest : {&shown.model_digest, &shown.weights_digest}) {
    digest->resize(std::min(digest->size(), kHashDigits));
  }
  Pairs pairs;
  RETURN_IF_ERROR(AddPairs(shown, pairs));
  pairs.insert(pairs.end(), parameters.extra.begin(), parameters.extra.end());
  if (plain.positive != parameters.prompt) pairs.emplace_back(kExactPrompt, parameters.prompt);
  if (plain.negative != parameters.negative_prompt) {
    if (parameters.negative_prompt.has_value()) {
      pairs.emplace_back(kExactNegativePrompt, *parameters.negative_prompt);
    } else {
      pairs.emplace_back(kHasNegativePrompt, TextOf(false));
    }
  }
  if (!parameters.version.empty()) pairs.emplace_back(kVersion, parameters.version);

  std::string last_line;
  for (const auto& [key, value] : pairs) {
    absl::StrAppend(&last_line, last_line.empty() ? "" : ", ", key, ": ", NeedsQuotes(value) ? Quoted(value) : value);
  }
  AppendLine(last_line, text);
  return text;
}

absl::StatusOr<ImageParameters> ParseParameters(std::string_view text) {
  text = Strip(text);
  const size_t last_break = text.find_last_of('\n');
  const size_t last_line = last_break == std::string_view::npos ? 0 : last_break + 1;
  ASSIGN_OR_RETURN(auto pairs, ReadPairs(text.substr(last_line)));
  Prompts prompts = ReadPlainPrompts(Strip(text.substr(0, last_line)));

  PairReader reader(std::move(pairs));
  ImageParameters parameters;
  parameters.prompt = std::move(prompts.positive);
  parameters.negative_prompt = std::move(prompts.negative);
  reader.Read(kExactPrompt, parameters.prompt);
  reader.Read(kExactNegativePrompt, parameters.negative_prompt);
  bool has_negative_prompt = true;
  reader.Read(kHasNegativePrompt, has_negative_prompt);
  if (!has_negative_prompt) parameters.negative_prompt.reset();
  for (const char* key : {kSteps, kSeed, kSize}) reader.Require(key);
  base::ForEachField(
      [&reader](const auto& field, auto& value) {
        if (const TwoValues* two = FindTwoValues(field.name)) {
          reader.ReadOneOfTwo(*two, two->second == field.name, value);
        } else if (const std::string key = KeyOf(field.name); !key.empty()) {
          reader.Read(key, value);
        }
      },
      parameters);
  reader.Read(kVersion, parameters.version);
  if (!reader.status().ok()) return reader.status();
  parameters.extra = reader.TakeRest();
  return parameters;
}

}  // namespace tessera::server
