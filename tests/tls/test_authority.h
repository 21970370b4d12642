// TestAuthority is a certificate authority for tests. It signs certificates of hosts.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "server/http/tls_certificates.h"

namespace tessera {

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name);

  // Writes the authority's certificate to a temporary file and renames it.
  void Write(const std::string& path) const;
  // Writes a certificate and its key. The certificate is valid for 127.0.0.1 to 127.0.0.3, 10.77.0.1 (for tests in
  // network namespaces) and "localhost", from an hour ago until `seconds` from now.
  void Issue(const std::string& name, const server::TlsCertificates::Files& files, long seconds = 3600) const;

 private:
  template <auto Free>
  struct Freed {
    template <typename T>
    void operator()(T* thing) const {
      Free(thing);
    }
  };

  std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>> key_;
  std::unique_ptr<X509, Freed<X509_free>> certificate_;
};

}  // namespace tessera
