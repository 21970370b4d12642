// Implements tessera.v1.ImageService on gRPC's callback interface. Every call runs on a task pool, because the service
// may wait for the disk and gRPC's threads must not.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "base/threads/task_pool.h"
#include "server/api/image_service.h"
#include "server/calls/call_gate.h"
#include "server/calls/call_record.h"

namespace tessera::server {

// All arguments must outlive the returned service, and the pool its calls. `begin` and `record` may be null.
std::unique_ptr<grpc::Service> MakeImageServiceCalls(ImageService& service, CallGate& gate, base::TaskPool& pool,
                                                     CallBeginner begin, CallRecorder record);

}  // namespace tessera::server
