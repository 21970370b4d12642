// Translates an arbitrary name by every map. The first byte chooses the map; the rest is the name.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/keymaps/key_map.h"

namespace {

using tessera::models::KeyMap;
using tessera::models::KeyMapOf;
using tessera::models::MappedKey;
using tessera::models::NameForm;

void Require(bool holds) {
  if (!holds) std::abort();
}

std::vector<KeyMap> AllMaps() {
  const auto config = tessera::base::ParseJson(
      R"({"num_layers": 3, "block_out_channels": [1, 2, 3, 4], "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2,)"
      R"( "num_attention_heads": 4, "num_key_value_heads": 2})",
      "config");
  Require(config.ok());
  std::vector<KeyMap> maps;
  for (const char* class_name :
       {"FluxTransformer2DModel", "Flux2Transformer2DModel", "SD3Transformer2DModel", "ZImageTransformer2DModel",
        "QwenImageTransformer2DModel", "AutoencoderKL", "AutoencoderKLFlux2", "AutoencoderKLQwenImage", "CLIPTextModel",
        "CLIPTextModelWithProjection", "T5EncoderModel", "Qwen3Model", "Qwen2_5_VLForConditionalGeneration",
        "Mistral3ForConditionalGeneration"}) {
    for (const NameForm form : {NameForm::kOriginal, NameForm::kLlamaCpp}) {
      auto map = KeyMapOf(class_name, *config, form);
      Require(map.ok());
      if (map->has_value()) maps.push_back(**std::move(map));
    }
  }
  return maps;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<KeyMap>* const maps = new std::vector<KeyMap>(AllMaps());
  if (size == 0) return 0;
  const KeyMap& map = (*maps)[data[0] % maps->size()];
  const std::string_view name(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::optional<MappedKey> key = map.Map(name);
  Require(!(key && map.Ignores(name)));
  if (key) {
    Require(!key->parameters.empty());
    // Every parameter of a tensor is found again in a tensor that holds it.
    for (const std::string& parameter : key->parameters) {
      const std::optional<std::string> back = map.NameOf(parameter);
      Require(back.has_value());
      const std::optional<MappedKey> again = map.Map(*back);
      Require(again.has_value());
      bool holds = false;
      for (const std::string& other : again->parameters) holds |= other == parameter;
      Require(holds);
    }
  }
  const std::optional<std::string> named = map.NameOf(name);
  Require(!named || map.Map(*named).has_value());
  return 0;
}
