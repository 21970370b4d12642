#include "control/job_parameters.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace tessera {
namespace {

absl::Status Refuse(const char* id, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(id, " ", what));
}

// Written so that NaN is refused too.
template <typename Number>
absl::Status Check(const char* id, Number value, Bounds bounds) {
  const auto number = static_cast<double>(value);
  if (number >= bounds.low && number <= bounds.high) return absl::OkStatus();
  return Refuse(id, absl::StrCat("is ", value, "; valid values are ", bounds.low, " to ", bounds.high));
}

absl::Status Check(const char* id, const std::string& text, Bounds bounds) {
  if (static_cast<double>(text.size()) > bounds.high) {
    return Refuse(id, absl::StrCat("has ", text.size(), " bytes; at most ", bounds.high, " are valid"));
  }
  if (text.find('\0') != std::string::npos) return Refuse(id, "contains a NUL byte");
  if (FirstInvalidUtf8(text) < text.size()) return Refuse(id, "is not valid UTF-8");
  return absl::OkStatus();
}

absl::Status Check(const char* id, const std::optional<std::string>& text, Bounds bounds) {
  return text.has_value() ? Check(id, *text, bounds) : absl::OkStatus();
}

absl::Status Check(const char* id, const std::vector<int32_t>& numbers, Bounds bounds) {
  absl::Status status;
  for (size_t i = 0; i < numbers.size() && status.ok(); ++i) {
    status = Check(id, numbers[i], bounds);
    const auto end = numbers.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(numbers.begin(), end, numbers[i]) != end) {
      status.Update(Refuse(id, absl::StrCat("has ", numbers[i], " twice")));
    }
  }
  return status;
}

}  // namespace

absl::Status CheckBounds(const JobParameters& job) {
  absl::Status status;
  VisitParameters([&](const char* id, Bounds bounds, const auto& value) { status.Update(Check(id, value, bounds)); },
                  job);
  const SkipLayerGuidance& skip = job.options.skip_layers;
  if (status.ok() && skip.start > skip.stop) {
    status = Refuse("skip_layer_start", absl::StrCat("is ", skip.start, "; at most the stop is valid, ", skip.stop));
  }
  return status;
}

}  // namespace tessera
