// Turns a request from HTTP or gRPC into a job: validates it, counts it against limits, has it judged if the operator
// configured that (server/fetch/input_check.h), and submits it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/image_request.h"
#include "server/api/image_service.h"
#include "server/api/request_values.h"
#include "server/calls/call_gate.h"

namespace tessera::server {

// Checks that a key has 1 to kMaxIdempotencyKeyBytes printable ASCII characters.
absl::Status CheckIdempotencyKey(const std::string& key);

// Checks `idempotency_key` if there is one. A request that was accepted under it before returns the earlier submission,
// even if limits have been reached since, counts against no limit and is not judged again. Waits for the judgement.
// Pictures are read after everything else was checked; Submitted::job has warnings about them.
absl::StatusOr<Submitted> SubmitImageRequest(ImageService& service, CallGate& gate, const Caller& caller,
                                             ImageRequest request, const std::optional<std::string>& idempotency_key);

}  // namespace tessera::server
