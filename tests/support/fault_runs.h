// Determines how many random faults the tests run: one seed, or with TESSERA_LONG=1 (run-tests.sh --long) several seeds
// and more faults for each. TESSERA_FAULT_SEED selects one seed, TESSERA_FAULT_KILLS the number of faults.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {

inline std::optional<int> NumberInEnvironment(const char* name) {
  const char* text = std::getenv(name);
  int value = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

inline bool IsLongRun() { return NumberInEnvironment("TESSERA_LONG").value_or(0) != 0; }

inline std::vector<int> FaultSeeds() {
  if (const std::optional<int> seed = NumberInEnvironment("TESSERA_FAULT_SEED")) return {*seed};
  return IsLongRun() ? std::vector<int>{1, 2, 3} : std::vector<int>{1};
}

inline int FaultKills(int kills, int in_long_run) {
  return NumberInEnvironment("TESSERA_FAULT_KILLS").value_or(IsLongRun() ? in_long_run : kills);
}

// Names a test with a seed as parameter so that a failure shows how to repeat it.
inline constexpr auto kSeedName = [](const auto& info) { return absl::StrCat("Seed", info.param); };

}  // namespace tessera
