// The gRPC edge over the fake service, through a real client of the generated stubs.
#include "server/grpc/grpc_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/service/fake_image_service.h"
#include "tessera/v1/image_service.grpc.pb.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GrpcServerTest : public ::testing::Test {
 protected:
  void StartWith(FakeServiceOptions options = {}, std::unique_ptr<ApiKeys> keys = nullptr) {
    service_ = std::make_unique<FakeImageService>(std::move(options));
    gate_ = std::make_unique<CallGate>(std::move(keys));
    auto server = GrpcServer::Start({}, *service_, *gate_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::ImageService::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials()));
  }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  static v1::GenerateRequest Request(const std::string& prompt) {
    v1::GenerateRequest request;
    request.mutable_image()->set_prompt(prompt);
    request.mutable_image()->set_size("32x48");
    return request;
  }

  std::unique_ptr<FakeImageService> service_;
  std::unique_ptr<CallGate> gate_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::ImageService::Stub> stub_;
};

TEST_F(GrpcServerTest, GenerateTellsAcceptanceThenImagesWithTheirBytesThenTheEnd) {
  StartWith();
  v1::GenerateRequest request = Request("a");
  request.mutable_image()->set_n(2);
  request.mutable_image()->set_seed(9);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub_->Generate(&context, request);
  std::vector<v1::JobEvent::EventCase> kinds;
  std::vector<uint64_t> seeds;
  v1::JobEvent event;
  while (reader->Read(&event)) {
    if (event.has_queued() || event.has_started() || event.has_step()) continue;
    kinds.push_back(event.event_case());
    if (!event.has_image()) continue;
    seeds.push_back(event.image().seed());
    const absl::StatusOr<DecodedImage> image = DecodeImage(event.image().file());
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->image.height, 48);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(kinds,
              ElementsAre(v1::JobEvent::kAccepted, v1::JobEvent::kImage, v1::JobEvent::kImage, v1::JobEvent::kEnded));
  EXPECT_THAT(seeds, ElementsAre(9, 10));
}

TEST_F(GrpcServerTest, AnErrorNamesTheFieldInItsMessageAndItsMetadata) {
  StartWith();
  v1::SubmitRequest request;
  request.mutable_image()->set_prompt("a");
  request.mutable_image()->set_num_inference_steps(0);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::Job job;
  const grpc::Status status = stub_->Submit(&context, request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "num_inference_steps is 0; legal is 1 to 1000, the nearest is 1");
  const auto field = context.GetServerTrailingMetadata().find("tessera-field");
  ASSERT_NE(field, context.GetServerTrailingMetadata().end());
  EXPECT_EQ(std::string(field->second.data(), field->second.size()), "num_inference_steps");
}

TEST_F(GrpcServerTest, AFullQueueSaysWhenToTryAgain) {
  StartWith();
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub_->Generate(&context, Request("[refuse]"));
  v1::JobEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto wait = context.GetServerTrailingMetadata().find("retry-after-ms");
  ASSERT_NE(wait, context.GetServerTrailingMetadata().end());
  EXPECT_EQ(std::string(wait->second.data(), wait->second.size()), "2000");
}

TEST_F(GrpcServerTest, AFailedJobEndsItsGenerateWithItsError) {
  StartWith();
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub_->Generate(&context, Request("[fail]"));
  v1::JobEvent event;
  while (reader->Read(&event)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), HasSubstr("the prompt asks for a failure"));
}

TEST_F(GrpcServerTest, CancellingGenerateCancelsItsJob) {
  StartWith({.paused = true});
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub_->Generate(&context, Request("a"));
  v1::JobEvent event;
  ASSERT_TRUE(reader->Read(&event));
  context.TryCancel();
  EXPECT_TRUE(service_->WaitForJobs(JobState::kCancelled, 1, absl::Seconds(60)));
  EXPECT_TRUE(service_->WaitForWatches(0, absl::Seconds(60)));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcServerTest, AGenerateWithAnIdempotencyKeyLeavesItsJobRunning) {
  StartWith({.paused = true});
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GenerateRequest request = Request("a");
  request.set_idempotency_key("again");
  const auto reader = stub_->Generate(&context, request);
  v1::JobEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const std::string id = event.accepted().id();
  context.TryCancel();
  ASSERT_TRUE(service_->WaitForWatches(0, absl::Seconds(60)));
  service_->AllowSteps(4);
  EXPECT_TRUE(service_->WaitForState(id, JobState::kDone, absl::Seconds(60)));
}

TEST_F(GrpcServerTest, AWatchOfAnEndedJobTellsItsImagesAndItsEnd) {
  StartWith();
  grpc::ClientContext submitting;
  SetDeadline(submitting);
  v1::SubmitRequest submit;
  submit.mutable_image()->set_prompt("a");
  v1::Job job;
  ASSERT_TRUE(stub_->Submit(&submitting, submit, &job).ok());
  ASSERT_TRUE(service_->WaitForState(job.id(), JobState::kDone, absl::Seconds(60)));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchJobRequest watch;
  watch.set_id(job.id());
  const auto reader = stub_->WatchJob(&context, watch);
  std::vector<v1::JobEvent::EventCase> kinds;
  v1::JobEvent event;
  while (reader->Read(&event)) kinds.push_back(event.event_case());
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(kinds, ElementsAre(v1::JobEvent::kStarted, v1::JobEvent::kImage, v1::JobEvent::kEnded));
}

TEST_F(GrpcServerTest, AJobThatIsNotThereIsNotFound) {
  StartWith();
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetJobRequest request;
  request.set_id("job_00000000000000000000000000000000");
  v1::Job job;
  EXPECT_EQ(stub_->GetJob(&context, request, &job).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GrpcServerTest, AMessageBeyondTheLimitIsRefusedAndTheServerLives) {
  StartWith();
  v1::GetJobRequest request;
  request.set_id(std::string(2 << 20, 'a'));
  v1::Job job;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_EQ(stub_->GetJob(&context, request, &job).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  grpc::ClientContext again;
  SetDeadline(again);
  v1::ListModelsResponse models;
  EXPECT_TRUE(stub_->ListModels(&again, v1::ListModelsRequest(), &models).ok());
}

TEST_F(GrpcServerTest, RefusesToListenBeyondLoopbackWithoutAProxy) {
  FakeImageService service;
  CallGate gate(nullptr);
  const auto server = GrpcServer::Start({.address = "0.0.0.0"}, service, gate);
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("behind_proxy"));
}

}  // namespace
}  // namespace tessera
