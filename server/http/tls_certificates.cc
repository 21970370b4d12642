#include "server/http/tls_certificates.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <array>
#include <boost/asio/ssl/context.hpp>
#include <ctime>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/file_identity.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

namespace ssl = boost::asio::ssl;

absl::StatusOr<std::shared_ptr<ssl::context>> Read(const TlsCertificates::Files& files) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  boost::system::error_code error;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_compression, error);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_options(context->native_handle(), SSL_OP_NO_RENEGOTIATION);
  context->use_certificate_chain_file(files.certificate_chain, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the TLS certificate chain cannot be read (a PEM file is expected): ", error.message()));
  }
  context->use_private_key_file(files.private_key, ssl::context::pem, error);
  if (error || SSL_CTX_check_private_key(context->native_handle()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the TLS private key cannot be read or does not belong to the certificate: ",
                     error ? error.message() : "it belongs to another one"));
  }
  return context;
}

absl::StatusOr<absl::Time> TimeOf(const ASN1_TIME* time) {
  std::tm calendar = {};
  if (time == nullptr || ASN1_TIME_to_tm(time, &calendar) != 1) {
    return absl::InvalidArgumentError("the dates of the TLS certificate cannot be read");
  }
  return absl::FromTM(calendar, absl::UTCTimeZone());
}

class ReloadingCertificates final : public TlsCertificates {
 public:
  ReloadingCertificates(Files files, std::function<void(const absl::Status&)> report)
      : files_(std::move(files)), report_(std::move(report)) {}

  absl::Status Start() {
    seen_ = Identities();
    ASSIGN_OR_RETURN(context_, Read(files_));
    return absl::OkStatus();
  }

  absl::StatusOr<Validity> CurrentValidity() override {
    const X509* certificate = SSL_CTX_get0_certificate(Current()->native_handle());
    if (certificate == nullptr) return absl::NotFoundError("there is no TLS certificate");
    ASSIGN_OR_RETURN(const absl::Time begin, TimeOf(X509_get0_notBefore(certificate)));
    ASSIGN_OR_RETURN(const absl::Time end, TimeOf(X509_get0_notAfter(certificate)));
    return Validity{.begin = begin, .end = end};
  }

  std::shared_ptr<ssl::context> Current() override {
    const std::lock_guard lock(mutex_);
    const auto found = Identities();
    if (found != seen_) {
      seen_ = found;
      absl::StatusOr<std::shared_ptr<ssl::context>> context = Read(files_);
      if (context.ok()) context_ = *context;
      if (report_) report_(context.status());
    }
    return context_;
  }

 private:
  std::array<base::FileIdentity, 2> Identities() const {
    return {base::IdentityOf(files_.certificate_chain), base::IdentityOf(files_.private_key)};
  }

  const Files files_;
  const std::function<void(const absl::Status&)> report_;
  std::mutex mutex_;
  std::array<base::FileIdentity, 2> seen_;
  std::shared_ptr<ssl::context> context_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<TlsCertificates>> TlsCertificates::Load(
    const Files& files, std::function<void(const absl::Status&)> report) {
  auto certificates = std::make_shared<ReloadingCertificates>(files, std::move(report));
  RETURN_IF_ERROR(certificates->Start());
  return certificates;
}

}  // namespace tessera::server
