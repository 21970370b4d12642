// What the rest of the project knows of a model family: the glue between a user's request and its transformer.
// Samplers, noise, batching, parallelism and the server know no family; a family is one folder and one line in
// models/families.cc.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/family_description.h"
#include "models/transformer.h"
#include "models/weights/model_folder.h"
#include "parallel/forward_context.h"

namespace tessera {

struct PromptRequest {
  std::string prompt;  // valid UTF-8
  std::string negative_prompt;
  bool clean_caption = false;
  int64_t max_sequence_length = 0;  // tokens, the end token included
  double guidance_scale = 1;
  int64_t height = 0;  // pixels that are generated
  int64_t width = 0;
};

// One row of a batch: what the transformer is given besides latents and time.
struct TextConditioning {
  at::Tensor tokens;          // [t, text width]; real tokens only, so that batching alone decides about padding
  at::Tensor size_condition;  // [k], or undefined
};

// Guidance is a weighted sum of predictions, one a branch, summed in this order.
struct GuidanceBranch {
  TextConditioning text;
  double weight = 1;
};

struct EncodedPrompt {
  std::vector<GuidanceBranch> branches;
  int64_t prompt_tokens = 0;          // of the positive prompt, after truncation
  std::vector<std::string> warnings;  // for the user: what was cut off
};

// Latents of one image: [channels, height, width] and the tokens they become.
struct LatentGeometry {
  int64_t channels = 0, height = 0, width = 0;
  TokenGrid grid;
};

// A loaded model. Const methods may be called by one thread at a time.
class Family {
 public:
  virtual ~Family() = default;

  virtual const Transformer& transformer() const = 0;
  virtual at::ScalarType dtype() const = 0;
  virtual at::Device device() const = 0;
  virtual int64_t weight_bytes() const = 0;

  // The size of the model's table nearest to the requested one; only where the description says can_bin.
  virtual ImageSize BinnedSize(ImageSize requested) const = 0;

  // Height and width are legal by the family's description.
  virtual LatentGeometry Geometry(int64_t height, int64_t width) const = 0;

  // Prompts → conditioning. InvalidArgument for a prompt that cannot be read.
  virtual absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request, const ForwardContext& context) const = 0;

  // Latents [b, c, h, w] → the transformer's patches [b, n, features], and its output → what the sampler wants
  // [b, c, h, w].
  virtual at::Tensor ToPatches(const at::Tensor& latents) const = 0;
  virtual at::Tensor ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const = 0;

  // Latents [b, c, h, w] → image [b, 3, H, W], about [−1, 1], in max(fp32, dtype).
  virtual at::Tensor Decode(const at::Tensor& latents, const ForwardContext& context) const = 0;
};

struct LoadOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

}  // namespace tessera
