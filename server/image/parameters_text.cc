#include "server/image/parameters_text.h"

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
#include "base/json_fields.h"
#include "base/status_macros.h"
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
constexpr char kOriginalSize[] = "Original size";
constexpr char kCropTopLeft[] = "Crop top left";
constexpr size_t kHashDigits = 10;

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

// Of a field of an item of a list. Paths are of one machine and are not written.
bool IsPath(const base::Text& valid) { return valid.is_path; }
template <class Valid>
bool IsPath(const Valid&) {
  return false;
}
bool ReadItemField(const std::string& text, std::string& value) {
  value = text;
  return true;
}
template <typename Number>
bool ReadItemField(const std::string& text, Number& value) {
  return ReadNumber(text, value);
}
std::string ItemFieldText(const std::string& value) { return value; }
std::string ItemFieldText(double value) { return base::ShortestDigits(value); }
template <base::Described Item>
std::string ShapeOfItem() {
  std::vector<std::string> names;
  base::ForEachFieldOf<Item>([&](const auto& field) {
    if (!IsPath(field.valid)) names.push_back(absl::AsciiStrToUpper(field.name));
  });
  return absl::StrJoin(names, ":");
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

// Takes pairs out by name and keeps the first error. A missing pair leaves its value unchanged.
class PairReader final {
 public:
  explicit PairReader(std::map<std::string, std::string> pairs) : pairs_(std::move(pairs)) {}

  bool Has(const std::string& key) const { return pairs_.count(key) != 0; }

  void Require(const char* key) {
    if (!Has(key)) Fail(absl::InvalidArgumentError(absl::StrCat("parameters: ", key, " is missing")));
  }

  void operator()(const std::string& key, std::string& text) { text = Take(key).value_or(std::move(text)); }
  void operator()(const std::string& key, double& number) { TakeNumber(key, "a finite number", number); }
  void operator()(const std::string& key, int32_t& number) { TakeNumber(key, "a whole number", number); }
  void operator()(const std::string& key, uint64_t& number) {
    TakeNumber(key, "a whole number from 0 to 18446744073709551615", number);
  }

  void operator()(const std::string& key, bool& value) {
    const std::optional<std::string> text = Take(key);
    if (!text) return;
    if (*text != "true" && *text != "false") Fail(Malformed(key, *text, "true or false"));
    value = *text == "true";
  }

  template <typename Value>
  void operator()(const std::string& key, std::optional<Value>& value) {
    if (Has(key)) (*this)(key, value.emplace());
  }

  // Reads whole numbers separated by one blank.
  void operator()(const std::string& key, std::vector<int32_t>& numbers) {
    const std::optional<std::string> text = Take(key);
    for (size_t start = 0; text && start <= text->size();) {
      const size_t end = std::min(text->find(' ', start), text->size());
      if (!ReadNumber(std::string_view(*text).substr(start, end - start), numbers.emplace_back())) {
        numbers.clear();
        return Fail(Malformed(key, *text, "whole numbers with one blank between them"));
      }
      start = end + 1;
    }
  }

  // Reads the fields of each item except paths, separated by colons; items are separated by one blank.
  template <base::Described Item>
  void operator()(const std::string& key, std::vector<Item>& items) {
    const std::optional<std::string> text = Take(key);
    if (!text) return;
    bool ok = true;
    for (const absl::string_view one : absl::StrSplit(*text, ' ')) {
      const std::vector<std::string> parts = absl::StrSplit(one, ':');
      size_t next = 0;
      base::ForEachField(
          [&](const auto& field, auto& value) {
            if (!IsPath(field.valid)) ok = ok && next < parts.size() && ReadItemField(parts[next++], value);
          },
          items.emplace_back());
      ok = ok && next == parts.size();
    }
    if (ok && base::CheckValue(key, std::nullopt, items, base::List<base::Nested>()).ok()) return;
    items.clear();
    Fail(Malformed(key, *text, absl::StrCat(ShapeOfItem<Item>(), " with one blank between several")));
  }

  void operator()(const std::string& key, int32_t& width, int32_t& height) {
    const std::optional<std::string> text = Take(key);
    if (!text) return;
    const size_t cross = std::min(text->find('x'), text->size());
    if (!ReadNumber(std::string_view(*text).substr(0, cross), width) || cross == text->size() ||
        !ReadNumber(std::string_view(*text).substr(cross + 1), height)) {
      Fail(Malformed(key, *text, "WIDTHxHEIGHT"));
    }
  }

  void Fail(absl::Status status) { status_.Update(std::move(status)); }
  const absl::Status& status() const { return status_; }
  std::map<std::string, std::string> TakeRest() { return std::move(pairs_); }

 private:
  std::optional<std::string> Take(const std::string& key) {
    auto node = pairs_.extract(key);
    return node.empty() ? std::nullopt : std::optional(std::move(node.mapped()));
  }

  template <typename Number>
  void TakeNumber(const std::string& key, const char* valid, Number& number) {
    const std::optional<std::string> text = Take(key);
    if (!text) return;
    if (!ReadNumber(*text, number) || !std::isfinite(static_cast<double>(number))) Fail(Malformed(key, *text, valid));
  }

  std::map<std::string, std::string> pairs_;
  absl::Status status_;
};

// Adds pairs by the same calls. Empty texts and absent values add none.
class PairWriter final {
 public:
  void operator()(const std::string& key, const std::string& text) {
    if (!text.empty()) pairs.emplace_back(key, text);
  }
  void operator()(const std::string& key, double number) {
    if (!std::isfinite(number)) status.Update(Malformed(key, base::ShortestDigits(number), "a finite number"));
    pairs.emplace_back(key, base::ShortestDigits(number));
  }
  void operator()(const std::string& key, int32_t number) { pairs.emplace_back(key, absl::StrCat(number)); }
  void operator()(const std::string& key, uint64_t number) { pairs.emplace_back(key, absl::StrCat(number)); }
  void operator()(const std::string& key, bool value) { pairs.emplace_back(key, value ? "true" : "false"); }
  void operator()(const std::string& key, const std::vector<int32_t>& numbers) {
    pairs.emplace_back(key, absl::StrJoin(numbers, " "));
  }
  template <base::Described Item>
  void operator()(const std::string& key, const std::vector<Item>& items) {
    if (items.empty()) return;
    const absl::Status valid = base::CheckValue(key, std::nullopt, items, base::List<base::Nested>());
    if (!valid.ok()) status.Update(absl::InvalidArgumentError(absl::StrCat("parameters: ", valid.message())));
    pairs.emplace_back(key, absl::StrJoin(items, " ", [](std::string* out, const Item& item) {
                         std::vector<std::string> parts;
                         base::ForEachField(
                             [&](const auto& field, const auto& value) {
                               if (!IsPath(field.valid)) parts.push_back(ItemFieldText(value));
                             },
                             item);
                         absl::StrAppend(out, absl::StrJoin(parts, ":"));
                       }));
  }
  void operator()(const std::string& key, int32_t width, int32_t height) {
    pairs.emplace_back(key, absl::StrCat(width, "x", height));
  }
  template <typename Value>
  void operator()(const std::string& key, const std::optional<Value>& value) {
    if (value) (*this)(key, *value);
  }

  Pairs pairs;
  absl::Status status;  // error of the first number that has no text
};

// Visits the parameters that have a pair regardless of the prompt, in the order of the text.
template <typename Visit, typename Parameters>
void VisitPairs(Visit& visit, Parameters& parameters) {
  visit(kSteps, parameters.steps);
  visit("Sampler", parameters.sampler);
  visit("CFG scale", parameters.guidance_scale);
  visit(kSeed, parameters.seed);
  visit(kSize, parameters.width, parameters.height);
  visit("Model", parameters.model);
  visit("Model hash", parameters.model_digest);
  visit("Weights hash", parameters.weights_digest);
  visit("Noise", parameters.noise);
  visit("Dtype", parameters.dtype);
  visit("Device", parameters.device);
  visit("Text encoders", parameters.text_encoders);
  visit("VAE", parameters.autoencoder);
  visit("Layout", parameters.layout);
  visit("Instruction set", parameters.instruction_set);
  visit("Clean caption", parameters.clean_caption);
  visit("Resolution binning", parameters.resolution_binning);
  visit("Max sequence length", parameters.max_sequence_length);
  visit("Loras", parameters.adapters);
}

// Returns the key of an option; empty for options that share a pair with another.
std::string KeyOf(const char* id) {
  const std::string key = MetadataKey(*FindField(id));
  return key == kOriginalSize || key == kCropTopLeft ? "" : key;
}

bool IsFieldName(std::string_view key) {
  const ImageParameters none;
  bool found = std::set<std::string_view>{kExactPrompt,       kExactNegativePrompt, kVersion,
                                          kHasNegativePrompt, kOriginalSize,        kCropTopLeft}
                   .contains(key);
  const auto compare = [&](std::string_view name, const auto&...) { found = found || name == key; };
  VisitPairs(compare, none);
  base::ForEachFieldOf<control::PromptOptions>([&](const auto& field) { compare(KeyOf(field.name)); });
  return found;
}

control::PromptOptions TakeOptions(PairReader& reader) {
  control::PromptOptions options;
  const auto take = [&reader](const auto& field, auto& value) {
    if (const std::string key = KeyOf(field.name); !key.empty()) reader(key, value);
  };
  base::ForEachField(take, options);
  control::OriginalSize& size = options.original_size;
  reader(kOriginalSize, size.width, size.height);
  if (reader.Has(kCropTopLeft)) {
    std::vector<int32_t> corner;
    reader(kCropTopLeft, corner);
    if (corner.size() == 2) {
      size.crop_top = corner[0];
      size.crop_left = corner[1];
    } else {
      reader.Fail(Malformed(kCropTopLeft, absl::StrJoin(corner, " "), "two whole numbers with a blank between"));
    }
  }
  return options;
}

void PutOptions(const control::PromptOptions& options, PairWriter& writer) {
  const control::PromptOptions usual;
  const auto add = [&writer](const auto& field, const auto& value, const auto& usual_value) {
    if (const std::string key = KeyOf(field.name); !key.empty() && value != usual_value) writer(key, value);
  };
  base::ForEachField(add, options, usual);
  const control::OriginalSize& size = options.original_size;
  if (size.width != 0 || size.height != 0) writer(kOriginalSize, size.width, size.height);
  if (size.crop_top != 0 || size.crop_left != 0) {
    writer(kCropTopLeft, std::vector<int32_t>{size.crop_top, size.crop_left});
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> OptionPairs(const control::PromptOptions& options) {
  PairWriter writer;
  PutOptions(options, writer);
  return writer.pairs;
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

  PairWriter writer;
  ImageParameters shown = parameters;
  for (std::string* digest : {&shown.model_digest, &shown.weights_digest}) {
    digest->resize(std::min(digest->size(), kHashDigits));
  }
  VisitPairs(writer, std::as_const(shown));
  PutOptions(parameters.options, writer);
  RETURN_IF_ERROR(writer.status);
  writer.pairs.insert(writer.pairs.end(), parameters.extra.begin(), parameters.extra.end());
  if (plain.positive != parameters.prompt) writer.pairs.emplace_back(kExactPrompt, parameters.prompt);
  if (plain.negative != parameters.negative_prompt) {
    if (parameters.negative_prompt.has_value()) {
      writer.pairs.emplace_back(kExactNegativePrompt, *parameters.negative_prompt);
    } else {
      writer(kHasNegativePrompt, false);
    }
  }
  writer(kVersion, parameters.version);

  std::string last_line;
  for (const auto& [key, value] : writer.pairs) {
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
  reader(kExactPrompt, parameters.prompt);
  reader(kExactNegativePrompt, parameters.negative_prompt);
  bool has_negative_prompt = true;
  reader(kHasNegativePrompt, has_negative_prompt);
  if (!has_negative_prompt) parameters.negative_prompt.reset();
  for (const char* key : {kSteps, kSeed, kSize}) reader.Require(key);
  VisitPairs(reader, parameters);
  parameters.options = TakeOptions(reader);
  reader(kVersion, parameters.version);
  if (!reader.status().ok()) return reader.status();
  parameters.extra = reader.TakeRest();
  return parameters;
}

}  // namespace tessera::server
