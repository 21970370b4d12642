// The attempts of one call: its deadline, its end on request, and the pauses between them.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "tessera/image_client.h"

namespace tessera {

// What gRPC says of an attempt, with what the server added to it.
absl::Status StatusOf(const grpc::Status& status, const grpc::ClientContext& context);

class Attempts {
 public:
  Attempts(const ImageClientOptions& client, const CallOptions& call, absl::Duration timeout)
      : key_(client.api_key),
        retries_(client.retries),
        stop_(call.stop),
        deadline_(SteadyNow() + call.timeout.value_or(timeout)) {}

  // Lets `attempt` use `context`, which is new, with the call's deadline and key.
  absl::Status Run(grpc::ClientContext& context, const std::function<grpc::Status()>& attempt) const;

  // Waits after an attempt that failed. Anything but OK ends the call with that.
  absl::Status PauseAfter(const absl::Status& failed);

  // An attempt got somewhere: the next failure is the first in a row.
  void Advance() { failures_ = 0; }

 private:
  const std::string key_;
  const int retries_;
  const std::stop_token stop_;
  const absl::Duration deadline_;  // steady
  int failures_ = 0;               // in a row
};

}  // namespace tessera
