// Opens one component of a golden model, and provides what a single rank needs to run it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/macros/status_macros.h"
#include "models/loading/weight_loader.h"
#include "parallel/forward_context.h"
#include "parallel/rank_groups.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {

// Returns the class that a component's config.json names, in the form of diffusers or of transformers.
inline absl::StatusOr<std::string> ClassOf(const base::Json& config) {
  const base::Json* name = config.Find("_class_name");
  const base::Json* architectures = config.Find("architectures");
  if (name == nullptr && architectures != nullptr && !architectures->items().empty()) {
    name = &architectures->items().front();
  }
  if (name == nullptr || name->AsString() == nullptr) {
    return absl::InvalidArgumentError("the configuration names no class");
  }
  return *name->AsString();
}

// Opens the weights of a component: of a folder, or of a single file in which `config_path` says what is looked for.
// The configuration's folder has the component's name.
inline absl::StatusOr<models::WeightFolder> OpenWeights(const std::string& path, const std::string& config_path) {
  if (std::filesystem::is_directory(path)) return models::WeightFolder::Open(path, path);
  ASSIGN_OR_RETURN(const base::ConfigReader config, base::ConfigReader::FromFile(config_path, "config.json"));
  ASSIGN_OR_RETURN(const std::string class_name, ClassOf(config.json()));
  const std::string component = std::filesystem::path(config_path).parent_path().filename().string();
  ASSIGN_OR_RETURN(const models::ComponentSource source, models::FileSource(path, component, class_name));
  return models::OpenSource(source, class_name, config.json());
}

// Opens the component in `folder`, or in a single file, with its weights. `config_path` may be in another folder.
template <class Config, class Parse, class Make>
auto OpenComponent(const std::string& folder, const std::string& config_path, const Parse& parse, const Make& make,
                   Config& config, models::ParamTable& table) -> absl::StatusOr<decltype(make(config, table))> {
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromFile(config_path, "config.json");
  if (!reader.ok()) return reader.status();
  absl::StatusOr<Config> parsed = parse(*reader);
  if (!parsed.ok()) return parsed.status();
  config = *std::move(parsed);
  absl::StatusOr<models::WeightFolder> weights = OpenWeights(folder, config_path);
  if (!weights.ok()) return weights.status();
  models::ParamTable whole(table.dtype(), at::kMeta);
  make(config, whole);
  if (absl::Status named = models::NameWeights(*weights, whole); !named.ok()) return named;
  table.KeepAs(models::StoredForms(*weights));
  auto model = make(config, table);
  if (absl::Status loaded = models::LoadWeights(*weights, table, folder); !loaded.ok()) return loaded;
  return model;
}

struct OneRank {
  parallel::SingleRank group;
  parallel::RankGroups groups = parallel::RankGroups::Alone(group);
  parallel::LocalAttention attention;
  parallel::ForwardContext context{.attention = attention, .tensor = group, .world = group};
};

}  // namespace tessera::golden
