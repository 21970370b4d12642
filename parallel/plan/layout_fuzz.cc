// Parses arbitrary bytes as the text of a layout. An accepted text has a canonical text; others get a bounded error.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "parallel/plan/layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto layout = tessera::parallel::ParseLayout(std::string(reinterpret_cast<const char*>(data), size));
  if (!layout.ok()) {
    if (layout.status().message().size() > 400) std::abort();
    return 0;
  }
  const auto again = tessera::parallel::ParseLayout(tessera::parallel::LayoutText(*layout));
  if (!again.ok() || *again != *layout) std::abort();
  const tessera::parallel::LayoutModel model = {.heads = 6, .blocks = 3, .max_cfg_branches = 2};
  if (tessera::parallel::CheckLayout(*layout, model).ok() && layout->ranks() > tessera::parallel::kMaxRanks)
    std::abort();
  return 0;
}
