// Tests `tessera generate|jobs|cancel --server` against the real HTTP edge over a service with a fake worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/sdk/event_stream.h"
#include "client/sdk/server_url.h"
#include "server/api/job.h"
#include "server/api/server_info.h"
#include "server/http/tls_certificates.h"
#include "server/image/image_file.h"
#include "tests/front/command_line_fixture.h"
#include "tests/support/api_fixture.h"
#include "tests/tls/self_signed.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RemoteTest : public CommandLineTest {
 protected:
  void Serve(ApiFixtureOptions options = {}) { api_.emplace(std::move(options)); }
  std::string Url() const { return absl::StrCat("http://127.0.0.1:", api_->port()); }

  Result RunRemote(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--server", Url()});
    return Run(arguments);
  }

  // Creates a key for `keys` and returns its secret.
  std::string MakeKey(const std::string& name) {
    const absl::StatusOr<server::NewKey> key = server::NewApiKey(name);
    EXPECT_TRUE(key.ok());
    Write("keys.txt", key->line + "\n");
    Write(name + ".key", key->secret + "\n");
    return key->secret;
  }
  std::unique_ptr<server::ApiKeys> Keys() const {
    auto keys = server::ApiKeys::Load(WorkFolder() + "/keys.txt", nullptr);
    EXPECT_TRUE(keys.ok());
    return *std::move(keys);
  }

  std::optional<ApiFixture> api_;
};

