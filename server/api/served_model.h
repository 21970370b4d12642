// ServedModel is a model that requests may name, with its adapters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/api/group_state.h"

namespace tessera::control {
struct ModelDescription;
}

namespace tessera::server {

// A low-rank adapter that requests for a model may name (server/adapters/served_adapters.h).
struct ServedAdapter {
  std::string name;
  std::string digest;  // SHA-256 of its file, 64 hexadecimal digits
  uint64_t bytes = 0;  // the file's size
  int64_t step = 0;    // the training step recorded in the file; 0: none
  absl::Time added = absl::UnixEpoch();

  bool operator==(const ServedAdapter&) const = default;
};

// The answer to loading an adapter.
struct LoadedAdapter {
  std::string model;
  ServedAdapter adapter;
};

// Returns the description that a model has before its files were read.
std::shared_ptr<const control::ModelDescription> NoDescription();

struct ServedModel {
  std::string id;                    // the model's name in requests
  std::vector<std::string> aliases;  // other names for it in requests
  // Also accept the names of OpenAI's image models that no other model has, so that their clients need no other name.
  bool answers_to_openai_names = false;
  std::vector<ServedAdapter> adapters;  // by name
  // Never null. Shared, because every request copies the list of models.
  std::shared_ptr<const control::ModelDescription> description = NoDescription();
  absl::Time added = absl::UnixEpoch();
  GroupProgress progress;  // of its group that is furthest ahead
  // The reason why the model cannot currently be read; its description is then empty and requests for it get this
  // error. OK for a readable model.
  absl::Status unreadable;
};

}  // namespace tessera::server
