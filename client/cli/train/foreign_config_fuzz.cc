// Imports any bytes as the configuration of another training program. The first line is the end of the file's name. An
// imported configuration is one that a run accepts, also from the written file; others are refused with an error of
// bounded length.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/cli/train/imported_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  std::string text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  if (line == std::string::npos || line > 8) return 0;
  const std::string path = "config." + text.substr(0, line);
  text.erase(0, line + 1);
  // A file that is named is this text again.
  const client::ImportFiles files = {.read = [&](const std::string&) -> absl::StatusOr<std::string> { return text; },
                                     .folders =
                                         [](const std::string&) {
                                           return std::vector<std::string>{"3_a cat", "x"};
                                         }};
  const auto imported = client::ImportConfig(text, path, "", files);
  if (!imported.ok()) {
    if (imported.status().message().size() > 4000) std::abort();
    return 0;
  }
  const auto again = control::ParseTrainConfig(control::TrainConfigJson(imported->config));
  if (!again.ok() || *again != imported->config) std::abort();
  return 0;
}
