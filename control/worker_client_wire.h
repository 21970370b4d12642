// What the front end says to a worker and hears from it, between protobuf's messages and the plain structs of
// control/commands.h. Replies are checked: a worker may be of another version, or broken.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "control/commands.h"
#include "tessera/internal/control.pb.h"

namespace tessera {

// UNAVAILABLE: such a worker is of no more use.
absl::Status ProtocolError(absl::string_view what);

absl::Status FromWire(const internal::Error& error);
absl::StatusOr<ModelDescription> FromWire(const internal::ModelDescription& wire);
absl::StatusOr<Loaded> FromWire(const internal::Loaded& wire);
absl::StatusOr<JobStarted> FromWire(const internal::JobStarted& wire);

void ToWire(const LoadParameters& parameters, internal::Load* wire);

}  // namespace tessera
