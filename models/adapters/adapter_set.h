// The adapters that a job runs with, added up: what each component's matrix products are given beside their weights.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/adapter_factors.h"

namespace tessera::models {

struct AdapterSet {
  // What it was made of; equal for sets that give equal results, and for no others.
  std::string key;
  // What they were trained to predict, as scheduler_config.json spells it; empty: none of them says.
  std::string prediction_type;
  std::vector<std::string> warnings;
  // This rank's part, by component ("transformer", "text_encoder").
  std::map<std::string, parallel::AdapterFactors, std::less<>> components;

  // Null if nothing lies beside that component.
  const parallel::AdapterFactors* Of(std::string_view component) const {
    const auto found = components.find(component);
    return found == components.end() || found->second.empty() ? nullptr : &found->second;
  }
};

// Shared by the jobs that run with it; null: none.
using SharedAdapters = std::shared_ptr<const AdapterSet>;

inline const parallel::AdapterFactors* AdaptersOf(const SharedAdapters& adapters, std::string_view component) {
  return adapters == nullptr ? nullptr : adapters->Of(component);
}

}  // namespace tessera::models
