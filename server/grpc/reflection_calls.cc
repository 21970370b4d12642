#include "server/grpc/reflection_calls.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "tessera/v1/image_service.pb.h"

namespace tessera::server {
namespace {

using google::protobuf::FileDescriptor;

namespace reflection_v1 = grpc::reflection::v1;
namespace reflection_v1alpha = grpc::reflection::v1alpha;

// Returns the files of all services of the listener.
std::vector<const FileDescriptor*> PublicFiles() {
  return {v1::Job::descriptor()->file(), grpc::health::v1::HealthCheckRequest::descriptor()->file(),
          reflection_v1::ServerReflectionRequest::descriptor()->file(),
          reflection_v1alpha::ServerReflectionRequest::descriptor()->file()};
}

// Returns null for a symbol that is not in the public files.
const FileDescriptor* FileWithSymbol(const std::string& symbol) {
  const google::protobuf::DescriptorPool& pool = *google::protobuf::DescriptorPool::generated_pool();
  const FileDescriptor* found = pool.FindFileContainingSymbol(symbol);
  for (const FileDescriptor* file : PublicFiles()) {
    if (file == found) return file;
  }
  return nullptr;
}

const FileDescriptor* FileNamed(const std::string& name) {
  for (const FileDescriptor* file : PublicFiles()) {
    if (file->name() == name) return file;
  }
  return nullptr;
}

// The messages of both protocol versions have the same fields.
template <typename Request, typename Response>
Response Answer(const Request& request) {
  Response response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const auto answer_file = [&](const FileDescriptor* file) {
    if (file == nullptr) {
      response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
      response.mutable_error_response()->set_error_message("there is no such symbol or file");
      return;
    }
    google::protobuf::FileDescriptorProto proto;
    file->CopyTo(&proto);
    response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  };
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      answer_file(FileNamed(request.file_by_filename()));
      break;
    case Request::kFileContainingSymbol:
      answer_file(FileWithSymbol(request.file_containing_symbol()));
      break;
    case Request::kListServices:
      for (const FileDescriptor* file : PublicFiles()) {
        for (int i = 0; i < file->service_count(); ++i) {
          response.mutable_list_services_response()->add_service()->set_name(file->service(i)->full_name());
        }
      }
      break;
    default:
      response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
      response.mutable_error_response()->set_error_message("the API has no extensions");
  }
  return response;
}

// Answers each question until the client sends no more. Deletes itself.
template <typename Request, typename Response>
class Conversation final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  Conversation() { this->StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    response_ = Answer<Request, Response>(request_);
    this->StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::CANCELLED);
    this->StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  Request request_;
  Response response_;
};

template <typename Service, typename Request, typename Response>
class ReflectionCalls final : public Service::CallbackService {
 public:
  grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(grpc::CallbackServerContext*) override {
    return new Conversation<Request, Response>();
  }
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> MakeReflectionCalls() {
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(
      std::make_unique<ReflectionCalls<reflection_v1::ServerReflection, reflection_v1::ServerReflectionRequest,
                                       reflection_v1::ServerReflectionResponse>>());
  services.push_back(std::make_unique<
                     ReflectionCalls<reflection_v1alpha::ServerReflection, reflection_v1alpha::ServerReflectionRequest,
                                     reflection_v1alpha::ServerReflectionResponse>>());
  return services;
}

}  // namespace tessera::server
