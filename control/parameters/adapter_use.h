// AdapterUse describes one use of a low-rank adapter (LoRA) by a job: which file, identified by its content, and with
// what strength. Plain values, free of LibTorch.
#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields/fields.h"

namespace tessera::control {

struct AdapterUse {
  std::string name;    // as in the request (IsAdapterName)
  double scale = 1;    // multiplies the adapter's own scale, alpha / rank; 0: the adapter has no effect
  std::string digest;  // SHA-256 of the file, 64 hexadecimal digits in lower case
  // Absolute path where the workers find the file with that digest. Empty in stored jobs; it is filled in when the job
  // starts.
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
                    Field("digest", &AdapterUse::digest, base::Content()),
                    Field("file", &AdapterUse::file, base::Text{.most_bytes = kMaxAdapterPathBytes, .is_path = true}));
}

// Checks that name and path are as the comments of AdapterUse describe them.
absl::Status CheckRules(const AdapterUse& adapter);

// Whether the name has 1 to kMaxAdapterNameBytes ASCII letters, digits and . _ - + and begins with a letter, a digit or
// _. Such a name is neither a path nor an option, and needs no quotes anywhere.
bool IsAdapterName(std::string_view name);
// The rule of IsAdapterName, for messages.
inline constexpr char kAdapterNameRule[] =
    "valid names have 1 to 128 letters, digits and . _ - + of ASCII and begin with a letter, a digit or _";

// The default name of the adapter in the file at this path: the last part of the path without its extension, with _ in
// place of characters that a name must not have.
std::string AdapterNameOf(std::string_view path);

// Checks that no adapter is listed twice.
absl::Status CheckRules(const std::vector<AdapterUse>& adapters);
// INVALID_ARGUMENT about loras unless each adapter is valid and none is listed twice.
absl::Status CheckAdapters(const std::vector<AdapterUse>& adapters);

// Returns equal keys for jobs that may share a batch because the same adapters change them in the same way, and an
// empty key for jobs that no adapter changes. The order of the adapters counts: it decides the last bits of a sum.
std::string AdapterKey(const std::vector<AdapterUse>& adapters);

}  // namespace tessera::control
