#include "server/calls/submission.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/api/field_checks.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/request_limits.h"
#include "server/api/request_values.h"

namespace tessera::server {

absl::Status CheckIdempotencyKey(const std::string& key) {
  const bool valid = !key.empty() && key.size() <= kMaxIdempotencyKeyBytes &&
                     std::all_of(key.begin(), key.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (valid) return absl::OkStatus();
  return FieldError("idempotency_key", absl::StrCat(" is ", QuotedValue(key), "; valid values are 1 to ",
                                                    kMaxIdempotencyKeyBytes, " printable ASCII characters"));
}

absl::StatusOr<Submitted> SubmitImageRequest(ImageService& service, CallGate& gate, const Caller& caller,
                                             const ImageRequest& request,
                                             const std::optional<std::string>& idempotency_key) {
  std::optional<IdempotencyKey> idempotency;
  if (idempotency_key.has_value()) {
    RETURN_IF_ERROR(CheckIdempotencyKey(*idempotency_key));
    idempotency = {.key = *idempotency_key, .digest = RequestDigest(request)};
    ASSIGN_OR_RETURN(std::optional<Submitted> known, service.FindSubmission(caller, *idempotency));
    if (known.has_value()) return *std::move(known);
  }
  const std::vector<ServedModel> models = service.ListModels();
  ASSIGN_OR_RETURN(const JobRequest job, ValidateImageRequest(request, models, gate.limits(), RandomSeed()));
  absl::Status counted = gate.CountSubmission(caller);
  if (!counted.ok()) {
    service.CountRejection(counted);
    return counted;
  }
  return service.Submit(caller, job, idempotency);
}

}  // namespace tessera::server
