#include "client/cli/models/model_location.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files/hub_folders.h"
#include "base/text/hub_name.h"
#include "client/cli/models/hub_cache.h"
#include "client/cli/models/published_models.h"
#include "control/model/pipelines.h"
#include "server/api/generation_request.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

constexpr char kEmbeddedName[] = "emoji";

bool IsModel(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path / "model_index.json", error);
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Finds the embedded model of an installed tree or of the source tree in which the executable was built.
std::optional<fs::path> EmbeddedModel() {
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  fs::path installed = executable.parent_path().parent_path() / "share/tessera/models" / kEmbeddedName;
  if (IsModel(installed)) return installed;
  for (fs::path folder = executable.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    if (fs::path model = folder / "assets" / kEmbeddedName; IsModel(model)) return model;
  }
  return std::nullopt;
}

// Returns the absolute path without a trailing slash.
fs::path Absolute(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

// Replaces a model's folder in the hub's cache by its snapshot.
fs::path ModelAt(const fs::path& path) {
  if (IsModel(path)) return path;
  const std::optional<std::string> name = base::ReadHubName(path.filename().string());
  if (!name) return path;
  absl::StatusOr<std::string> snapshot = SnapshotIn(path.string(), *name);
  return snapshot.ok() ? fs::path(*snapshot) : path;
}

void AddModelsOf(const std::string& folders, std::vector<KnownModel>& models) {
  const auto add = [&models](const fs::path& folder) {
    const fs::path path = ModelAt(folder);
    const bool known = std::any_of(models.begin(), models.end(), [&](const KnownModel& m) { return m.path == path; });
    if (!known && IsModel(path)) models.push_back({.name = ModelName(path.string()), .path = path.string()});
  };
  const std::vector<std::string> list = absl::StrSplit(folders, ':', absl::SkipEmpty());
  for (const std::string& folder : list) {
    add(folder);
    std::error_code error;
    std::vector<fs::path> inside;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      inside.push_back(it->path());
    }
    std::sort(inside.begin(), inside.end());
    for (const fs::path& path : inside) add(path);
  }
}

// Returns what to do if a published model may be meant: use the one that is here, or download one.
std::string PublishedAdvice(const std::string& asked, const std::vector<std::string>& local) {
  if (const std::string problem = control::RepositoryProblem(asked); !problem.empty())
    return absl::StrCat("; ", problem);
  std::string advice;
  for (const PublishedModel* model : PublishedModelsLike(asked)) {
    const bool is_here = std::ranges::find(local, model->name) != local.end();
    absl::StrAppend(&advice, advice.empty() ? "; " : ", ", is_here ? "use --model " : "download with: tessera pull ",
                    model->name);
  }
  return advice;
}

}  // namespace

std::string ModelName(const std::string& path) {
  const fs::path absolute = Absolute(path);
  return HubNameOfSnapshot(absolute.string()).value_or(absolute.filename().string());
}

std::vector<KnownModel> KnownModels(const std::string& folders) {
  std::vector<KnownModel> models;
  if (const std::optional<fs::path> embedded = EmbeddedModel()) {
    models.push_back({.name = kEmbeddedName, .path = embedded->string(), .embedded = true});
  }
  AddModelsOf(Environment("TESSERA_MODELS"), models);
  AddModelsOf(folders, models);
  AddModelsOf(base::HubCacheFolder(), models);
  return models;
}

std::string MissingModelFolder(const std::string& folders) {
  const std::vector<std::string> list = absl::StrSplit(folders, ':', absl::SkipEmpty());
  for (const std::string& folder : list) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) return folder;
  }
  return "";
}

absl::StatusOr<std::string> FindModel(const std::string& wanted, const std::string& folders) {
  std::string asked = wanted.empty() ? Environment("TESSERA_MODEL") : wanted;
  std::error_code error;
  if (!asked.empty() && fs::exists(asked, error)) {
    const std::optional<std::string> name = base::ReadHubName(Absolute(asked).filename().string());
    if (!name || IsModel(asked) || !fs::is_directory(asked, error)) return asked;
    return SnapshotIn(asked, *name);
  }
  const std::vector<KnownModel> models = KnownModels(folders);
  std::vector<std::string> names;
  for (const KnownModel& model : models) {
    if (asked.empty() ? model.embedded : model.name == asked) return model.path;
    names.push_back(model.name);
  }
  if (asked.empty()) {
    return absl::NotFoundError("model: the embedded model is not installed; name a model folder with --model");
  }
  if (const std::optional<std::string> name = base::ReadHubName(asked)) return FindInHubCache(*name);
  if (names.empty() || asked.find('/') != std::string::npos) {
    return absl::NotFoundError(
        absl::StrCat("model '", asked, "' does not exist; it must be a model folder", PublishedAdvice(asked, names)));
  }
  return absl::NotFoundError(absl::StrCat("no folder of that name, and ",
                                          std::string(server::CheckName("model", asked, names).message()),
                                          PublishedAdvice(asked, names)));
}

}  // namespace tessera::client
