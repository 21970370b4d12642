#include "runtime/worker/worker_options.h"

#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::runtime {
namespace {

template <class Value>
bool ReadOption(const std::string& word, Value& value) {
  if constexpr (std::is_integral_v<Value>) {
    return absl::SimpleAtoi(word, &value);
  } else if constexpr (std::is_floating_point_v<Value>) {
    return absl::SimpleAtod(word, &value);
  } else {
    value = word;
    return true;
  }
}

}  // namespace

absl::StatusOr<WorkerOptions> ReadWorkerOptions(absl::Span<const std::string> words) {
  WorkerOptions options;
  for (size_t i = 0; i < words.size(); i += 2) {
    bool known = false;
    std::string problem;
    base::ForEachField(
        [&](const auto& field, auto& value) {
          if (words[i] != absl::StrCat("--", field.name)) return;
          known = true;
          if (i + 1 == words.size()) {
            problem = " has no value";
          } else if (!ReadOption(words[i + 1], value)) {
            problem = absl::StrCat(" is ", words[i + 1], "; it must be a number");
          }
        },
        options);
    if (!known) return absl::InvalidArgumentError(absl::StrCat("there is no option ", words[i]));
    if (!problem.empty()) return absl::InvalidArgumentError(absl::StrCat(words[i], problem));
  }
  const absl::Status valid = base::CheckFields(options);
  if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat("--", valid.message()));
  if (options.socket.empty()) return absl::InvalidArgumentError("--socket is missing");
  return options;
}

std::string DescribeWorkerOptions() {
  std::string text;
  base::ForEachFieldOf<WorkerOptions>(
      [&](const auto& field) { absl::StrAppend(&text, "  --", field.name, " VALUE  ", field.help, "\n"); });
  return text;
}

}  // namespace tessera::runtime
