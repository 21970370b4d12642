// Parses arbitrary bytes as a component's config and as a model_index.json, and reads them with every kind of access.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json/json.h"
#include "models/weights/model_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = tessera::models::ParseModelIndex(text, "fuzz");
  if (index.ok() && index->class_name.empty()) std::abort();
  auto config = tessera::base::ConfigReader::FromText(text, "fuzz");
  if (!config.ok()) return 0;
  for (const tessera::base::JsonMember& member : config->json().members()) {
    if (config->json().Find(member.key) != &member.value) std::abort();
    const int64_t number = config->Int(member.key, 7, 1, 64);
    if (number < 1 || number > 64) std::abort();
    if (!(config->Number(member.key, 0.5, 0, 1) >= 0)) std::abort();
    config->Bool(member.key, true);
    config->String(member.key, "");
    config->Choice(member.key, "a", {"a", "b"});
    config->Numbers(member.key, {});
    config->Strings(member.key, {});
    for (int64_t value : config->Ints(member.key, {}, 0, 9)) {
      if (value < 0 || value > 9) std::abort();
    }
  }
  if (!config->UnknownFields().empty()) std::abort();
  return 0;
}
