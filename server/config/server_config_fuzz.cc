// Parses any bytes as a configuration: an accepted one prints and reads back as itself, and a refused one gets an error
// of bounded length.
#include <cstdint>
#include <cstdlib>

#include "server/config/server_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = tessera::server::ReadServerConfig(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) {
    if (config.status().message().size() > 1000) std::abort();
    return 0;
  }
  const auto again = tessera::server::ReadServerConfig(tessera::server::ServerConfigText(*config));
  if (!again.ok() || *again != *config) std::abort();
  return 0;
}
