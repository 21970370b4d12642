// Tests the client library against a server with scripted answers and against the real HTTP edge.
#include "tessera/image_client.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text/random_bytes.h"
#include "server/api/proto_values.h"
#include "server/http/job_json.h"
#include "server/http/multipart_form.h"
#include "tests/support/api_fixture.h"
#include "tests/support/wait_until.h"
#include "tests/tls/self_signed.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAreArray;

server::HttpResponse Refuse(int status, const std::string& wait_seconds = "", const std::string& field = "") {
  server::HttpResponse response = {
      .status = status,
      .headers = {{"Content-Type", "application/json"}},
      .body = absl::StrCat(R"({"error":{"message":"refused","param":")", field, R"(","code":"a_word"}})")};
  if (!wait_seconds.empty()) response.headers.push_back({"Retry-After", wait_seconds});
  return response;
}

std::string JobIn(const std::string& status) {
  return absl::StrCat(
      R"({"id":"job_1","model":"m","size":"1x1","n":1,"seed":0,"num_inference_steps":1,"steps_done":1,)",
      R"("steps_total":1,"created_at":0,"lossless":true,"status":")", status, R"(","error":)",
      status == "failed" ? R"({"message":"the reason","type":"server_error","code":"job_failed"}})" : "null}");
}

server::HttpResponse Accept() { return {.status = 202, .headers = {}, .body = JobIn("queued")}; }

// Writes a stream of events as scripted by the test.
class Events {
 public:
  explicit Events(std::shared_ptr<server::HttpReply> reply) : reply_(std::move(reply)) {
    reply_->StartStream({.status = 200, .headers = {{"Content-Type", "text/event-stream"}}},
                        {absl::Seconds(15), ":\n\n"});
  }
  void Image(int index) {
    reply_->Write(server::ServerSentEvent(
        "image", absl::StrCat(R"({"id":"img_)", index, R"(","seed":0,"size":"1x1","bytes":6,"index":)", index, "}")));
  }
  void End(const std::string& status) { reply_->Write(server::ServerSentEvent(status, JobIn(status))); }
  std::shared_ptr<server::HttpReply> reply() const { return reply_; }

 private:
  std::shared_ptr<server::HttpReply> reply_;
};

enum class Ending { kFinished, kCut, kOpen };  // of a stream

// Answers call number n, from 0, as scripted. A response with status 0 is not sent, as if the answer were lost.
class ScriptedServer final : public server::HttpHandler {
 public:
  std::function<server::HttpResponse(int, const server::HttpRequest&)> submit;
  std::function<Ending(int, Events&)> watch;

  std::vector<std::string> cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  int calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

  void Handle(server::HttpRequest request, std::shared_ptr<server::HttpReply> reply) override {
    const std::string target = request.target;
    if (request.method == "POST") {
      const server::HttpResponse response = submit(NextCall(), request);
      if (response.status != 0) reply->Send(response);
    } else if (absl::EndsWith(target, "/events")) {
      Events events(reply);
      const Ending ending = watch(NextCall(), events);
      if (ending == Ending::kFinished) reply->Finish();
      if (ending == Ending::kOpen) Keep(reply);
    } else if (request.method == "DELETE") {
      Cancel(target.substr(target.rfind('/') + 1));
      reply->Send({.status = 200, .headers = {}, .body = JobIn("cancelled")});
    } else if (target == "/v1/server") {
      reply->Send({.status = 200,
                   .headers = {},
                   .body = absl::StrCat(R"({"started_at":0,"oldest_wait_seconds":0,"version":")",
                                        request.Header("authorization").value_or(""), "\"}")});
    } else {
      reply->Send({.status = 200, .headers = {{"Content-Type", "image/png"}}, .body = "a file"});
    }
  }
  server::HttpResponse Refusal(int status, const std::string&, const std::string&) override {
    return {.status = status};
  }

 private:
  int NextCall() {
    const std::lock_guard lock(mutex_);
    return calls_++;
  }
  void Cancel(const std::string& job) {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(job);
  }
  void Keep(const std::shared_ptr<server::HttpReply>& reply) {
    const std::lock_guard lock(mutex_);
    open_.push_back(reply);
  }

  mutable std::mutex mutex_;
  int calls_ = 0;
  std::vector<std::string> cancelled_;
  std::vector<std::shared_ptr<server::HttpReply>> open_;
};

