#include "base/files/trusted_certificates.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace tessera::base {

TrustedCertificates FindTrustedCertificates() {
  TrustedCertificates certificates;
  if (const char* folder = std::getenv("SSL_CERT_DIR"); folder != nullptr) certificates.folder = folder;
  if (const char* file = std::getenv("SSL_CERT_FILE"); file != nullptr && *file != 0) {
    certificates.file = file;
    return certificates;
  }
  std::error_code error;
  for (const char* file : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    if (!std::filesystem::exists(file, error)) continue;
    certificates.file = file;
    break;
  }
  return certificates;
}

}  // namespace tessera::base
