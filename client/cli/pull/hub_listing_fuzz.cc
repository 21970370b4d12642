// Parses arbitrary bytes as the hub's answers and as a model_index.json, and selects files of what they list.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "client/cli/pull/file_selection.h"
#include "client/cli/pull/hub_listing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::client;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto check = [](const std::vector<HubFile>& files) {
    for (const HubFile& file : files) {
      if (file.path.empty() || file.path.front() == '/' || ("/" + file.path + "/").find("/../") != std::string::npos) {
        std::abort();
      }
    }
  };
  if (const auto tree = ParseTree(text); tree.ok()) check(*tree);
  const auto index = ParsePipelineIndex(text);
  if (const auto listing = ParseRepository(text); listing.ok()) {
    check(listing->files);
    if (!IsHubCommit(listing->commit)) std::abort();
    const auto selection = SelectFiles(*listing, {.class_name = "P", .components = {"vae", "transformer"}});
    if (selection.ok() && selection->files.size() > listing->files.size()) std::abort();
  }
  if (index.ok()) {
    for (const std::string& component : index->components) {
      if (component.find('/') != std::string::npos) std::abort();
    }
  }
  return 0;
}