class ImageClientTest : public ::testing::Test {
 protected:
  void Serve(std::shared_ptr<server::TlsCertificates> tls = nullptr) {
    auto server = server::HttpServer::Start({.tls = std::move(tls)}, service_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::unique_ptr<ImageClient> Client(ImageClientOptions options = {}) const {
    if (options.address == ImageClientOptions().address) options.address = absl::StrCat("127.0.0.1:", server_->port());
    absl::StatusOr<std::unique_ptr<ImageClient>> client = ImageClient::Create(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  ImageClient::OnEvent Record() {
    return [this](const v1::JobEvent& event) {
      events_.push_back(event.has_image()      ? absl::StrCat("image ", event.image().index())
                        : event.has_ended()    ? "ended"
                        : event.has_accepted() ? "accepted"
                                               : "other");
    };
  }

  ScriptedServer service_;
  std::unique_ptr<server::HttpServer> server_;
  std::vector<std::string> events_;
};

TEST_F(ImageClientTest, ARefusalIsTriedAgainAfterTheTimeThatTheServerNames) {
  Serve();
  service_.submit = [](int call, const server::HttpRequest&) {
    if (call == 0) return Refuse(429, "0");
    if (call == 1) return Refuse(503);
    return Accept();
  };
  const absl::StatusOr<v1::Job> job = Client()->Submit({});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->id(), "job_1");
  EXPECT_EQ(service_.calls(), 3);
}

TEST_F(ImageClientTest, ARefusalThatNamesNoTimeIsTheAnswer) {
  Serve();
  service_.submit = [](int, const server::HttpRequest&) { return Refuse(429, "", "prompt"); };
  const absl::Status status = Client()->Submit({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "refused");
  EXPECT_EQ(RefusalOf(status).field, "prompt");
  EXPECT_EQ(RefusalOf(status).code, "a_word");
  EXPECT_FALSE(RefusalOf(status).retry_after.has_value());
  EXPECT_EQ(service_.calls(), 1);
}

TEST_F(ImageClientTest, AWaitThatIsLongerThanTheCallIsLeftToTheCaller) {
  Serve();
  service_.submit = [](int, const server::HttpRequest&) { return Refuse(503, "3600"); };
  const absl::Status status = Client()->Submit({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(RefusalOf(status).retry_after, absl::Hours(1));
  EXPECT_EQ(service_.calls(), 1);
}

TEST_F(ImageClientTest, GivesUpAfterTheConfiguredNumberOfRetries) {
  Serve();
  service_.submit = [](int, const server::HttpRequest&) { return Refuse(503); };
  EXPECT_EQ(Client({.retries = 2})->Submit({}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(service_.calls(), 3);
}

TEST_F(ImageClientTest, ASubmissionWhoseAnswerIsLostIsSentAgainUnderTheSameKey) {
  Serve();
  std::vector<std::string> keys;
  service_.submit = [&keys](int call, const server::HttpRequest& request) {
    keys.push_back(request.Header("idempotency-key").value_or(""));
    return call == 0 ? server::HttpResponse{.status = 0} : Accept();
  };
  const std::unique_ptr<ImageClient> client = Client();
  EXPECT_TRUE(client->Submit({}).ok());
  EXPECT_TRUE(client->Submit({}).ok());
  EXPECT_TRUE(client->Submit({}, {.timeout = {}, .stop = {}, .idempotency_key = "mine"}).ok());
  ASSERT_EQ(keys.size(), 4u);
  EXPECT_THAT(keys[0], Not(IsEmpty()));
  EXPECT_EQ(keys[1], keys[0]);
  EXPECT_NE(keys[2], keys[0]) << "another submission is another job";
  EXPECT_EQ(keys[3], "mine");
}

TEST_F(ImageClientTest, APictureIsUploadedAsAFormUntilItArrives) {
  Serve();
  const std::string picture("\x89PNG\r\n\0--form\r\n", 16);
  std::vector<std::string> files;
  service_.submit = [&files](int call, const server::HttpRequest& request) {
    constexpr server::FormField kFields[] = {{.name = "file", .is_file = true}, {.name = "purpose"}};
    const absl::StatusOr<std::string> boundary = server::FormBoundary(request.Header("content-type").value_or(""));
    const auto parts = server::ReadForm(request.body, boundary.value_or(""), kFields);
    EXPECT_TRUE(parts.ok()) << parts.status();
    for (const server::FormPart& part : parts.value_or(std::vector<server::FormPart>())) {
      if (part.field->is_file) files.emplace_back(part.content);
    }
    EXPECT_EQ(request.target, "/v1/files");
    const char* body = call < 2 ? R"({"id":"file-1","object":"file"})" : R"({"id":"a/b"})";
    return server::HttpResponse{.status = call == 0 ? 0 : 200, .headers = {}, .body = body};
  };
  const absl::StatusOr<std::string> id = Client()->UploadPicture(picture);
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(*id, "file-1");
  EXPECT_THAT(files, ElementsAre(picture, picture));
  EXPECT_EQ(Client()->UploadPicture(picture).status().code(), absl::StatusCode::kInternal);
}

TEST_F(ImageClientTest, ALostWatchReconnectsAndReportsEachImageOnce) {
  Serve();
  service_.watch = [](int call, Events& events) {
    events.Image(0);
    if (call == 0) return Ending::kCut;
    if (call == 1) events.reply()->Write("event: error\ndata: {\"error\":{\"code\":\"draining\"}}\n\n");
    if (call <= 2) return Ending::kFinished;  // without the final event
    events.Image(1);
    events.End("done");
    return Ending::kFinished;
  };
  // Each stream delivered an event, so no failure counts as a second one in a row.
  const absl::StatusOr<v1::Job> job = Client({.retries = 1})->Watch("job_1", Record());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_DONE);
  EXPECT_THAT(events_, ElementsAre("image 0", "image 1", "ended"));
}

TEST_F(ImageClientTest, AnEndThatWasReportedIsKeptWhateverBecomesOfTheStream) {
  Serve();
  service_.watch = [](int, Events& events) {
    events.End("cancelled");
    return Ending::kOpen;
  };
  const absl::StatusOr<v1::Job> job = Client()->Watch("job_1", Record());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(service_.calls(), 1);
}

TEST_F(ImageClientTest, AJobThatFailsIsAnErrorOfGenerateAndAStateOfWatch) {
  Serve();
  service_.submit = [](int, const server::HttpRequest&) { return Accept(); };
  service_.watch = [](int, Events& events) {
    events.End("failed");
    return Ending::kFinished;
  };
  const absl::StatusOr<v1::Job> generated = Client()->Generate({}, Record());
  EXPECT_EQ(generated.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(generated.status().message(), "the reason");
  const absl::StatusOr<v1::Job> watched = Client()->Watch("job_1", Record());
  ASSERT_TRUE(watched.ok()) << watched.status();
  EXPECT_EQ(watched->state(), v1::JOB_STATE_FAILED);
}

TEST_F(ImageClientTest, ALostGenerationComesBackUnderItsKeyAndIsAcceptedOnce) {
  Serve();
  std::vector<std::string> keys;
  service_.submit = [&keys](int call, const server::HttpRequest& request) {
    keys.push_back(request.Header("idempotency-key").value_or(""));
    return call == 0 ? server::HttpResponse{.status = 0} : Accept();
  };
  service_.watch = [](int call, Events& events) {
    if (call == 2) return Ending::kCut;
    events.Image(0);
    events.End("done");
    return Ending::kFinished;
  };
  const absl::StatusOr<v1::Job> job = Client()->Generate({}, Record());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(events_, ElementsAre("accepted", "image 0", "ended"));
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0], keys[1]);
  EXPECT_THAT(service_.cancelled(), IsEmpty());
}

TEST_F(ImageClientTest, AStoppedGenerationTakesItsJobAlong) {
  Serve();
  service_.submit = [](int, const server::HttpRequest&) { return Accept(); };
  service_.watch = [](int, Events&) { return Ending::kOpen; };
  std::stop_source stop;
  const absl::StatusOr<v1::Job> job = Client()->Generate({}, [&](const v1::JobEvent&) { stop.request_stop(); },
                                                         {.timeout = {}, .stop = stop.get_token()});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(service_.cancelled(), ElementsAre("job_1"));
}

TEST_F(ImageClientTest, AGenerationThatTakesTooLongTakesItsJobAlong) {
  Serve();
  service_.submit = [](int, const server::HttpRequest& request) {
    return request.Header("idempotency-key").has_value() ? Accept() : Refuse(500);  // no key: another job
  };
  service_.watch = [](int, Events&) { return Ending::kOpen; };
  const absl::StatusOr<v1::Job> job = Client()->Generate({}, Record(), {.timeout = absl::Milliseconds(200)});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(service_.cancelled(), ElementsAre("job_1"));
}

TEST_F(ImageClientTest, AJobUnderAKeyOfTheCallersIsLeftToTheCaller) {
  Serve();
  service_.submit = [](int, const server::HttpRequest&) { return Accept(); };
  service_.watch = [](int, Events&) { return Ending::kOpen; };
  std::stop_source stop;
  const absl::StatusOr<v1::Job> job =
      Client()->Generate({}, [&](const v1::JobEvent&) { stop.request_stop(); },
                         {.timeout = {}, .stop = stop.get_token(), .idempotency_key = "mine"});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(service_.cancelled(), IsEmpty());
}

TEST_F(ImageClientTest, AStopEndsAPauseBetweenAttempts) {
  std::stop_source stop;
  ImageClientOptions options;
  options.address = "127.0.0.1:1";  // no server listens there
  options.retries = 1000;
  std::jthread stopper([&] { stop.request_stop(); });
  const absl::Status status =
      Client(options)->Watch("job_1", Record(), {.timeout = {}, .stop = stop.get_token()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST_F(ImageClientTest, TheKeyTravelsWithEveryCallAndNotInClearBeyondThisMachine) {
  Serve();
  const absl::StatusOr<v1::ServerInfo> info = Client({.api_key = "secret"})->GetServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->version(), "Bearer secret");
  EXPECT_EQ(ImageClient::Create({.address = "images.example:8081", .api_key = "secret"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ImageClient::Create({.address = "images.example:8081", .api_key = "secret", .tls = true}).ok());
  EXPECT_TRUE(ImageClient::Create({.address = "images.example:8081", .api_key = "secret", .key_in_clear = true}).ok());
}

TEST_F(ImageClientTest, OptionsThatAreNotValidAreRefused) {
  for (const ImageClientOptions& options :
       {ImageClientOptions{.address = ""}, ImageClientOptions{.api_key = "a\nb"},
        ImageClientOptions{.root_certificates = "PEM"}, ImageClientOptions{.retries = -1},
        ImageClientOptions{.address = "a b"}, ImageClientOptions{.tls = true, .root_certificates = "PEM"}}) {
    EXPECT_EQ(ImageClient::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST_F(ImageClientTest, OverTlsItTrustsOnlyTheGivenAuthorities) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / base::RandomId("tessera-client-");
  std::filesystem::create_directory(folder);
  std::string certificates[2];
  absl::StatusOr<std::shared_ptr<server::TlsCertificates>> loaded;
  for (const int i : {1, 0}) {
    const server::TlsCertificates::Files files = {.certificate_chain = folder / "chain.pem",
                                                  .private_key = folder / "key.pem"};
    WriteSelfSigned("localhost", files);
    certificates[i] = ReadText(files.certificate_chain);
    loaded = server::TlsCertificates::Load(files, nullptr);
  }
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  Serve(*loaded);
  const auto call = [&](const std::string& host, const std::string& roots) {
    return Client({.address = absl::StrCat(host, ":", server_->port()),
                   .api_key = "secret",
                   .tls = true,
                   .root_certificates = roots,
                   .retries = 1})
        ->GetServerInfo()
        .status();
  };
  EXPECT_TRUE(call("localhost", certificates[0]).ok()) << call("localhost", certificates[0]);
  EXPECT_EQ(call("localhost", certificates[1]).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(call("127.0.0.1", certificates[0]).code(), absl::StatusCode::kUnavailable);
}

TEST(ImageClientAndServerTest, EveryCallReachesTheServer) {
  ApiFixture api;
  const auto created = ImageClient::Create({.address = absl::StrCat("127.0.0.1:", api.port())});
  ASSERT_TRUE(created.ok()) << created.status();
  ImageClient& client = **created;

  v1::ImageRequest request;
  request.set_prompt("red apple");
  request.set_n(2);
  std::map<int, std::string> files;
  const absl::StatusOr<v1::Job> generated = client.Generate(request, [&](const v1::JobEvent& event) {
    if (event.has_image()) files[event.image().index()] = event.image().file();
  });
  ASSERT_TRUE(generated.ok()) << generated.status();
  EXPECT_EQ(generated->state(), v1::JOB_STATE_DONE);
  ASSERT_EQ(files.size(), 2u);
  const absl::StatusOr<v1::GetImageResponse> image = client.GetImage(generated->images(1).id());
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->file(), files[1]);

  const absl::StatusOr<v1::Job> submitted = client.Submit(request);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const absl::StatusOr<v1::Job> watched = client.Watch(submitted->id(), [](const v1::JobEvent&) {});
  ASSERT_TRUE(watched.ok()) << watched.status();
  EXPECT_EQ(client.Get(submitted->id())->state(), v1::JOB_STATE_DONE);
  EXPECT_EQ(client.Cancel(submitted->id())->state(), v1::JOB_STATE_DONE) << "what has ended stays as it is";
  v1::ListJobsRequest list;
  list.set_limit(1);
  EXPECT_EQ(client.List(list)->jobs(0).id(), submitted->id());
  EXPECT_GT(client.ListModels()->models_size(), 0);
  EXPECT_THAT(client.GetServerInfo()->version(), Not(IsEmpty()));
  EXPECT_EQ(client.Get("job_none").status().code(), absl::StatusCode::kNotFound);
  request.set_prompt("");
  const absl::Status refused = client.Generate(request, [](const v1::JobEvent&) {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RefusalOf(refused).field, "prompt");
  request.set_prompt("[fail]");
  EXPECT_THAT(client.Generate(request, [](const v1::JobEvent&) {}).status().message(), HasSubstr("fails"));
}

TEST(ImageClientAndServerTest, AWatchOutlivesItsServer) {
  TestImageService service({.paused = true});
  server::CallGate gate(nullptr);
  server::ApiHandler handler(service, gate, {});
  absl::StatusOr<std::unique_ptr<server::HttpServer>> server = server::HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  const uint16_t port = (*server)->port();
  const auto client = ImageClient::Create({.address = absl::StrCat("127.0.0.1:", port), .retries = 1000});
  v1::ImageRequest request;
  request.set_prompt("red apple");
  const absl::StatusOr<v1::Job> job = (*client)->Submit(request);
  ASSERT_TRUE(job.ok()) << job.status();
  std::jthread restarts([&] {
    ASSERT_TRUE(service.WaitForWatches(1));
    *server = nullptr;
    ASSERT_TRUE(service.WaitForWatches(0));
    server = server::HttpServer::Start({.port = port}, handler);
    ASSERT_TRUE(server.ok()) << server.status();
    service.AllowSteps(1000);
  });
  const absl::StatusOr<v1::Job> ended = (*client)->Watch(job->id(), [](const v1::JobEvent&) {});
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state(), v1::JOB_STATE_DONE);
}

// Rounds the times that HTTP reports in seconds.
template <typename Message>
Message InSeconds(Message message) {
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = message.GetDescriptor()->field(i);
    const bool is_moment = absl::EndsWith(field->name(), "ed_ms") || field->name() == "expires_ms";
    if (!is_moment || (field->has_presence() && !reflection->HasField(message, field))) continue;
    reflection->SetInt64(&message, field, reflection->GetInt64(message, field) / 1000 * 1000);
  }
  return message;
}

TEST(ImageClientAndServerTest, AnAnswerOverHttpIsTheMessageThatGrpcHas) {
  ApiFixture api(
      {.service = {.nodes = {{.name = "node-a", .devices = {"cpu:0"}, .epoch = 1, .changed = absl::Now()}}}});
  const auto client = ImageClient::Create({.address = absl::StrCat("127.0.0.1:", api.port())});
  for (const char* prompt : {"[warn]", "[fail]", "[misfit]"}) {
    v1::ImageRequest request;
    request.set_prompt(prompt);
    request.set_negative_prompt("");
    request.set_n(2);
    request.set_seed(UINT64_MAX - 1);
    request.set_guidance_scale(0.1234567890123456);
    request.set_user("somebody");
    request.set_priority(-3);
    const absl::StatusOr<v1::Job> submitted = (*client)->Submit(request);
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    std::vector<std::string> events;
    const absl::StatusOr<v1::Job> ended = (*client)->Watch(submitted->id(), [&](const v1::JobEvent& event) {
      if (event.has_image()) events.push_back(event.image().ShortDebugString());
    });
    ASSERT_TRUE(ended.ok()) << ended.status();
    const absl::StatusOr<server::Job> job = api.service().Get({.tenant = "anonymous"}, submitted->id());
    ASSERT_TRUE(job.ok()) << job.status();
    const v1::Job expected = InSeconds(server::ToProto(*job));
    EXPECT_EQ(ended->DebugString(), expected.DebugString());
    std::vector<std::string> images;
    for (const v1::Image& image : expected.images()) images.push_back(image.ShortDebugString());
    EXPECT_THAT(events, UnorderedElementsAreArray(images)) << "they end in any order";
  }
  const absl::StatusOr<v1::ListModelsResponse> models = (*client)->ListModels();
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->models_size(), 1);
  EXPECT_EQ(models->models(0).DebugString(), server::ToProto(api.service().ListModels()[0]).DebugString());
  // A job may have ended before its group has released all of its images.
  WaitUntil("nothing runs", [&] { return api.service().Info().running_jobs == 0; });
  const absl::StatusOr<v1::ServerInfo> info = (*client)->GetServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  v1::ServerInfo expected = InSeconds(server::ToProto(api.service().Info()));
  for (v1::Node& node : *expected.mutable_nodes()) node = InSeconds(node);
  EXPECT_EQ(info->DebugString(), expected.DebugString());
}

}  // namespace
}  // namespace tessera
