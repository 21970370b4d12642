#include "server/image/parameters_text.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <system_error>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/api/request_fields.h"

namespace tessera {
namespace {

constexpr std::string_view kNegativePromptPrefix = "Negative prompt:";
constexpr char kSteps[] = "Steps";
constexpr char kSampler[] = "Sampler";
constexpr char kGuidanceScale[] = "CFG scale";
constexpr char kSeed[] = "Seed";
constexpr char kSize[] = "Size";
constexpr char kModel[] = "Model";
constexpr char kModelHash[] = "Model hash";
constexpr char kNoise[] = "Noise";
constexpr char kDtype[] = "Dtype";
constexpr char kDevice[] = "Device";
constexpr char kCleanCaption[] = "Clean caption";
constexpr char kResolutionBinning[] = "Resolution binning";
constexpr char kMaxSequenceLength[] = "Max sequence length";
constexpr char kExactPrompt[] = "Exact prompt";
constexpr char kExactNegativePrompt[] = "Exact negative prompt";
constexpr char kVersion[] = "Version";
constexpr char kHasNegativePrompt[] = "Has negative prompt";
constexpr char kOriginalSize[] = "Original size";
constexpr char kCropTopLeft[] = "Crop top left";
constexpr char kTextEncoders[] = "Text encoders";
constexpr char kAutoencoder[] = "VAE";
constexpr char kLayout[] = "Layout";
constexpr char kInstructionSet[] = "Instruction set";
// But for those of the options, which the table of fields has.
constexpr std::string_view kFieldNames[] = {kSteps,
                                            kSampler,
                                            kGuidanceScale,
                                            kSeed,
                                            kSize,
                                            kModel,
                                            kModelHash,
                                            kNoise,
                                            kDtype,
                                            kDevice,
                                            kCleanCaption,
                                            kResolutionBinning,
                                            kMaxSequenceLength,
                                            kExactPrompt,
                                            kExactNegativePrompt,
                                            kVersion,
                                            kHasNegativePrompt,
                                            kOriginalSize,
                                            kCropTopLeft,
                                            kTextEncoders,
                                            kAutoencoder,
                                            kLayout,
                                            kInstructionSet};
constexpr size_t kModelHashDigits = 10;

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string_view Strip(std::string_view text) {
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

std::string Quoted(std::string_view value) {
  return boost::json::serialize(boost::json::string(value.data(), value.size()));
}

bool NeedsQuotes(std::string_view value) {
  return Strip(value).size() != value.size() || std::any_of(value.begin(), value.end(), [](char c) {
           return c == ',' || c == ':' || c == '"' || absl::ascii_iscntrl(static_cast<unsigned char>(c));
         });
}

template <typename Number>
std::string ShortestDigits(Number value) {
  char digits[32];
  const std::to_chars_result end = std::to_chars(std::begin(digits), std::end(digits), value);
  return std::string(digits, end.ptr);
}

template <typename Number>
bool ReadNumber(std::string_view text, Number& value) {
  const std::from_chars_result end = std::from_chars(text.data(), text.data() + text.size(), value);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

struct Prompts {
  std::string positive;
  std::optional<std::string> negative;
};

void AppendLine(std::string_view line, std::string& text) {
  if (!text.empty()) text.push_back('\n');
  text.append(line);
}

// Reads the lines before the pairs as other programs do.
Prompts ReadPlainPrompts(std::string_view text) {
  Prompts prompts;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = Strip(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (StartsWith(line, kNegativePromptPrefix)) {
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

// The length of the JSON string that `text` begins with, quotes included; 0 where it has no end.
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
  const boost::json::value value =
      boost::json::parse(boost::json::string_view(quoted.data(), quoted.size()), error, {}, options);
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
    if (StartsWith(line, "\"")) {
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

// Takes pairs out by name and keeps the first error.
class PairReader final {
 public:
  explicit PairReader(std::map<std::string, std::string> pairs) : pairs_(std::move(pairs)) {}

  std::optional<std::string> Take(const char* key) {
    auto node = pairs_.extract(key);
    if (node.empty()) return std::nullopt;
    return std::move(node.mapped());
  }

  std::string TakeText(const char* key) { return Take(key).value_or(""); }

  void Require(const char* key) {
    if (!Has(key)) Fail(absl::InvalidArgumentError(absl::StrCat("parameters: ", key, " is missing")));
  }

  // Leaves `number` as it is where the pair is not there.
  template <typename Number>
  void TakeNumber(const char* key, const char* valid, Number& number) {
    const std::optional<std::string> text = Take(key);
    if (!text) return;
    if (!ReadNumber(*text, number) || !std::isfinite(static_cast<double>(number))) Fail(Malformed(key, *text, valid));
  }

  // Leaves both as they are where the pair is not there.
  void TakeSize(const char* key, int& width, int& height) {
    const std::optional<std::string> taken = Take(key);
    if (!taken) return;
    const std::string& text = *taken;
    const size_t cross = std::min(text.find('x'), text.size());
    if (!ReadNumber(std::string_view(text).substr(0, cross), width) || cross == text.size() ||
        !ReadNumber(std::string_view(text).substr(cross + 1), height)) {
      Fail(Malformed(key, text, "WIDTHxHEIGHT"));
    }
  }

  // Whole numbers with one blank between them; none where the pair is not there.
  std::vector<int32_t> TakeIntegers(const char* key, const char* valid) {
    std::vector<int32_t> numbers;
    const std::optional<std::string> text = Take(key);
    for (size_t start = 0; text && start <= text->size();) {
      const size_t end = std::min(text->find(' ', start), text->size());
      if (!ReadNumber(std::string_view(*text).substr(start, end - start), numbers.emplace_back())) {
        Fail(Malformed(key, *text, valid));
        return {};
      }
      start = end + 1;
    }
    return numbers;
  }

  bool Has(const char* key) const { return pairs_.count(key) != 0; }

  std::optional<bool> TakeBool(const char* key) {
    const std::optional<std::string> text = Take(key);
    if (!text) return std::nullopt;
    if (*text != "true" && *text != "false") Fail(Malformed(key, *text, "true or false"));
    return *text == "true";
  }

  void Fail(absl::Status status) { status_.Update(std::move(status)); }
  const absl::Status& status() const { return status_; }
  std::map<std::string, std::string> TakeRest() { return std::move(pairs_); }

 private:
  std::map<std::string, std::string> pairs_;
  absl::Status status_;
};

void AddText(const char* key, const std::string& value, Pairs& pairs) {
  if (!value.empty()) pairs.emplace_back(key, value);
}

void AddBool(const char* key, std::optional<bool> value, Pairs& pairs) {
  if (value) pairs.emplace_back(key, *value ? "true" : "false");
}

// The key of an option; empty for those of which one pair tells two.
std::string KeyOf(const char* id) {
  const RequestField& field = *FindField(id);
  const std::string key = MetadataKey(field);
  return key == kOriginalSize || key == kCropTopLeft ? "" : key;
}

bool IsFieldName(std::string_view key) {
  bool found = std::find(std::begin(kFieldNames), std::end(kFieldNames), key) != std::end(kFieldNames);
  VisitOptions([&](const char* id, Bounds) { found = found || KeyOf(id) == key; });
  return found;
}

void Take(PairReader& reader, const char* key, std::string& value) { value = reader.TakeText(key); }
void Take(PairReader& reader, const char* key, double& value) { reader.TakeNumber(key, "a finite number", value); }
void Take(PairReader& reader, const char* key, int32_t& value) { reader.TakeNumber(key, "a whole number", value); }
void Take(PairReader& reader, const char* key, std::vector<int32_t>& value) {
  value = reader.TakeIntegers(key, "whole numbers with one blank between them");
}

std::string TextOf(const std::string& value) { return value; }
std::string TextOf(double value) { return ShortestDigits(value); }
std::string TextOf(int32_t value) { return ShortestDigits(value); }
std::string TextOf(const std::vector<int32_t>& values) { return absl::StrJoin(values, " "); }

PromptOptions TakeOptions(PairReader& reader) {
  PromptOptions options;
  const auto take = [&reader](const char* id, Bounds, auto& value) {
    if (const std::string key = KeyOf(id); !key.empty()) Take(reader, key.c_str(), value);
  };
  VisitOptions(take, options);
  OriginalSize& size = options.original_size;
  reader.TakeSize(kOriginalSize, size.width, size.height);
  if (reader.Has(kCropTopLeft)) {
    const std::vector<int32_t> corner = reader.TakeIntegers(kCropTopLeft, "two whole numbers with a blank between");
    if (corner.size() == 2) {
      size.crop_top = corner[0];
      size.crop_left = corner[1];
    } else {
      reader.Fail(Malformed(kCropTopLeft, absl::StrJoin(corner, " "), "two whole numbers with a blank between"));
    }
  }
  return options;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> OptionPairs(const PromptOptions& options) {
  const PromptOptions usual;
  Pairs pairs;
  const auto add = [&pairs](const char* id, Bounds, const auto& value, const auto& usual_value) {
    const std::string key = KeyOf(id);
    if (!key.empty() && value != usual_value) pairs.emplace_back(key, TextOf(value));
  };
  VisitOptions(add, options, usual);
  const OriginalSize& size = options.original_size;
  if (size.width != 0 || size.height != 0) {
    pairs.emplace_back(kOriginalSize, absl::StrCat(size.width, "x", size.height));
  }
  if (size.crop_top != 0 || size.crop_left != 0) {
    pairs.emplace_back(kCropTopLeft, absl::StrCat(size.crop_top, " ", size.crop_left));
  }
  return pairs;
}

absl::StatusOr<std::string> FormatParameters(const ImageParameters& parameters) {
  const PromptOptions& options = parameters.options;
  absl::Status finite;
  const auto check = [&finite](const std::string& key, double number) {
    if (!std::isfinite(number)) finite.Update(Malformed(key, ShortestDigits(number), "a finite number"));
  };
  check(kGuidanceScale, parameters.guidance_scale.value_or(0));
  const auto check_option = [&](const char* id, Bounds, const auto& value) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) check(KeyOf(id), value);
  };
  VisitOptions(check_option, options);
  if (!finite.ok()) return finite;
  for (const auto& [key, value] : parameters.extra) {
    if (!IsValidKey(key)) return Malformed("an extra key", key, "at least two of A-Z a-z 0-9 _ - / and blanks inside");
    if (IsFieldName(key)) {
      return Malformed("an extra key", key, "a name that is not a field's");
    }
  }
  std::string text = PlainPrompts(parameters);
  const Prompts plain = ReadPlainPrompts(Strip(text));

  Pairs pairs;
  pairs.emplace_back(kSteps, absl::StrCat(parameters.steps));
  AddText(kSampler, parameters.sampler, pairs);
  if (parameters.guidance_scale) pairs.emplace_back(kGuidanceScale, ShortestDigits(*parameters.guidance_scale));
  pairs.emplace_back(kSeed, absl::StrCat(parameters.seed));
  pairs.emplace_back(kSize, absl::StrCat(parameters.width, "x", parameters.height));
  AddText(kModel, parameters.model, pairs);
  AddText(kModelHash, parameters.model_digest.substr(0, kModelHashDigits), pairs);
  AddText(kNoise, parameters.noise, pairs);
  AddText(kDtype, parameters.dtype, pairs);
  AddText(kDevice, parameters.device, pairs);
  AddText(kTextEncoders, parameters.text_encoders, pairs);
  AddText(kAutoencoder, parameters.autoencoder, pairs);
  AddText(kLayout, parameters.layout, pairs);
  AddText(kInstructionSet, parameters.instruction_set, pairs);
  AddBool(kCleanCaption, parameters.clean_caption, pairs);
  AddBool(kResolutionBinning, parameters.resolution_binning, pairs);
  if (parameters.max_sequence_length) {
    pairs.emplace_back(kMaxSequenceLength, absl::StrCat(*parameters.max_sequence_length));
  }
  const Pairs option_pairs = OptionPairs(options);
  pairs.insert(pairs.end(), option_pairs.begin(), option_pairs.end());
  pairs.insert(pairs.end(), parameters.extra.begin(), parameters.extra.end());
  if (plain.positive != parameters.prompt) pairs.emplace_back(kExactPrompt, parameters.prompt);
  if (plain.negative != parameters.negative_prompt) {
    if (parameters.negative_prompt.has_value()) {
      pairs.emplace_back(kExactNegativePrompt, *parameters.negative_prompt);
    } else {
      AddBool(kHasNegativePrompt, false, pairs);
    }
  }
  AddText(kVersion, parameters.version, pairs);

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
  absl::StatusOr<std::map<std::string, std::string>> pairs = ReadPairs(text.substr(last_line));
  if (!pairs.ok()) return pairs.status();
  Prompts prompts = ReadPlainPrompts(Strip(text.substr(0, last_line)));

  PairReader reader(*std::move(pairs));
  ImageParameters parameters;
  parameters.prompt = reader.Take(kExactPrompt).value_or(std::move(prompts.positive));
  parameters.negative_prompt = reader.Take(kExactNegativePrompt);
  if (!parameters.negative_prompt.has_value()) parameters.negative_prompt = std::move(prompts.negative);
  if (reader.TakeBool(kHasNegativePrompt) == false) parameters.negative_prompt.reset();
  for (const char* key : {kSteps, kSeed, kSize}) reader.Require(key);
  reader.TakeNumber(kSteps, "a whole number", parameters.steps);
  parameters.sampler = reader.TakeText(kSampler);
  if (reader.Has(kGuidanceScale)) {
    reader.TakeNumber(kGuidanceScale, "a finite number", parameters.guidance_scale.emplace());
  }
  reader.TakeNumber(kSeed, "a whole number from 0 to 18446744073709551615", parameters.seed);
  reader.TakeSize(kSize, parameters.width, parameters.height);
  parameters.model = reader.TakeText(kModel);
  parameters.model_digest = reader.TakeText(kModelHash);
  parameters.noise = reader.TakeText(kNoise);
  parameters.dtype = reader.TakeText(kDtype);
  parameters.device = reader.TakeText(kDevice);
  parameters.layout = reader.TakeText(kLayout);
  parameters.instruction_set = reader.TakeText(kInstructionSet);
  parameters.text_encoders = reader.TakeText(kTextEncoders);
  parameters.autoencoder = reader.TakeText(kAutoencoder);
  parameters.clean_caption = reader.TakeBool(kCleanCaption);
  parameters.resolution_binning = reader.TakeBool(kResolutionBinning);
  if (reader.Has(kMaxSequenceLength)) {
    reader.TakeNumber(kMaxSequenceLength, "a whole number", parameters.max_sequence_length.emplace());
  }
  parameters.options = TakeOptions(reader);
  parameters.version = reader.TakeText(kVersion);
  if (!reader.status().ok()) return reader.status();
  parameters.extra = reader.TakeRest();
  return parameters;
}

}  // namespace tessera
