#include <algorithm>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "server/api/field_checks.h"
#include "server/api/job_event_pump.h"
#include "server/http/api_routes.h"
#include "server/http/job_json.h"

namespace tessera::server {
namespace {

// Returns whether the text has the form of a page's `next`, which is the pattern of `after` in docs/openapi.json.
bool IsPageId(absl::string_view text) {
  const size_t name = std::find_if_not(text.begin(), text.end(), absl::ascii_islower) - text.begin();
  const absl::string_view digits = text.substr(std::min(name + 1, text.size()));
  return name > 0 && name < text.size() && (text[name] == '-' || text[name] == '_') && digits.size() >= 32 &&
         digits.size() <= 64 && digits.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

absl::StatusOr<ListOptions> ReadListOptions(const HttpRequest& request) {
  ListOptions options;
  if (const auto limit = QueryValue(request.Query(), "limit")) {
    if (!absl::SimpleAtoi(*limit, &options.limit) || options.limit < 1 || options.limit > kMaxListLimit) {
      return FieldError("limit", absl::StrCat(" is ", QuotedValue(*limit), "; valid values are 1 to ", kMaxListLimit));
    }
  }
  options.after = QueryValue(request.Query(), "after").value_or("");
  if (!options.after.empty() && !IsPageId(options.after)) {
    return FieldError("after", absl::StrCat(" is not the end of a page: it is ", QuotedValue(options.after),
                                            "; it must be the `next` of an earlier page"));
  }
  if (const auto name = QueryValue(request.Query(), "status")) {
    std::vector<std::string> valid;
    for (const JobState state :
         {JobState::kQueued, JobState::kRunning, JobState::kDone, JobState::kFailed, JobState::kCancelled}) {
      valid.push_back(JobStateName(state));
      if (*name == valid.back()) options.state = state;
    }
    RETURN_IF_ERROR(CheckName("status", *name, valid));
  }
  return options;
}

void Watch(const ApiContext& context, const ApiCall& call) {
  const std::shared_ptr<ApiReply> reply = call.reply;
  const std::string& job = call.parameters[0];
  reply->record().job = job;
  if (call.request.method == "HEAD") {
    const absl::StatusOr<Job> known = context.service.Get(call.caller, job);
    if (!known.ok()) return reply->SendError(known.status());
    reply->StartEvents();
    return reply->Finish();
  }
  // The stream begins only once the job is watched, because afterwards it could not report that the job does not exist.
  const auto begun = std::make_shared<absl::once_flag>();
  const auto begin = [reply, begun] { absl::call_once(*begun, [&] { reply->StartEvents(); }); };
  const auto send = [reply, begin, base_url = call.base_url](const JobEvent& event) {
    begin();
    if (std::holds_alternative<PreviewEvent>(event) && reply->pending_bytes() > kEnoughPending) return;
    reply->Write(JobEventText(event, base_url));
    if (IsLast(event)) reply->Finish();
  };
  const absl::StatusOr<std::shared_ptr<JobEventPump>> pump =
      JobEventPump::Start(context.service, context.pool, call.caller, job, WatchedEvents::kAll, send);
  if (!pump.ok()) return reply->SendError(pump.status());
  begin();
  reply->OnClosed([&pool = context.pool, pump = *pump] { pool.Post([pump] { pump->Stop(); }); });
}

}  // namespace

std::vector<ApiRoute> JobRoutes(const ApiContext& context) {
  std::vector<ApiRoute> routes;
  routes.push_back({.method = "POST",
                    .pattern = "/v1/jobs",
                    .reads_body = true,
                    .most_body_bytes = context.options.picture_body_bytes,
                    .handle = [context](const ApiCall& call) {
                      const absl::StatusOr<AcceptedSubmission> accepted =
                          AcceptSubmission(context, call, BodyKind::kJob);
                      if (!accepted.ok()) return call.reply->SendError(accepted.status());
                      const Job& job = accepted->submitted.job;
                      call.reply->Send({.status = 202,
                                        .headers = {{"Content-Type", "application/json"},
                                                    {"Location", absl::StrCat(call.base_path, "/v1/jobs/", job.id)}},
                                        .body = JobJson(job, call.base_url)});
                    }});
  routes.push_back({.method = "GET",
                    .pattern = "/v1/jobs",
                    .query = {"limit", "after", "status"},
                    .handle = [context](const ApiCall& call) {
                      const absl::StatusOr<ListOptions> options = ReadListOptions(call.request);
                      if (!options.ok()) return call.reply->SendError(options.status());
                      const absl::StatusOr<JobPage> page = context.service.List(call.caller, *options);
                      if (!page.ok()) return call.reply->SendError(page.status());
                      call.reply->SendJson(200, JobPageJson(*page, call.base_url));
                    }});
  routes.push_back({.method = "GET", .pattern = "/v1/jobs/{id}", .handle = [context](const ApiCall& call) {
                      const absl::StatusOr<Job> job = context.service.Get(call.caller, call.parameters[0]);
                      if (!job.ok()) return call.reply->SendError(job.status());
                      call.reply->SendJson(200, JobJson(*job, call.base_url));
                    }});
  routes.push_back({.method = "DELETE", .pattern = "/v1/jobs/{id}", .handle = [context](const ApiCall& call) {
                      const absl::StatusOr<Job> job = context.service.Cancel(call.caller, call.parameters[0]);
                      if (!job.ok()) return call.reply->SendError(job.status());
                      call.reply->SendJson(200, JobJson(*job, call.base_url));
                    }});
  routes.push_back({.method = "GET", .pattern = "/v1/jobs/{id}/events", .handle = [context](const ApiCall& call) {
                      Watch(context, call);
                    }});
  return routes;
}

}  // namespace tessera::server
