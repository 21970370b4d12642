// Parses the configurations that give the scale of an adapter's tensors: diffusers' header text lora_adapter_metadata
// and the adapter_config.json of a PEFT folder.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
inline constexpr size_t kMaxAdapterConfigBytes = size_t{8} << 20;

// The fields of PEFT's LoraConfig, for one component, that affect the meaning of the tensors. Source: peft 0.21,
// LoraConfig and get_pattern_key.
struct LoraConfig {
  // Keys are module names or suffixes of them; "." matches any character, and a leading "^" anchors the start of the
  // name. The first match wins.
  using Pattern = std::vector<std::pair<std::string, double>>;

  static constexpr int64_t kUnknownRank = 0;  // the rank is given only by the tensors

  std::string file;    // "adapter_config.json", "lora_adapter_metadata" or "the header", for messages
  std::string prefix;  // of the fields in that file: "transformer." or empty
  int64_t rank = kUnknownRank;
  double alpha = 0;
  Pattern ranks, alphas;
  bool rslora = false;  // the scale is alpha / sqrt(rank)
  bool dora = false;

  // Returns the value for one module, by its dotted name.
  int64_t RankOf(std::string_view module) const;
  double AlphaOf(std::string_view module) const;
};

// By component.
using LoraConfigs = std::map<std::string, LoraConfig, std::less<>>;

// Parses the text of lora_adapter_metadata: a JSON object with fields "<component>.<field>", or, if `of_transformer`,
// with the fields of the transformer without that prefix. Returns errors of AdapterError: kBadMetadata, kBadAlpha,
// kUnsupportedKind.
absl::StatusOr<LoraConfigs> ParseAdapterMetadata(std::string_view text, bool of_transformer);

// Parses the transformer's alpha and rank from a file's header, under the names that various tools use: lora_alpha,
// alpha or ss_network_alpha, and r, rank, lora_rank or ss_network_dim. Returns an empty map if the header has no alpha.
// Returns errors of AdapterError: kBadMetadata, kBadAlpha.
absl::StatusOr<LoraConfigs> ParseAdapterHeader(const std::map<std::string, std::string>& header);

// Parses adapter_config.json, whose fields apply to the transformer.
absl::StatusOr<LoraConfigs> ParseAdapterConfig(std::string_view text);

}  // namespace tessera::models
