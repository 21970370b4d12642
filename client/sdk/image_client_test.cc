// The client library against a service of scripted answers, and against the real gRPC edge.
#include "tessera/image_client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"
#include "server/grpc/grpc_server.h"
#include "tessera/v1/image_service.grpc.pb.h"
#include "tests/support/fake_image_service.h"
#include "tests/tls/self_signed.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using EventWriter = grpc::ServerWriter<v1::JobEvent>;

grpc::Status Refuse(grpc::ServerContext& context, grpc::StatusCode code, const std::string& wait_ms = "") {
  if (!wait_ms.empty()) context.AddTrailingMetadata("retry-after-ms", wait_ms);
  context.AddTrailingMetadata("tessera-error-code", "a_word");
  return {code, "refused"};
}

v1::JobEvent ImageOf(int index) {
  v1::JobEvent event;
  event.mutable_image()->set_index(index);
  return event;
}

v1::JobEvent EndOf(v1::JobState state) {
  v1::JobEvent event;
  event.mutable_ended()->set_id("job_1");
  event.mutable_ended()->set_state(state);
  if (state == v1::JOB_STATE_FAILED) {
    event.mutable_ended()->mutable_error()->set_code(grpc::StatusCode::INTERNAL);
    event.mutable_ended()->mutable_error()->set_message("the reason");
  }
  return event;
}

v1::JobEvent Accepted() {
  v1::JobEvent event;
  event.mutable_accepted()->set_id("job_1");
  return event;
}

// Answers the call of a number, from 0, as the test says.
class ScriptedService final : public v1::ImageService::Service {
 public:
  std::function<grpc::Status(int, grpc::ServerContext&, const v1::SubmitRequest&, v1::Job&)> submit;
  std::function<grpc::Status(int, grpc::ServerContext&, EventWriter&)> watch;
  std::function<grpc::Status(int, grpc::ServerContext&, const v1::GenerateRequest&, EventWriter&)> generate;

  std::vector<std::string> cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  int calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

  grpc::Status Submit(grpc::ServerContext* context, const v1::SubmitRequest* request, v1::Job* job) override {
    return submit(NextCall(), *context, *request, *job);
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest*, EventWriter* writer) override {
    return watch(NextCall(), *context, *writer);
  }
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        EventWriter* writer) override {
    return generate(NextCall(), *context, *request, *writer);
  }
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request, v1::Job*) override {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(request->id());
    return grpc::Status::OK;
  }
  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* info) override {
    const auto key = context->client_metadata().find("authorization");
    if (key != context->client_metadata().end()) info->set_version(std::string(key->second.data(), key->second.size()));
    return grpc::Status::OK;
  }

 private:
  int NextCall() {
    const std::lock_guard lock(mutex_);
    return calls_++;
  }

  mutable std::mutex mutex_;
  int calls_ = 0;
  std::vector<std::string> cancelled_;
};

