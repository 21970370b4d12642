#include "models/keymaps/key_map.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"

namespace tessera::models {
namespace {

constexpr std::string_view kNumber = "{}";
constexpr std::array<std::string_view, 3> kLeaves{"weight", "bias", "gamma"};

// Numbers of blocks, levels and layers have at most four digits; longer ones are no names of a model.
constexpr size_t kMaxDigits = 4;
constexpr int64_t kMaxCount = 9999, kMaxLevels = 32, kMaxResidualBlocks = 32;

using Numbers = std::vector<std::string_view>;

// Returns the texts in place of {} if the text matches the pattern. A number has no leading zeros, so that no two texts
// mean the same.
std::optional<Numbers> Match(std::string_view pattern, std::string_view text) {
  Numbers numbers;
  for (;;) {
    const size_t at = pattern.find(kNumber);
    if (at == std::string_view::npos) break;
    if (!text.starts_with(pattern.substr(0, at))) return std::nullopt;
    text.remove_prefix(at);
    pattern.remove_prefix(at + kNumber.size());
    size_t digits = 0;
    while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits]))) ++digits;
    if (digits == 0 || digits > kMaxDigits || (digits > 1 && text[0] == '0')) return std::nullopt;
    numbers.push_back(text.substr(0, digits));
    text.remove_prefix(digits);
  }
  if (text != pattern) return std::nullopt;
  return numbers;
}

std::string Fill(std::string_view pattern, const Numbers& numbers) {
  std::string text;
  for (const std::string_view number : numbers) {
    const size_t at = pattern.find(kNumber);
    text.append(pattern.substr(0, at)).append(number);
    pattern.remove_prefix(at + kNumber.size());
  }
  return text.append(pattern);
}

// A name cut before its last part, with the part's dot: "img_in" and ".weight". The leaf is empty for whole tensors.
struct Name {
  std::string_view stem, leaf;
};

// Returns nothing if a row of that unit cannot hold for the name.
std::optional<Name> Cut(std::string_view name, KeyUnit unit) {
  if (unit == KeyUnit::kTensor) return Name{name, {}};
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  if (std::ranges::find(kLeaves, name.substr(dot + 1)) == kLeaves.end()) return std::nullopt;
  return Name{name.substr(0, dot), name.substr(dot)};
}

std::string Replaced(const std::string& text, const std::string& from, const std::string& to) {
  return absl::StrReplaceAll(text, {{from, to}});
}

bool HasPlaceholder(std::string_view text) {
  for (size_t at = text.find('{'); at != std::string_view::npos; at = text.find('{', at + 1)) {
    if (!text.substr(at).starts_with(kNumber)) return true;
  }
  return false;
}

void Expand(ExpandedKeyRow row, const std::vector<KeyNumber>& numbers, std::vector<ExpandedKeyRow>& to) {
  if (!HasPlaceholder(row.file)) {
    to.push_back(std::move(row));
    return;
  }
  // The placeholder that comes first in the list is replaced first, so every combination is made once.
  const auto next = std::ranges::find_if(
      numbers, [&](const KeyNumber& number) { return row.file.find(number.placeholder) != std::string::npos; });
  if (next == numbers.end()) return;
  for (const KeyNumber& number : numbers) {
    if (number.placeholder != next->placeholder) continue;
    Expand({.file = Replaced(row.file, number.placeholder, number.file),
            .parameters = Replaced(row.parameters, number.placeholder, number.parameters),
            .row = row.row},
           numbers, to);
  }
}

// Reads a number of a configuration.
absl::StatusOr<int64_t> Count(const base::Json& config, std::string_view key, int64_t max) {
  const base::Json* value = config.Find(key);
  const std::optional<int64_t> count = value == nullptr ? std::nullopt : value->AsInt();
  if (!count || *count < 1 || *count > max) {
    return absl::InvalidArgumentError(absl::StrCat("field ", base::Quote(key), " is ",
                                                   value == nullptr ? "missing" : value->Describe(),
                                                   "; it must be an integer from 1 to ", max));
  }
  return *count;
}

absl::StatusOr<int64_t> Levels(const base::Json& config, std::string_view key) {
  const base::Json* value = config.Find(key);
  const size_t levels = value == nullptr ? 0 : value->items().size();
  if (levels < 1 || levels > kMaxLevels) {
    return absl::InvalidArgumentError(absl::StrCat("field ", base::Quote(key), " is ",
                                                   value == nullptr ? "missing" : value->Describe(),
                                                   "; it must be a list of 1 to ", kMaxLevels, " values"));
  }
  return static_cast<int64_t>(levels);
}

std::vector<KeyNumber> Same(const std::string& placeholder, std::initializer_list<const char*> texts) {
  std::vector<KeyNumber> numbers;
  for (const char* text : texts) numbers.push_back({placeholder, text, text});
  return numbers;
}

