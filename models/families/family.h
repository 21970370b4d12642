// What the rest of the project knows of a model family: the glue between a user's request and its transformer.
// Samplers, noise, batching, parallelism and the server know no family; a family is one folder and one line in
// models/families/families.cc.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "control/placement.h"
#include "control/prompt_options.h"
#include "models/adapters/adapter_set.h"
#include "models/adapters/plan/adapter_names.h"
#include "models/families/family_description.h"
#include "models/loading/param_table.h"
#include "models/loading/weight_residency.h"
#include "models/transformer.h"
#include "models/weights/model_folder.h"
#include "parallel/forward_context.h"

namespace tessera::models {

struct PromptRequest {
  std::string prompt;  // valid UTF-8
  std::optional<std::string> negative_prompt;
  control::PromptOptions options;
  bool clean_caption = false;
  int64_t max_sequence_length = 0;  // tokens, the end token included
  double guidance_scale = 1;
  int64_t height = 0;  // pixels that are generated
  int64_t width = 0;
  SharedAdapters adapters = nullptr;  // the text encoders run with their parts of it
};

// One row of a batch: what the transformer is given besides latents and time.
struct ConditioningRow {
  at::Tensor text;                 // [t, text width]; t may differ between rows only where the family masks padding
  std::vector<at::Tensor> extras;  // of the family's own shapes, the same in every row of a model
};

// Guidance is a weighted sum of predictions, one a branch, summed in this order. A branch's weight at a step is the sum
// of its terms that are active there; without one the branch is not computed.
struct GuidanceTerm {
  double weight = 1;
  // Active in step i of n if n · start < i < n · stop.
  double start = -std::numeric_limits<double>::infinity();
  double stop = std::numeric_limits<double>::infinity();
};

struct GuidanceBranch {
  ConditioningRow row;
  std::vector<GuidanceTerm> terms;
  std::vector<int> skipped_blocks;  // left out of this branch's forward pass

  std::optional<double> WeightAt(int step, int steps) const;
};

struct Guidance {
  std::vector<GuidanceBranch> branches;
  // Lin et al., 2023, section 3.4: the sum is scaled towards the standard deviation, over the whole image, of the
  // prediction of branch `conditional`. 0: not at all.
  double rescale = 0;
  size_t conditional = 0;
};

struct EncodedPrompt {
  Guidance guidance;
  int64_t prompt_tokens = 0;          // of the positive prompt, after truncation
  bool cached = false;                // no text encoder had to run
  std::vector<std::string> warnings;  // for the user: what was cut off
};

// Where the sigmas of a rectified flow come from when the sampler takes given ones.
enum class FlowSigmas {
  kSampler,  // its own
  kLinear,   // n of them from 1 down to 1/n, before the shift
};

// Latents of one image: [channels, height, width] and the tokens they become.
struct LatentGeometry {
  int64_t channels = 0, height = 0, width = 0;
  TokenGrid grid;
};

// What an autoencoder says of images, as latents as diffusion knows them: each value is drawn from a normal
// distribution of this mean and standard deviation. [b, c, h, w] in max(fp32, dtype).
struct LatentPosterior {
  at::Tensor mean, deviation;
};

// A loaded model, used by one thread at a time.
class Family {
 public:
  virtual ~Family() = default;

  virtual const Transformer& transformer() const = 0;
  virtual at::ScalarType dtype() const = 0;
  virtual at::Device device() const = 0;
  virtual int64_t weight_bytes() const = 0;

  // This rank's parameters of the transformer, which shares their storage; empty unless the model was loaded for
  // training.
  virtual std::span<const Param> parameters() const { return {}; }

  // From now on the transformer's weights are there only while `residency` has brought them, and transformer() brings
  // what each call needs. Only of a model that was loaded for training.
  virtual void KeepWeightsIn(std::shared_ptr<WeightResidency> residency) {
    TORCH_CHECK(false, "the weights of this model stay where they are");
  }

  // Who brings them; null where they are always there.
  virtual WeightResidency* residency() const { return nullptr; }

  // What adapters of this model can lie beside.
  virtual AdaptableModel adaptable() const { return {}; }

  // The size of the model's table nearest to the requested one; only where the description says can_bin.
  virtual ImageSize BinnedSize(ImageSize requested) const = 0;

  // Height and width are valid by the family's description.
  virtual LatentGeometry Geometry(int64_t height, int64_t width) const = 0;

  // Whether rows with texts of different lengths can share a batch: padding is then masked out.
  virtual bool masks_padding() const = 0;
  virtual FlowSigmas flow_sigmas() const { return FlowSigmas::kSampler; }

  // Prompts → conditioning, finite. InvalidArgument for a prompt that cannot be read, FailedPrecondition where another
  // rank encodes, DataLoss where a text encoder's states are not finite.
  virtual absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request,
                                               const parallel::ForwardContext& context) = 0;

  // Encodes prompts that Encode will be asked for soon, as many as the prompt cache holds, so that an encoder which is
  // read from its files for each use is read twice for all of them. How many Encode finds in the cache then; what is
  // wrong with one it will say itself.
  virtual int64_t EncodeAhead(absl::Span<const PromptRequest> requests, const parallel::ForwardContext& context) {
    return 0;
  }

  // Latents [b, c, h, w] → the transformer's patches [b, n, features], and its output → what the sampler wants
  // [b, c, h, w].
  virtual at::Tensor ToPatches(const at::Tensor& latents) const = 0;
  virtual at::Tensor ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const = 0;

  // Latents [b, c, h, w], the same on every rank of context.world → image [b, 3, H, W], about [−1, 1], in
  // max(fp32, dtype), finite, on the first of them; on the others an image without rows. Errors: DataLoss where it is
  // not finite, and those of reading the autoencoder where it is not kept in memory.
  virtual absl::StatusOr<at::Tensor> Decode(const at::Tensor& latents, const parallel::ForwardContext& context) = 0;

  // image [b, 3, H, W] in [−1, 1], its size valid by the family's description → what the autoencoder makes of it, each
  // rank for itself. Errors as of Decode.
  virtual absl::StatusOr<LatentPosterior> EncodeImage(const at::Tensor& image,
                                                      const parallel::ForwardContext& context) = 0;
};

struct LoadOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  control::ComponentPlacement text_encoders = control::ComponentPlacement::kRank0;
  control::ComponentPlacement autoencoder = control::ComponentPlacement::kRank0;
  int64_t prompt_cache_bytes = int64_t{256} << 20;
  bool stream_blocks = false;  // the transformer's are read from its files for each use
  // The transformer's weights are kept as they stand in the files, are listed, and every one that is not a buffer
  // requires a gradient: who trains less says so to Param::storage. Not for a thread in c10::InferenceMode, and not
  // with stream_blocks.
  bool for_training = false;
  // The transformer's matrices are held in eight bits (models/loading/eight_bits.h), and none of them requires a
  // gradient; with for_training.
  bool quantize = false;
  // Where the device has memory of its own, what waits in the host's (models/loading/offload.h). Not with for_training.
  Offloaded offload = Offloaded::kNone;
  WeightShare share;            // this rank's part of the transformer
  bool encodes_prompts = true;  // else another rank does: Encode may not be called, text encoders' weights are not read
  bool byte_fallback = true;    // as Tokenizer::UseUnknownToken says
};

}  // namespace tessera::models
