// Implements `tessera pull`.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "base/text/hub_name.h"
#include "base/text/nearest_name.h"
#include "base/text/utf8.h"
#include "base/time/steady_time.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/models/published_models.h"
#include "client/cli/option_text.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/reporter.h"
#include "client/cli/output/text_reporter.h"
#include "client/cli/pull/model_pull.h"

namespace tessera::client {
namespace {

constexpr absl::Duration kShownEvery = absl::Milliseconds(500);
constexpr int64_t kMaxStallSeconds = 3600;

struct PullCommandOptions {
  std::string model, revision = "main", timeout, only;
  bool dry_run = false, json = false, quiet = false;
};

// Shows a download: lines and one line of progress for people, or JSON events.
class PullReport {
 public:
  explicit PullReport(const PullCommandOptions& options)
      : options_(options), has_line_(!options.json && !options.quiet && isatty(STDERR_FILENO) == 1) {}

  void OnPlan(const PullPlan& plan) {
    total_ = plan.missing_bytes;
    started_ = shown_ = base::SteadyNow();
    const std::string use = CommercialUseOf(plan.licence);
    if (options_.json) {
      PrintJsonLine({{"event", "pull"},
                     {"model", JsonText(plan.model.name)},
                     {"revision", JsonText(plan.model.revision)},
                     {"commit", plan.commit},
                     {"pipeline", JsonText(plan.pipeline)},
                     {"licence", JsonText(plan.licence)},
                     {"commercial_use", use},
                     {"login", plan.gated},
                     {"files", plan.files},
                     {"bytes", plan.bytes},
                     {"missing_files", plan.missing_files},
                     {"missing_bytes", plan.missing_bytes},
                     {"listed_files", plan.listed_files},
                     {"path", JsonText(plan.snapshot)}});
    } else if (!options_.quiet) {
      std::printf("model           %s, %s\n", plan.model.name.c_str(), plan.pipeline.c_str());
      std::printf("revision        %s, commit %s\n", plan.model.revision.c_str(), plan.commit.c_str());
      std::printf("licence         %s; commercial use: %s\n",
                  plan.licence.empty() ? "not named" : base::ReplaceControlCharacters(plan.licence).c_str(),
                  use.c_str());
      std::printf("login           %s\n", plan.gated ? "needed" : "not needed");
      std::printf("files           %zu of %zu, %s; to download: %s\n", plan.files, plan.listed_files,
                  base::ByteText(plan.bytes).c_str(),
                  plan.missing_files == 0 ? "nothing" : base::ByteText(plan.missing_bytes).c_str());
      std::fflush(stdout);
    }
    if (!plan.foreign.empty()) {
      Warn(absl::StrCat(
          "the weights of ", absl::StrJoin(plan.foreign, ", "),
          " are PyTorch pickles, which must be converted: python3 scripts/convert-model.py MODEL NEW_FOLDER"));
    }
    if (plan.unchecked_files > 0) {
      Warn(absl::StrCat("the endpoint lists no digest for ", plan.unchecked_files,
                        " files; of these only the size is checked"));
    }
  }

  void OnBytes(uint64_t bytes) {
    bytes_ += bytes;
    const absl::Duration now = base::SteadyNow();
    if (now - shown_ < kShownEvery) return;
    shown_ = now;
    if (options_.json) {
      PrintJsonLine({{"event", "progress"}, {"bytes", bytes_}, {"missing_bytes", total_}});
    } else if (has_line_) {
      const double rate = static_cast<double>(bytes_) / absl::ToDoubleSeconds(now - started_);
      const double left = bytes_ < total_ ? static_cast<double>(total_ - bytes_) / rate : 0;
      std::fprintf(stderr, "\r\033[K%s of %s, %s/s, %s left", base::ByteText(bytes_).c_str(),
                   base::ByteText(total_).c_str(), base::ByteText(static_cast<uint64_t>(rate)).c_str(),
                   DurationText(left).c_str());
    }
  }

  void OnDelay(const std::string& text) {
    if (options_.json) {
      PrintJsonLine({{"event", "activity"}, {"text", JsonText(text)}});
    } else if (!options_.quiet) {
      EndLine();
      std::fprintf(stderr, "tessera: %s\n", base::ReplaceControlCharacters(text).c_str());
    }
  }

  void OnDone(const PullPlan& plan) {
    EndLine();
    if (options_.json) {
      PrintJsonLine({{"event", "pulled"},
                     {"model", JsonText(plan.model.name)},
                     {"commit", plan.commit},
                     {"path", JsonText(plan.snapshot)}});
    } else if (options_.quiet) {
      std::printf("%s\n", plan.snapshot.c_str());
    } else {
      std::printf("folder          %s\n", plan.snapshot.c_str());
      if (!options_.only.empty()) return;
      std::printf("use it with     tessera generate \"a small cactus\" --model %s\n",
                  plan.model.revision == "main" ? plan.model.name.c_str() : plan.snapshot.c_str());
    }
  }

