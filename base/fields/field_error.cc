#include "base/fields/field_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera::base {
namespace {

constexpr char kFieldUrl[] = "tessera/field-id";

}  // namespace

absl::Status ErrorOfField(absl::string_view id, absl::string_view rest) {
  return WithField(absl::InvalidArgumentError(absl::StrCat(id, rest)), id);
}

absl::Status WithField(absl::Status status, absl::string_view id) {
  // A message from a peer or a disk may be arbitrary.
  if (!id.empty() && absl::StartsWith(status.message(), id)) status.SetPayload(kFieldUrl, absl::Cord(id));
  return status;
}

std::string FieldOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kFieldUrl);
  return payload.has_value() ? std::string(*payload) : "";
}

}  // namespace tessera::base
