// The items of a batch made by a server, through the client library.
//
// Each item is a job under an idempotency key of its own, made of the run's id, the item's index and how often it was
// made before. So a run that goes on after its process was killed gets the jobs that the server already has, and what
// is tried again gets a new one.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/batch/item_maker.h"
#include "client/cli/remote/server_connection.h"

namespace tessera::client {

struct RemoteItemsOptions {
  ServerOptions server;
  std::string model;       // empty: the server's own
  absl::Duration timeout;  // of a server that cannot be reached, or takes nothing: then the run ends
};

// Asks the server for its models, and waits for it as the run does: one that refuses the key, lacks the model or is no
// Tessera server is reported at once. Errors have their stage. `say` gets what the user should know already.
absl::StatusOr<std::unique_ptr<ItemMaker>> MakeRemoteItems(const RemoteItemsOptions& options,
                                                           const std::stop_token& stop,
                                                           const std::function<void(const std::string&)>& say);

}  // namespace tessera::client
