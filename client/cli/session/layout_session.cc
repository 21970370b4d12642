#include "client/cli/session/layout_session.h"

#include <utility>

#include "base/macros/status_macros.h"
#include "server/api/generation_request.h"
#include "server/verification/verification.h"
#include "server/workers/worker_process.h"

namespace tessera::client {

server::VerificationHost HostOf(const WorkerSession::Options& options, Interrupts& interrupts, Reporter& reporter) {
  return {.open = [options, &interrupts](
                      const parallel::Layout& layout) -> absl::StatusOr<std::shared_ptr<server::WorkerGroup>> {
            WorkerSession::Options on_layout = options;
            on_layout.layout = layout;
            ASSIGN_OR_RETURN(std::unique_ptr<WorkerSession> started, WorkerSession::Start(on_layout, interrupts));
            const std::shared_ptr<WorkerSession> session = std::move(started);
            return std::shared_ptr<server::WorkerGroup>(session, &session->group());
          },
          .report = [&reporter](const std::string& text) { reporter.OnActivity(text); }};
}

LoadedEvent LoadedOn(const LayoutStanding& standing, const control::ModelDescription& model,
                     const control::LoadParameters& placement, const control::Loaded& loaded) {
  return {.model = placement.model,
          .pipeline = model.pipeline,
          .digest = model.digest,
          .dtype = base::EnumName(placement.dtype),
          .device = placement.device,
          .layout = parallel::LayoutText(standing.layout),
          .certified = standing.certification.certified,
          .text_encoders = base::EnumName(placement.placement.text_encoders),
          .autoencoder = base::EnumName(placement.placement.autoencoder),
          .loaded = loaded};
}

absl::StatusOr<LayoutStanding> MoveToLayout(const ModelOptions& options, const control::ModelDescription& model,
                                            const control::LoadParameters& placement, Interrupts& interrupts,
                                            Reporter& reporter, std::unique_ptr<WorkerSession>& session) {
  ASSIGN_OR_RETURN(const server::LayoutRequest asked, RequestedLayout(options));
  ASSIGN_OR_RETURN(const server::CertifyPolicy policy, server::ParseCertifyPolicy(options.certify));
  ASSIGN_OR_RETURN(const parallel::Layout layout,
                   server::ChooseLayout(asked, server::LayoutModelOf(model, placement.dtype), placement.device));
  LayoutStanding standing = {.layout = layout};
  const bool moves = layout != session->group().layout();
  // One rank needs no certificate, but one may say how far products that are not plain drift.
  if (!moves && placement.placement.products == control::Products::kPlain) return standing;
  ASSIGN_OR_RETURN(WorkerSession::Options session_options, SessionOptions(options));
  server::VerificationRequest request = {.model = model, .load = placement, .layout = layout};
  if (server::NeedsIdentity(placement)) {
    absl::StatusOr<control::DeviceIdentity> identity = session->group().Identify(placement.device, layout.ranks());
    if (!identity.ok()) return session->Explain(identity.status(), "the devices were being identified");
    request.identity = *std::move(identity);
  }
  if (moves) RETURN_IF_ERROR(session->Close());

  ASSIGN_OR_RETURN(server::CertificateSubject subject, server::SubjectOf(request, server::WorkerProgram()));
  standing.subject = subject;
  const server::CertificateFolder folder(server::CertificateFolder::DefaultPath());
  const absl::StatusOr<server::LayoutCertification> certification =
      server::Certify(request, subject, policy, folder, HostOf(session_options, interrupts, reporter),
                      [&](const std::string& warning) { reporter.OnWarning(warning); });
  if (interrupts.requested()) return absl::CancelledError("interrupted");
  if (!certification.ok()) return certification.status();
  standing.certification = *certification;
  if (!moves) return standing;

  session_options.layout = layout;
  ASSIGN_OR_RETURN(session, WorkerSession::Start(session_options, interrupts));
  return standing;
}

}  // namespace tessera::client
