// Certificates for tests.
#pragma once

#include <string>

#include "server/http/tls_certificates.h"

namespace tessera {

// A certificate for the host `name`, signed by itself, and its key: each in a file of its own, written whole and moved
// into place.
void WriteSelfSigned(const std::string& name, const server::TlsCertificates::Files& files);

}  // namespace tessera
