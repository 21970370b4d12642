#include "models/adapters/plan/adapter_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "models/adapters/plan/adapter_error.h"

namespace tessera::models {
namespace {

constexpr char kMetadata[] = "lora_adapter_metadata";
constexpr char kHeader[] = "the header";
constexpr int64_t kMaxRank = 1 << 16;

absl::Status FieldError(AdapterFault fault, const LoraConfig& config, const std::string& field,
                        const std::string& rest) {
  return AdapterError(fault, absl::StrCat(config.file, ": the field ", base::Quote(config.prefix + field), " ", rest));
}

absl::StatusOr<double> AlphaIn(const LoraConfig& config, const std::string& field, const base::Json& value) {
  const std::optional<double> alpha = value.AsNumber();
  if (alpha && std::isfinite(*alpha)) return *alpha;
  return FieldError(AdapterFault::kBadAlpha, config, field,
                    absl::StrCat("is ", value.Describe(), "; it must be a finite number"));
}

absl::StatusOr<int64_t> RankIn(const LoraConfig& config, const std::string& field, const base::Json& value) {
  const std::optional<int64_t> rank = value.AsInt();
  if (rank && *rank >= 1 && *rank <= kMaxRank) return *rank;
  return FieldError(AdapterFault::kBadMetadata, config, field,
                    absl::StrCat("is ", value.Describe(), "; valid values are 1 to ", kMaxRank));
}

// Parses a key of a pattern, which may hold names, a "^" at the start, and backslashes before dots.
absl::StatusOr<std::string> PatternKey(const LoraConfig& config, const std::string& field, const std::string& key) {
  std::string plain;
  for (size_t i = 0; i < key.size(); ++i) {
    const char c = key[i];
    const bool escaped_dot = c == '\\' && i + 1 < key.size() && key[i + 1] == '.';
    if (escaped_dot) {
      plain += '.';
      ++i;
    } else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || (c == '^' && i == 0)) {
      plain += c;
    } else {
      return FieldError(AdapterFault::kBadMetadata, config, field,
                        absl::StrCat("has the key ", base::Quote(key),
                                     ", a regular expression; valid values are names of modules and their endings"));
    }
  }
  return plain;
}

// Whether PEFT's (.*\.)?(key)$ matches the whole name.
bool Matches(std::string_view key, std::string_view module) {
  const bool whole = key.starts_with('^');
  if (whole) key.remove_prefix(1);
  if (key.size() > module.size()) return false;
  const size_t begin = module.size() - key.size();
  if (begin > 0 && (whole || module[begin - 1] != '.' || base::Planted("adapter_patterns_are_whole_names")))
    return false;
  return std::equal(key.begin(), key.end(), module.begin() + static_cast<std::ptrdiff_t>(begin),
                    [](char k, char m) { return k == m || k == '.'; });
}

double ValueFor(const LoraConfig::Pattern& pattern, std::string_view module, double fallback) {
  const auto found = std::ranges::find_if(pattern, [&](const auto& entry) { return Matches(entry.first, module); });
  return found == pattern.end() ? fallback : found->second;
}

// Checks a field that would change the result but is not supported: only its neutral value is valid.
absl::Status CheckNeutral(const LoraConfig& config, const std::string& field, const base::Json& value) {
  const bool empty_list = value.is_array() && value.items().empty();
  const bool none = value.AsString() != nullptr && *value.AsString() == "none";
  if (value.is_null() || value.AsBool() == false || empty_list || none) return absl::OkStatus();
  return FieldError(AdapterFault::kUnsupportedKind, config, field,
                    absl::StrCat("is ", value.Describe(), "; such adapters are not supported"));
}

absl::Status ReadField(LoraConfig& config, const std::string& field, const base::Json& value) {
  if (field == "peft_type") {
    const std::string* kind = value.AsString();
    if (kind != nullptr && *kind == "LORA") return absl::OkStatus();
    return FieldError(AdapterFault::kUnsupportedKind, config, field,
                      absl::StrCat("is ", value.Describe(), "; the valid value is \"LORA\""));
  }
  if (field == "r") {
    ASSIGN_OR_RETURN(config.rank, RankIn(config, field, value));
  } else if (field == "lora_alpha") {
    ASSIGN_OR_RETURN(config.alpha, AlphaIn(config, field, value));
  } else if (field == "rank_pattern" || field == "alpha_pattern") {
    for (const base::JsonMember& member : value.members()) {
      ASSIGN_OR_RETURN(std::string key, PatternKey(config, field, member.key));
      const std::string of_key = absl::StrCat(field, "[", member.key, "]");
      if (field == "rank_pattern") {
        ASSIGN_OR_RETURN(const int64_t rank, RankIn(config, of_key, member.value));
        config.ranks.emplace_back(std::move(key), static_cast<double>(rank));
      } else {
        ASSIGN_OR_RETURN(const double alpha, AlphaIn(config, of_key, member.value));
        config.alphas.emplace_back(std::move(key), alpha);
      }
    }
  } else if (field == "use_rslora") {
    config.rslora = value.AsBool().value_or(false);
  } else if (field == "use_dora") {
    config.dora = value.AsBool().value_or(false);
  } else if (field == "lora_bias" || field == "bias" || field == "fan_in_fan_out" || field == "use_qalora" ||
             field == "modules_to_save" || field == "layer_replication") {
    return CheckNeutral(config, field, value);
  }
  return absl::OkStatus();
}

absl::Status CheckComplete(const LoraConfig& config, const base::Json& alpha) {
  if (config.rank == LoraConfig::kUnknownRank) return FieldError(AdapterFault::kBadMetadata, config, "r", "is missing");
  if (alpha.is_null()) return FieldError(AdapterFault::kBadAlpha, config, "lora_alpha", "is missing");
  return absl::OkStatus();
}

absl::StatusOr<base::Json> ObjectOf(std::string_view text, const std::string& name) {
  absl::StatusOr<base::Json> json = base::ParseJson(text, name, kMaxAdapterConfigBytes);
  if (!json.ok()) return AdapterError(AdapterFault::kBadMetadata, std::string(json.status().message()));
  if (json->is_object()) return json;
  return AdapterError(AdapterFault::kBadMetadata,
                      absl::StrCat(name, " is ", json->Describe(), "; it must be a JSON object"));
}

// Parses an object whose fields apply to the transformer.
absl::StatusOr<LoraConfigs> ParseFields(const base::Json& json, const char* file) {
  LoraConfig config{.file = file, .prefix = ""};
  for (const base::JsonMember& member : json.members()) RETURN_IF_ERROR(ReadField(config, member.key, member.value));
  const base::Json* alpha = json.Find("lora_alpha");
  RETURN_IF_ERROR(CheckComplete(config, alpha == nullptr ? base::Json() : *alpha));
  return LoraConfigs{{"transformer", config}};
}

}  // namespace

