// Attempts tracks the attempts of one call: its deadline, its cancellation, and the pauses between attempts.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/time/steady_time.h"
#include "tessera/image_client.h"

namespace tessera::client {

// Returns `status` with the details that RefusalOf reads.
absl::Status WithRefusal(absl::Status status, const Refusal& refusal);

class Attempts {
 public:
  Attempts(const ImageClientOptions& client, const CallOptions& call, absl::Duration timeout)
      : retries_(client.retries),
        retries_refusals_(client.retry_refusals),
        stop_(call.stop),
        deadline_(base::SteadyNow() + call.timeout.value_or(timeout)) {}

  absl::Duration deadline() const { return deadline_; }  // on the steady clock
  const std::stop_token& stop() const { return stop_; }

  // Waits after a failed attempt. An error ends the call with that error.
  absl::Status PauseAfter(const absl::Status& failed);

  // Call this when an attempt made progress: the next failure counts as the first in a row.
  void Advance() {
    failures_ = 0;
    retries_refusals_ = true;
  }

 private:
  const int retries_;
  bool retries_refusals_;
  const std::stop_token stop_;
  const absl::Duration deadline_;
  int failures_ = 0;  // in a row
};

}  // namespace tessera::client