class ImageClientTest : public ::testing::Test {
 protected:
  ~ImageClientTest() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  void Serve(const std::shared_ptr<grpc::ServerCredentials>& credentials = grpc::InsecureServerCredentials()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  std::unique_ptr<ImageClient> Client(ImageClientOptions options = {}) const {
    if (options.address == ImageClientOptions().address) options.address = absl::StrCat("127.0.0.1:", port_);
    absl::StatusOr<std::unique_ptr<ImageClient>> client = ImageClient::Create(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  ImageClient::OnEvent Record() {
    return [this](const v1::JobEvent& event) {
      told_.push_back(event.has_image()      ? absl::StrCat("image ", event.image().index())
                      : event.has_ended()    ? "ended"
                      : event.has_accepted() ? "accepted"
                                             : "other");
    };
  }

  ScriptedService service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::vector<std::string> told_;
};

TEST_F(ImageClientTest, ARefusalIsTriedAgainAfterTheTimeThatTheServerNames) {
  Serve();
  service_.submit = [](int call, grpc::ServerContext& context, const v1::SubmitRequest&, v1::Job& job) {
    if (call == 0) return Refuse(context, grpc::RESOURCE_EXHAUSTED, "1");
    if (call == 1) return Refuse(context, grpc::UNAVAILABLE);
    job.set_id("job_1");
    return grpc::Status::OK;
  };
  const absl::StatusOr<v1::Job> job = Client()->Submit({});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->id(), "job_1");
  EXPECT_EQ(service_.calls(), 3);
}

TEST_F(ImageClientTest, ARefusalThatNamesNoTimeIsTheAnswer) {
  Serve();
  service_.submit = [](int, grpc::ServerContext& context, const v1::SubmitRequest&, v1::Job&) {
    context.AddTrailingMetadata("tessera-field", "prompt");
    return Refuse(context, grpc::RESOURCE_EXHAUSTED);
  };
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
  service_.submit = [](int, grpc::ServerContext& context, const v1::SubmitRequest&, v1::Job&) {
    return Refuse(context, grpc::UNAVAILABLE, "3600000");
  };
  const absl::Status status = Client()->Submit({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(RefusalOf(status).retry_after, absl::Hours(1));
  EXPECT_EQ(service_.calls(), 1);
}

TEST_F(ImageClientTest, GivesUpAfterAsManyRetriesAsItIsTold) {
  Serve();
  service_.submit = [](int, grpc::ServerContext& context, const v1::SubmitRequest&, v1::Job&) {
    return Refuse(context, grpc::UNAVAILABLE);
  };
  EXPECT_EQ(Client({.retries = 2})->Submit({}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(service_.calls(), 3);
}

TEST_F(ImageClientTest, ASubmissionWhoseAnswerIsLostIsSentAgainUnderTheSameKey) {
  Serve();
  std::vector<std::string> keys;
  service_.submit = [&keys](int call, grpc::ServerContext&, const v1::SubmitRequest& request, v1::Job&) {
    keys.push_back(request.idempotency_key());
    return call == 0 ? grpc::Status(grpc::UNAVAILABLE, "") : grpc::Status::OK;
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

TEST_F(ImageClientTest, ALostWatchComesBackAndTellsEachImageOnce) {
  Serve();
  service_.watch = [](int call, grpc::ServerContext&, EventWriter& writer) {
    writer.Write(ImageOf(0));
    if (call == 0) return grpc::Status(grpc::UNAVAILABLE, "Socket closed");
    if (call == 1) return grpc::Status(grpc::CANCELLED, "the server shuts down");
    if (call == 2) return grpc::Status::OK;  // without the end
    writer.Write(ImageOf(1));
    writer.Write(EndOf(v1::JOB_STATE_DONE));
    return grpc::Status::OK;
  };
  // Each stream told something, so that none of the failures is a second one in a row.
  const absl::StatusOr<v1::Job> job = Client({.retries = 1})->Watch("job_1", Record());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_DONE);
  EXPECT_THAT(told_, ElementsAre("image 0", "image 1", "ended"));
}

TEST_F(ImageClientTest, AnEndThatWasToldIsKeptWhateverBecomesOfTheStream) {
  Serve();
  service_.watch = [](int, grpc::ServerContext&, EventWriter& writer) {
    writer.Write(EndOf(v1::JOB_STATE_CANCELLED));
    return grpc::Status(grpc::UNAVAILABLE, "Socket closed");
  };
  const absl::StatusOr<v1::Job> job = Client()->Watch("job_1", Record());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(service_.calls(), 1);
}

TEST_F(ImageClientTest, AJobThatFailsIsAnErrorOfGenerateAndAStateOfWatch) {
  Serve();
  service_.generate = [](int, grpc::ServerContext&, const v1::GenerateRequest&, EventWriter& writer) {
    writer.Write(Accepted());
    writer.Write(EndOf(v1::JOB_STATE_FAILED));
    return grpc::Status(grpc::INTERNAL, "the reason");
  };
  service_.watch = [](int, grpc::ServerContext&, EventWriter& writer) {
    writer.Write(EndOf(v1::JOB_STATE_FAILED));
    return grpc::Status::OK;
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
  service_.generate = [&keys](int call, grpc::ServerContext&, const v1::GenerateRequest& request, EventWriter& writer) {
    keys.push_back(request.idempotency_key());
    writer.Write(Accepted());
    if (call == 0) return grpc::Status(grpc::UNAVAILABLE, "Socket closed");
    writer.Write(ImageOf(0));
    writer.Write(EndOf(v1::JOB_STATE_DONE));
    return grpc::Status::OK;
  };
  const absl::StatusOr<v1::Job> job = Client()->Generate({}, Record());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(told_, ElementsAre("accepted", "image 0", "ended"));
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0], keys[1]);
  EXPECT_THAT(service_.cancelled(), IsEmpty());
}

// A generation that goes on until its caller is gone.
grpc::Status GoOn(grpc::ServerContext& context, EventWriter& writer) {
  writer.Write(Accepted());
  while (!context.IsCancelled()) writer.Write(v1::JobEvent());
  return grpc::Status::CANCELLED;
}

TEST_F(ImageClientTest, AStoppedGenerationTakesItsJobAlong) {
  Serve();
  service_.generate = [](int, grpc::ServerContext& context, const v1::GenerateRequest&, EventWriter& writer) {
    return GoOn(context, writer);
  };
  std::stop_source stop;
  const absl::StatusOr<v1::Job> job = Client()->Generate({}, [&](const v1::JobEvent&) { stop.request_stop(); },
                                                         {.timeout = {}, .stop = stop.get_token()});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(service_.cancelled(), ElementsAre("job_1"));
}

TEST_F(ImageClientTest, AGenerationThatTakesTooLongTakesItsJobAlong) {
  Serve();
  service_.generate = [](int, grpc::ServerContext& context, const v1::GenerateRequest&, EventWriter& writer) {
    return GoOn(context, writer);
  };
  service_.submit = [](int, grpc::ServerContext&, const v1::SubmitRequest& request, v1::Job& job) {
    job.set_id("job_1");
    return request.idempotency_key().empty() ? grpc::Status(grpc::INTERNAL, "another job") : grpc::Status::OK;
  };
  const absl::StatusOr<v1::Job> job = Client()->Generate({}, Record(), {.timeout = absl::Milliseconds(200)});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(service_.cancelled(), ElementsAre("job_1"));
}

TEST_F(ImageClientTest, AJobUnderAKeyOfTheCallersIsLeftToTheCaller) {
  Serve();
  service_.generate = [](int, grpc::ServerContext& context, const v1::GenerateRequest&, EventWriter& writer) {
    return GoOn(context, writer);
  };
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
  options.address = "127.0.0.1:1";  // nobody listens there
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

TEST_F(ImageClientTest, OptionsThatAreNotLegalAreRefused) {
  for (const ImageClientOptions& options :
       {ImageClientOptions{.address = ""}, ImageClientOptions{.api_key = "a\nb"},
        ImageClientOptions{.root_certificates = "PEM"}, ImageClientOptions{.retries = -1}}) {
    EXPECT_EQ(ImageClient::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST_F(ImageClientTest, OverTlsItTrustsOnlyWhomItIsToldTo) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / RandomId("tessera-client-");
  std::filesystem::create_directory(folder);
  std::string certificates[2], key;
  for (const int i : {1, 0}) {
    const TlsCertificates::Files files = {.certificate_chain = folder / "chain.pem", .private_key = folder / "key.pem"};
    WriteSelfSigned("localhost", files);
    certificates[i] = ReadText(files.certificate_chain);
    key = ReadText(files.private_key);
  }
  std::filesystem::remove_all(folder);
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({key, certificates[0]});
  Serve(grpc::SslServerCredentials(options));
  const auto call = [&](const std::string& host, const std::string& roots) {
    return Client({.address = absl::StrCat(host, ":", port_),
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
  FakeImageService service({.step_time = absl::ZeroDuration()});
  CallGate gate(nullptr);
  const absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start({}, service, gate);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto created = ImageClient::Create({.address = absl::StrCat("127.0.0.1:", (*server)->port())});
  ASSERT_TRUE(created.ok()) << created.status();
  ImageClient& client = **created;

  v1::ImageRequest request;
  request.set_prompt("red apple");
  request.set_n(2);
  std::vector<std::string> files;
  const absl::StatusOr<v1::Job> generated = client.Generate(request, [&](const v1::JobEvent& event) {
    if (event.has_image()) files.push_back(event.image().file());
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
  EXPECT_THAT(client.Generate(request, [](const v1::JobEvent&) {}).status().message(), HasSubstr("failure"));
}

TEST(ImageClientAndServerTest, AWatchOutlivesItsServer) {
  FakeImageService service({.paused = true});
  CallGate gate(nullptr);
  absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start({}, service, gate);
  ASSERT_TRUE(server.ok()) << server.status();
  const uint16_t port = (*server)->port();
  const auto client = ImageClient::Create({.address = absl::StrCat("127.0.0.1:", port), .retries = 1000});
  v1::ImageRequest request;
  request.set_prompt("red apple");
  const absl::StatusOr<v1::Job> job = (*client)->Submit(request);
  ASSERT_TRUE(job.ok()) << job.status();
  std::jthread restarts([&] {
    ASSERT_TRUE(service.WaitForWatches(1, absl::Seconds(60)));
    *server = nullptr;
    ASSERT_TRUE(service.WaitForWatches(0, absl::Seconds(60)));
    server = GrpcServer::Start({.port = port}, service, gate);
    ASSERT_TRUE(server.ok()) << server.status();
    service.AllowSteps(1000);
  });
  const absl::StatusOr<v1::Job> ended = (*client)->Watch(job->id(), [](const v1::JobEvent&) {});
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->state(), v1::JOB_STATE_DONE);
}

}  // namespace
}  // namespace tessera
