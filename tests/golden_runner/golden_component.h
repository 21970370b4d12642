// Opens one component of a golden model, and provides what a single rank needs to run it.
#pragma once

#include <memory>
#include <string>

#include "models/loading/weight_loader.h"
#include "parallel/forward_context.h"
#include "parallel/rank_groups.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {

// Opens the component in `folder` with its weights. `config_path` may be in another folder.
template <class Config, class Parse, class Make>
auto OpenComponent(const std::string& folder, const std::string& config_path, const Parse& parse, const Make& make,
                   Config& config, models::ParamTable& table) -> absl::StatusOr<decltype(make(config, table))> {
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromFile(config_path, "config.json");
  if (!reader.ok()) return reader.status();
  absl::StatusOr<Config> parsed = parse(*reader);
  if (!parsed.ok()) return parsed.status();
  config = *std::move(parsed);
  const absl::StatusOr<models::WeightFolder> weights = models::WeightFolder::Open(folder, folder);
  if (!weights.ok()) return weights.status();
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
