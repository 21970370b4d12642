#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/file_bytes.h"
#include "client/cli/models/model_location.h"
#include "client/cli/output/json_line.h"
#include "client/cli/session/model_options.h"

namespace tessera::client {
namespace {

struct ModelsOptions {
  std::string folders;
  bool json = false;
};

// Returns _class_name of model_index.json; empty if the file has none.
std::string PipelineOf(const KnownModel& model) {
  const absl::StatusOr<std::string> text = ReadFileBytes(model.path + "/model_index.json");
  if (!text.ok()) return "";
  boost::json::error_code error;
  const boost::json::value index = boost::json::parse(*text, error);
  if (error || !index.is_object()) return "";
  const boost::json::value* name = index.get_object().if_contains("_class_name");
  return name != nullptr && name->is_string() ? std::string(name->get_string().c_str()) : "";
}

ExitCode ListModels(const ModelsOptions& options) {
  const std::vector<KnownModel> models = KnownModels(options.folders);
  for (const KnownModel& model : models) {
    const std::string pipeline = PipelineOf(model);
    if (options.json) {
      PrintJsonLine({{"event", "model"},
                     {"name", JsonText(model.name)},
                     {"path", JsonText(model.path)},
                     {"pipeline", JsonText(pipeline)},
                     {"embedded", model.embedded}});
    } else {
      std::printf("%-24s %-28s %s%s\n", model.name.c_str(), pipeline.empty() ? "?" : pipeline.c_str(),
                  model.path.c_str(), model.embedded ? " (embedded)" : "");
    }
  }
  if (models.empty() && !options.json) {
    std::puts("No models are known. Name folders with --models-dir or in TESSERA_MODELS.");
  }
  return ExitCode::kOk;
}

}  // namespace

CommandRun AddModels(CLI::App& app) {
  auto options = std::make_shared<ModelsOptions>();
  AddModelFoldersOption(app, options->folders);
  AddFlag(app, "--json", "One JSON object per model", options->json);
  SetFooter(app, "\nFolders are also taken from TESSERA_MODELS, the default model from TESSERA_MODEL.");
  return [options](Interrupts&) { return ListModels(*options); };
}

}  // namespace tessera::client
