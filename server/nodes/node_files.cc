#include "server/nodes/node_files.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/crypto.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "server/api/generation_request.h"

namespace tessera::server {
namespace {

constexpr size_t kMostBytes = 1 << 20;
constexpr size_t kShortestToken = 16;
constexpr unsigned int kRefreshSeconds = 1;

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* thing) const {
    Free(thing);
  }
};
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Store = std::unique_ptr<X509_STORE, Freed<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>>;
using Stack = std::unique_ptr<STACK_OF(X509), Freed<[](STACK_OF(X509) * stack) { sk_X509_free(stack); }>>;

absl::StatusOr<std::string> Read(const char* what, const std::string& path) {
  std::optional<std::string> bytes = base::ReadSmallFile(path, kMostBytes);
  if (!bytes.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("the ", what, " ", QuotedValue(path), " cannot be read"));
  }
  return *std::move(bytes);
}

std::vector<Certificate> ParseCertificates(const std::string& pem) {
  std::vector<Certificate> certificates;
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) certificates.emplace_back(next);
  return certificates;
}

struct Identity {
  std::string chain, key, authority;
};

absl::StatusOr<Identity> ReadIdentity(const NodeFiles& files) {
  Identity identity;
  ASSIGN_OR_RETURN(identity.chain, Read("certificate", files.certificate_chain));
  ASSIGN_OR_RETURN(identity.key, Read("private key", files.private_key));
  ASSIGN_OR_RETURN(identity.authority, Read("authority's certificate", files.authority));
  const std::vector<Certificate> chain = ParseCertificates(identity.chain);
  if (chain.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(QuotedValue(files.certificate_chain), " holds no certificate"));
  }
  if (ParseCertificates(identity.authority).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(QuotedValue(files.authority), " holds no certificate"));
  }
  const Bio bio(BIO_new_mem_buf(identity.key.data(), static_cast<int>(identity.key.size())));
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  if (key == nullptr || X509_check_private_key(chain.front().get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(QuotedValue(files.private_key), " is not the key of ", QuotedValue(files.certificate_chain)));
  }
  return identity;
}

absl::Status Unauthenticated(const std::string& what) {
  return absl::UnauthenticatedError(absl::StrCat("the node's certificate is refused: ", what));
}

std::string Property(const grpc::AuthContext& peer, const char* name) {
  const std::vector<grpc::string_ref> values = peer.FindPropertyValues(name);
  return values.empty() ? "" : std::string(values[0].data(), values[0].size());
}

}  // namespace

NodeFiles NodeFilesIn(const std::string& tls_folder, const std::string& token_file) {
  return {.certificate_chain = tls_folder + "/tls.crt",
          .private_key = tls_folder + "/tls.key",
          .authority = tls_folder + "/ca.crt",
          .token = token_file};
}

absl::StatusOr<std::string> ReadNodeToken(const NodeFiles& files) {
  ASSIGN_OR_RETURN(const std::string text, Read("token", files.token));
  std::string token(absl::StripAsciiWhitespace(text.substr(0, text.find('\n'))));
  if (token.size() < kShortestToken) {
    return absl::InvalidArgumentError(absl::StrCat("the token in ", QuotedValue(files.token), " has ", token.size(),
                                                   " characters; valid values have ", kShortestToken, " or more"));
  }
  return token;
}

absl::Status CheckNodeFiles(const NodeFiles& files) {
  RETURN_IF_ERROR(ReadIdentity(files).status());
  return ReadNodeToken(files).status();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> NodeChannelCredentials(const NodeFiles& files) {
  ASSIGN_OR_RETURN(const Identity identity, ReadIdentity(files));
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
      identity.authority, std::vector<grpc::experimental::IdentityKeyCertPair>{{identity.key, identity.chain}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> NodeServerCredentials(const NodeFiles& files) {
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(files.private_key, files.certificate_chain,
                                                                           files.authority, kRefreshSeconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

absl::Status CheckPeer(const grpc::AuthContext& peer, const NodeFiles& files, absl::Time now) {
  ASSIGN_OR_RETURN(const std::string authority, Read("authority's certificate", files.authority));
  // The handshake has proven only that the peer has the key of this certificate. The chain that a server sees does not
  // contain it.
  const std::vector<Certificate> own = ParseCertificates(Property(peer, GRPC_X509_PEM_CERT_PROPERTY_NAME));
  if (own.empty()) return Unauthenticated("none was shown");
  const std::vector<Certificate> chain = ParseCertificates(Property(peer, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME));
  const Store store(X509_STORE_new());
  for (const Certificate& trusted : ParseCertificates(authority)) X509_STORE_add_cert(store.get(), trusted.get());
  const Stack untrusted(sk_X509_new_null());
  for (const Certificate& link : chain) sk_X509_push(untrusted.get(), link.get());
  const StoreContext context(X509_STORE_CTX_new());
  if (X509_STORE_CTX_init(context.get(), store.get(), own.front().get(), untrusted.get()) != 1) {
    return Unauthenticated("it cannot be checked");
  }
  X509_STORE_CTX_set_purpose(context.get(), X509_PURPOSE_SSL_CLIENT);
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  if (X509_verify_cert(context.get()) == 1) return absl::OkStatus();
  return Unauthenticated(X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get())));
}

bool SameSecret(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tessera::server
