#include "client/model_options.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/option_text.h"
#include "server/generation_request.h"

namespace tessera {

void AddModelOption(CLI::App& app, ModelOptions& options) {
  app.add_option("-m,--model", options.model, "Model folder, or the name of a known model (default: the embedded one)")
      ->type_name("MODEL");
  app.add_option("--models-dir", options.model_folders, "Further folders with models, separated by colons")
      ->type_name("FOLDERS");
}

void AddPlacementOptions(CLI::App& app, ModelOptions& options) {
  app.add_option("--dtype", options.dtype, "fp64, fp32 or bf16 (default: fp32 on cpu, bf16 on cuda)")
      ->type_name("NAME");
  app.add_option("--device", options.device, "cpu, cuda or cuda:N (default: cpu)")->type_name("NAME");
  app.add_option("--threads", options.threads, "CPU threads (default: all)")->type_name("N");
}

void AddWorkerOptions(CLI::App& app, ModelOptions& options) {
  app.add_option("--command-timeout", options.command_timeout,
                 "Seconds to wait for any one answer of the worker (default: 3600)")
      ->type_name("SECONDS");
  app.add_flag("-v,--verbose", options.verbose, "Show the worker's messages");
}

absl::StatusOr<LoadParameters> Placement(const ModelOptions& options, const std::string& path) {
  PlacementRequest request;
  if (!options.device.empty()) request.device = options.device;
  request.dtype = !options.dtype.empty() ? options.dtype : absl::StartsWith(request.device, "cuda") ? "bf16" : "fp32";
  if (!options.threads.empty()) {
    absl::StatusOr<int64_t> threads = ParseInteger("threads", options.threads);
    if (!threads.ok()) return threads.status();
    request.threads = *threads;
  }
  return Validate(request, path);
}

absl::StatusOr<WorkerSession::Options> SessionOptions(const ModelOptions& options) {
  WorkerSession::Options session = {.verbose = options.verbose};
  if (!options.command_timeout.empty()) {
    absl::StatusOr<double> seconds = ParseNumber("command timeout", options.command_timeout);
    if (!seconds.ok()) return seconds.status();
    // Written so that NaN is refused too.
    if (!(*seconds > 0 && *seconds <= 1e6)) {
      return absl::InvalidArgumentError(
          absl::StrCat("command timeout is ", *seconds, "; legal is more than 0 and at most 1000000 seconds"));
    }
    session.command_timeout = absl::Seconds(*seconds);
  }
  return session;
}

}  // namespace tessera
