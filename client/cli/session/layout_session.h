// Starts a session on the layout that the user requested, verified first if the user wants that.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/interrupts.h"
#include "client/cli/output/reporter.h"
#include "client/cli/session/model_options.h"
#include "client/cli/session/worker_session.h"
#include "server/verification/certify.h"

namespace tessera::client {

// Runs verifications from this process; their groups are separate sessions.
server::VerificationHost HostOf(const WorkerSession::Options& options, Interrupts& interrupts, Reporter& reporter);

struct LayoutStanding {
  parallel::Layout layout;
  server::LayoutCertification certification;
  server::CertificateSubject subject;  // empty for one rank with plain products
};

// Returns the report for a model that is loaded on the layout.
LoadedEvent LoadedOn(const LayoutStanding& standing, const control::ModelDescription& model,
                     const control::LoadParameters& placement, const control::Loaded& loaded);

// Replaces a session with one worker by one on the layout that the options choose for the model, if it is different.
// `placement` names the model. FailedPrecondition for a layout that is not certified and may not be used.
absl::StatusOr<LayoutStanding> MoveToLayout(const ModelOptions& options, const control::ModelDescription& model,
                                            const control::LoadParameters& placement, Interrupts& interrupts,
                                            Reporter& reporter, std::unique_ptr<WorkerSession>& session);

}  // namespace tessera::client
