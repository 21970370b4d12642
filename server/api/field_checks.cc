#include "server/api/field_checks.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/fields/field_error.h"
#include "server/api/request_fields.h"

namespace tessera::server {
namespace {

constexpr char kFieldUrl[] = "tessera/field";

}  // namespace

absl::Status FieldError(absl::string_view field, absl::string_view rest) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, rest));
  status.SetPayload(kFieldUrl, absl::Cord(field));
  return status;
}

absl::Status WithFieldName(absl::string_view field, absl::Status error) {
  if (error.ok()) return error;
  absl::Status named(error.code(), absl::StrCat(field, error.message()));
  error.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  named.SetPayload(kFieldUrl, absl::Cord(field));
  return named;
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
  const RequestFacts* facts = FindField(absl::StripSuffix(id, "[]"));
  if (facts == nullptr) return FieldError(id, rest);
  const std::string label = one && facts->item != nullptr ? facts->item : Label(*facts);
  if (names == FieldNames::kCommandLine) return FieldError(label, rest);
  // For one of two values in a field, print its label after the field's name.
  return FieldError(ApiName(*facts), absl::StrCat(facts->half ? absl::StrCat(": ", label) : "", rest));
}

absl::Status CheckName(absl::string_view field, absl::string_view value, absl::Span<const std::string> valid) {
  const std::string problem = base::ProblemOfName(value, valid);
  return problem.empty() ? absl::OkStatus() : FieldError(field, problem);
}

absl::Status CheckWord(absl::string_view id, absl::string_view value, absl::Span<const std::string> valid) {
  const std::string problem = base::ProblemOfName(value, valid);
  return problem.empty() ? absl::OkStatus() : base::ErrorOfField(id, problem);
}

}  // namespace tessera::server
