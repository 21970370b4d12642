// Proves on a user's own model that a layout makes the images of one rank: it runs the same requests on one rank and on
// the layout, and compares every step's latents.
//
// In fp64 and fp32, whole trajectories are compared. In bf16, rounding alone makes trajectories diverge; therefore
// single forward passes are compared, starting from the latents of an fp32 run. The layout's distance from fp32 may be
// twice that of one rank's bf16. A layout with stale steps (PipeFusion) is proven with only warm-up steps; the drift of
// its stale steps is measured.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "control/model/model_description.h"
#include "control/model/step_record.h"
#include "control/parameters/adapter_use.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "control/parameters/picture_use.h"
#include "server/verification/certificate.h"
#include "server/workers/worker_group.h"

namespace tessera::control {
struct JobParameters;
}

namespace tessera::server {

struct VerificationRequest {
  control::ModelDescription model;
  control::LoadParameters load;  // has the dtype to be served
  parallel::Layout layout;
  control::DeviceIdentity identity = {};  // identity of the devices to use (WorkerGroup::Identify)
  std::string prompt;                     // empty: a default that every family understands
  int32_t steps = 6;
  // Used for every image. A certificate is for images without adapters and without pictures.
  std::vector<control::AdapterUse> adapters;
  // For models that make no image without pictures, the default is made up.
  std::vector<control::PictureUse> images, mask;
  double strength = 1;
  // A folder in which the outputs of blocks are recorded: those of one rank in the dtype to be served under "serial",
  // those of the layout under "layout". Empty: nothing is recorded.
  std::string record;
};

struct Verification {
  Certificate certificate;
  std::optional<control::RecordComparison> records;  // compared by the certificate's bound
};

// Services that a verification needs from its process.
struct VerificationHost {
  // Returns a connected group of that layout; an error ends the verification.
  std::function<absl::StatusOr<std::shared_ptr<WorkerGroup>>(const parallel::Layout& layout)> open;
  // Reports progress to people; may be empty.
  std::function<void(const std::string& text)> report;
};

// Returns the subject of a certificate for this request. `worker` is the worker program.
absl::StatusOr<CertificateSubject> SubjectOf(const VerificationRequest& request, const std::string& worker);

// Returns the certificate, passed or not. Errors are those of running the model, of the records and of
// control::CheckPictures. Ranks that disagree with each other do not pass.
absl::StatusOr<Verification> VerifyLayout(const VerificationRequest& request, const CertificateSubject& subject,
                                          const VerificationHost& host);

// Returns the sizes to try: an even and an uneven one, no larger than necessary.
std::vector<Canary> CanariesFor(const control::ModelDescription& model, int32_t steps);

// Returns an arbitrary valid prompt for the model: a text, or a class if the model reads no text.
std::string ProbePrompt(const control::ModelDescription& model);

// Returns the request for one canary, as verifications and probes make it.
control::JobParameters ProbeJob(const control::ModelDescription& model, const Canary& canary,
                                const std::string& prompt = "");

}  // namespace tessera::server
