#include "control/job_parameters.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/field_error.h"
#include "base/utf8.h"

namespace tessera::control {
namespace {

// What is wrong with a value; empty: nothing. Written so that NaN is refused too.
template <typename Number>
std::string ProblemOf(Number value, Bounds bounds) {
  const auto number = static_cast<double>(value);
  if (number >= bounds.low && number <= bounds.high) return "";
  return absl::StrCat("is ", value, "; valid values are ", bounds.low, " to ", bounds.high);
}

std::string ProblemOf(const std::string& text, Bounds bounds) {
  if (static_cast<double>(text.size()) > bounds.high) {
    return absl::StrCat("has ", text.size(), " bytes; at most ", bounds.high, " are valid");
  }
  if (text.find('\0') != std::string::npos) return "contains a NUL byte";
  return base::FirstInvalidUtf8(text) < text.size() ? "is not valid UTF-8" : "";
}

std::string ProblemOf(NoiseKind noise, Bounds) {
  const std::vector<std::string> names = base::EnumNames<NoiseKind>();
  const bool known = static_cast<size_t>(noise) < names.size();
  return known ? "" : absl::StrCat("is unknown; valid values are ", absl::StrJoin(names, ", "));
}

std::string ProblemOf(const std::optional<std::string>& text, Bounds bounds) {
  return text.has_value() ? ProblemOf(*text, bounds) : "";
}

std::string ProblemOf(const std::vector<int32_t>& numbers, Bounds bounds) {
  for (auto number = numbers.begin(); number != numbers.end(); ++number) {
    if (std::string problem = ProblemOf(*number, bounds); !problem.empty()) return problem;
    if (std::find(numbers.begin(), number, *number) != number) return absl::StrCat("has ", *number, " twice");
  }
  return "";
}

std::string ProblemOf(const std::vector<AdapterUse>& adapters, Bounds) { return control::ProblemOf(adapters); }

}  // namespace

absl::Status CheckBounds(const JobParameters& job) {
  absl::Status status;
  const auto check = [&status](const char* id, Bounds bounds, const auto& value) {
    const std::string problem = ProblemOf(value, bounds);
    if (!problem.empty()) status.Update(base::ErrorOfField(id, absl::StrCat(" ", problem)));
  };
  VisitParameters(check, job);
  const SkipLayerGuidance& skip = job.options.skip_layers;
  if (status.ok() && skip.start > skip.stop) {
    return base::ErrorOfField("skip_layer_start",
                              absl::StrCat(" is ", skip.start, "; at most the stop is valid, ", skip.stop));
  }
  return status;
}

}  // namespace tessera::control
