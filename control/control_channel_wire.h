// Between the messages of the control protocol and the structs of control/commands.h, as the worker needs it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/commands.h"
#include "tessera/internal/control.pb.h"

namespace tessera {

// Commands. Every field is checked to be within what any model could mean; INVALID_ARGUMENT names one that is not.
absl::StatusOr<std::string> FromWire(const internal::Describe& wire);  // the model
absl::StatusOr<LoadParameters> FromWire(const internal::Load& wire);
absl::StatusOr<std::vector<uint64_t>> FromWire(const internal::Step& wire);    // the jobs, distinct
absl::StatusOr<std::vector<uint64_t>> BatchOf(const internal::Predict& wire);  // likewise, the predicted one first
absl::StatusOr<LatentValues> FromWire(const internal::Predict& wire);          // the latents

// Replies. Text becomes valid UTF-8, without which protobuf would not deliver it.
void ToWire(const ModelDescription& description, internal::ModelDescription* wire);
void ToWire(const Loaded& loaded, internal::Loaded* wire);
void ToWire(const JobStarted& started, internal::JobStarted* wire);
void ToWire(const Stepped& stepped, internal::Stepped* wire);
void ToWire(const Decoded& decoded, internal::Decoded* wire);
void ToWire(const absl::Status& status, internal::Error* wire);

}  // namespace tessera