TEST_F(RemoteTest, WritesTheImagesOfAJobNamedAsTheLocalCommandNamesThem) {
  Serve();
  const Result result = RunRemote({"generate", "red apple", "--seed", "7", "-n", "2", "--size", "32x16"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(Files(), ElementsAre("red-apple-7.png", "red-apple-8.png"));
  EXPECT_THAT(result.output, AllOf(HasSubstr("red-apple-7.png (seed 7, 32x16"), HasSubstr("red-apple-8.png (seed 8")));
  EXPECT_EQ(ReadImage("red-apple-7.png").image.width, 32);
}

TEST_F(RemoteTest, WritesTheBytesThatTheServerKeeps) {
  Serve();
  ASSERT_EQ(RunRemote({"generate", "x", "--seed", "7", "-o", "new/below/a.webp"}).exit_code, 0);
  const std::string list = api_->Call("GET", "/v1/jobs").body;
  const size_t id = list.find("img-");
  ASSERT_NE(id, std::string::npos) << list;
  EXPECT_EQ(Read("new/below/a.webp"), api_->Call("GET", "/v1/images/" + list.substr(id, list.find('"', id) - id)).body);
}

TEST_F(RemoteTest, ReportsStepsImagesAndTheEndAsTheLocalCommandDoes) {
  Serve();
  const Result result = RunRemote({"generate", "x", "--seed", "7", "-o", "a.png", "--json"});
  std::vector<std::string> names;
  for (const boost::json::object& event : Events(result.output)) {
    const std::string name(event.at("event").as_string().c_str());
    if (names.empty() || names.back() != name) names.push_back(name);
    if (name != "image") continue;
    EXPECT_EQ(event.at("seed").as_int64(), 7);
    EXPECT_EQ(event.at("path").as_string(), "a.png");
    EXPECT_EQ(event.at("bytes").as_int64(), static_cast<int64_t>(Read("a.png").size()));
  }
  EXPECT_THAT(names, AllOf(Contains("activity"), Contains("image")));
  EXPECT_EQ(names.back(), "done");
}

TEST_F(RemoteTest, GivesTheServersReasonForWhatItRefuses) {
  Serve();
  const Result size = RunRemote({"generate", "x", "--size", "33x32"});
  EXPECT_EQ(size.exit_code, 2);
  EXPECT_THAT(size.errors, HasSubstr("the nearest are 32 and 48"));
  EXPECT_EQ(RunRemote({"generate", "x", "-m", "flux"}).exit_code, 3);
  const Result busy = RunRemote({"generate", "[refuse]"});
  EXPECT_EQ(busy.exit_code, 6);
  EXPECT_THAT(busy.errors, HasSubstr("retry in "));
  EXPECT_EQ(RunRemote({"generate", "[fail]"}).exit_code, 1);
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(RemoteTest, RefusesWhatOnlyThisMachineDecidesAndWhatIsNoServer) {
  Serve();
  const Result layout = RunRemote({"generate", "x", "--layout", "cfg=2"});
  EXPECT_EQ(layout.exit_code, 2);
  EXPECT_THAT(layout.errors, HasSubstr("--layout cannot be given with --server"));
  EXPECT_EQ(Run({"generate", "x", "--api-key-file", "a"}).exit_code, 2);
  EXPECT_EQ(Run({"generate", "x", "--server", "localhost:8080"}).exit_code, 2);
  EXPECT_EQ(RunRemote({"generate", "x", "--api-key-file", "missing"}).exit_code, 2);
  EXPECT_EQ(RunRemote({"generate", "x", "-o", "/proc/missing/a.png"}).exit_code, 5);
  EXPECT_EQ(api_->service().Info().queued_jobs + api_->service().Info().running_jobs, 0);
}

TEST_F(RemoteTest, EndsWithCode6WhereNoServerIs) {
  Serve();
  const std::string url = Url();
  api_.reset();
  const Result result = Run({"jobs", "--server", url});
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_THAT(result.errors, HasSubstr("cannot be reached"));
}

TEST_F(RemoteTest, AnInterruptionCancelsTheJob) {
  Serve({.service = {.paused = true}});
  const std::unique_ptr<ChildProcess> child = Start({"generate", "x", "--server", Url()});
  ASSERT_TRUE(api_->service().WaitForWatches(1));
  kill(child->pid(), SIGINT);
  EXPECT_EQ(child->Wait(), 130);
  EXPECT_TRUE(api_->service().WaitForJobs(server::JobState::kCancelled, 1));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(RemoteTest, ComesBackToItsJobWhenTheConnectionIsLost) {
  TestImageService service({.paused = true});
  server::CallGate gate(nullptr);
  server::ApiHandler handler(service, gate, {});
  auto server = server::HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  const uint16_t port = (*server)->port();
  const std::unique_ptr<ChildProcess> child =
      Start({"generate", "x", "-o", "a.png", "--server", absl::StrCat("http://127.0.0.1:", port)});
  ASSERT_TRUE(service.WaitForWatches(1));
  *server = nullptr;
  ASSERT_TRUE(service.WaitForWatches(0));
  server = server::HttpServer::Start({.port = port}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  service.AllowSteps(4);
  EXPECT_EQ(child->Wait(), 0) << child->errors();
  EXPECT_THAT(Files(), ElementsAre("a.png"));
}

// Executes every request, but drops the answer to the first.
class ForgetfulHandler final : public server::HttpHandler {
 public:
  explicit ForgetfulHandler(server::HttpHandler& handler) : handler_(handler) {}
  void Handle(server::HttpRequest request, std::shared_ptr<server::HttpReply> reply) override {
    if (!has_forgotten_.exchange(true)) reply = std::make_shared<Nowhere>();
    handler_.Handle(std::move(request), std::move(reply));
  }
  server::HttpResponse Refusal(int status, const std::string& reason, const std::string& peer) override {
    return handler_.Refusal(status, reason, peer);
  }

 private:
  struct Nowhere final : server::HttpReply {
    void Send(server::HttpResponse) override {}
    void StartStream(server::HttpResponse, Heartbeat) override {}
    void Write(std::string) override {}
    void Write(base::SharedBytes) override {}
    void Finish() override {}
    uint64_t pending_bytes() const override { return 0; }
    void OnClosed(std::function<void()>) override {}
  };

  server::HttpHandler& handler_;
  std::atomic<bool> has_forgotten_ = false;
};

TEST_F(RemoteTest, ASubmissionWhoseAnswerIsLostMakesOneJob) {
  TestImageService service;
  server::CallGate gate(nullptr);
  server::ApiHandler api(service, gate, {});
  ForgetfulHandler handler(api);
  const auto server = server::HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string url = absl::StrCat("http://127.0.0.1:", (*server)->port());
  const Result result = Run({"generate", "x", "-o", "a.png", "--server", url});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(Files(), ElementsAre("a.png"));
  EXPECT_EQ(Events(Run({"jobs", "--json", "--server", url}).output).size(), 1u);
}

TEST_F(RemoteTest, TheSameCommandUnderTheSameKeyGetsTheSameJob) {
  Serve();
  const std::vector<std::string> command = {"generate", "x", "-o", "a.png", "--idempotency-key", "one"};
  for (const char* file : {"a.png", "a-2.png"}) {
    const Result result = RunRemote(command);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(Read(file), Read("a.png"));
  }
  EXPECT_THAT(Files(), ElementsAre("a-2.png", "a.png"));
  EXPECT_EQ(Events(RunRemote({"jobs", "--json"}).output).size(), 1u);
  const Result other = RunRemote({"generate", "y", "-o", "b.png", "--idempotency-key", "one"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.errors, HasSubstr("was used before with another request"));
  EXPECT_EQ(RunRemote({"generate", "x", "--idempotency-key", "a\r\nX: y"}).exit_code, 2);
  EXPECT_EQ(Run({"generate", "x", "--idempotency-key", "one"}).exit_code, 2) << "there is no server";
}

TEST_F(RemoteTest, KeepsAPreviewNextToTheImageUntilItIsDone) {
  Serve({.service = {.paused = true}});
  const std::unique_ptr<ChildProcess> child =
      Start({"generate", "x", "-o", "a.webp", "--preview", "1", "--json", "--server", Url()});
  ASSERT_TRUE(api_->service().WaitForWatches(1));
  api_->service().AllowSteps(2);
  ASSERT_TRUE(child->WaitForOutput("\"preview\"")) << child->errors();
  EXPECT_EQ(ReadImage("a.preview.png").format, server::ImageFormat::kPng);
  api_->service().AllowSteps(2);
  EXPECT_EQ(child->Wait(), 0) << child->errors();
  EXPECT_THAT(Files(), ElementsAre("a.webp"));
  const std::vector<boost::json::object> events = Events(child->output());
  const auto preview =
      std::ranges::find_if(events, [](const boost::json::object& event) { return event.at("event") == "preview"; });
  ASSERT_NE(preview, events.end());
  EXPECT_EQ(preview->at("path").as_string(), "a.preview.png");
  EXPECT_GE(preview->at("step").as_int64(), 1);
}

TEST_F(RemoteTest, AsksForAsManyPreviewsAsTheStepsHave) {
  Serve();
  const Result none = RunRemote({"generate", "x", "--steps", "4", "--preview", "4", "--json"});
  EXPECT_EQ(none.exit_code, 0) << none.errors;
  EXPECT_THAT(none.output, Not(HasSubstr("\"preview\"")));
  EXPECT_EQ(RunRemote({"generate", "x", "--preview", "0"}).exit_code, 2);
}

TEST_F(RemoteTest, ListsAndCancelsJobs) {
  Serve({.service = {.paused = true}});
  const std::string location = api_->Call("POST", "/v1/jobs", R"({"prompt":"x"})").Header("location");
  const std::string id = location.substr(location.rfind('/') + 1);
  const std::vector<boost::json::object> jobs = Events(RunRemote({"jobs", "--json"}).output);
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].at("id").as_string(), id);
  const Result cancelled = RunRemote({"cancel", id});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.errors;
  EXPECT_THAT(cancelled.output, HasSubstr(id));
  EXPECT_TRUE(api_->service().WaitForJobs(server::JobState::kCancelled, 1));
  EXPECT_THAT(RunRemote({"jobs", "--status", "cancelled"}).output, HasSubstr(id + " cancelled"));
  EXPECT_EQ(RunRemote({"cancel", "job-000000000000000000000000000000000000000000000000"}).exit_code, 2);
  EXPECT_EQ(RunRemote({"cancel", "../models"}).exit_code, 2);
  EXPECT_THAT(RunRemote({"jobs", "--status", "runing"}).errors, HasSubstr("did you mean 'running'?"));
}

TEST_F(RemoteTest, SendsTheKeyOfItsFile) {
  MakeKey("alice");
  Serve({.keys = Keys()});
  EXPECT_EQ(RunRemote({"jobs"}).exit_code, 2);
  const Result result = RunRemote({"jobs", "--api-key-file", "alice.key"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
}

// Creates a certificate for localhost and its key as PEM files.
server::TlsCertificates::Files MakeCertificate(const std::string& folder, const char* name) {
  const server::TlsCertificates::Files files = {.certificate_chain = absl::StrCat(folder, "/", name, ".pem"),
                                                .private_key = absl::StrCat(folder, "/", name, ".key.pem")};
  WriteSelfSigned("localhost", files);
  return files;
}

TEST_F(RemoteTest, TrustsOnlyCertificatesOfTheGivenAuthoritiesAndForThatName) {
  const server::TlsCertificates::Files files = MakeCertificate(WorkFolder(), "right");
  MakeCertificate(WorkFolder(), "other");
  absl::StatusOr<std::shared_ptr<server::TlsCertificates>> certificates = server::TlsCertificates::Load(files, nullptr);
  ASSERT_TRUE(certificates.ok()) << certificates.status();
  Serve({.server = {.tls = *certificates}});
  const auto list = [&](const char* host, const std::string& ca) {
    std::vector<std::string> arguments = {"jobs", "--server", absl::StrCat("https://", host, ":", api_->port())};
    if (!ca.empty()) arguments.insert(arguments.end(), {"--server-ca", ca});
    return Run(arguments);
  };
  const Result trusted = list("localhost", "right.pem");
  EXPECT_EQ(trusted.exit_code, 0) << trusted.errors;
  for (const Result& refused :
       {list("localhost", ""), list("localhost", "other.pem"), list("127.0.0.1", "right.pem")}) {
    EXPECT_EQ(refused.exit_code, 6);
    EXPECT_THAT(refused.errors, HasSubstr("has no valid certificate"));
  }
  EXPECT_EQ(list("localhost", "missing.pem").exit_code, 2);
  EXPECT_EQ(RunRemote({"jobs"}).exit_code, 6) << "plain text on a TLS port";
}

// A server that answers every request with the given bytes.
class LyingServer {
 public:
  explicit LyingServer(std::string body) : handler_(std::move(body)) {
    auto server = server::HttpServer::Start({}, handler_);
    EXPECT_TRUE(server.ok());
    server_ = *std::move(server);
  }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", server_->port()); }

 private:
  class Handler final : public server::HttpHandler {
   public:
    explicit Handler(std::string body) : body_(std::move(body)) {}
    void Handle(server::HttpRequest, std::shared_ptr<server::HttpReply> reply) override {
      reply->Send({.status = 200, .headers = {}, .body = body_});
    }
    server::HttpResponse Refusal(int status, const std::string&, const std::string&) override {
      return {.status = status};
    }

   private:
    const std::string body_;
  };

  Handler handler_;
  std::unique_ptr<server::HttpServer> server_;
};

TEST_F(RemoteTest, BelievesNoServerThatSendsSomethingElse) {
  for (
      const char* body :
      {"", "[]", "<html>", "{}", R"({"id":"../x"})",
       R"({"id":"a","status":"queued","model":"m","size":"1x1","n":1e300,"seed":0,"num_inference_steps":1,"steps_done":0,"steps_total":1,"created_at":0,"lossless":true})"}) {
    LyingServer server(body);
    const Result result = Run({"generate", "x", "--server", server.url()});
    EXPECT_EQ(result.exit_code, 1) << body;
    EXPECT_THAT(result.errors, HasSubstr("the server's answer")) << body;
  }
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(RemoteTest, PrintsNothingOfAServerThatATerminalWouldObey) {
  LyingServer server(
      "{\"data\":[{\"id\":\"a\",\"status\":\"done\",\"model\":\"\\u001b[2Jm\",\"size\":\"1x1\",\"n\":1,\"seed\":0,"
      "\"num_inference_steps\":1,\"steps_done\":1,\"steps_total\":1,\"created_at\":0,\"lossless\":true}]}");
  const Result result = Run({"jobs", "--server", server.url()});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(result.output, "a done       [2Jm 1x1, 1 images, step 1 of 1\n");
}

TEST(ServerUrlTest, ReadsHostAndPort) {
  const absl::StatusOr<client::ServerUrl> url = client::ParseServerUrl("https://[::1]:8443/");
  ASSERT_TRUE(url.ok()) << url.status();
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, "8443");
  EXPECT_EQ(client::ParseServerUrl("http://images.example")->port, "80");
  EXPECT_EQ(client::ParseServerUrl("https://images.example")->port, "443");
}

TEST(ServerUrlTest, RefusesEverythingElse) {
  for (const char* text : {"", "http://", "localhost:8080", "ftp://a", "http://a:", "http://a:0", "http://a:65536",
                           "http://a:b", "http://a/b", "http://u:p@a", "http://a b", "http://[::1", "http://[::1]a",
                           "http://a\r\nX: y", "http://[]", "http://a?b"}) {
    EXPECT_FALSE(client::ParseServerUrl(text).ok()) << text;
  }
}

TEST(EventStreamTest, PiecesOfAnySizeAreReadAsTheWhole) {
  const std::string text =
      ": alive\n\nevent: step\ndata: {\"a\":1}\n\nevent:done\r\ndata: 1\r\ndata: 2\r\n\r\nevent: cut";
  for (size_t size = 1; size <= text.size(); ++size) {
    client::EventStream stream;
    std::vector<client::ServerEvent> events;
    for (size_t at = 0; at < text.size(); at += size) {
      ASSERT_TRUE(stream.Take(absl::string_view(text).substr(at, size), events).ok());
    }
    ASSERT_EQ(events.size(), 2u) << size;
    EXPECT_EQ(events[0].name, "step");
    EXPECT_EQ(events[0].data, "{\"a\":1}");
    EXPECT_EQ(events[1].name, "done");
    EXPECT_EQ(events[1].data, "1\n2");
  }
}

}  // namespace
}  // namespace tessera
