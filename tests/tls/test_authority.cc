#include "tests/tls/test_authority.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>

#include "tests/tls/self_signed.h"

namespace tessera {
namespace {

constexpr long kHour = 3600;

void AddExtension(X509* certificate, int kind, const char* value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

X509* NewCertificate(const std::string& name, EVP_PKEY* key, long seconds) {
  static long serial = 0;
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -kHour);
  X509_gmtime_adj(X509_getm_notAfter(certificate), seconds);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

template <typename Put>
void WriteWhole(const std::string& path, const Put& put) {
  const std::string fresh = path + ".new";
  FILE* file = fopen(fresh.c_str(), "w");
  ASSERT_NE(file, nullptr);
  put(file);
  fclose(file);
  std::filesystem::rename(fresh, path);
}

void WriteBoth(X509* certificate, EVP_PKEY* key, const server::TlsCertificates::Files& files) {
  WriteWhole(files.private_key,
             [&](FILE* file) { PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr); });
  WriteWhole(files.certificate_chain, [&](FILE* file) { PEM_write_X509(file, certificate); });
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace

void WriteSelfSigned(const std::string& name, const server::TlsCertificates::Files& files) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = NewCertificate(name, key, kHour);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  X509_sign(certificate, key, EVP_sha256());
  WriteBoth(certificate, key, files);
}

TestAuthority::TestAuthority(const std::string& name)
    : key_(EVP_EC_gen("P-256")), certificate_(NewCertificate(name, key_.get(), kHour)) {
  AddExtension(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  X509_sign(certificate_.get(), key_.get(), EVP_sha256());
}

void TestAuthority::Write(const std::string& path) const {
  WriteWhole(path, [&](FILE* file) { PEM_write_X509(file, certificate_.get()); });
}

void TestAuthority::Issue(const std::string& name, const server::TlsCertificates::Files& files, long seconds) const {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = NewCertificate(name, key, seconds);
  AddExtension(certificate, NID_subject_alt_name, "IP:127.0.0.1,IP:127.0.0.2,IP:127.0.0.3,IP:10.77.0.1,DNS:localhost");
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate_.get()));
  X509_sign(certificate, key_.get(), EVP_sha256());
  WriteBoth(certificate, key, files);
}

}  // namespace tessera