absl::StatusOr<KeyMap> LatentDiffusionMap(const base::Json& config, bool nested) {
  ASSIGN_OR_RETURN(const int64_t levels, Levels(config, "block_out_channels"));
  std::vector<KeyNumber> numbers = Same("{side}", {"encoder", "decoder"});
  for (const KeyNumber& layer : Same("{layer}", {"norm1", "conv1", "norm2", "conv2"})) numbers.push_back(layer);
  numbers.push_back({"{layer}", "nin_shortcut", "conv_shortcut"});
  numbers.push_back({"{in_encoder}", nested ? "encoder." : "", ""});
  numbers.push_back({"{in_decoder}", nested ? "decoder." : "", ""});
  for (int64_t level = 0; level < levels; ++level) {
    const int64_t from_end = base::Planted("key_map_levels_not_reversed") ? level : levels - 1 - level;
    numbers.push_back({"{level}", absl::StrCat(level), absl::StrCat(from_end)});
  }
  return KeyMap(kLatentDiffusionAutoencoderKeys, numbers);
}

absl::StatusOr<KeyMap> AutoencoderMap(const base::Json& config) { return LatentDiffusionMap(config, false); }
absl::StatusOr<KeyMap> Flux2AutoencoderMap(const base::Json& config) { return LatentDiffusionMap(config, true); }

absl::StatusOr<KeyMap> WanMap(const base::Json& config) {
  ASSIGN_OR_RETURN(const int64_t levels, Levels(config, "dim_mult"));
  ASSIGN_OR_RETURN(const int64_t blocks, Count(config, "num_res_blocks", kMaxResidualBlocks));
  const int64_t residuals = blocks + 1;  // of a level of the decoder
  std::vector<KeyNumber> numbers = Same("{side}", {"encoder", "decoder"});
  numbers.insert(numbers.end(), {{"{layer}", "residual.0", "norm1"},
                                 {"{layer}", "residual.2", "conv1"},
                                 {"{layer}", "residual.3", "norm2"},
                                 {"{layer}", "residual.6", "conv2"},
                                 {"{layer}", "shortcut", "conv_shortcut"}});
  for (int64_t level = 0; level < levels; ++level) {
    const int64_t first = level * (residuals + 1);  // an upsampler follows the residuals of every level but the last
    for (int64_t i = 0; i < residuals; ++i) {
      numbers.push_back({"{residual}", absl::StrCat(first + i), absl::StrCat(level, ".resnets.", i)});
    }
    if (level + 1 < levels) {
      numbers.push_back({"{upsampler}", absl::StrCat(first + residuals), absl::StrCat(level, ".upsamplers.0")});
    }
  }
  return KeyMap(kWanAutoencoderKeys, numbers);
}

absl::StatusOr<KeyMap> Sd3Map(const base::Json& config) {
  ASSIGN_OR_RETURN(const int64_t layers, Count(config, "num_layers", kMaxCount));
  return KeyMap(kSd3Keys, LastBlock(layers));
}

// Heads are in the configuration of the language model, which contains that of a vision tower.
absl::StatusOr<KeyMap> MistralMap(const base::Json& config) {
  const base::Json* text = config.Find("text_config");
  const base::Json& language = text == nullptr ? config : *text;
  ASSIGN_OR_RETURN(const int64_t heads, Count(language, "num_attention_heads", kMaxCount));
  ASSIGN_OR_RETURN(const int64_t kv_heads, Count(language, "num_key_value_heads", kMaxCount));
  return KeyMap(kLlamaCppMistralKeys, {}, heads, kv_heads);
}

absl::StatusOr<KeyMap> FluxMap(const base::Json&) { return KeyMap(kFluxKeys, {}); }
absl::StatusOr<KeyMap> Flux2Map(const base::Json&) { return KeyMap(kFlux2Keys, {}); }
absl::StatusOr<KeyMap> ZImageMap(const base::Json&) { return KeyMap(kZImageKeys, ZImageStacks()); }
absl::StatusOr<KeyMap> ClipMap(const base::Json&) {
  return KeyMap(std::vector<std::string_view>(kIgnoredClipKeys.begin(), kIgnoredClipKeys.end()));
}
// The projection is of no use to the states.
absl::StatusOr<KeyMap> ClipStatesMap(const base::Json&) {
  std::vector<std::string_view> ignored(kIgnoredClipKeys.begin(), kIgnoredClipKeys.end());
  ignored.push_back("text_projection.weight");
  return KeyMap(std::move(ignored));
}
absl::StatusOr<KeyMap> TextMap(const base::Json&) {
  return KeyMap(std::vector<std::string_view>(kIgnoredTextKeys.begin(), kIgnoredTextKeys.end()));
}
absl::StatusOr<KeyMap> QwenImageMap(const base::Json&) { return KeyMap({kZeroConditionMark}); }
absl::StatusOr<KeyMap> LlamaCppT5Map(const base::Json&) { return KeyMap(kLlamaCppT5Keys, {}); }
absl::StatusOr<KeyMap> LlamaCppQwenMap(const base::Json&) { return KeyMap(kLlamaCppQwenKeys, {}); }

struct ClassMaps {
  std::string_view class_name;
  absl::StatusOr<KeyMap> (*original)(const base::Json& config);
  absl::StatusOr<KeyMap> (*llama_cpp)(const base::Json& config);  // null: none
};

