// Where models are downloaded from and to, from the environment variables of the Hugging Face hub's tools.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tessera::client {

struct HubSettings {
  std::string endpoint;  // "https://huggingface.co", without a slash at the end
  std::string token;     // empty: none
  std::string cache;     // the folder of all downloaded models
};

// Reads HF_ENDPOINT; the token from HF_TOKEN or else the file that `hf auth login` writes (HF_TOKEN_PATH, by default
// HF_HOME/token); and the cache (client/cli/models/hub_cache.h). INVALID_ARGUMENT names the variable; the message never
// contains the token.
absl::StatusOr<HubSettings> ReadHubSettings();

}  // namespace tessera::client
