// Fuzz test: any bytes as the body of a generation are refused with a bounded message in UTF-8, or validated into a
// job, with the fields of other servers' clients and without.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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

void CheckBody(absl::string_view json, absl::Span<const tessera::server::ForeignClient> clients) {
  const auto body = tessera::server::ReadGenerationBody(json, tessera::server::BodyKind::kGeneration, clients);
  if (!body.ok()) return CheckError(body.status());
  if (tessera::server::IgnoredFieldsWarning(body->ignored).size() > 500) std::abort();
  tessera::server::RequestDigest(body->request);
  const auto job = tessera::server::ValidateImageRequest(body->request, {tessera::FakeModel()}, {}, 1);
  if (!job.ok()) return CheckError(tessera::server::WithClientName(job.status(), body->client_names));
  if (job->count < 1 || job->count > 10 || job->parameters.width > 1024 || job->parameters.prompt.empty()) std::abort();
  if (absl::StrContains(absl::AsciiStrToLower(job->parameters.prompt), "sd_cpp_extra_args")) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::server::ForeignClient;
  constexpr ForeignClient kClients[] = {ForeignClient::kSglang, ForeignClient::kVllmOmni, ForeignClient::kSdCpp};
  const absl::string_view json(reinterpret_cast<const char*>(data), size);
  CheckBody(json, {});
  CheckBody(json, kClients);
  return 0;
}
