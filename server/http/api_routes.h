// The routes of the public API, each with the code that answers it. They work with `context` for as long as they or
// calls of theirs live.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "server/http/api_call.h"
#include "server/http/image_request_json.h"

namespace tessera::server {

// Of Prometheus' text.
inline constexpr char kMetricsMediaType[] = "text/plain; version=0.0.4; charset=utf-8";

std::vector<ApiRoute> GenerationRoutes(const ApiContext& context);  // POST /v1/images/generations
std::vector<ApiRoute> JobRoutes(const ApiContext& context);         // /v1/jobs…
std::vector<ApiRoute> ReadRoutes(const ApiContext& context);        // models, images, server, checks, document
std::vector<ApiRoute> WebPageRoutes(const ApiContext& context);     // / and /web/…; none where it is switched off

// Body and headers of a submission, validated, counted and accepted.
struct AcceptedSubmission {
  GenerationBody body;
  Submitted submitted;
  bool idempotent = false;  // it came with an idempotency key, so the caller may come back for it
};
absl::StatusOr<AcceptedSubmission> AcceptSubmission(const ApiContext& context, const ApiCall& call, BodyKind kind);

}  // namespace tessera::server
