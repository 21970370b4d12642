// Whether a layout may be used, by its certificate.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "server/verification/certificate.h"
#include "server/verification/certify_policy.h"
#include "server/verification/verification.h"

namespace tessera::server {

// InvalidArgument for another text; empty means auto.
absl::StatusOr<CertifyPolicy> ParseCertifyPolicy(const std::string& text);

// Whether the layout of the request is certified; FailedPrecondition where it may not be used. A verification's
// certificate is kept, passed or not. `warn` is told what the user should know; so is `host`.
absl::StatusOr<bool> Certify(const VerificationRequest& request, const CertificateSubject& subject,
                             CertifyPolicy policy, const CertificateFolder& folder, const VerificationHost& host,
                             const std::function<void(const std::string&)>& warn);

// "worst relative error 3e-07, allowed 1e-05, after step 4 of 256x256".
std::string WorstText(const Certificate& certificate);

}  // namespace tessera::server
