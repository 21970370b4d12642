// Implements `tessera generate --server`: submits a job to a server and writes its images to local files.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/exit_code.h"
#include "client/cli/generation_options.h"
#include "client/cli/interrupts.h"
#include "client/cli/models/picture_options.h"
#include "client/cli/remote/server_connection.h"

namespace tessera::client {

struct RemoteGenerationOptions {
  ServerOptions server;
  std::string model;  // empty: the server's default
  GenerationOptions generation;
  PictureOptions pictures;
  std::string idempotency_key;  // empty: a key that is unique to this command
  int32_t preview_every = 0;    // steps; 0: none
  std::string output;
  bool overwrite = false;
  bool json = false;
  bool quiet = false;
};

// An interruption cancels the job on the server; images that are already written are kept.
ExitCode GenerateRemotely(const RemoteGenerationOptions& options, Interrupts& interrupts);

}  // namespace tessera::client
