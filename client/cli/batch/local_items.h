// The items of a batch made by groups of workers of this process.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/cli/batch/item_maker.h"
#include "client/cli/models/model_options.h"

namespace tessera::client {

// Errors have their stage. No worker is started yet.
absl::StatusOr<std::unique_ptr<ItemMaker>> MakeLocalItems(const ModelOptions& model, const std::string& replicas,
                                                          const std::string& adapter_folder);

}  // namespace tessera::client
