// Decides by its certificate whether a layout may be used.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/verification/certificate.h"
#include "server/verification/certify_policy.h"

namespace tessera::server {

struct VerificationHost;
struct VerificationRequest;

// INVALID_ARGUMENT for an unknown text; an empty text means auto.
absl::StatusOr<CertifyPolicy> ParseCertifyPolicy(const std::string& text);

// What the certificate of a layout says about the images that it makes.
struct LayoutCertification {
  bool certified = true;                      // always true for one rank, which needs no certificate
  std::optional<double> products_drift = {};  // Certificate::products_drift; absent without a certificate that passed
};

// Returns FAILED_PRECONDITION if the layout of the request may not be used. The certificate of a verification is stored
// whether or not it passed. One rank is never verified here; a certificate that `tessera verify` has stored for it is
// read if its products are not plain. `warn` gets warnings for the user, `host` the progress.
absl::StatusOr<LayoutCertification> Certify(const VerificationRequest& request, const CertificateSubject& subject,
                                            CertifyPolicy policy, const CertificateFolder& folder,
                                            const VerificationHost& host,
                                            const std::function<void(const std::string&)>& warn);

// Returns a text like "worst relative error 3e-07, allowed 1e-05, after step 4 of 256x256".
std::string WorstText(const Certificate& certificate);

}  // namespace tessera::server
