#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/file_bytes.h"
#include "client/cli/models/model_location.h"
#include "client/cli/models/published_models.h"
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

void ListLocal(const std::vector<KnownModel>& models, bool json) {
  for (const KnownModel& model : models) {
    const std::string pipeline = PipelineOf(model);
    if (json) {
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
  if (models.empty() && !json) std::puts("No models are here. Name folders with --models-dir or in TESSERA_MODELS.");
}

void ListPublished(const std::vector<KnownModel>& local, bool json) {
  if (!json) {
    std::printf("\nModels that tessera pull NAME downloads:\n%-48s %-14s %-34s %-15s %s\n", "name", "size", "licence",
                "commercial use", "login");
  }
  for (const PublishedModel& model : PublishedModels()) {
    const bool is_here = std::ranges::find(local, model.name, &KnownModel::name) != local.end();
    const std::string use = CommercialUseOf(model.licence);
    if (json) {
      PrintJsonLine({{"event", "published_model"},
                     {"name", model.name},
                     {"pipeline", model.pipeline},
                     {"about_bytes", static_cast<int64_t>(model.gigabytes * 1e9)},
                     {"licence", model.licence},
                     {"commercial_use", use},
                     {"login", model.needs_login},
                     {"here", is_here}});
    } else {
      std::printf("%-48s %-14s %-34s %-15s %s\n", model.name, is_here ? "here" : AboutSize(model).c_str(),
                  model.licence, use.c_str(), model.needs_login ? "needed" : "not needed");
    }
  }
}

ExitCode ListModels(const ModelsOptions& options) {
  const std::vector<KnownModel> models = KnownModels(options.folders);
  ListLocal(models, options.json);
  ListPublished(models, options.json);
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
