// Decides by its certificate whether a layout may be used.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "server/verification/certificate.h"
#include "server/verification/certify_policy.h"

namespace tessera::server {

struct VerificationHost;
struct VerificationRequest;

// INVALID_ARGUMENT for an unknown text; an empty text means auto.
absl::StatusOr<CertifyPolicy> ParseCertifyPolicy(const std::string& text);

// Returns whether the layout of the request is certified; FAILED_PRECONDITION if it may not be used. The certificate of
// a verification is stored whether or not it passed. `warn` gets warnings for the user, `host` the progress.
absl::StatusOr<bool> Certify(const VerificationRequest& request, const CertificateSubject& subject,
                             CertifyPolicy policy, const CertificateFolder& folder, const VerificationHost& host,
                             const std::function<void(const std::string&)>& warn);

// Returns a text like "worst relative error 3e-07, allowed 1e-05, after step 4 of 256x256".
std::string WorstText(const Certificate& certificate);

}  // namespace tessera::server
