// Fuzz test: any bytes as the body of a generation are refused with a bounded message in UTF-8, or validated into a
// job.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/text/utf8.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/http/error_response.h"
#include "server/http/image_request_json.h"
#include "tests/support/fake_model.h"

namespace {

void CheckError(const absl::Status& status) {
  const std::string json = tessera::server::ErrorJson(tessera::server::HttpErrorOf(status));
  if (json.size() > 8000 || tessera::base::FirstInvalidUtf8(json) != json.size()) std::abort();
  if (status.code() != absl::StatusCode::kInvalidArgument && status.code() != absl::StatusCode::kNotFound) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto body = tessera::server::ReadGenerationBody(absl::string_view(reinterpret_cast<const char*>(data), size),
                                                        tessera::server::BodyKind::kGeneration);
  if (!body.ok()) {
    CheckError(body.status());
    return 0;
  }
  tessera::server::RequestDigest(body->request);
  const auto job = tessera::server::ValidateImageRequest(body->request, {tessera::FakeModel()}, {}, 1);
  if (!job.ok()) {
    CheckError(job.status());
    return 0;
  }
  if (job->count < 1 || job->count > 10 || job->parameters.width > 1024 || job->parameters.prompt.empty()) std::abort();
  return 0;
}
