// Generates the items of a batch on a server, through the client library.
//
// Each item is a job with a unique idempotency key, made of the run's id, the item's index and the number of earlier
// attempts. A run that continues after its process was killed therefore finds the jobs that the server already has, and
// a repeated attempt gets a new job.
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
  std::string model;       // empty: the server's default
  absl::Duration timeout;  // how long the server may be unreachable or accept nothing before the run ends
};

// Requests the server's models, waiting for the server as the run does. A server that refuses the key, lacks the model
// or is not a Tessera server is reported at once. Errors are marked with their stage. `say` receives messages for the
// user.
absl::StatusOr<std::unique_ptr<ItemMaker>> MakeRemoteItems(const RemoteItemsOptions& options,
                                                           const std::stop_token& stop,
                                                           const std::function<void(const std::string&)>& say);

}  // namespace tessera::client
