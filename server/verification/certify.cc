#include "server/verification/certify.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/macros/status_macros.h"
#include "server/verification/verification.h"

namespace tessera::server {
namespace {

absl::Status Refused(const CertificateSubject& subject, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("layout ", subject.layout, " is not certified for this model in ",
                                                    subject.dtype, " on ", subject.device, ": ", why));
}

}  // namespace

absl::StatusOr<CertifyPolicy> ParseCertifyPolicy(const std::string& text) {
  if (text.empty()) return CertifyPolicy::kAuto;
  if (const auto policy = base::EnumOf<CertifyPolicy>(text)) return *policy;
  return absl::InvalidArgumentError(absl::StrCat("certify is '", text, "'; valid values are auto, require and off"));
}

std::string WorstText(const Certificate& certificate) {
  const Canary& worst = certificate.worst();
  return absl::StrFormat("worst relative error %.2g, allowed %.2g, after step %d of %dx%d", worst.worst_relative_error,
                         worst.bound, worst.worst_step, worst.width, worst.height);
}

absl::StatusOr<LayoutCertification> Certify(const VerificationRequest& request, const CertificateSubject& subject,
                                            CertifyPolicy policy, const CertificateFolder& folder,
                                            const VerificationHost& host,
                                            const std::function<void(const std::string&)>& warn) {
  const bool one_rank = request.layout == parallel::Layout();
  if (one_rank && subject.products.empty()) return LayoutCertification();
  absl::StatusOr<Certificate> certificate = folder.Find(subject);
  if (!certificate.ok() && (one_rank || policy == CertifyPolicy::kAuto)) {
    if (certificate.status().code() != absl::StatusCode::kNotFound) {
      warn(std::string(certificate.status().message()));
    }
    if (one_rank) return LayoutCertification();
    if (host.report) host.report(absl::StrCat("layout ", subject.layout, " has no certificate yet: verifying it"));
    ASSIGN_OR_RETURN(Verification verification, VerifyLayout(request, subject, host));
    certificate = std::move(verification.certificate);
    // A proven layout is used even if its certificate cannot be stored.
    if (absl::Status kept = folder.Keep(*certificate); !kept.ok()) warn(std::string(kept.message()));
  }
  if (certificate.ok() && certificate->passed()) {
    return LayoutCertification{.products_drift = certificate->products_drift()};
  }
  if (one_rank) return LayoutCertification();
  if (policy == CertifyPolicy::kOff) {
    warn(absl::StrCat("layout ", subject.layout, " is not certified"));
    return LayoutCertification{.certified = false};
  }
  if (certificate.ok()) return Refused(subject, absl::StrCat("it did not pass: ", WorstText(*certificate)));
  return Refused(subject, absl::StrCat(std::string(certificate.status().message()),
                                       "; `tessera verify` makes one, --certify auto verifies it now"));
}

}  // namespace tessera::server
