// The routes of the public API with the code that answers them. `context` must live as long as the routes and their
// calls.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "server/api/job.h"
#include "server/http/api_call.h"
#include "server/http/image_request_json.h"

namespace tessera::server {

// Media type of Prometheus' text format.
inline constexpr char kMetricsMediaType[] = "text/plain; version=0.0.4; charset=utf-8";

std::vector<ApiRoute> GenerationRoutes(const ApiContext& context);  // POST /v1/images/generations and …/edits
std::vector<ApiRoute> FileRoutes(const ApiContext& context);        // /v1/files…
std::vector<ApiRoute> JobRoutes(const ApiContext& context);         // /v1/jobs…
std::vector<ApiRoute> ReadRoutes(const ApiContext& context);        // models, images, server, checks, document
std::vector<ApiRoute> WebPageRoutes(const ApiContext& context);     // / and /web/…; none if the page is switched off

// Body and headers of a submission that was validated, counted and accepted.
struct AcceptedSubmission {
  GenerationBody body;
  Submitted submitted;
  bool idempotent = false;  // it has an idempotency key, so the caller may come back for it
};
absl::StatusOr<AcceptedSubmission> AcceptSubmission(const ApiContext& context, const ApiCall& call, BodyKind kind);

}  // namespace tessera::server
