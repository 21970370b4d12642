// Tests the gRPC server on a service with a fake worker, with a real client of the generated stubs.
#include "server/grpc/grpc_server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "control/pictures/picture_input.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/api/proto_values.h"
#include "server/api/request_fields.h"
#include "server/fetch/input_check.h"
#include "server/image/image_file.h"
#include "tessera/v1/image_service.grpc.pb.h"
#include "tests/support/scripted_web_server.h"
#include "tests/support/test_folder.h"
#include "tests/support/test_image_service.h"
#include "tests/support/wait_until.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(GrpcRequestTest, TheMessageHasTheFieldsOfTheTableButThoseForOpenAisClients) {
  const google::protobuf::Descriptor& message = *v1::ImageRequest::descriptor();
  std::set<std::string> missing, known;
  base::ForEachFieldOf<ImageRequest>([&](const auto& field) {
    const std::string name = ApiName(field.facts);
    if (field.facts.half) return;
    known.insert(name);
    if (message.FindFieldByName(name) == nullptr) missing.insert(name);
  });
  EXPECT_THAT(missing, ElementsAre("complexity", "input_fidelity", "moderation", "safety_identifier"));
  for (int i = 0; i < message.field_count(); ++i) EXPECT_TRUE(known.contains(message.field(i)->name()));
}

TEST(GrpcRequestTest, EveryFieldIsRead) {
  const google::protobuf::Descriptor& descriptor = *v1::ImageRequest::descriptor();
  std::set<std::string> digests = {RequestDigest(FromProto(v1::ImageRequest()))};
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = descriptor.field(i);
    v1::ImageRequest message;
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    switch (field->cpp_type()) {
      case google::protobuf::FieldDescriptor::CPPTYPE_STRING:
        reflection.SetString(&message, field, "x");
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_BOOL:
        reflection.SetBool(&message, field, false);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE:
        reflection.SetDouble(&message, field, 0);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_UINT64:
        reflection.SetUInt64(&message, field, 0);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE:
        field->is_repeated() ? reflection.AddMessage(&message, field) : reflection.MutableMessage(&message, field);
        break;
      default:
        field->is_repeated() ? reflection.AddInt64(&message, field, 0) : reflection.SetInt64(&message, field, 0);
    }
    EXPECT_TRUE(digests.insert(RequestDigest(FromProto(message))).second) << field->name();
  }
}

TEST(GrpcRequestTest, AnAdapterWithoutAScaleHasThatOfOne) {
  v1::ImageRequest message;
  message.add_loras()->set_name("a");
  message.add_loras()->set_name("b");
  message.mutable_loras(1)->set_scale(0);
  const std::vector<AdapterRequest> expected = {{.name = "a", .scale = 1}, {.name = "b", .scale = 0}};
  EXPECT_EQ(FromProto(message).loras, expected);
}

class GrpcServerTest : public ::testing::Test {
 protected:
  void StartWith(TestServiceOptions options = {}, std::unique_ptr<ApiKeys> keys = nullptr) {
    service_ = std::make_unique<TestImageService>(std::move(options));
    gate_ = std::make_unique<CallGate>(std::move(keys));
    auto server = GrpcServer::Start({.record =
                                         [this](const CallRecord& record) {
                                           const std::lock_guard lock(mutex_);
                                           records_.push_back(record);
                                           recorded_.notify_all();
                                         }},
                                    *service_, *gate_);
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

  std::mutex mutex_;
  std::condition_variable recorded_;
  std::vector<CallRecord> records_;
  std::unique_ptr<TestImageService> service_;
  std::unique_ptr<CallGate> gate_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::ImageService::Stub> stub_;
};

TEST_F(GrpcServerTest, GenerateSendsAcceptanceThenImagesWithTheirBytesThenTheEnd) {
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
  EXPECT_THAT(seeds, UnorderedElementsAre(9, 10)) << "images end in any order";
}

// Uses a client with gRPC's default limits, 4 MiB for a message.
class GrpcLargeFileTest : public GrpcServerTest {
 protected:
  static constexpr size_t kFileBytes = 9 << 20;
  static constexpr size_t kMaxMessageBytes = (64 << 10) + 4096;

