// Proves on a user's own model that a layout makes the images of one rank: the same requests are run on one rank and on
// the layout, and every step's latents are compared.
//
// In fp64 and fp32 whole trajectories are compared. In bf16 trajectories part for honest reasons, so single forward
// passes are, from the latents of an fp32 run: the layout may be as far from fp32 as twice what one rank's bf16 is.
// A layout with stale steps (PipeFusion) is proven with warm-up steps alone; how far its stale steps drift is measured.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "control/adapter_use.h"
#include "control/commands.h"
#include "control/step_record.h"
#include "server/verification/certificate.h"
#include "server/workers/worker_group.h"

namespace tessera::server {

struct VerificationRequest {
  control::ModelDescription model;
  control::LoadParameters load;  // the dtype is the one to be served
  parallel::Layout layout;
  control::DeviceIdentity identity = {};  // of the devices it would run on (WorkerGroup::Identify)
  std::string prompt;                     // empty: one of our own that every family understands
  int32_t steps = 6;
  std::vector<control::AdapterUse> adapters;  // of every image; a certificate of the layout is about those without any
  // A folder for what blocks compute: below it "serial", of one rank in the dtype to be served, and "layout". Empty: it
  // is not kept.
  std::string record;
};

struct Verification {
  Certificate certificate;
  std::optional<control::RecordComparison> records;  // by what the certificate allows
};

// What it needs of the process it runs in.
struct VerificationHost {
  // A connected group of that layout; an error ends the verification.
  std::function<absl::StatusOr<std::shared_ptr<WorkerGroup>>(const parallel::Layout& layout)> open;
  // What is under way, for people; may be empty.
  std::function<void(const std::string& text)> report;
};

// Whether a certificate is about the identity of devices, too: what a CPU computes with is in the model's `libraries`.
bool NeedsIdentity(const control::LoadParameters& load);

// What a certificate for this request is about. `worker` is the worker program.
absl::StatusOr<CertificateSubject> SubjectOf(const VerificationRequest& request, const std::string& worker);

// The certificate, passed or not; errors are those of running the model at all, and of the records. Ranks that disagree
// with each other do not pass.
absl::StatusOr<Verification> VerifyLayout(const VerificationRequest& request, const CertificateSubject& subject,
                                          const VerificationHost& host);

// The sizes that are tried: an even and an uneven one, no larger than they need to be.
std::vector<Canary> CanariesFor(const control::ModelDescription& model, int32_t steps);

// What a model is asked for where it does not matter what: a text, or a class where the model reads no text.
std::string ProbePrompt(const control::ModelDescription& model);

// The request for one of them, as verifications and probes make it.
control::JobParameters ProbeJob(const control::ModelDescription& model, const Canary& canary,
                                const std::string& prompt = "");

// How far what the model predicts beside other images may be from what it predicts of one alone, as a RelativeDistance.
// On the CPU nothing: the operators promise equal bits (kernels/ops.h). On a device, whose libraries promise none, what
// rounding in another order may change.
double BatchBound(control::Dtype dtype, const std::string& device);

// max |a − b| / max |b|; NaN where there is one, or where the shapes differ.
double RelativeError(const control::LatentValues& a, const control::LatentValues& b);

// ‖a − b‖ / ‖b‖, likewise.
double RelativeDistance(const control::LatentValues& a, const control::LatentValues& b);

}  // namespace tessera::server
