// Writes self-signed certificates for tests.
#pragma once

#include <string>

#include "server/http/tls_certificates.h"

namespace tessera {

// Writes a self-signed certificate for the host `name` and its key to separate files. Each file is written completely
// and then renamed.
void WriteSelfSigned(const std::string& name, const server::TlsCertificates::Files& files);

}  // namespace tessera