constexpr std::array kClasses{
    ClassMaps{"FluxTransformer2DModel", FluxMap, nullptr},
    ClassMaps{"Flux2Transformer2DModel", Flux2Map, nullptr},
    ClassMaps{"SD3Transformer2DModel", Sd3Map, nullptr},
    ClassMaps{"ZImageTransformer2DModel", ZImageMap, nullptr},
    ClassMaps{"QwenImageTransformer2DModel", QwenImageMap, nullptr},
    ClassMaps{"AutoencoderKL", AutoencoderMap, nullptr},
    ClassMaps{"AutoencoderKLFlux2", Flux2AutoencoderMap, nullptr},
    ClassMaps{"AutoencoderKLQwenImage", WanMap, nullptr},
    ClassMaps{"CLIPTextModel", ClipStatesMap, nullptr},
    ClassMaps{"CLIPTextModelWithProjection", ClipMap, nullptr},
    ClassMaps{"T5EncoderModel", TextMap, LlamaCppT5Map},
    ClassMaps{"Qwen3ForCausalLM", TextMap, LlamaCppQwenMap},
    ClassMaps{"Qwen3Model", TextMap, LlamaCppQwenMap},
    ClassMaps{"Qwen2_5_VLForConditionalGeneration", TextMap, LlamaCppQwenMap},
    ClassMaps{"Mistral3ForConditionalGeneration", TextMap, MistralMap},
};

}  // namespace

std::vector<KeyNumber> LastBlock(int64_t blocks) {
  const std::string last = absl::StrCat(blocks - 1);
  return {{"{last}", last, last}};
}

std::vector<KeyNumber> ZImageStacks() { return Same("{stack}", {"layers", "noise_refiner", "context_refiner"}); }

std::vector<ExpandedKeyRow> ExpandKeyRows(std::span<const KeyRow> rows, const std::vector<KeyNumber>& numbers) {
  std::vector<ExpandedKeyRow> expanded;
  for (const KeyRow& row : rows) {
    Expand({.file = std::string(row.file), .parameters = std::string(row.parameters), .row = row}, numbers, expanded);
  }
  return expanded;
}

KeyMap::KeyMap(std::vector<std::string_view> ignored) : is_identity_(true), ignored_(std::move(ignored)) {}

KeyMap::KeyMap(const KeyTable& table, const std::vector<KeyNumber>& numbers, int64_t heads, int64_t kv_heads)
    : ignored_(table.ignored.begin(), table.ignored.end()) {
  for (ExpandedKeyRow& expanded : ExpandKeyRows(table.rows, numbers)) {
    const KeyRow& row = expanded.row;
    Row added{
        .file = std::move(expanded.file), .parameters = absl::StrSplit(expanded.parameters, ' '), .unit = row.unit};
    added.key.operation = added.parameters.size() > 1 ? KeyOperation::kConcat : row.operation;
    if (row.operation == KeyOperation::kRotaryPairs) {
      added.key.heads = row.part == 0 ? heads : kv_heads;
    } else {
      added.key.part = row.part;
      added.key.parts = row.parts;
    }
    rows_.push_back(std::move(added));
  }
}

std::optional<MappedKey> KeyMap::Map(std::string_view name) const {
  if (Ignores(name)) return std::nullopt;
  if (is_identity_) return MappedKey{.parameters = {std::string(name)}};
  for (const Row& row : rows_) {
    const std::optional<Name> cut = Cut(name, row.unit);
    if (!cut) continue;
    const std::optional<Numbers> numbers = Match(row.file, cut->stem);
    if (!numbers) continue;
    MappedKey key = row.key;
    for (const std::string& parameter : row.parameters) {
      key.parameters.push_back(Fill(parameter, *numbers).append(cut->leaf));
    }
    return key;
  }
  return std::nullopt;
}

bool KeyMap::Ignores(std::string_view name) const { return std::ranges::find(ignored_, name) != ignored_.end(); }

std::optional<std::string> KeyMap::NameOf(std::string_view parameter) const {
  if (is_identity_) return Ignores(parameter) ? std::nullopt : std::optional(std::string(parameter));
  for (const Row& row : rows_) {
    const std::optional<Name> cut = Cut(parameter, row.unit);
    if (!cut) continue;
    for (const std::string& pattern : row.parameters) {
      if (const std::optional<Numbers> numbers = Match(pattern, cut->stem)) {
        return Fill(row.file, *numbers).append(cut->leaf);
      }
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<KeyMap>> KeyMapOf(const std::string& class_name, const base::Json& config, NameForm form) {
  if (form == NameForm::kDiffusers) return KeyMap();
  for (const ClassMaps& maps : kClasses) {
    if (maps.class_name != class_name) continue;
    const auto make = form == NameForm::kOriginal ? maps.original : maps.llama_cpp;
    if (make == nullptr) break;
    ASSIGN_OR_RETURN(KeyMap map, make(config));
    return map;
  }
  return std::nullopt;
}

}  // namespace tessera::models
