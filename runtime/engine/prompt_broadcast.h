// Hands what one rank encoded to the others: text encoders, their weights and the cache of prompts are the first rank's
// alone.
#pragma once

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "models/families/family.h"
#include "parallel/communicator.h"

namespace tessera::runtime {

// Returns on every rank of `world` what the first one gives as `prompt`: the same conditioning, bit for bit, or the
// same error. What the others give is not looked at. Tensors arrive on `device`, which may differ between ranks; what
// describes them goes through `control`, the same ranks in host memory.
//
// Every rank must call it, after an error too. Throws CommError where the ranks cannot be reached, or where what
// arrives is no prompt.
absl::StatusOr<models::EncodedPrompt> BroadcastPrompt(absl::StatusOr<models::EncodedPrompt> prompt,
                                                      parallel::Communicator& control, parallel::Communicator& world,
                                                      at::Device device);

}  // namespace tessera::runtime
