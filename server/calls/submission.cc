#include "server/calls/submission.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/text/number_text.h"
#include "server/api/field_checks.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/request_limits.h"
#include "server/calls/request_pictures.h"
#include "server/fetch/input_check.h"

namespace tessera::server {
namespace {

CheckedInput CheckedInputOf(const control::JobParameters& job, const Caller& caller) {
  CheckedInput input = {.prompts = {job.prompt}, .tenant = caller.tenant};
  const auto add = [](const std::string& text, std::vector<std::string>& texts) {
    if (!text.empty()) texts.push_back(text);
  };
  add(job.options.prompt_2, input.prompts);
  add(job.options.prompt_3, input.prompts);
  add(job.negative_prompt.value_or(""), input.negative_prompts);
  add(job.options.negative_prompt_2, input.negative_prompts);
  add(job.options.negative_prompt_3, input.negative_prompts);
  return input;
}

absl::Status JudgeInput(ImageService& service, const CallGate& gate, const JobRequest& job, const Caller& caller) {
  const std::shared_ptr<InputCheck> check = gate.rules().input_check;
  if (check == nullptr) return absl::OkStatus();
  CheckedInput input = CheckedInputOf(job.parameters, caller);
  std::vector<std::string> files;
  for (const auto* pictures : {&job.parameters.images, &job.parameters.mask}) {
    for (const control::PictureUse& picture : *pictures) {
      ASSIGN_OR_RETURN(files.emplace_back(), service.ReadPicture(caller, picture));
    }
  }
  input.pictures.assign(files.begin(), files.end());
  return check->Check(input);
}

}  // namespace

absl::Status CheckIdempotencyKey(const std::string& key) {
  const bool valid = !key.empty() && key.size() <= kMaxIdempotencyKeyBytes &&
                     std::all_of(key.begin(), key.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (valid) return absl::OkStatus();
  return FieldError("idempotency_key", absl::StrCat(" is ", QuotedValue(key), "; valid values are 1 to ",
                                                    kMaxIdempotencyKeyBytes, " printable ASCII characters"));
}

absl::StatusOr<Submitted> SubmitImageRequest(ImageService& service, CallGate& gate, const Caller& caller,
                                             ImageRequest request, const std::optional<std::string>& idempotency_key) {
  std::optional<IdempotencyKey> idempotency;
  if (idempotency_key.has_value()) {
    RETURN_IF_ERROR(CheckIdempotencyKey(*idempotency_key));
    idempotency = {.key = *idempotency_key, .digest = RequestDigest(request)};
    ASSIGN_OR_RETURN(std::optional<Submitted> known, service.FindSubmission(caller, *idempotency));
    if (known.has_value()) return *std::move(known);
  }
  const std::vector<ServedModel> models = service.ListModels();
  // Validation copies the request, so it is done without the bytes of pictures.
  ASSIGN_OR_RETURN(GivenPictures given, TakePictures(request));
  const uint64_t seed = RandomSeed();
  ASSIGN_OR_RETURN(JobRequest job, ValidateImageRequest(request, models, gate.limits(), seed, given.Placeholders()));
  absl::Status counted = gate.CountSubmission(caller);
  if (!counted.ok()) {
    service.CountRejection(counted);
    return counted;
  }
  std::vector<std::string> warnings;
  if (!given.images.empty()) {
    ASSIGN_OR_RETURN(const RequestPictures pictures,
                     StorePictures(service, gate.rules().fetcher.get(), caller, std::move(given), warnings));
    ASSIGN_OR_RETURN(job, ValidateImageRequest(request, models, gate.limits(), seed, pictures));
    if (!request.strength.has_value() && job.parameters.strength < 1) {
      warnings.push_back(absl::StrCat("strength: it is not given, so it is ", base::NumberText(job.parameters.strength),
                                      ": that part of the steps changes the picture"));
    }
  }
  if (const absl::Status allowed = JudgeInput(service, gate, job, caller); !allowed.ok()) {
    service.CountRejection(allowed);
    return allowed;
  }
  ASSIGN_OR_RETURN(Submitted submitted, service.Submit(caller, job, idempotency));
  submitted.job.warnings.insert(submitted.job.warnings.end(), warnings.begin(), warnings.end());
  return submitted;
}

}  // namespace tessera::server
