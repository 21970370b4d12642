// Runs nginx with the example configuration of docs/serve.md, with other ports and files, in front of a real `tessera
// serve`.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tessera/v1/image_service.grpc.pb.h"
#include "tests/faults/test_server.h"
#include "tests/tls/self_signed.h"

namespace tessera {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace asio = boost::asio;
using asio::ip::tcp;

constexpr char kHost[] = "images.example";

std::string FileText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Returns the program that scripts/setup.sh --checks unpacks, or else the system's. Empty if there is none.
std::string Nginx() {
  for (const std::string path : {NGINX, "/usr/sbin/nginx"}) {
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

// A free port for a server that shares it (SO_REUSEPORT). The socket, which takes no connections, keeps it from others.
class OwnPort {
 public:
  OwnPort() {
    const int on = 1;
    setsockopt(socket_.native_handle(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    socket_.bind({asio::ip::address_v4::loopback(), 0});
  }

  uint16_t number() const { return socket_.local_endpoint().port(); }

 private:
  asio::io_context context_;
  tcp::acceptor socket_{context_, tcp::v4()};
};

// Returns the indented lines of the document from "server {" on.
std::string Example(const std::string& document) {
  std::string example;
  for (const absl::string_view line : absl::StrSplit(document, '\n')) {
    if (example.empty() && line != "    server {") continue;
    if (!absl::StartsWith(line, "    ")) break;
    absl::StrAppend(&example, line, "\n");
  }
  return example;
}

// A TLS connection to the host of the example.
class TlsClient {
 public:
  TlsClient(uint16_t port, const std::string& certificate) {
    tls_.load_verify_file(certificate);
    stream_.set_verify_mode(asio::ssl::verify_peer);
    stream_.set_verify_callback(asio::ssl::host_name_verification(kHost));
    stream_.next_layer().connect({asio::ip::address_v4::loopback(), port});
    const timeval timeout = {.tv_sec = 60, .tv_usec = 0};
    setsockopt(stream_.next_layer().native_handle(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    stream_.handshake(asio::ssl::stream_base::client);
  }

  // Every line of `headers` ends with a line break.
  void Send(const std::string& method, const std::string& target, const std::string& body = "",
            const std::string& headers = "") {
    asio::write(stream_, asio::buffer(absl::StrCat(
                             method, " ", target, " HTTP/1.1\r\nHost: ", kHost, "\r\nConnection: close\r\n", headers,
                             "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n", body)));
  }

  // Reads until `text` has arrived or the connection ends. Returns everything read so far.
  std::string ReadUntil(const std::string& text) {
    boost::system::error_code error;
    while (!error && (text.empty() || !absl::StrContains(read_, text))) {
      char buffer[4096];
      read_.append(buffer, stream_.read_some(asio::buffer(buffer), error));
    }
    return read_;
  }
  std::string ReadAll() { return ReadUntil(""); }

 private:
  asio::io_context context_;
  asio::ssl::context tls_{asio::ssl::context::tls_client};
  asio::ssl::stream<tcp::socket> stream_{context_, tls_};
  std::string read_;
};

class NginxTest : public ::testing::Test {
 protected:
  NginxTest() : server_({.worker = FAKE_WORKER, .groups = {"{model: TINY}"}}) {}

  void SetUp() override {
    ASSERT_NE(Nginx(), "") << "nginx is missing: scripts/setup.sh --checks fetches it";
    server_.options().script = absl::StrCat("step-time=5 gate=", server_.folder(), "/gate");
    server_.options().grpc = "{port: 0}";
    const std::string document = FileText("docs/serve.md");
    EXPECT_THAT(document, HasSubstr("`hosts: [images.example]`, `public_url: https://images.example`"));
    server_.options().settings =
        "behind_proxy: true\nhosts: [images.example]\npublic_url: \"https://images.example\"\n";
    ASSERT_TRUE(server_.Start());
    server_.WaitUntilReady();
    const server::TlsCertificates::Files files = {.certificate_chain = certificate_,
                                                  .private_key = certificate_ + ".key"};
    WriteSelfSigned(kHost, files);
    std::string site = Example(document);
    Replace(site, "listen 443 ", absl::StrCat("listen 127.0.0.1:", port_, " reuseport "));
    Replace(site, "/etc/ssl/images.pem", files.certificate_chain);
    Replace(site, "/etc/ssl/images.key", files.private_key);
    Replace(site, "127.0.0.1:8080", absl::StrCat("127.0.0.1:", server_.port()));
    Replace(site, "127.0.0.1:8081", absl::StrCat("127.0.0.1:", server_.grpc_port()));
    server_.Write("nginx.conf", absl::StrCat("daemon off; master_process off; error_log stderr; pid nginx.pid;\n"
                                             "events {}\nhttp {\naccess_log off;\n",
                                             TemporaryFolders(), site, "}\n"));
    ChildProcess check(Options({"-t"}));
    ASSERT_EQ(check.Wait(), 0) << check.errors();
    nginx_ = std::make_unique<ChildProcess>(Options({}));
    ASSERT_TRUE(WaitUntil("nginx listens", [&] {
      asio::io_context context;
      boost::system::error_code error;
      tcp::socket(context).connect({asio::ip::address_v4::loopback(), port_}, error);
      return !error;
    }));
  }

  static void Replace(std::string& text, const std::string& from, const std::string& to) {
    EXPECT_EQ(absl::StrReplaceAll({{from, to}}, &text), 1) << "the example has no " << from;
  }

  std::string TemporaryFolders() const {
    std::string lines;
    for (const char* kind : {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"}) {
      absl::StrAppend(&lines, kind, "_temp_path ", server_.folder(), "/nginx-", kind, ";\n");
    }
    return lines;
  }

  ChildOptions Options(const std::vector<std::string>& more) const {
    ChildOptions options = {.arguments = {Nginx(), "-p", server_.folder(), "-c", "nginx.conf", "-e", "stderr"},
                            .folder = server_.folder(),
                            .environment = {{"PATH", "/usr/bin:/bin"}}};
    options.arguments.insert(options.arguments.end(), more.begin(), more.end());
    return options;
  }

  TestServer server_;
  const std::string certificate_ = server_.folder() + "/images.pem";
  const OwnPort own_port_;
  const uint16_t port_ = own_port_.number();
  std::unique_ptr<ChildProcess> nginx_;
};

TEST_F(NginxTest, OfTheDocumentsPassesOnGrpc) {
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride(kHost);
  const auto stub = v1::ImageService::NewStub(grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", port_),
      grpc::SslCredentials({.pem_root_certs = FileText(certificate_), .pem_private_key = "", .pem_cert_chain = ""}),
      arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::GenerateRequest request;
  request.mutable_image()->set_prompt("red apple");
  const auto events = stub->Generate(&context, request);
  v1::JobEvent event;
  size_t images = 0;
  while (events->Read(&event)) images += event.has_image();
  const grpc::Status status = events->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(images, 1u);
}

TEST_F(NginxTest, OfTheDocumentsPassesOnHttpAndEventsAsTheyCome) {
  TlsClient generation(port_, certificate_);
  generation.Send("POST", "/v1/images/generations", R"({"prompt": "red apple", "response_format": "url"})");
  const std::string answer = generation.ReadAll();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("https://images.example/v1/images/"));

  const std::string job = server_.Submit("gated apple");
  TlsClient events(port_, certificate_);
  events.Send("GET", absl::StrCat("/v1/jobs/", job, "/events"));
  // The job cannot continue before its start event has arrived.
  EXPECT_THAT(events.ReadUntil("event: started"), HasSubstr("event: started"));
  server_.Write("gate", "");
  EXPECT_THAT(events.ReadAll(), HasSubstr("event: done"));
}

// Checks the page's unchanged files, its policy, and its calls, which a browser sends with the origin of the page.
TEST_F(NginxTest, OfTheDocumentsPassesOnThePage) {
  for (const auto& [target, file] : {std::pair("/", "index.html"), {"/web/app.js", "app.js"}}) {
    TlsClient page(port_, certificate_);
    page.Send("GET", target);
    const std::string answer = page.ReadAll();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(answer, HasSubstr("\r\nContent-Security-Policy: default-src 'none'"));
    EXPECT_THAT(answer, EndsWith("\r\n\r\n" + FileText(std::string("server/web/") + file)));
  }
  for (const auto& [origin, status] : {std::pair("https://images.example", "202"), {"https://evil.example", "403"}}) {
    TlsClient call(port_, certificate_);
    call.Send("POST", "/v1/jobs", R"({"prompt": "red apple"})", absl::StrCat("Origin: ", origin, "\r\n"));
    EXPECT_THAT(call.ReadAll(), StartsWith(absl::StrCat("HTTP/1.1 ", status)));
  }
}

}  // namespace
}  // namespace tessera