int64_t LoraConfig::RankOf(std::string_view module) const {
  return static_cast<int64_t>(ValueFor(ranks, module, static_cast<double>(rank)));
}

double LoraConfig::AlphaOf(std::string_view module) const { return ValueFor(alphas, module, alpha); }

absl::StatusOr<LoraConfigs> ParseAdapterMetadata(std::string_view text, bool of_transformer) {
  ASSIGN_OR_RETURN(const base::Json json, ObjectOf(text, kMetadata));
  if (of_transformer && json.Find("lora_alpha") != nullptr) return ParseFields(json, kMetadata);
  LoraConfigs configs;
  for (const base::JsonMember& member : json.members()) {
    const size_t dot = member.key.find('.');
    if (dot == std::string::npos) {
      return AdapterError(AdapterFault::kBadMetadata,
                          absl::StrCat(kMetadata, ": the field ", base::Quote(member.key),
                                       " names no component; valid names begin with \"transformer.\" or "
                                       "\"text_encoder.\""));
    }
    LoraConfig& config = configs[member.key.substr(0, dot)];
    config.file = kMetadata;
    config.prefix = member.key.substr(0, dot + 1);
    RETURN_IF_ERROR(ReadField(config, member.key.substr(dot + 1), member.value));
  }
  for (const auto& [component, config] : configs) {
    const base::Json* alpha = json.Find(config.prefix + "lora_alpha");
    RETURN_IF_ERROR(CheckComplete(config, alpha == nullptr ? base::Json() : *alpha));
  }
  return configs;
}

absl::StatusOr<LoraConfigs> ParseAdapterConfig(std::string_view text) {
  ASSIGN_OR_RETURN(const base::Json json, ObjectOf(text, kAdapterConfigFile));
  return ParseFields(json, kAdapterConfigFile);
}

absl::StatusOr<LoraConfigs> ParseAdapterHeader(const std::map<std::string, std::string>& header) {
  LoraConfig config{.file = kHeader, .prefix = ""};
  // Reads the number under the first of these keys that is present.
  const auto number = [&](std::initializer_list<const char*> keys, const auto& read) -> absl::StatusOr<bool> {
    for (const char* key : keys) {
      const auto text = header.find(key);
      if (text == header.end()) continue;
      const absl::StatusOr<base::Json> value = base::ParseJson(text->second, kHeader);
      RETURN_IF_ERROR(read(key, value.ok() ? *value : base::Json()));
      return true;
    }
    return false;
  };
  ASSIGN_OR_RETURN(const bool has_alpha, number({"lora_alpha", "alpha", "ss_network_alpha"},
                                                [&](const char* key, const base::Json& value) -> absl::Status {
                                                  ASSIGN_OR_RETURN(config.alpha, AlphaIn(config, key, value));
                                                  return absl::OkStatus();
                                                }));
  if (!has_alpha) return LoraConfigs();
  RETURN_IF_ERROR(number({"r", "rank", "lora_rank", "ss_network_dim"},
                         [&](const char* key, const base::Json& value) -> absl::Status {
                           ASSIGN_OR_RETURN(config.rank, RankIn(config, key, value));
                           return absl::OkStatus();
                         })
                      .status());
  return LoraConfigs{{"transformer", config}};
}

}  // namespace tessera::models
