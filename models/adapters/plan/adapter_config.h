// What a configuration beside the tensors says of their scale: diffusers' header text lora_adapter_metadata, or the
// adapter_config.json of a PEFT folder.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace tessera::models {

// PEFT's LoraConfig of one component, as far as it says what the tensors mean. Source: peft 0.21, LoraConfig and
// get_pattern_key.
struct LoraConfig {
  // Keys are names of modules or their ends, "." being any character and a leading "^" the name's begin; the first that
  // matches wins.
  using Pattern = std::vector<std::pair<std::string, double>>;

  static constexpr int64_t kUnknownRank = 0;  // the tensors alone say it

  std::string file;    // "adapter_config.json", "lora_adapter_metadata" or "the header", for messages
  std::string prefix;  // of its fields there: "transformer." or none
  int64_t rank = kUnknownRank;
  double alpha = 0;
  Pattern ranks, alphas;
  bool rslora = false;  // the scale is alpha / sqrt(rank)
  bool dora = false;

  // Of one module, by its dotted name.
  int64_t RankOf(std::string_view module) const;
  double AlphaOf(std::string_view module) const;
};

// By component.
using LoraConfigs = std::map<std::string, LoraConfig, std::less<>>;

// The text of lora_adapter_metadata: a JSON object with the fields "<component>.<field>", or where `of_transformer`
// with fields of the transformer alone, without that prefix. Errors of AdapterError: kBadMetadata, kBadAlpha,
// kUnsupportedKind.
absl::StatusOr<LoraConfigs> ParseAdapterMetadata(std::string_view text, bool of_transformer);

// What a file's header says itself of the transformer's alpha and rank, under the names that tools have for them:
// lora_alpha, alpha or ss_network_alpha, and r, rank, lora_rank or ss_network_dim. Empty where it has no alpha. Errors
// of AdapterError: kBadMetadata, kBadAlpha.
absl::StatusOr<LoraConfigs> ParseAdapterHeader(const std::map<std::string, std::string>& header);

// adapter_config.json, which is of the transformer.
absl::StatusOr<LoraConfigs> ParseAdapterConfig(std::string_view text);

}  // namespace tessera::models
