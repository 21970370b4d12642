#include "server/grpc/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdlib>

namespace tessera::server {

void KeepGrpcQuiet() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace tessera::server
