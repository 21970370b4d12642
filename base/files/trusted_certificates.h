// Where the certificates of authorities are that this machine trusts for HTTPS.
#pragma once

#include <string>

namespace tessera::base {

struct TrustedCertificates {
  std::string file;    // PEM bundle; empty: the library's default
  std::string folder;  // in OpenSSL's form; empty: the library's default
};

// SSL_CERT_FILE and SSL_CERT_DIR, the variables of OpenSSL, or else where common distributions keep the bundle.
TrustedCertificates FindTrustedCertificates();

}  // namespace tessera::base
