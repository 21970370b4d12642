// gRPC reflection of the public API alone: what else is linked into the process is not told.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>

namespace tessera::server {

std::unique_ptr<grpc::Service> MakeReflectionCalls();

}  // namespace tessera::server
