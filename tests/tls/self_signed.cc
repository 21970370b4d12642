#include "tests/tls/self_signed.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>

namespace tessera {

void WriteSelfSigned(const std::string& name, const server::TlsCertificates::Files& files) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  X509_sign(certificate, key, EVP_sha256());
  const auto write = [](const std::string& path, auto put) {
    const std::string fresh = path + ".new";
    FILE* file = fopen(fresh.c_str(), "w");
    ASSERT_NE(file, nullptr);
    put(file);
    fclose(file);
    std::filesystem::rename(fresh, path);
  };
  write(files.private_key, [&](FILE* file) { PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr); });
  write(files.certificate_chain, [&](FILE* file) { PEM_write_X509(file, certificate); });
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace tessera
