// Controls gRPC's own log messages.
#pragma once

namespace tessera::server {

// Suppresses gRPC's messages, which would mix with the server's log, unless GRPC_VERBOSITY is set in the environment.
void KeepGrpcQuiet();

}  // namespace tessera::server
