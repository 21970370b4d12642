// A low-rank adapter (LoRA) as a job uses it: which file, by its content, and how strongly. Plain values,
// LibTorch-free.
#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields.h"

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
inline constexpr base::Number kAdapterScales = {-16, 16};

constexpr auto FieldsOf(const AdapterUse*) {
  using base::Field;
  return std::tuple(Field("name", &AdapterUse::name), Field("scale", &AdapterUse::scale, kAdapterScales),
                    Field("digest", &AdapterUse::digest),
                    Field("file", &AdapterUse::file, base::Text{.most_bytes = kMaxAdapterPathBytes, .is_path = true}));
}

// The name, digest and path are what the comments of AdapterUse say.
absl::Status CheckRules(const AdapterUse& adapter);

// 1 to kMaxAdapterNameBytes letters, digits and . _ - + of ASCII, the first a letter, a digit or _: so a name is
// neither a path nor an option, and needs no quotes anywhere.
bool IsAdapterName(std::string_view name);
// What IsAdapterName asks, for messages.
inline constexpr char kAdapterNameRule[] =
    "valid names have 1 to 128 letters, digits and . _ - + of ASCII and begin with a letter, a digit or _";

// The name that a file at this path has unless it is given another: the last part without its extension, with _ for
// what no name may have.
std::string AdapterNameOf(std::string_view path);

// Each is there once.
absl::Status CheckRules(const std::vector<AdapterUse>& adapters);
// INVALID_ARGUMENT about loras unless each is valid and there once.
absl::Status CheckAdapters(const std::vector<AdapterUse>& adapters);

// Equal for jobs that the same adapters change in the same way, so that they may share a batch; empty for those that
// none changes. The order counts: it decides the last bits of a sum.
std::string AdapterKey(const std::vector<AdapterUse>& adapters);

}  // namespace tessera::control
