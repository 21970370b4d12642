#include "client/cli/session/layout_session.h"

#include <utility>

#include "base/status_macros.h"
#include "server/api/generation_request.h"
#include "server/workers/worker_process.h"

namespace tessera {

VerificationHost HostOf(const WorkerSession::Options& options, Interrupts& interrupts, Reporter& reporter) {
  return {.open = [options, &interrupts](const Layout& layout) -> absl::StatusOr<std::shared_ptr<WorkerGroup>> {
            WorkerSession::Options on_layout = options;
            on_layout.layout = layout;
            ASSIGN_OR_RETURN(std::unique_ptr<WorkerSession> started, WorkerSession::Start(on_layout, interrupts));
            const std::shared_ptr<WorkerSession> session = std::move(started);
            return std::shared_ptr<WorkerGroup>(session, &session->group());
          },
          .report = [&reporter](const std::string& text) { reporter.OnActivity(text); }};
}

LoadedEvent LoadedOn(const LayoutStanding& standing, const ModelDescription& model, const LoadParameters& placement,
                     const Loaded& loaded) {
  return {.model = placement.model,
          .pipeline = model.pipeline,
          .digest = model.digest,
          .dtype = EnumName(placement.dtype),
          .device = placement.device,
          .layout = LayoutText(standing.layout),
          .certified = standing.certified,
          .text_encoders = EnumName(placement.text_encoders),
          .autoencoder = EnumName(placement.autoencoder),
          .loaded = loaded};
}

absl::StatusOr<LayoutStanding> MoveToLayout(const ModelOptions& options, const ModelDescription& model,
                                            const LoadParameters& placement, Interrupts& interrupts, Reporter& reporter,
                                            std::unique_ptr<WorkerSession>& session) {
  ASSIGN_OR_RETURN(const LayoutRequest asked, RequestedLayout(options));
  ASSIGN_OR_RETURN(const CertifyPolicy policy, ParseCertifyPolicy(options.certify));
  ASSIGN_OR_RETURN(const Layout layout, ChooseLayout(asked, LayoutModelOf(model, placement.dtype)));
  LayoutStanding standing = {.layout = layout};
  if (layout == session->group().layout()) return standing;
  ASSIGN_OR_RETURN(WorkerSession::Options session_options, SessionOptions(options));
  RETURN_IF_ERROR(session->Close());

  const VerificationRequest request = {.model = model, .load = placement, .layout = layout};
  ASSIGN_OR_RETURN(CertificateSubject subject, SubjectOf(request, WorkerProgram()));
  standing.subject = subject;
  const CertificateFolder folder(CertificateFolder::DefaultPath());
  const absl::StatusOr<bool> certified =
      Certify(request, subject, policy, folder, HostOf(session_options, interrupts, reporter),
              [&](const std::string& warning) { reporter.OnWarning(warning); });
  if (interrupts.requested()) return absl::CancelledError("interrupted");
  if (!certified.ok()) return certified.status();
  standing.certified = *certified;

  session_options.layout = layout;
  ASSIGN_OR_RETURN(session, WorkerSession::Start(session_options, interrupts));
  return standing;
}

}  // namespace tessera
