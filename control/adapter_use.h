// A low-rank adapter (LoRA) as a job uses it: which file, by its content, and how strongly. Plain values,
// LibTorch-free.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "control/prompt_options.h"

namespace tessera::control {

struct AdapterUse {
  std::string name;    // as the request called it (IsAdapterName)
  double scale = 1;    // factor of the adapter's part, beside what rank and alpha say; 0: as if it were absent
  std::string digest;  // SHA-256 of the file, 64 hexadecimal digits in lower case
  // Absolute path where the workers find the bytes with that digest. Empty in stored jobs: who starts a job knows it.
  std::string file;

  bool operator==(const AdapterUse&) const = default;
};

inline constexpr size_t kMaxAdapters = 8;  // of one job
inline constexpr size_t kMaxAdapterNameBytes = 128;
inline constexpr size_t kMaxAdapterPathBytes = 4096;
inline constexpr Bounds kAdapterScales = {-16, 16};

// Calls visit(id, fields...) for every field, with that of each of `adapters`, which may be const.
template <class Visit, class... Adapters>
requires(std::is_same_v<std::remove_const_t<Adapters>, AdapterUse>&&...) void VisitFields(const Visit& visit,
                                                                                          Adapters&... adapters) {
  visit("name", adapters.name...);
  visit("scale", adapters.scale...);
  visit("digest", adapters.digest...);
  visit("file", adapters.file...);
}

// 1 to kMaxAdapterNameBytes letters, digits and . _ - + of ASCII, the first a letter, a digit or _: so a name is
// neither a path nor an option, and needs no quotes anywhere.
bool IsAdapterName(std::string_view name);
// What IsAdapterName asks, for messages.
inline constexpr char kAdapterNameRule[] =
    "valid names have 1 to 128 letters, digits and . _ - + of ASCII and begin with a letter, a digit or _";

// The name that a file at this path has unless it is given another: the last part without its extension, with _ for
// what no name may have.
std::string AdapterNameOf(std::string_view path);

// What is wrong with the adapters of a job, as the rest of a message after the field's name; empty: nothing.
std::string ProblemOf(const std::vector<AdapterUse>& adapters);

// Equal for jobs that the same adapters change in the same way, so that they may share a batch; empty for those that
// none changes. The order counts: it decides the last bits of a sum.
std::string AdapterKey(const std::vector<AdapterUse>& adapters);

}  // namespace tessera::control
