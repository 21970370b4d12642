#include "client/cli/session/model_options.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/fields/enum_names.h"
#include "base/macros/status_macros.h"
#include "client/cli/models/model_location.h"
#include "client/cli/option_text.h"
#include "control/parameters/load_parameters.h"
#include "server/api/generation_request.h"

namespace tessera::client {
namespace {

constexpr int64_t kMaxPromptCacheMib = 1048576;

// The name of a field of control::Placement in messages.
std::string PlacementLabel(const std::string& field) {
  if (field == "text_encoders") return "placement of the text encoders";
  if (field == "autoencoder") return "placement of the autoencoder";
  return absl::StrReplaceAll(field, {{"_", " "}});
}

// Calls visit(field, value, typed) for every field of `placement`; `typed` is what was typed for it.
template <class Options, class Visit>
void ForEachPlacement(Options& options, control::Placement& placement, const Visit& visit) {
  auto typed = options.placement.begin();
  base::ForEachField([&](const auto& field, auto& value) { visit(field, value, *typed++); }, placement);
}

absl::StatusOr<control::Placement> ReadPlacement(const ModelOptions& options) {
  control::Placement placement;
  absl::Status status;
  const auto read = [&status]<class Value>(const auto& field, Value& value, const ModelOptions::Typed& typed) {
    const std::string label = PlacementLabel(field.name);
    if constexpr (std::is_same_v<Value, bool>) {
      value = typed.flag;
    } else if (typed.text.empty()) {
      return;
    } else if constexpr (base::NamedEnum<Value>) {
      status.Update(server::CheckName(label, typed.text, base::EnumNames<Value>()));
      value = base::EnumOf<Value>(typed.text).value_or(value);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      value = typed.text;
    } else {
      const absl::StatusOr<int64_t> number = ParseInteger(label, typed.text);
      status.Update(number.status());
      if (!number.ok()) return;
      status.Update(base::CheckValue(label, std::nullopt, *number, field.valid));
      value = static_cast<Value>(*number);
    }
  };
  ForEachPlacement(options, placement, read);
  if (status.ok()) status = control::CheckRules(placement);
  if (!status.ok()) return server::Named(status, server::FieldNames::kCommandLine);
  return placement;
}

}  // namespace

void AddModelOption(CLI::App& app, ModelOptions& options) {
  BeginGroup(app, "Model");
  AddText(app,
          {"-m,--model", "Model folder, file of a transformer, or name of a known model (default: the embedded one)",
           "MODEL"},
          options.model);
  AddModelFoldersOption(app, options.model_folders);
}

void AddComponentOptions(CLI::App& app, control::ComponentFiles& files) {
  const auto add = [&app]<class Value>(const auto& field, Value& value) {
    const std::string option = PlacementOption(field.name);
    if constexpr (std::is_same_v<Value, bool>) {
      AddFlag(app, option.c_str(), field.help, value);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      AddText(app, {option.c_str(), field.help, "FILE|FOLDER"}, value);
    } else {
      AddTexts(app, {option.c_str(), field.help, "FILE|FOLDER"}, value);
    }
  };
  base::ForEachField(add, files);
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
  control::Placement usual;
  const auto add = [&app]<class Value>(const auto& field, const Value& value, ModelOptions::Typed& typed) {
    const std::string option = PlacementOption(field.name);
    if constexpr (std::is_same_v<Value, bool>) {
      AddFlag(app, option.c_str(), field.help, typed.flag);
    } else {
      std::string type = "N", shown;
      if constexpr (base::NamedEnum<Value>) {
        type = absl::StrJoin(base::EnumNames<Value>(), "|");
        shown = base::EnumName(value);
      } else if constexpr (std::is_same_v<Value, std::string>) {
        type = "SIZE";
        shown = "none";
      } else {
        shown = absl::StrCat(value);
      }
      const std::string help = absl::StrCat(field.help, " (default: ", shown, ")");
      AddText(app, {option.c_str(), help.c_str(), type.c_str()}, typed.text);
    }
  };
  ForEachPlacement(options, usual, add);
  AddText(app, {"--prompt-cache", "Memory for encoded prompts in MiB; 0: none (default: 256)", "MIB"},
          options.prompt_cache);
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

std::string PlacementOption(const std::string& field) {
  return absl::StrCat("--", absl::StrReplaceAll(field, {{"_", "-"}}));
}

std::string LocalOption(const ModelOptions& options) {
  std::vector<std::pair<std::string, bool>> typed = {{"--text-encoder", !options.files.text_encoders.empty()},
                                                     {"--vae", !options.files.autoencoder.empty()},
                                                     {"--tokenizer", !options.files.tokenizer.empty()},
                                                     {"--without-t5", options.files.without_t5},
                                                     {"--models-dir", !options.model_folders.empty()},
                                                     {"--dtype", !options.dtype.empty()},
                                                     {"--device", !options.device.empty()}};
  control::Placement placement;
  const auto add = [&typed](const auto& field, const auto&, const ModelOptions::Typed& option) {
    typed.emplace_back(PlacementOption(field.name), option.flag || !option.text.empty());
  };
  ForEachPlacement(options, placement, add);
  typed.insert(typed.end(), {{"--prompt-cache", !options.prompt_cache.empty()},
                             {"--layout", !options.layout.empty()},
                             {"--ranks", !options.ranks.empty()},
                             {"--certify", !options.certify.empty()},
                             {"--command-timeout", !options.command_timeout.empty()},
                             {"--verbose", options.verbose}});
  const auto first = std::ranges::find_if(typed, [](const auto& option) { return option.second; });
  return first == typed.end() ? "" : first->first;
}

absl::StatusOr<control::LoadParameters> RequestedLoad(const ModelOptions& options, const std::string& path) {
  control::LoadParameters load;
  load.model = path;
  load.files = options.files;
  if (!options.device.empty()) load.device = options.device;
  ASSIGN_OR_RETURN(load.dtype, server::ServedDtype(options.dtype, load.device));
  ASSIGN_OR_RETURN(load.placement, ReadPlacement(options));
  if (!options.prompt_cache.empty()) {
    constexpr char kLabel[] = "prompt cache (MiB)";
    ASSIGN_OR_RETURN(const int64_t mib, ParseInteger(kLabel, options.prompt_cache));
    RETURN_IF_ERROR(server::Named(base::CheckValue(kLabel, std::nullopt, mib, base::Integer{0, kMaxPromptCacheMib}),
                                  server::FieldNames::kCommandLine));
    load.prompt_cache_bytes = static_cast<uint64_t>(mib) << 20;
  }
  RETURN_IF_ERROR(RequestedLayout(options).status());
  return load;
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
