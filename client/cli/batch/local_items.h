// Generates the items of a batch with worker groups of this process.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/cli/batch/item_maker.h"
#include "client/cli/session/model_options.h"

namespace tessera::client {

// Starts no worker yet. Errors are marked with their stage.
absl::StatusOr<std::unique_ptr<ItemMaker>> MakeLocalItems(const ModelOptions& model, const std::string& replicas,
                                                          const std::string& adapter_folder);

}  // namespace tessera::client
