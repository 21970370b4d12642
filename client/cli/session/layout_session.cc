#include "client/cli/session/layout_session.h"

#include <utility>

#include "server/workers/worker_process.h"

namespace tessera {

VerificationHost HostOf(const WorkerSession::Options& options, Interrupts& interrupts, Reporter& reporter) {
  return {.open = [options, &interrupts](const Layout& layout) -> absl::StatusOr<std::shared_ptr<WorkerGroup>> {
            WorkerSession::Options on_layout = options;
            on_layout.layout = layout;
            absl::StatusOr<std::unique_ptr<WorkerSession>> started = WorkerSession::Start(on_layout, interrupts);
            if (!started.ok()) return started.status();
            const std::shared_ptr<WorkerSession> session = *std::move(started);
            return std::shared_ptr<WorkerGroup>(session, &session->group());
          },
          .tell = [&reporter](const std::string& text) { reporter.OnActivity(text); }};
}

absl::StatusOr<LayoutStanding> MoveToLayout(const ModelOptions& options, const ModelDescription& model,
                                            const LoadParameters& placement, Interrupts& interrupts, Reporter& reporter,
                                            std::unique_ptr<WorkerSession>& session) {
  const absl::StatusOr<LayoutRequest> asked = RequestedLayout(options);
  if (!asked.ok()) return asked.status();
  const absl::StatusOr<CertifyPolicy> policy = ParseCertifyPolicy(options.certify);
  if (!policy.ok()) return policy.status();
  const absl::StatusOr<Layout> layout = ChooseLayout(*asked, LayoutModelOf(model, placement.dtype));
  if (!layout.ok()) return layout.status();
  LayoutStanding standing = {.layout = *layout};
  if (*layout == session->group().layout()) return standing;
  absl::StatusOr<WorkerSession::Options> session_options = SessionOptions(options);
  if (!session_options.ok()) return session_options.status();
  if (absl::Status closed = session->Close(); !closed.ok()) return closed;

  const VerificationRequest request = {.model = model, .load = placement, .layout = *layout};
  absl::StatusOr<CertificateSubject> subject = SubjectOf(request, WorkerProgram());
  if (!subject.ok()) return subject.status();
  standing.subject = *subject;
  const CertificateFolder folder(CertificateFolder::DefaultPath());
  const absl::StatusOr<bool> certified =
      Certify(request, *subject, *policy, folder, HostOf(*session_options, interrupts, reporter),
              [&](const std::string& warning) { reporter.OnWarning(warning); });
  if (interrupts.requested()) return absl::CancelledError("interrupted");
  if (!certified.ok()) return certified.status();
  standing.certified = *certified;

  session_options->layout = *layout;
  absl::StatusOr<std::unique_ptr<WorkerSession>> moved = WorkerSession::Start(*session_options, interrupts);
  if (!moved.ok()) return moved.status();
  session = *std::move(moved);
  return standing;
}

}  // namespace tessera
