// BroadcastPrompt sends the first rank's encoded prompt to the other ranks. Only the first rank has text encoders and a
// prompt cache.
#pragma once

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "models/families/family.h"
#include "parallel/communicator.h"

namespace tessera::runtime {

// Returns the first rank's `prompt` on every rank of `world`: the same conditioning, bit for bit, or the same error.
// The other ranks' `prompt` is ignored. Tensors arrive on `device`, which may differ between ranks. Their description
// is sent through `control`, which connects the same ranks in host memory.
//
// Every rank must call it, also after an error. Throws CommError if the ranks cannot be reached or if the received data
// is not a prompt.
absl::StatusOr<models::EncodedPrompt> BroadcastPrompt(absl::StatusOr<models::EncodedPrompt> prompt,
                                                      parallel::Communicator& control, parallel::Communicator& world,
                                                      at::Device device);

}  // namespace tessera::runtime
