#include "models/adapters/plan/adapter_error.h"

#include "absl/strings/cord.h"
#include "absl/types/optional.h"

namespace tessera::models {
namespace {

constexpr char kFault[] = "tessera/adapter_fault";

}  // namespace

absl::Status AdapterError(AdapterFault fault, const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kFault, absl::Cord(base::EnumName(fault)));
  return status;
}

std::optional<AdapterFault> FaultOf(const absl::Status& status) {
  const absl::optional<absl::Cord> name = status.GetPayload(kFault);
  if (!name) return std::nullopt;
  return base::EnumOf<AdapterFault>(std::string(*name));
}

}  // namespace tessera::models
