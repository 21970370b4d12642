// An authority for tests, which signs certificates of hosts.
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

  // Its own certificate, written whole and moved into place.
  void Write(const std::string& path) const;
  // A certificate for 127.0.0.1 to 127.0.0.3, 10.77.0.1 (of tests in network namespaces) and "localhost", valid from an
  // hour ago for so many seconds from now on, and its key.
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
