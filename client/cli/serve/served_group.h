// A group of tessera.yaml as it is to be served, after all checks that need no worker.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/server_config.h"
#include "server/serving/durable_image_service.h"

namespace tessera::client {

// `any_model`: its folder need not exist.
absl::StatusOr<server::ServedGroupOptions> ServedGroupOf(const server::GroupConfig& config,
                                                         const std::string& model_folders, bool any_model);

// InvalidArgument, naming both, unless every name and alias of the groups means one model: one folder, served in one
// dtype. Groups of one name are replicas, and a request gets the same picture from each.
absl::Status CheckNamesOf(const std::vector<server::ServedGroupOptions>& groups);

// For DurableServiceOptions::host_memory.
server::HostMemory MemoryOfHost();

}  // namespace tessera::client
