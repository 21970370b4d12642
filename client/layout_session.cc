#include "client/layout_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/worker_process.h"

namespace tessera {
namespace {

absl::Status Refused(const CertificateSubject& subject, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("layout ", subject.layout, " is not certified for this model in ",
                                                    subject.dtype, " on ", subject.device, ": ", why));
}

}  // namespace

absl::StatusOr<CertifyPolicy> ParseCertifyPolicy(const std::string& text) {
  if (text.empty() || text == "auto") return CertifyPolicy::kAuto;
  if (text == "require") return CertifyPolicy::kRequire;
  if (text == "off") return CertifyPolicy::kOff;
  return absl::InvalidArgumentError(absl::StrCat("certify is '", text, "'; legal are auto, require and off"));
}

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

std::string WorstText(const Certificate& certificate) {
  const Canary& worst = certificate.worst();
  return absl::StrFormat("worst relative error %.2g, allowed %.2g, after step %d of %dx%d", worst.worst_relative_error,
                         worst.bound, worst.worst_step, worst.width, worst.height);
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
  absl::StatusOr<CertificateSubject> subject = SubjectOf(request, WorkerExecutable());
  if (!subject.ok()) return subject.status();
  standing.subject = *subject;
  const CertificateFolder folder(CertificateFolder::DefaultPath());
  absl::StatusOr<Certificate> certificate = folder.Find(*subject);
  if (!certificate.ok() && *policy == CertifyPolicy::kAuto) {
    if (certificate.status().code() != absl::StatusCode::kNotFound) {
      reporter.OnWarning(std::string(certificate.status().message()));
    }
    reporter.OnActivity(absl::StrCat("layout ", subject->layout, " has no certificate yet: verifying it"));
    certificate = VerifyLayout(request, *subject, HostOf(*session_options, interrupts, reporter));
    if (interrupts.requested()) return absl::CancelledError("interrupted");
    if (!certificate.ok()) return certificate.status();
    // A layout that is proven serves, whether or not that can be remembered.
    if (absl::Status kept = folder.Keep(*certificate); !kept.ok()) reporter.OnWarning(std::string(kept.message()));
  }
  standing.certified = certificate.ok() && certificate->passed();
  if (!standing.certified && *policy != CertifyPolicy::kOff) {
    if (certificate.ok()) return Refused(*subject, absl::StrCat("it did not pass: ", WorstText(*certificate)));
    return Refused(*subject, absl::StrCat(std::string(certificate.status().message()),
                                          "; `tessera verify` makes one, --certify auto verifies it now"));
  }
  if (!standing.certified) reporter.OnWarning(absl::StrCat("layout ", subject->layout, " is not certified"));

  session_options->layout = *layout;
  absl::StatusOr<std::unique_ptr<WorkerSession>> moved = WorkerSession::Start(*session_options, interrupts);
  if (!moved.ok()) return moved.status();
  session = *std::move(moved);
  return standing;
}

}  // namespace tessera
