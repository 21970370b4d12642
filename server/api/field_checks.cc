#include "server/api/field_checks.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/field_error.h"
#include "base/number_text.h"
#include "base/utf8.h"

namespace tessera::server {
namespace {

constexpr char kFieldUrl[] = "tessera/field";

}  // namespace

absl::Status FieldError(absl::string_view field, absl::string_view rest) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, rest));
  status.SetPayload(kFieldUrl, absl::Cord(field));
  return status;
}

std::string ErrorField(const absl::Status& status) {
  const auto payload = status.GetPayload(kFieldUrl);
  return payload.has_value() ? std::string(*payload) : "";
}

absl::Status Named(const absl::Status& status, FieldNames names) {
  const std::string id = base::FieldOf(status);
  const bool one = absl::EndsWith(id, "[]");
  if (id.empty()) return status;
  const absl::string_view rest = status.message().substr(id.size());
  const RequestField* field = FindField(absl::StripSuffix(id, "[]"));
  if (field == nullptr) return FieldError(id, rest);
  const std::string label = one && field->item != nullptr ? field->item : Label(*field);
  if (names == FieldNames::kCommandLine) return FieldError(label, rest);
  // For one of two values in a field, print its label after the field's name.
  return FieldError(ApiName(*field), absl::StrCat(field->half ? absl::StrCat(": ", label) : "", rest));
}

absl::Status CheckName(absl::string_view field, absl::string_view value, absl::Span<const std::string> valid) {
  const std::string problem = base::ProblemOfName(value, valid);
  return problem.empty() ? absl::OkStatus() : FieldError(field, problem);
}

absl::Status CheckWord(absl::string_view id, absl::string_view value, absl::Span<const std::string> valid) {
  const std::string problem = base::ProblemOfName(value, valid);
  return problem.empty() ? absl::OkStatus() : base::ErrorOfField(id, problem);
}

absl::Status CheckValue(const std::string& id, int64_t value, Bounds bounds) {
  const auto low = static_cast<int64_t>(bounds.low), high = static_cast<int64_t>(bounds.high);
  if (value >= low && value <= high) return absl::OkStatus();
  return base::ErrorOfField(id, absl::StrCat(" is ", value, "; valid values are ", low, " to ", high,
                                             ", the nearest is ", std::clamp(value, low, high)));
}

// Also refuses NaN.
absl::Status CheckValue(const std::string& id, double value, Bounds bounds) {
  if (value >= bounds.low && value <= bounds.high) return absl::OkStatus();
  return base::ErrorOfField(
      id, absl::StrCat(" is ", base::NumberText(value), "; it must be a number from ", base::NumberText(bounds.low),
                       " to ", base::NumberText(bounds.high),
                       std::isnan(value) ? ""
                                         : absl::StrCat(", the nearest is ",
                                                        base::NumberText(std::clamp(value, bounds.low, bounds.high)))));
}

absl::Status CheckValue(const std::string& id, const std::string& text, Bounds bounds) {
  const auto most = static_cast<size_t>(bounds.high);
  if (text.size() > most) {
    return base::ErrorOfField(id, absl::StrCat(" has ", text.size(), " bytes; valid values are at most ", most));
  }
  if (const size_t nul = text.find('\0'); nul != std::string::npos) {
    return base::ErrorOfField(id,
                              absl::StrCat(" has a NUL byte at offset ", nul, "; it must be UTF-8 text without NUL"));
  }
  if (const size_t wrong = base::FirstInvalidUtf8(text); wrong < text.size()) {
    return base::ErrorOfField(
        id, absl::StrCat(" is not valid UTF-8: byte 0x", absl::Hex(static_cast<unsigned char>(text[wrong])),
                         " at offset ", wrong, "; it must be UTF-8 text"));
  }
  return absl::OkStatus();
}

absl::Status CheckValue(const std::string& id, const std::vector<int64_t>& values, Bounds bounds) {
  absl::Status status;
  for (auto value = values.begin(); value != values.end() && status.ok(); ++value) {
    status = CheckValue(id + "[]", *value, bounds);
    if (status.ok() && std::find(values.begin(), value, *value) != value) {
      status = base::ErrorOfField(id + "[]", absl::StrCat(" ", *value, " is given twice; each may be given once"));
    }
  }
  return status;
}

absl::Status CheckCount(const std::string& id, size_t count, Bounds bounds) {
  if (static_cast<double>(count) <= bounds.high) return absl::OkStatus();
  return base::ErrorOfField(id, absl::StrCat(" has ", count, " entries; valid values are at most ", bounds.high));
}

}  // namespace tessera::server
