// Between the messages of the control protocol and the structs of control/commands.h, in both directions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "control/commands.h"
#include "tessera/internal/control.pb.h"

namespace tessera::control {

// Commands, as the worker reads them. Every field is checked to be within what any model could mean; INVALID_ARGUMENT
// names one that is not.
absl::StatusOr<std::string> FromWire(const internal::Describe& wire);  // the model
absl::StatusOr<std::string> FromWire(const internal::Identify& wire);  // the device
absl::StatusOr<LoadParameters> FromWire(const internal::Load& wire);
absl::StatusOr<std::vector<uint64_t>> FromWire(const internal::Step& wire);    // the jobs, distinct
absl::StatusOr<int32_t> CountOf(const internal::Step& wire);                   // of the steps
absl::StatusOr<std::vector<uint64_t>> BatchOf(const internal::Predict& wire);  // likewise, the predicted one first
absl::StatusOr<LatentValues> FromWire(const internal::Predict& wire);          // the latents

absl::StatusOr<TrainingStart> FromWire(const internal::StartTraining& wire);
absl::StatusOr<std::string> FromWire(const internal::ExportTraining& wire);  // the path
absl::StatusOr<int64_t> FromWire(const internal::PrepareSamples& wire);      // at most so many samples

void ToWire(const LoadParameters& parameters, internal::Load* wire);
void ToWire(const TrainingStart& start, internal::StartTraining* wire);

// Replies, as the front end reads them. They are checked: a worker may be of another version, or broken.
absl::Status FromWire(const internal::Error& error);
absl::StatusOr<ModelDescription> FromWire(const internal::ModelDescription& wire);
DeviceIdentity FromWire(const internal::DeviceIdentity& wire);
absl::StatusOr<Loaded> FromWire(const internal::Loaded& wire);
absl::StatusOr<JobStarted> FromWire(const internal::JobStarted& wire);
absl::StatusOr<std::vector<Stepped>> FromWire(const internal::Stepped& wire);  // the earlier ones first
absl::StatusOr<TrainingStarted> FromWire(const internal::TrainingStarted& wire);
absl::StatusOr<SamplesPrepared> FromWire(const internal::SamplesPrepared& wire);
Trained FromWire(const internal::Trained& wire);
TrainingSaved FromWire(const internal::TrainingSaved& wire);
TrainingEvaluated FromWire(const internal::TrainingEvaluated& wire);

// UNAVAILABLE: a worker that sends such replies cannot be used any more.
absl::Status ProtocolError(absl::string_view what);

// Text becomes valid UTF-8, without which protobuf would not deliver it.
void ToWire(const ModelDescription& description, internal::ModelDescription* wire);
void ToWire(const DeviceIdentity& identity, internal::DeviceIdentity* wire);
void ToWire(const Loaded& loaded, internal::Loaded* wire);
void ToWire(const JobStarted& started, internal::JobStarted* wire);
void ToWire(absl::Span<const Stepped> steps, internal::Stepped* wire);  // at least one
void ToWire(const Decoded& decoded, internal::Decoded* wire);
void ToWire(const TrainingStarted& started, internal::TrainingStarted* wire);
void ToWire(const SamplesPrepared& prepared, internal::SamplesPrepared* wire);
void ToWire(const Trained& trained, internal::Trained* wire);
void ToWire(const TrainingSaved& saved, internal::TrainingSaved* wire);
void ToWire(const TrainingEvaluated& evaluated, internal::TrainingEvaluated* wire);
void ToWire(const absl::Status& status, internal::Error* wire);

}  // namespace tessera::control