  std::string Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    SetDeadline(context);
    const auto reader = stub_->Generate(&context, request);
    v1::JobEvent event;
    std::string file;
    while (reader->Read(&event)) {
      largest_ = std::max(largest_, event.ByteSizeLong());
      if (event.has_file_part()) file += event.file_part().data();
      EXPECT_TRUE(file.empty() || event.has_file_part() || event.has_image() || event.has_ended())
          << "between the parts of a file comes nothing";
      if (!event.has_image()) continue;
      file += event.image().file();
      image_ = event.image().id();
    }
    status_ = reader->Finish();
    return file;
  }

  // Returns the answers of GetImage, and checks its status.
  std::vector<v1::GetImageResponse> GetImage() {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::GetImageRequest request;
    request.set_id(image_);
    const auto reader = stub_->GetImage(&context, request);
    std::vector<v1::GetImageResponse> answers;
    v1::GetImageResponse answer;
    while (reader->Read(&answer)) answers.push_back(answer);
    status_ = reader->Finish();
    return answers;
  }

  std::string image_;
  size_t largest_ = 0;
  grpc::Status status_;
};

TEST_F(GrpcLargeFileTest, GenerateSendsItInPartsBeforeItsImage) {
  StartWith({.min_file_bytes = kFileBytes});
  const std::string file = Generate(Request("a"));
  ASSERT_TRUE(status_.ok()) << status_.error_message();
  EXPECT_TRUE(file == *base::ReadAll(*service_->OpenImage({.tenant = "anonymous"}, image_)->bytes));
  EXPECT_EQ(file.size(), kFileBytes);
  EXPECT_LE(largest_, kMaxMessageBytes);
}

TEST_F(GrpcLargeFileTest, OneThatFitsIntoAMessageIsWholeInItsEvent) {
  StartWith({.min_file_bytes = (1 << 20) - 4096});
  EXPECT_EQ(Generate(Request("a")).size(), (size_t{1} << 20) - 4096);
  EXPECT_GT(largest_, (size_t{1} << 20) - 4096);
  EXPECT_LE(largest_, size_t{1} << 20);
  EXPECT_EQ(GetImage().size(), 1u);
}

TEST_F(GrpcLargeFileTest, GetImageSendsItInParts) {
  StartWith({.min_file_bytes = kFileBytes});
  const std::string file = Generate(Request("a"));
  std::string fetched;
  for (const v1::GetImageResponse& answer : GetImage()) {
    EXPECT_EQ(answer.output_format(), "png");
    EXPECT_LE(answer.ByteSizeLong(), kMaxMessageBytes);
    fetched += answer.file();
  }
  EXPECT_TRUE(status_.ok()) << status_.error_message();
  EXPECT_TRUE(fetched == file);
  image_ = "img-0";
  EXPECT_EQ(GetImage().size(), 0u);
  EXPECT_EQ(status_.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GrpcLargeFileTest, OnRequestItIsOneMessageAlsoForAStubThatKnowsOneAnswer) {
  StartWith({.min_file_bytes = kFileBytes});
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(2 * kFileBytes);
  const auto channel = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                                 grpc::InsecureChannelCredentials(), arguments);
  stub_ = v1::ImageService::NewStub(channel);
  v1::GenerateRequest generate = Request("a");
  generate.set_whole_files(true);
  const std::string file = Generate(generate);
  EXPECT_EQ(file.size(), kFileBytes);
  EXPECT_GT(largest_, kFileBytes);

  grpc::TemplatedGenericStub<v1::GetImageRequest, v1::GetImageResponse> unary(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetImageRequest request;
  request.set_id(image_);
  request.set_whole_file(true);
  grpc::CompletionQueue queue;
  const auto call = unary.PrepareUnaryCall(&context, "/tessera.v1.ImageService/GetImage", request, &queue);
  call->StartCall();
  v1::GetImageResponse answer;
  call->Finish(&answer, &status_, nullptr);
  void* tag;
  bool ok;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status_.ok()) << status_.error_message();
  EXPECT_TRUE(answer.file() == file);
}

// A file that cannot be read to its end once it `fails`.
class FailingFile final : public base::ByteSource {
 public:
  FailingFile(base::SharedBytes bytes, const std::atomic<bool>& fails) : bytes_(std::move(bytes)), fails_(fails) {}
  uint64_t size() const override { return bytes_->size(); }
  absl::StatusOr<std::string> Read(uint64_t offset, size_t count) const override {
    if (fails_ && (offset > size() / 2 || count > size() / 2)) return absl::DataLossError("it was cut short");
    return bytes_->Read(offset, count);
  }

