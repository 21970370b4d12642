// Parses any bytes as a training configuration. An accepted configuration must print, parse back as itself and resume
// itself; others are refused with an error of bounded length.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "control/training/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = tessera::control::ParseTrainConfig(std::string(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) {
    if (config.status().message().size() > 2000) std::abort();
    return 0;
  }
  const auto again = tessera::control::ParseTrainConfig(tessera::control::TrainConfigJson(*config));
  if (!again.ok() || *again != *config) std::abort();
  if (!tessera::control::CheckResumed(*config, *again).ok()) std::abort();
  return 0;
}
