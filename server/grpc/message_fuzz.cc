// Fuzz test: any bytes as gRPC messages. A message that parses is refused with a bounded error or validated into a job.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/api/job_request.h"
#include "server/api/proto_values.h"
#include "tests/support/fake_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  tessera::v1::ListJobsRequest list;
  if (list.ParseFromString(bytes)) {
    const auto options = tessera::server::FromProto(list);
    if (options.ok() && (options->limit < 1 || options->limit > tessera::server::kMaxListLimit)) std::abort();
  }
  tessera::v1::GenerateRequest request;
  if (!request.ParseFromString(bytes)) return 0;
  const auto job =
      tessera::server::ValidateImageRequest(tessera::server::FromProto(request.image()), {tessera::FakeModel()}, {}, 1);
  if (!job.ok()) {
    if (job.status().message().size() > 4000) std::abort();
    return 0;
  }
  tessera::server::Job answer;
  answer.request = std::make_shared<const tessera::server::JobRequest>(*job);
  if (!tessera::server::ToProto(answer).IsInitialized() || answer.request->parameters.prompt.empty()) std::abort();
  return 0;
}