 private:
  const base::SharedBytes bytes_;
  const std::atomic<bool>& fails_;
};

TEST_F(GrpcLargeFileTest, AFileThatCannotBeReadToItsEndIsAnError) {
  std::atomic<bool> fails = false;
  StartWith({.min_file_bytes = kFileBytes, .file_of = [&](base::SharedBytes bytes) {
               return std::make_shared<FailingFile>(std::move(bytes), fails);
             }});
  v1::GenerateRequest request = Request("a");
  ASSERT_EQ(Generate(request).size(), kFileBytes);
  ASSERT_TRUE(status_.ok()) << status_.error_message();
  fails = true;
  size_t bytes = 0;
  for (const v1::GetImageResponse& answer : GetImage()) bytes += answer.file().size();
  EXPECT_EQ(status_.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(bytes, testing::AllOf(testing::Gt(0u), testing::Lt(kFileBytes)));
  EXPECT_LT(Generate(request).size(), kFileBytes);
  EXPECT_EQ(status_.error_code(), grpc::StatusCode::DATA_LOSS);
  request.set_whole_files(true);
  EXPECT_EQ(Generate(request).size(), 0u);
  EXPECT_EQ(status_.error_code(), grpc::StatusCode::DATA_LOSS);
}

TEST_F(GrpcLargeFileTest, AClientThatGoesAwayInTheMiddleEndsTheCall) {
  StartWith({.min_file_bytes = kFileBytes});
  Generate(Request("a"));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetImageRequest request;
  request.set_id(image_);
  const auto reader = stub_->GetImage(&context, request);
  v1::GetImageResponse answer;
  ASSERT_TRUE(reader->Read(&answer));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  std::unique_lock lock(mutex_);
  ASSERT_TRUE(recorded_.wait_for(lock, std::chrono::seconds(60), [this] { return records_.size() == 2; }));
  EXPECT_EQ(records_[1].status, static_cast<int>(grpc::StatusCode::CANCELLED));
}

TEST_F(GrpcServerTest, APageOfJobsWithLongPromptsIsNoLargerThanAMessage) {
  StartWith();
  constexpr int kJobs = 100;
  for (int i = 0; i < kJobs; ++i) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::SubmitRequest request;
    request.mutable_image()->set_prompt(std::string(32768, 'a'));
    request.mutable_image()->set_negative_prompt(std::string(32768, 'b'));
    v1::Job job;
    ASSERT_TRUE(stub_->Submit(&context, request, &job).ok());
  }
  std::set<std::string> jobs;
  v1::ListJobsRequest request;
  request.set_limit(100);
  do {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ListJobsResponse page;
    const grpc::Status status = stub_->ListJobs(&context, request, &page);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_LE(page.ByteSizeLong(), size_t{1} << 20);
    for (const v1::Job& job : page.jobs()) jobs.insert(job.id());
    request.set_after(page.next());
  } while (!request.after().empty());
  EXPECT_EQ(jobs.size(), kJobs);
}

TEST_F(GrpcServerTest, ARequestThatTheOperatorsCheckRefusesMakesNoJob) {
  StartWith();
  ScriptedWebServer judge(Sending(OkAnswer(R"({"allowed": false, "reason": "no cats"})")));
  gate_->SetRules({.input_check = std::make_shared<InputCheck>(InputCheck::Options{
                       .url = ParseHttpUrl(absl::StrCat("http://127.0.0.1:", judge.port(), "/")).value(),
                       .timeout = absl::Minutes(1)})});
  const auto expect_refused = [](const grpc::ClientContext& context, const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("no cats"));
    const auto found = context.GetServerTrailingMetadata().find("tessera-error-code");
    ASSERT_NE(found, context.GetServerTrailingMetadata().end());
    EXPECT_EQ(std::string(found->second.data(), found->second.size()), "moderation_blocked");
  };
  grpc::ClientContext generating, submitting, listing;
  for (grpc::ClientContext* context : {&generating, &submitting, &listing}) SetDeadline(*context);
  const auto reader = stub_->Generate(&generating, Request("a cat"));
  v1::JobEvent event;
  EXPECT_FALSE(reader->Read(&event));
  expect_refused(generating, reader->Finish());
  v1::SubmitRequest submission;
  *submission.mutable_image() = Request("a cat").image();
  v1::Job job;
  expect_refused(submitting, stub_->Submit(&submitting, submission, &job));
  EXPECT_EQ(judge.Requests().size(), 2u);
  v1::ListJobsResponse jobs;
  EXPECT_TRUE(stub_->ListJobs(&listing, {}, &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0);
}

