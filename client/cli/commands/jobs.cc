// Implements `tessera jobs` and `tessera cancel`, for the jobs of a server.
#include <cstdio>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/option_text.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/reporter.h"
#include "client/cli/remote/server_connection.h"
#include "client/sdk/json_messages.h"
#include "server/api/generation_request.h"
#include "server/api/image_service.h"
#include "server/api/job.h"

namespace tessera::client {
namespace {

struct JobsOptions {
  ServerOptions server;
  std::string job;  // cancel
  std::string limit, status;
  bool json = false;
};

void Print(const v1::Job& job, bool json) {
  const std::string status = JobStateWord(job.state()), model = PrintableText(job.model()),
                    size = absl::StrCat(job.width(), "x", job.height()), error = PrintableText(job.error().message());
  if (json) {
    PrintJsonLine({{"event", "job"},
                   {"id", job.id()},
                   {"status", status},
                   {"model", model},
                   {"size", size},
                   {"images", job.n()},
                   {"seed", job.seed()},
                   {"steps_done", job.steps_done()},
                   {"steps_total", job.steps_total()},
                   {"created_at", job.created_ms() / 1000},
                   {"error", error.empty() ? boost::json::value() : boost::json::value(error)}});
    return;
  }
  std::printf("%s %-9s %s %s, %d images, step %d of %d%s%s\n", job.id().c_str(), status.c_str(), model.c_str(),
              size.c_str(), job.n(), job.steps_done(), job.steps_total(), error.empty() ? "" : ": ", error.c_str());
}

// Calls `run` with the server and the call options, and reports its result.
template <typename Run>
ExitCode WithServer(const JobsOptions& options, Interrupts& interrupts, const Run& run) {
  const std::unique_ptr<Reporter> reporter = MakeReporter({.json = options.json, .quiet = true});
  const absl::StatusOr<ServerConnection> server = ConnectionTo(options.server, /*retries=*/0);
  absl::Status status = server.status();
  if (status.ok()) {
    std::stop_source stop;
    const Interrupts::Reaction reaction(interrupts, [&] { stop.request_stop(); });
    status = ErrorForUser(run(*server->client, {.timeout = absl::InfiniteDuration(), .stop = stop.get_token()}));
  }
  if (status.ok()) return ExitCode::kOk;
  const Stage stage = status.code() == absl::StatusCode::kInternal ? Stage::kJob : Stage::kOptions;
  return Finish(reporter, interrupts, At(stage, status));
}

absl::StatusOr<v1::JobState> ParseState(const std::string& word) {
  std::vector<std::string> words;
  for (int state = v1::JOB_STATE_QUEUED; state <= v1::JobState_MAX; ++state) {
    words.push_back(JobStateWord(static_cast<v1::JobState>(state)));
    if (words.back() == word) return static_cast<v1::JobState>(state);
  }
  return server::CheckName("status", word, words);
}

absl::StatusOr<v1::ListJobsRequest> ListRequest(const JobsOptions& options) {
  v1::ListJobsRequest request;
  if (!options.limit.empty()) {
    ASSIGN_OR_RETURN(const int64_t limit, ParseInteger("limit", options.limit));
    if (limit < 1 || limit > server::kMaxListLimit) {
      return server::FieldError("limit",
                                absl::StrCat(" is ", limit, "; valid values are 1 to ", server::kMaxListLimit));
    }
    request.set_limit(static_cast<int32_t>(limit));
  }
  if (!options.status.empty()) {
    ASSIGN_OR_RETURN(const v1::JobState state, ParseState(options.status));
    request.set_state(state);
  }
  return request;
}

absl::Status ListJobs(const JobsOptions& options, ImageClient& server, const CallOptions& call) {
  ASSIGN_OR_RETURN(const v1::ListJobsRequest request, ListRequest(options));
  ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, server.List(request, call));
  for (const v1::Job& job : jobs.jobs()) Print(job, options.json);
  return absl::OkStatus();
}

absl::Status CancelJob(const JobsOptions& options, ImageClient& server, const CallOptions& call) {
  ASSIGN_OR_RETURN(const v1::Job job, server.Cancel(options.job, call));
  Print(job, options.json);
  return absl::OkStatus();
}

}  // namespace

CommandRun AddJobs(CLI::App& app) {
  auto options = std::make_shared<JobsOptions>();
  AddServerOptions(app, options->server, /*required=*/true);
  BeginGroup(app, "Output");
  AddText(app, {"--limit", "Jobs to list, 1 to 100, newest first (default: 20)", "N"}, options->limit);
  AddText(app, {"--status", "Only jobs in this state", "queued|running|done|failed|cancelled"}, options->status);
  AddFlag(app, "--json", "One JSON object per job", options->json);
  return [options](Interrupts& interrupts) {
    return WithServer(*options, interrupts,
                      [&](ImageClient& server, const CallOptions& call) { return ListJobs(*options, server, call); });
  };
}

CommandRun AddCancel(CLI::App& app) {
  auto options = std::make_shared<JobsOptions>();
  AddText(app, {.names = "job", .help = "Id of the job", .type = "JOB", .required = true}, options->job);
  AddServerOptions(app, options->server, /*required=*/true);
  BeginGroup(app, "Output");
  AddFlag(app, "--json", "The job as a JSON object", options->json);
  return [options](Interrupts& interrupts) {
    return WithServer(*options, interrupts,
                      [&](ImageClient& server, const CallOptions& call) { return CancelJob(*options, server, call); });
  };
}

}  // namespace tessera::client
