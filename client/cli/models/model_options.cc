#include "client/cli/models/model_options.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/models/model_location.h"
#include "client/cli/option_text.h"
#include "server/api/generation_request.h"

namespace tessera::client {

void AddModelOption(CLI::App& app, ModelOptions& options) {
  BeginGroup(app, "Model");
  AddText(app, {"-m,--model", "Model folder, or the name of a known model (default: the embedded one)", "MODEL"},
          options.model);
  AddModelFoldersOption(app, options.model_folders);
}

void AddModelFoldersOption(CLI::App& app, std::string& folders) {
  const auto problem = [](const std::string& typed) -> std::string {
    const std::string missing = MissingModelFolder(typed);
    return missing.empty() ? "" : absl::StrCat("there is no folder ", server::QuotedValue(missing));
  };
  AddText(app,
          {.names = "--models-dir",
           .help = "Further folders with models, separated by colons",
           .type = "FOLDERS",
           .problem = problem},
          folders);
}

void AddDeviceOptions(CLI::App& app, ModelOptions& options) {
  BeginGroup(app, "Where it runs");
  AddText(app, {"--dtype", "Precision (default: fp32 on cpu, bf16 on cuda)", "fp64|fp32|bf16"}, options.dtype);
  AddText(app, {"--device", "Where it runs: cuda is a GPU for each rank (default: cpu)", "cpu|cuda|cuda:N|GPU-UUID"},
          options.device);
}

void AddPlacementOptions(CLI::App& app, ModelOptions& options) {
  AddDeviceOptions(app, options);
  AddText(app, {"--threads", "CPU threads (default: all)", "N"}, options.threads);
  AddText(app, {"--text-encoders", "Where the text encoders are (default: rank0)", "rank0|cpu|unload"},
          options.text_encoders);
  AddText(app, {"--vae", "Where the autoencoder is (default: rank0)", "rank0|cpu|unload"}, options.autoencoder);
  AddText(app, {"--prompt-cache", "Memory for encoded prompts in MiB; 0: none (default: 256)", "MIB"},
          options.prompt_cache);
  AddFlag(app, "--stream-blocks",
          "Read each block of the transformer from its files for every use: for models that do not fit",
          options.stream_blocks);
  AddText(app,
          {"--offload",
           "Whether weights that are used once per image are in main memory: for GPUs with less memory than the model "
           "takes (default: auto)",
           "auto|never|always"},
          options.offload);
}

void AddLayoutOptions(CLI::App& app, ModelOptions& options) {
  BeginGroup(app, "Layout");
  AddText(app,
          {"--layout", "How ranks share an image, such as \"cfg=2,ulysses=2\" (default: serial)", "serial|auto|LAYOUT"},
          options.layout);
  AddText(app, {"--ranks", "Worker processes, one a device; alone it means --layout auto", "N"}, options.ranks);
}

void AddCertifyOption(CLI::App& app, ModelOptions& options) {
  AddText(app,
          {"--certify", "A layout without a certificate: auto verifies it first, require refuses it (default: auto)",
           "auto|require|off"},
          options.certify);
}

void AddWorkerOptions(CLI::App& app, ModelOptions& options) {
  BeginGroup(app, "Worker");
  AddText(app, {"--command-timeout", "Seconds to wait for any one answer of the worker (default: 3600)", "SECONDS"},
          options.command_timeout);
  AddFlag(app, "-v,--verbose", "Show the worker's messages", options.verbose);
}

std::string LocalOption(const ModelOptions& options) {
  for (const auto& [name, typed] :
       {std::pair("--models-dir", &options.model_folders), std::pair("--dtype", &options.dtype),
        std::pair("--device", &options.device), std::pair("--threads", &options.threads),
        std::pair("--text-encoders", &options.text_encoders), std::pair("--vae", &options.autoencoder),
        std::pair("--prompt-cache", &options.prompt_cache), std::pair("--layout", &options.layout),
        std::pair("--ranks", &options.ranks), std::pair("--certify", &options.certify),
        std::pair("--offload", &options.offload), std::pair("--command-timeout", &options.command_timeout)}) {
    if (!typed->empty()) return name;
  }
  if (options.stream_blocks) return "--stream-blocks";
  return options.verbose ? "--verbose" : "";
}

absl::StatusOr<control::LoadParameters> Placement(const ModelOptions& options, const std::string& path) {
  server::PlacementRequest request;
  if (!options.device.empty()) request.device = options.device;
  request.dtype = options.dtype;
  if (!options.threads.empty()) {
    ASSIGN_OR_RETURN(request.threads, ParseInteger("threads", options.threads));
  }
  if (!options.text_encoders.empty()) request.text_encoders = options.text_encoders;
  if (!options.autoencoder.empty()) request.autoencoder = options.autoencoder;
  if (!options.prompt_cache.empty()) {
    ASSIGN_OR_RETURN(request.prompt_cache_mib, ParseInteger("prompt cache (MiB)", options.prompt_cache));
  }
  request.stream_blocks = options.stream_blocks;
  if (!options.offload.empty()) request.offload = options.offload;
  absl::StatusOr<control::LoadParameters> placement = server::Validate(request, path);
  if (!placement.ok()) return placement;
  RETURN_IF_ERROR(RequestedLayout(options).status());
  return placement;
}

absl::StatusOr<WorkerSession::Options> SessionOptions(const ModelOptions& options) {
  WorkerSession::Options session = {.verbose = options.verbose};
  if (!options.command_timeout.empty()) {
    ASSIGN_OR_RETURN(double seconds, ParseNumber("command timeout", options.command_timeout));
    // The condition is negated so that NaN is also refused.
    if (!(seconds > 0 && seconds <= 1e6)) {
      return absl::InvalidArgumentError(
          absl::StrCat("command timeout is ", seconds, "; valid values are more than 0 and at most 1000000 seconds"));
    }
    session.command_timeout = absl::Seconds(seconds);
  }
  return session;
}

absl::StatusOr<server::LayoutRequest> RequestedLayout(const ModelOptions& options) {
  server::LayoutRequest request = {.layout = options.layout};
  if (!options.ranks.empty()) {
    ASSIGN_OR_RETURN(int64_t ranks, ParseInteger("ranks", options.ranks));
    request.ranks = static_cast<int>(std::clamp<int64_t>(ranks, -1, parallel::kMaxRanks + 1));
  }
  if (absl::StatusOr<std::optional<parallel::Layout>> layout = server::ReadLayout(request); !layout.ok())
    return layout.status();
  return request;
}

}  // namespace tessera::client
