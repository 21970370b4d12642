// gRPC reflection, in its versions v1 and v1alpha, of the services that the listener has and of nothing else that is
// linked into the process.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <vector>

namespace tessera::server {

std::vector<std::unique_ptr<grpc::Service>> MakeReflectionCalls();

}  // namespace tessera::server
