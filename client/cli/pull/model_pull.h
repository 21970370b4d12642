// Downloads a model from the hub: lists the repository, selects the files that its pipeline needs, downloads them,
// checks their digests, and makes the snapshot visible when it is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/pull/hub_listing.h"
#include "client/cli/pull/hub_requests.h"
#include "client/cli/pull/hub_settings.h"

namespace tessera::client {

// What will be downloaded, known before any weights are.
struct PullPlan {
  HubModel model;
  std::string commit;
  std::string pipeline;  // class
  std::string licence;   // empty: unknown
  bool gated = false;
  std::string snapshot;                   // folder of the model when the download is complete
  uint64_t bytes = 0, missing_bytes = 0;  // of the selected files
  size_t files = 0, missing_files = 0, listed_files = 0;
  size_t unchecked_files = 0;        // files of which the endpoint lists no digest
  std::vector<std::string> foreign;  // components whose weights must be converted
};

struct PullOptions {
  HubModel model;
  std::vector<std::string> only = {};  // components; empty: the whole model
  bool dry_run = false;                // ends after the plan
  absl::Duration stall = absl::Seconds(30);
  std::function<void(const PullPlan&)> on_plan;
  std::function<void(uint64_t bytes)> on_bytes;  // so many more bytes are there
};

// Errors are marked with the stage of the command (client/cli/exit_code.h).
absl::StatusOr<PullPlan> PullModel(const HubSettings& settings, const PullOptions& options, const PullHooks& hooks);

}  // namespace tessera::client
