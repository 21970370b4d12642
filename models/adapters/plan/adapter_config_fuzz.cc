// Parses arbitrary bytes as an adapter's configuration, from both of its possible sources.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "models/adapters/plan/adapter_config.h"
#include "models/adapters/plan/adapter_error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const absl::StatusOr<tessera::models::LoraConfigs>& configs :
       {tessera::models::ParseAdapterMetadata(text, /*of_transformer=*/true),
        tessera::models::ParseAdapterMetadata(text, /*of_transformer=*/false),
        tessera::models::ParseAdapterConfig(text)}) {
    if (!configs.ok()) {
      if (!tessera::models::FaultOf(configs.status())) std::abort();  // every refusal has a fault
      continue;
    }
    for (const auto& [component, config] : *configs) {
      for (const std::string_view module : {"proj_out", "transformer_blocks.0.attn.to_out.0", ""}) {
        if (config.RankOf(module) < 1 || !std::isfinite(config.AlphaOf(module))) std::abort();
      }
    }
  }
  return 0;
}
