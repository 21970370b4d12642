// Converts a group of tessera.yaml to the options with which it is served, after all checks that need no worker.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/server_config.h"
#include "server/serving/durable_image_service.h"

namespace tessera::client {

// With `any_model`, the model's folder need not exist.
absl::StatusOr<server::ServedGroupOptions> ServedGroupOf(const server::GroupConfig& config,
                                                         const std::string& model_folders, bool any_model);

// Checks that every name and alias of the groups means one model: one folder, served in one dtype. Groups with the same
// name are replicas, and a request gets the same image from each. InvalidArgument names both conflicting groups.
absl::Status CheckNamesOf(const std::vector<server::ServedGroupOptions>& groups);

// For DurableServiceOptions::host_memory.
server::HostMemory MemoryOfHost();

}  // namespace tessera::client
