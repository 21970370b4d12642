#include "server/fetch/input_check.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "server/api/field_checks.h"
#include "server/api/service_error.h"
#include "server/fetch/http_exchange.h"

namespace tessera::server {
namespace {

absl::Status Refusal(const Verdict& verdict) {
  std::string message = "the request was refused by this server's check of prompts and pictures";
  if (!verdict.reason.empty()) absl::StrAppend(&message, ": ", verdict.reason);
  if (!verdict.categories.empty()) {
    absl::StrAppend(&message, " (categories: ", absl::StrJoin(verdict.categories, ", "), ")");
  }
  return WithErrorCode(absl::InvalidArgumentError(message), kModerationCode);
}

}  // namespace

InputCheck::InputCheck(Options options)
    : options_(std::move(options)),
      resolver_(options_.resolver ? options_.resolver : SystemResolver()),
      slots_(options_.concurrency) {}

absl::StatusOr<Verdict> InputCheck::Ask(const CheckedInput& input) {
  const absl::Duration deadline = base::SteadyNow() + options_.timeout;
  const CallSlots::Slot slot(slots_, deadline);
  if (!slot.is_taken()) return absl::DeadlineExceededError("too many checks were running");
  std::vector<std::string> headers = {"Content-Type: application/json", "Accept: application/json"};
  if (options_.headers) {
    ASSIGN_OR_RETURN(const std::vector<std::string> more, options_.headers());
    headers.insert(headers.end(), more.begin(), more.end());
  }
  std::vector<IpAddress> addresses;
  if (options_.url.address.has_value()) {
    addresses = {*options_.url.address};
  } else {
    ASSIGN_OR_RETURN(addresses, resolver_(options_.url.host, deadline));
  }
  CheckedInputBody body(input);
  ASSIGN_OR_RETURN(const HttpAnswer answer,
                   Exchange({.url = options_.url,
                             .addresses = std::move(addresses),
                             .deadline = deadline,
                             .most_body_bytes = kMaxVerdictBytes,
                             .headers = std::move(headers),
                             .body = [&body](char* out, size_t most) { return body.Read(out, most); },
                             .body_bytes = body.bytes(),
                             .authority_file = options_.authority_file}));
  if (answer.status != 200) return absl::UnavailableError(absl::StrCat("it answered with status ", answer.status));
  return ParseVerdict(answer.body);
}

absl::Status InputCheck::Check(const CheckedInput& input) {
  size_t picture_bytes = 0;
  for (const absl::string_view picture : input.pictures) picture_bytes += picture.size();
  if (picture_bytes > options_.most_picture_bytes) {
    return FieldError("images", absl::StrCat(" have ", picture_bytes, " bytes as PNG; this server checks at most ",
                                             options_.most_picture_bytes, " of one request"));
  }
  const absl::StatusOr<Verdict> verdict = Ask(input);
  if (verdict.ok()) return verdict->allowed ? absl::OkStatus() : Refusal(*verdict);
  if (options_.log) {
    base::LogLine line(base::LogLevel::kError, absl::StrCat("a request was refused because the input check failed: ",
                                                            std::string(verdict.status().message())));
    line.event = "input_check";
    options_.log(line);
  }
  return WithErrorCode(
      absl::UnavailableError("the check of prompts and pictures is not available at present; try again later"),
      kNoInputCheckCode);
}

}  // namespace tessera::server
