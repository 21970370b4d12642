// Serves gRPC reflection, versions v1 and v1alpha, for the services of the listener only, not for others that are
// linked into the process.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <vector>

namespace tessera::server {

std::vector<std::unique_ptr<grpc::Service>> MakeReflectionCalls();

}  // namespace tessera::server
