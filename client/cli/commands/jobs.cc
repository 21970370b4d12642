// tessera jobs and tessera cancel: the jobs of a server.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/remote_generation.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/reporter.h"
#include "client/cli/remote/job_answer.h"
#include "client/cli/remote/remote_server.h"

namespace tessera {
namespace {

struct JobsOptions {
  RemoteServerOptions server;
  std::string job;  // cancel
  std::string limit, status;
  bool json = false;
};

void Print(const JobAnswer& job, bool json) {
  if (json) {
    PrintJsonLine({{"event", "job"},
                   {"id", job.id},
                   {"status", job.status},
                   {"model", job.model},
                   {"size", job.size},
                   {"images", job.count},
                   {"seed", job.seed},
                   {"steps_done", job.steps_done},
                   {"steps_total", job.steps_total},
                   {"created_at", job.created},
                   {"error", job.error.empty() ? boost::json::value() : boost::json::value(job.error)}});
    return;
  }
  std::printf("%s %-9s %s %s, %ld images, step %ld of %ld%s%s\n", job.id.c_str(), job.status.c_str(), job.model.c_str(),
              job.size.c_str(), job.count, job.steps_done, job.steps_total, job.error.empty() ? "" : ": ",
              job.error.c_str());
}

// `run` is given the server; what it returns is reported.
template <typename Run>
ExitCode WithServer(const JobsOptions& options, Interrupts& interrupts, const Run& run) {
  const std::unique_ptr<Reporter> reporter = MakeReporter({.json = options.json, .quiet = true});
  const absl::StatusOr<std::unique_ptr<RemoteServer>> server = RemoteServer::Create(options.server);
  absl::Status status = server.status();
  if (status.ok()) {
    const Interrupts::Reaction reaction(interrupts, [&] { (*server)->Interrupt(); });
    status = run(**server);
  }
  if (status.ok()) return ExitCode::kOk;
  const Stage stage = status.code() == absl::StatusCode::kInternal ? Stage::kJob : Stage::kOptions;
  return ReportError(*reporter, interrupts, stage, status);
}

absl::Status ListJobs(const JobsOptions& options, RemoteServer& server) {
  for (const std::string& text : {options.limit, options.status}) {
    if (!text.empty() && !CheckJobId(text).ok()) {
      return absl::InvalidArgumentError("limit and status are a number and a word of letters");
    }
  }
  const std::string target = absl::StrCat("/v1/jobs?limit=", options.limit.empty() ? "20" : options.limit,
                                          options.status.empty() ? "" : "&status=", options.status);
  const absl::StatusOr<std::string> answer = server.Call("GET", target);
  if (!answer.ok()) return answer.status();
  const absl::StatusOr<std::vector<JobAnswer>> jobs = ReadJobListAnswer(*answer);
  if (!jobs.ok()) return jobs.status();
  for (const JobAnswer& job : *jobs) Print(job, options.json);
  return absl::OkStatus();
}

absl::Status CancelJob(const JobsOptions& options, RemoteServer& server) {
  if (absl::Status status = CheckJobId(options.job); !status.ok()) return status;
  const absl::StatusOr<std::string> answer = server.Call("DELETE", absl::StrCat("/v1/jobs/", options.job));
  if (!answer.ok()) return answer.status();
  const absl::StatusOr<JobAnswer> job = ReadJobAnswer(*answer);
  if (!job.ok()) return job.status();
  Print(*job, options.json);
  return absl::OkStatus();
}

}  // namespace

CommandRun AddJobs(CLI::App& app) {
  auto options = std::make_shared<JobsOptions>();
  AddServerOptions(app, options->server, /*required=*/true);
  AddText(app, {"--limit", "Jobs to list, 1 to 100, newest first (default: 20)", "N"}, options->limit);
  AddText(app, {"--status", "Only queued, running, done, failed or cancelled ones", "NAME"}, options->status);
  AddFlag(app, "--json", "One JSON object per job", options->json);
  return [options](Interrupts& interrupts) {
    return WithServer(*options, interrupts, [&](RemoteServer& server) { return ListJobs(*options, server); });
  };
}

CommandRun AddCancel(CLI::App& app) {
  auto options = std::make_shared<JobsOptions>();
  AddText(app, {.names = "job", .help = "Id of the job", .type = "JOB", .required = true}, options->job);
  AddServerOptions(app, options->server, /*required=*/true);
  AddFlag(app, "--json", "The job as a JSON object", options->json);
  return [options](Interrupts& interrupts) {
    return WithServer(*options, interrupts, [&](RemoteServer& server) { return CancelJob(*options, server); });
  };
}

}  // namespace tessera
