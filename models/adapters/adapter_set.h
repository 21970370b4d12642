// AdapterSet holds the sum of a job's adapters: the low-rank factors that are added to each component's matrix
// products.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/adapter_factors.h"

namespace tessera::models {

struct AdapterSet {
  // Identifies the adapters and scales of the sum. Two sets have equal keys if and only if they give equal results.
  std::string key;
  // The prediction type that they were trained for, as spelled in scheduler_config.json; empty if none of them states
  // one.
  std::string prediction_type;
  std::vector<std::string> warnings;
  // This rank's part, by component ("transformer", "text_encoder").
  std::map<std::string, parallel::AdapterFactors, std::less<>> components;

  // Returns the factors of a component; null if it has none.
  const parallel::AdapterFactors* Of(std::string_view component) const {
    const auto found = components.find(component);
    return found == components.end() || found->second.empty() ? nullptr : &found->second;
  }
};

// Shared by the jobs that use it; null if there are no adapters.
using SharedAdapters = std::shared_ptr<const AdapterSet>;

inline const parallel::AdapterFactors* AdaptersOf(const SharedAdapters& adapters, std::string_view component) {
  return adapters == nullptr ? nullptr : adapters->Of(component);
}

}  // namespace tessera::models
