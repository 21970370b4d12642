// How much of the tests with random faults is run: one seed, or with TESSERA_LONG=1 (run-tests.sh --long) several and
// more faults of each. TESSERA_FAULT_SEED is the one seed to run, TESSERA_FAULT_KILLS the number of faults.
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

// The name of a test that has a seed as its parameter: what fails says how to run it again.
inline constexpr auto kSeedName = [](const auto& info) { return absl::StrCat("Seed", info.param); };

}  // namespace tessera
