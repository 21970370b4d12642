// The one way from a request at an edge to a job: validated, counted, accepted.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/image_request.h"
#include "server/api/image_service.h"
#include "server/calls/call_gate.h"

namespace tessera::server {

// That a key is 1 to kMaxIdempotencyKeyBytes printable ASCII characters.
absl::Status CheckIdempotencyKey(const std::string& key);

// `idempotency_key`, where there is one, is checked. What was accepted under it before is given back, whatever bounds
// have been reached since, and counts against none.
absl::StatusOr<Submitted> SubmitImageRequest(ImageService& service, CallGate& gate, const Caller& caller,
                                             const ImageRequest& request,
                                             const std::optional<std::string>& idempotency_key);

}  // namespace tessera::server
