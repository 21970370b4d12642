#include "server/grpc/reflection_calls.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "tessera/v1/image_service.pb.h"

namespace tessera::server {
namespace {

namespace reflection = grpc::reflection::v1alpha;
using google::protobuf::FileDescriptor;

std::vector<const FileDescriptor*> PublicFiles() {
  return {v1::Job::descriptor()->file(), reflection::ServerReflectionRequest::descriptor()->file()};
}

// Nothing for what is not in the public files.
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

reflection::ServerReflectionResponse Answer(const reflection::ServerReflectionRequest& request) {
  reflection::ServerReflectionResponse response;
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
    case reflection::ServerReflectionRequest::kFileByFilename:
      answer_file(FileNamed(request.file_by_filename()));
      break;
    case reflection::ServerReflectionRequest::kFileContainingSymbol:
      answer_file(FileWithSymbol(request.file_containing_symbol()));
      break;
    case reflection::ServerReflectionRequest::kListServices:
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

// One question, one answer, until the client has no more. Deletes itself.
class Conversation final
    : public grpc::ServerBidiReactor<reflection::ServerReflectionRequest, reflection::ServerReflectionResponse> {
 public:
  Conversation() { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    response_ = Answer(request_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  reflection::ServerReflectionRequest request_;
  reflection::ServerReflectionResponse response_;
};

class Calls final : public reflection::ServerReflection::CallbackService {
 public:
  grpc::ServerBidiReactor<reflection::ServerReflectionRequest, reflection::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext*) override {
    return new Conversation();
  }
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflectionCalls() { return std::make_unique<Calls>(); }

}  // namespace tessera::server
