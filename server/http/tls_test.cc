// Tests of HTTPS over a real socket with certificates made here.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/text/random_bytes.h"
#include "tests/support/api_fixture.h"
#include "tests/tls/self_signed.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

struct TlsAnswer {
  std::string subject;  // empty: the handshake failed
  std::string response;
};

// Sends `request`, closes the sending side first if it `half_closes`, and reads to the end of the connection. `version`
// is the newest TLS version of the client.
TlsAnswer CallOverTls(uint16_t port, const std::string& request, int version = TLS1_3_VERSION,
                      bool half_closes = false) {
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_security_level(context, 0);
  SSL_CTX_set_min_proto_version(context, 0);
  SSL_CTX_set_max_proto_version(context, version);
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval timeout = {.tv_sec = 60, .tv_usec = 0};
  setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  SSL* tls = SSL_new(context);
  SSL_set_fd(tls, descriptor);
  TlsAnswer answer;
  if (SSL_connect(tls) == 1) {
    X509* certificate = SSL_get1_peer_certificate(tls);
    char subject[256] = {};
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, subject, sizeof(subject));
    answer.subject = subject;
    X509_free(certificate);
    SSL_write(tls, request.data(), static_cast<int>(request.size()));
    if (half_closes) SSL_shutdown(tls);
    char buffer[16384];
    for (int read; (read = SSL_read(tls, buffer, sizeof(buffer))) > 0;) answer.response.append(buffer, read);
  }
  SSL_free(tls);
  close(descriptor);
  SSL_CTX_free(context);
  return answer;
}

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() : folder_(std::filesystem::temp_directory_path() / base::RandomId("tessera-tls-")) {
    std::filesystem::create_directory(folder_);
    files_ = {.certificate_chain = folder_ / "chain.pem", .private_key = folder_ / "key.pem"};
    WriteSelfSigned("first", files_);
  }
  ~TlsTest() override { std::filesystem::remove_all(folder_); }

  std::shared_ptr<TlsCertificates> Load() {
    auto certificates =
        TlsCertificates::Load(files_, [this](const absl::Status& status) { reports_.push_back(status); });
    EXPECT_TRUE(certificates.ok()) << certificates.status();
    return certificates.ok() ? *certificates : nullptr;
  }

  const std::filesystem::path folder_;
  TlsCertificates::Files files_;
  std::vector<absl::Status> reports_;
};

constexpr char kGet[] = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

TEST_F(TlsTest, AnswersOverTlsAndLinksWithHttps) {
  ApiFixture api({.server = {.tls = Load()}});
  const TlsAnswer models = CallOverTls(api.port(), kGet);
  EXPECT_EQ(models.subject, "first");
  EXPECT_THAT(models.response, HasSubstr("200 OK"));
  const std::string body = R"({"prompt":"a","response_format":"url"})";
  const TlsAnswer image = CallOverTls(
      api.port(), absl::StrCat("POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                               "Content-Type: application/json\r\nContent-Length: ",
                               body.size(), "\r\n\r\n", body));
  EXPECT_THAT(image.response, HasSubstr("https://localhost/v1/images/img-"));
}

TEST_F(TlsTest, AFileIsSentWholeOverTls) {
  ApiFixture api({.service = {.min_file_bytes = 3'000'001}, .server = {.tls = Load()}});
  const std::string body = R"({"prompt":"a","response_format":"url"})";
  const TlsAnswer drawn = CallOverTls(
      api.port(), absl::StrCat("POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                               "Content-Type: application/json\r\nContent-Length: ",
                               body.size(), "\r\n\r\n", body));
  const size_t begin = drawn.response.find("img-");
  ASSERT_NE(begin, std::string::npos);
  const std::string id = drawn.response.substr(begin, drawn.response.find('"', begin) - begin);
  const std::string file = *base::ReadAll(*api.service().OpenImage({.tenant = "anonymous"}, id)->bytes);
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const TlsAnswer answer = CallOverTls(
        api.port(), absl::StrCat("GET /v1/images/", id, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        version);
    EXPECT_TRUE(answer.response.substr(answer.response.find("\r\n\r\n") + 4) == file);
  }
}

TEST_F(TlsTest, AStreamRunsOverTls) {
  ApiFixture api({.server = {.tls = Load()}});
  const std::string body = R"({"prompt":"a","stream":true,"n":2})";
  const TlsAnswer answer = CallOverTls(
      api.port(), absl::StrCat("POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                               "Content-Type: application/json\r\nContent-Length: ",
                               body.size(), "\r\n\r\n", body));
  EXPECT_THAT(answer.response, HasSubstr("\r\n0\r\n\r\n"));
}

TEST_F(TlsTest, AClientThatSendsNoMoreGetsItsAnswer) {
  ApiFixture api({.service = {.script = "step-time=20"}, .server = {.tls = Load()}});
  const std::string body = R"({"prompt":"a"})";
  const std::string request =
      absl::StrCat("POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\n",
                   "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const TlsAnswer answer = CallOverTls(api.port(), request, version, /*half_closes=*/true);
    EXPECT_THAT(answer.response, ::testing::StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer.response, HasSubstr("\"b64_json\":"));
  }
}

TEST_F(TlsTest, NewConnectionsGetACertificateThatWasReplaced) {
  ApiFixture api({.server = {.tls = Load()}});
  EXPECT_EQ(CallOverTls(api.port(), kGet).subject, "first");
  WriteSelfSigned("second", files_);
  EXPECT_EQ(CallOverTls(api.port(), kGet).subject, "second");
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_TRUE(reports_[0].ok());
}

TEST_F(TlsTest, ABrokenCertificateLeavesTheOneInUse) {
  ApiFixture api({.server = {.tls = Load()}});
  std::ofstream(files_.certificate_chain) << "nonsense";
  EXPECT_EQ(CallOverTls(api.port(), kGet).subject, "first");
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_FALSE(reports_[0].ok());
}

TEST_F(TlsTest, OldVersionsAndPlainTextAreRefused) {
  ApiFixture api({.server = {.tls = Load()}});
  EXPECT_EQ(CallOverTls(api.port(), kGet, TLS1_1_VERSION).subject, "");
  EXPECT_EQ(CallOverTls(api.port(), kGet, TLS1_2_VERSION).subject, "first");
  HttpTestClient plain(api.port());
  plain.Send(kGet);
  EXPECT_TRUE(plain.WaitForEnd());
}

TEST_F(TlsTest, AClientThatNeverShakesHandsIsGivenUp) {
  ApiFixture api({.server = {.limits = {.header_time = absl::Milliseconds(100)}, .tls = Load()}});
  HttpTestClient silent(api.port());
  EXPECT_TRUE(silent.WaitForEnd());
}

TEST_F(TlsTest, FilesThatAreMissingOrDoNotBelongTogetherAreRefused) {
  const TlsCertificates::Files missing = {.certificate_chain = folder_ / "no.pem", .private_key = files_.private_key};
  EXPECT_FALSE(TlsCertificates::Load(missing, nullptr).ok());
  const TlsCertificates::Files other = {.certificate_chain = folder_ / "other.pem",
                                        .private_key = folder_ / "other-key.pem"};
  WriteSelfSigned("other", other);
  EXPECT_FALSE(
      TlsCertificates::Load({.certificate_chain = files_.certificate_chain, .private_key = other.private_key}, nullptr)
          .ok());
}

}  // namespace
}  // namespace tessera::server