// Confined processes need a build without a sanitizer (server/pictures/CMakeLists.txt).
TEST_F(GrpcServerTest, PicturesComeInTheMessage) {
  if (!DECODES_PICTURES) GTEST_SKIP() << "the decoder cannot be confined in this build";
  StartWith({.models = {{.name = "fake", .pictures = control::PictureInput::kStart}}});
  const auto bytes = [](const std::string& name) {
    std::ifstream file("tests/pictures/uploads/" + name, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  v1::SubmitRequest request;
  request.mutable_image()->set_prompt("a cat");
  request.mutable_image()->add_images()->set_data(bytes("rgb.png"));
  request.mutable_image()->mutable_mask()->set_data(bytes("rgba.png"));
  {
    grpc::ClientContext context;
    v1::Job job;
    const grpc::Status status = stub_->Submit(&context, request, &job);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(std::pair(job.width(), job.height()), std::pair(64, 48));  // like the picture of 19 x 13
    ASSERT_EQ(job.warnings_size(), 1);
    EXPECT_THAT(job.warnings(0), HasSubstr("strength: it is not given, so it is 0.6"));
    EXPECT_TRUE(service_->WaitForState(job.id(), JobState::kDone));
  }
  request.mutable_image()->mutable_mask()->set_data(bytes("rgb.png"));
  grpc::ClientContext context;
  v1::Job job;
  const grpc::Status status = stub_->Submit(&context, request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("mask has no alpha channel"));
}

TEST_F(GrpcServerTest, EveryErrorHasAWordForPrograms) {
  const TestFolder folder;
  const absl::StatusOr<NewKey> alice = NewApiKey("alice");
  auto keys = ApiKeys::Load(folder.Write("keys.txt", alice->line + "\n"), nullptr);
  ASSERT_TRUE(keys.ok()) << keys.status();
  StartWith({}, *std::move(keys));
  const auto word = [&](auto call, const std::string& secret) {
    grpc::ClientContext context;
    SetDeadline(context);
    context.AddMetadata("authorization", "Bearer " + secret);
    EXPECT_FALSE(call(context).ok());
    const auto found = context.GetServerTrailingMetadata().find("tessera-error-code");
    if (found == context.GetServerTrailingMetadata().end()) return std::string();
    return std::string(found->second.data(), found->second.size());
  };
  const auto generate = [&](v1::GenerateRequest request) {
    return [this, request](grpc::ClientContext& context) {
      const auto reader = stub_->Generate(&context, request);
      v1::JobEvent event;
      while (reader->Read(&event)) {
      }
      return reader->Finish();
    };
  };
  const auto get_job = [&](grpc::ClientContext& context) {
    v1::Job job;
    return stub_->GetJob(&context, v1::GetJobRequest(), &job);
  };
  const auto get_image = [&](grpc::ClientContext& context) {
    return stub_->GetImage(&context, v1::GetImageRequest())->Finish();
  };
  v1::GenerateRequest of_no_model = Request("a");
  of_no_model.mutable_image()->set_model("none");
  EXPECT_EQ(word(get_job, "wrong"), "invalid_api_key");
  EXPECT_EQ(word(get_job, alice->secret), "not_found");
  EXPECT_EQ(word(get_image, alice->secret), "not_found");
  EXPECT_EQ(word(generate(Request("")), alice->secret), "invalid_value");
  EXPECT_EQ(word(generate(of_no_model), alice->secret), "model_not_found");
  EXPECT_EQ(word(generate(Request("[refuse]")), alice->secret), "queue_full");
  EXPECT_EQ(word(generate(Request("[fail]")), alice->secret), "job_failed");
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
  EXPECT_EQ(status.error_message(), "num_inference_steps is 0; valid values are 1 to 1000, the nearest is 1");
  const auto field = context.GetServerTrailingMetadata().find("tessera-field");
  ASSERT_NE(field, context.GetServerTrailingMetadata().end());
  EXPECT_EQ(std::string(field->second.data(), field->second.size()), "num_inference_steps");
}

TEST_F(GrpcServerTest, EveryCallIsRecordedWithItsMethodStatusAndJob) {
  StartWith();
  for (const char* prompt : {"a", ""}) {
    grpc::ClientContext context;
    SetDeadline(context);
    const auto reader = stub_->Generate(&context, Request(prompt));
    v1::JobEvent event;
    while (reader->Read(&event)) {
    }
    (void)reader->Finish();
  }
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListModelsResponse models;
  EXPECT_TRUE(stub_->ListModels(&context, v1::ListModelsRequest(), &models).ok());
  const std::lock_guard lock(mutex_);
  ASSERT_EQ(records_.size(), 3u);
  EXPECT_EQ(records_[0].route, "/tessera.v1.ImageService/Generate");
  EXPECT_EQ(records_[0].status, 0);
  EXPECT_EQ(records_[0].tenant, "anonymous");
  EXPECT_THAT(records_[0].job, ::testing::StartsWith("job-"));
  EXPECT_GT(records_[0].response_bytes, 100u);
  EXPECT_EQ(records_[1].status, 3);
  EXPECT_EQ(records_[1].error_code, "INVALID_ARGUMENT");
  EXPECT_EQ(records_[2].route, "/tessera.v1.ImageService/ListModels");
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
  EXPECT_THAT(status.error_message(), HasSubstr("step2 fails as its script says"));
}

TEST_F(GrpcServerTest, WhatOnlyTheModelRefusesIsAnInvalidArgumentWithItsField) {
  StartWith();
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub_->Generate(&context, Request("[misfit]"));
  v1::JobEvent event;
  v1::Job ended;
  while (reader->Read(&event)) {
    if (event.has_ended()) ended = event.ended();
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "num_inference_steps is 7; the model takes fewer");
  const auto field = context.GetServerTrailingMetadata().find("tessera-field");
  ASSERT_NE(field, context.GetServerTrailingMetadata().end());
  EXPECT_EQ(std::string(field->second.data(), field->second.size()), "num_inference_steps");
  EXPECT_EQ(ended.error().code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(ended.error().message(), status.error_message());
}

TEST_F(GrpcServerTest, ACallWithoutAKnownKeyIsRecordedUnderItsRequestId) {
  const TestFolder folder;
  auto keys = ApiKeys::Load(folder.Write("keys.txt", NewApiKey("alice")->line + "\n"), nullptr);
  ASSERT_TRUE(keys.ok()) << keys.status();
  StartWith({}, *std::move(keys));
  for (const bool streams : {false, true}) {
    grpc::ClientContext context;
    SetDeadline(context);
    context.AddMetadata("x-request-id", "mine");
    if (streams) {
      const auto reader = stub_->Generate(&context, Request("a"));
      EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
    } else {
      v1::ListModelsResponse models;
      EXPECT_EQ(stub_->ListModels(&context, v1::ListModelsRequest(), &models).error_code(),
                grpc::StatusCode::UNAUTHENTICATED);
    }
  }
  std::unique_lock lock(mutex_);
  ASSERT_TRUE(recorded_.wait_for(lock, std::chrono::seconds(60), [this] { return records_.size() == 2; }));
  for (const CallRecord& record : records_) {
    EXPECT_EQ(record.request_id, "mine");
    EXPECT_EQ(record.tenant, "");
    EXPECT_EQ(record.status, static_cast<int>(grpc::StatusCode::UNAUTHENTICATED));
  }
}

TEST_F(GrpcServerTest, AJobThatKilledItsWorkersIsAFailedJobLikeAnyOther) {
  StartWith();
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub_->Generate(&context, Request("[die]"));
  v1::JobEvent event;
  while (reader->Read(&event)) {
  }
  ASSERT_TRUE(event.has_ended());
  EXPECT_EQ(event.ended().error().code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INTERNAL);
}

TEST_F(GrpcServerTest, CancellingGenerateCancelsItsJob) {
  StartWith({.paused = true});
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub_->Generate(&context, Request("a"));
  v1::JobEvent event;
  ASSERT_TRUE(reader->Read(&event));
  context.TryCancel();
  EXPECT_TRUE(service_->WaitForJobs(JobState::kCancelled, 1));
  EXPECT_TRUE(service_->WaitForWatches(0));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcServerTest, ACallThatIsCancelledWhileItsJobIsAcceptedLeavesNoJob) {
  std::promise<void> submitting, cancelled;
  StartWith({.paused = true, .before_submit = [&] {
               submitting.set_value();
               cancelled.get_future().wait_for(std::chrono::seconds(60));
             }});
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub_->Generate(&context, Request("a"));
  ASSERT_EQ(submitting.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  context.TryCancel();
  {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(recorded_.wait_for(lock, std::chrono::seconds(60), [this] { return !records_.empty(); }));
    EXPECT_EQ(records_[0].status, 1);
  }
  cancelled.set_value();
  EXPECT_TRUE(service_->WaitForJobs(JobState::kCancelled, 1));
  EXPECT_TRUE(service_->WaitForWatches(0));
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
  ASSERT_TRUE(service_->WaitForWatches(0));
  service_->AllowSteps(4);
  EXPECT_TRUE(service_->WaitForState(id, JobState::kDone));
}

TEST_F(GrpcServerTest, AWatchOfAnEndedJobReportsItsImagesAndItsEnd) {
  StartWith();
  grpc::ClientContext submitting;
  SetDeadline(submitting);
  v1::SubmitRequest submit;
  submit.mutable_image()->set_prompt("a");
  v1::Job job;
  ASSERT_TRUE(stub_->Submit(&submitting, submit, &job).ok());
  ASSERT_TRUE(service_->WaitForState(job.id(), JobState::kDone));
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
  request.set_id("job-000000000000000000000000000000000000000000000000");
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

TEST_F(GrpcServerTest, ReflectionListsThePublicApiAndNothingElse) {
  StartWith();
  namespace reflection = grpc::reflection::v1alpha;
  const auto stub = reflection::ServerReflection::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetDeadline(context);
  const auto stream = stub->ServerReflectionInfo(&context);
  const auto ask = [&](const auto& set) {
    reflection::ServerReflectionRequest request;
    set(request);
    reflection::ServerReflectionResponse response;
    EXPECT_TRUE(stream->Write(request));
    EXPECT_TRUE(stream->Read(&response));
    return response;
  };
  const auto list = ask([](auto& request) { request.set_list_services(""); });
  EXPECT_EQ(list.list_services_response().service(0).name(), "tessera.v1.ImageService");
  const auto file = ask([](auto& request) { request.set_file_containing_symbol("tessera.v1.ImageService"); });
  EXPECT_EQ(file.file_descriptor_response().file_descriptor_proto_size(), 1);
  const auto own = ask([](auto& request) { request.set_file_by_filename("google/protobuf/descriptor.proto"); });
  EXPECT_EQ(own.error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(GrpcServerTest, ReflectionDescribesEveryServiceThatItListsInBothOfItsVersions) {
  StartWith();
  const auto channel =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials());
  const auto check = [&](const auto& stub, auto request, auto response) {
    grpc::ClientContext context;
    SetDeadline(context);
    const auto stream = stub->ServerReflectionInfo(&context);
    request.set_list_services("");
    ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
    std::vector<std::string> names;
    for (const auto& service : response.list_services_response().service()) names.push_back(service.name());
    EXPECT_THAT(names, ElementsAre("tessera.v1.ImageService", "grpc.health.v1.Health",
                                   "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"));
    for (const std::string& name : names) {
      request.set_file_containing_symbol(name);
      ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
      EXPECT_EQ(response.file_descriptor_response().file_descriptor_proto_size(), 1) << name;
    }
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  };
  namespace v1 = grpc::reflection::v1;
  namespace v1alpha = grpc::reflection::v1alpha;
  check(v1::ServerReflection::NewStub(channel), v1::ServerReflectionRequest(), v1::ServerReflectionResponse());
  check(v1alpha::ServerReflection::NewStub(channel), v1alpha::ServerReflectionRequest(),
        v1alpha::ServerReflectionResponse());
}

TEST_F(GrpcServerTest, WithAProxyBeyondLoopbackThereIsNoReflection) {
  TestImageService service;
  CallGate gate(nullptr);
  const auto server = GrpcServer::Start({.address = "0.0.0.0", .behind_proxy = true}, service, gate);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = grpc::reflection::v1alpha::ServerReflection::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", (*server)->port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetDeadline(context);
  const auto stream = stub->ServerReflectionInfo(&context);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(GrpcServerTest, HealthFollowsTheServicesReadiness) {
  StartWith();
  const auto channel =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials());
  const auto serving = [&] {
    // HealthCheckRequest without a service, and HealthCheckResponse{status: SERVING}, in wire format.
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::CompletionQueue queue;
    grpc::ByteBuffer request, response;
    const grpc::Slice empty("");
    request = grpc::ByteBuffer(&empty, 1);
    const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    grpc::Slice slice;
    return status.ok() && response.DumpToSingleSlice(&slice).ok() &&
           std::string(slice.begin(), slice.end()) == "\x08\x01";
  };
  const auto becomes = [&](bool wanted) { return WaitUntil("health", [&] { return serving() == wanted; }); };
  EXPECT_TRUE(becomes(true));
  service_->SetReady(absl::UnavailableError("no group is warm"));
  EXPECT_TRUE(becomes(false));
  service_->SetReady(absl::OkStatus());
  EXPECT_TRUE(becomes(true));
}

TEST_F(GrpcServerTest, ACallWithoutAKeyIsUnauthenticatedAndJobsOfOthersAreNotThere) {
  const absl::StatusOr<NewKey> alice = NewApiKey("alice");
  const absl::StatusOr<NewKey> bob = NewApiKey("bob");
  const std::filesystem::path path = std::filesystem::temp_directory_path() / alice->secret.substr(11, 32);
  std::ofstream(path) << alice->line << "\n" << bob->line << "\n";
  auto keys = ApiKeys::Load(path, nullptr);
  ASSERT_TRUE(keys.ok()) << keys.status();
  StartWith({}, *std::move(keys));
  const auto submit = [&](const std::string& secret, v1::Job& job) {
    grpc::ClientContext context;
    SetDeadline(context);
    if (!secret.empty()) context.AddMetadata("authorization", "Bearer " + secret);
    v1::SubmitRequest request;
    request.mutable_image()->set_prompt("a");
    return stub_->Submit(&context, request, &job).error_code();
  };
  const auto get = [&](const std::string& secret, const std::string& id) {
    grpc::ClientContext context;
    SetDeadline(context);
    context.AddMetadata("authorization", "Bearer " + secret);
    v1::GetJobRequest request;
    request.set_id(id);
    v1::Job job;
    return stub_->GetJob(&context, request, &job).error_code();
  };
  v1::Job job;
  EXPECT_EQ(submit("", job), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(submit("wrong", job), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(submit(alice->secret, job), grpc::StatusCode::OK);
  EXPECT_EQ(get(alice->secret, job.id()), grpc::StatusCode::OK);
  EXPECT_EQ(get(bob->secret, job.id()), grpc::StatusCode::NOT_FOUND);
  std::filesystem::remove(path);
}

TEST_F(GrpcServerTest, RefusesToListenBeyondLoopbackWithoutAProxy) {
  TestImageService service;
  CallGate gate(nullptr);
  const auto server = GrpcServer::Start({.address = "0.0.0.0"}, service, gate);
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("behind_proxy"));
}

TEST_F(GrpcServerTest, RecordsTheTraceparentOfACallIfItIsWellFormed) {
  StartWith();
  const std::string valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  for (const std::string& sent : {valid, std::string("00-0af7-b7ad-01")}) {
    grpc::ClientContext context;
    SetDeadline(context);
    context.AddMetadata("traceparent", sent);
    v1::ListModelsResponse response;
    EXPECT_TRUE(stub_->ListModels(&context, {}, &response).ok());
  }
  std::unique_lock lock(mutex_);
  ASSERT_TRUE(recorded_.wait_for(lock, std::chrono::seconds(60), [this] { return records_.size() == 2; }));
  EXPECT_EQ(records_[0].trace_parent, valid);
  EXPECT_EQ(records_[1].trace_parent, "");
}

}  // namespace
}  // namespace tessera::server
