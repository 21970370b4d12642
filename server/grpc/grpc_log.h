// What gRPC itself has to say.
#pragma once

namespace tessera::server {

// gRPC's own messages would mix with ours. They come with GRPC_VERBOSITY in the environment.
void KeepGrpcQuiet();

}  // namespace tessera::server
