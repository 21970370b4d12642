// Compares the client library's JSON with the messages of the server's two edges.
#include "client/sdk/json_messages.h"

#include <gmock/gmock.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/proto_values.h"
#include "server/http/image_request_json.h"
#include "server/http/job_json.h"

namespace tessera {
namespace {

// Every kind of event, as the server writes it for HTTP and for gRPC.
TEST(JsonMessagesTest, AnEventIsTheMessageThatGrpcHas) {
  const std::string file("a\0file", 6);
  for (const server::JobEvent& event :
       std::vector<server::JobEvent>{server::QueuedEvent{.position = 3, .expected_wait = absl::Milliseconds(1234)},
                                     server::QueuedEvent{.position = 0}, server::StartedEvent{},
                                     server::StepEvent{.image = 1, .step = 2, .steps = 3},
                                     server::PreviewEvent{.image = 1,
                                     .preview = 2,
                                     .width = 32,
                                     .height = 48,
                                     .format = server::ImageFormat::kWebp,
                                     .bytes = std::make_shared<const std::string>(file)}}) {
    client::EventStream stream;
    std::vector<client::ServerEvent> sent;
    ASSERT_TRUE(stream.Take(server::JobEventText(event, "http://localhost:8080"), sent).ok());
    ASSERT_EQ(sent.size(), 1u);
    const absl::StatusOr<std::optional<v1::JobEvent>> read = client::EventOf(sent[0]);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_TRUE(read->has_value());
    EXPECT_EQ((*read)->DebugString(), server::ToProto(event).DebugString());
  }
}

// Sets each field to a different value.
void FillFields(v1::ImageRequest& request) {
  const auto* reflection = request.GetReflection();
  for (int i = 0; i < request.GetDescriptor()->field_count(); ++i) {
    const auto* field = request.GetDescriptor()->field(i);
    if (field->message_type() != nullptr) continue;
    if (field->is_repeated()) {
      for (const int64_t number : {7, 0, 9}) reflection->AddInt64(&request, field, number);
      continue;
    }
    switch (field->cpp_type()) {
      case google::protobuf::FieldDescriptor::CPPTYPE_INT64:
        reflection->SetInt64(&request, field, i % 2 == 0 ? i : -i);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_UINT64:
        reflection->SetUInt64(&request, field, UINT64_MAX - i);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE:
        reflection->SetDouble(&request, field, 1.0 / (i + 3));
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_BOOL:
        reflection->SetBool(&request, field, i % 2 == 0);
        break;
      default:
        reflection->SetString(&request, field, absl::StrCat("\"ä\n", field->name()));
    }
  }
  request.add_loras()->set_name("\"ä\n");
  request.add_loras()->set_name("b");
  request.mutable_loras(1)->set_scale(-0.1);
}

TEST(JsonMessagesTest, ARequestMeansWhatItMeansOverGrpc) {
  v1::ImageRequest all, prompt_alone;
  FillFields(all);
  for (const v1::ImageRequest& request : {all, prompt_alone}) {
    const absl::StatusOr<std::string> json = client::ToJson(request);
    ASSERT_TRUE(json.ok()) << json.status();
    const absl::StatusOr<server::GenerationBody> body = server::ReadGenerationBody(*json, server::BodyKind::kJob);
    ASSERT_TRUE(body.ok()) << body.status() << *json;
    EXPECT_EQ(server::RequestDigest(body->request), server::RequestDigest(server::FromProto(request))) << *json;
  }
  all.set_guidance_scale(std::numeric_limits<double>::infinity());
  EXPECT_EQ(client::ToJson(all).status().code(), absl::StatusCode::kInvalidArgument);
  prompt_alone.add_loras()->set_scale(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(client::ToJson(prompt_alone).status().message(), "scale is nan; it must be a number");
}

}  // namespace
}  // namespace tessera