  void EndLine() {
    if (has_line_) std::fputs("\r\033[K", stderr);
  }

 private:
  void Warn(const std::string& text) {
    if (options_.json) {
      PrintJsonLine({{"event", "warning"}, {"message", JsonText(text)}});
    } else {
      std::fprintf(stderr, "tessera: warning: %s\n", text.c_str());
    }
  }

  const PullCommandOptions& options_;
  const bool has_line_;
  uint64_t bytes_ = 0, total_ = 0;
  absl::Duration started_, shown_;
};

absl::StatusOr<std::string> ModelToPull(const std::string& typed) {
  if (const std::optional<std::string> name = base::ReadHubName(typed)) return *name;
  std::string advice;
  for (const PublishedModel* model : PublishedModelsLike(typed)) {
    absl::StrAppend(&advice, advice.empty() ? "; did you mean " : ", ", model->name);
  }
  return absl::InvalidArgumentError(absl::StrCat("model is ", base::QuotedValue(typed), "; valid is ORG/NAME, such as ",
                                                 PublishedModels().front().name, advice));
}

absl::StatusOr<absl::Duration> StallOf(const std::string& typed) {
  if (typed.empty()) return PullOptions{}.stall;
  ASSIGN_OR_RETURN(const int64_t seconds, ParseInteger("timeout", typed));
  if (seconds >= 1 && seconds <= kMaxStallSeconds) return absl::Seconds(seconds);
  return absl::InvalidArgumentError(
      absl::StrCat("timeout is ", seconds, "; valid values are 1 to ", kMaxStallSeconds, " seconds"));
}

absl::Status Pull(const PullCommandOptions& options, const Interrupts& interrupts, PullReport& report) {
  PullOptions pull = {.dry_run = options.dry_run};
  ASSIGN_OR_RETURN(pull.model.name, ModelToPull(options.model));
  pull.only = absl::StrSplit(options.only, ',', absl::SkipEmpty());
  pull.model.revision = options.revision;
  RETURN_IF_ERROR(CheckRevision(options.revision));
  ASSIGN_OR_RETURN(pull.stall, StallOf(options.timeout));
  ASSIGN_OR_RETURN(const HubSettings settings, ReadHubSettings());
  pull.on_plan = [&](const PullPlan& plan) { report.OnPlan(plan); };
  pull.on_bytes = [&](uint64_t bytes) { report.OnBytes(bytes); };
  const PullHooks hooks = {
      .proceed = [&] { return interrupts.requested() ? absl::CancelledError("interrupted") : absl::OkStatus(); },
      .on_event = [&](const std::string& text) { report.OnDelay(text); }};
  ASSIGN_OR_RETURN(const PullPlan plan, PullModel(settings, pull, hooks));
  if (!options.dry_run) report.OnDone(plan);
  return absl::OkStatus();
}

ExitCode RunPull(const PullCommandOptions& options, Interrupts& interrupts) {
  PullReport report(options);
  const absl::Status status = Pull(options, interrupts, report);
  if (status.ok()) return ExitCode::kOk;
  report.EndLine();
  return Finish(MakeReporter({.json = options.json, .quiet = options.quiet}), interrupts, status);
}

}  // namespace

CommandRun AddPull(CLI::App& app) {
  auto options = std::make_shared<PullCommandOptions>();
  AddText(app,
          {.names = "model",
           .help = "ORG/NAME on the hub; tessera models lists known ones",
           .type = "ORG/NAME",
           .required = true},
          options->model);
  AddText(app, {"--revision", "Branch, tag or commit (default: main)", "REVISION"}, options->revision);
  AddText(
      app,
      {"--only", "Components, separated by commas, such as text_encoder_2,tokenizer_2 (default: all)", "COMPONENTS"},
      options->only);
  AddText(app, {"--timeout", "Seconds without a byte after which a connection is made again (default: 30)", "SECONDS"},
          options->timeout);
  AddFlag(app, "--dry-run", "Only show size, licence and commit", options->dry_run);
  AddFlag(app, "--json", "Events as JSON lines", options->json);
  AddFlag(app, "-q,--quiet", "Only the folder of the model, and errors", options->quiet);
  SetFooter(
      app,
      "\nDownloads what the model's pipeline needs into the cache of the Hugging Face hub's tools, and continues what\n"
      "was interrupted. HF_TOKEN is the access token for models whose licence has to be accepted, HF_HOME the folder\n"
      "of the cache, and HF_ENDPOINT a mirror. HTTPS_PROXY and SSL_CERT_FILE are honoured.");
  return [options](Interrupts& interrupts) { return RunPull(*options, interrupts); };
}

}  // namespace tessera::client
