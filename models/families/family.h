// Family is the interface of a loaded model to the rest of the project: it connects a user's request with the
// transformer. Samplers, noise, batching, parallelism and the server do not depend on any family; a family is one
// folder and one line in models/families/families.cc.
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
#include "models/adapters/adapter_set.h"
#include "models/adapters/plan/adapter_names.h"
#include "models/autoencoder/image_codec.h"
#include "models/loading/param_table.h"
#include "models/loading/weight_residency.h"
#include "models/transformer.h"
#include "models/weights/model_folder.h"
#include "parallel/forward_context.h"

namespace tessera::models {

struct LoadOptions;    // models/loading/load_options.h
struct PromptRequest;  // models/families/prompt_request.h

// One row of a batch: the inputs of the transformer other than latents and time.
struct ConditioningRow {
  at::Tensor text;                 // [t, text width]; t may differ between rows only if the family masks padding
  std::vector<at::Tensor> extras;  // shapes depend on the family and are the same in every row of a model
};

// Guidance is a weighted sum of predictions, one per branch, in this order. A branch's weight at a step is the sum of
// its terms that are active at that step; a branch without active terms is not computed.
struct GuidanceTerm {
  double weight = 1;
  // Active in step i of n if n · start < i < n · stop.
  double start = -std::numeric_limits<double>::infinity();
  double stop = std::numeric_limits<double>::infinity();
  // The term is active only while the sampler's timestep is at least this.
  double least_timestep = -std::numeric_limits<double>::infinity();
};

struct GuidanceBranch {
  ConditioningRow row;
  std::vector<GuidanceTerm> terms;
  std::vector<int> skipped_blocks;  // skipped in this branch's forward pass

  std::optional<double> WeightAt(int step, int steps, double timestep) const;
};

struct Guidance {
  std::vector<GuidanceBranch> branches;
  // Lin et al., 2023, section 3.4: the sum is rescaled towards the standard deviation, over the whole image, of the
  // prediction of branch `conditional`. 0 disables rescaling.
  double rescale = 0;
  // Z-Image: the norm of the sum over the whole image is at most this many times that of prediction `conditional`. 0:
  // no limit.
  double norm_limit = 0;
  // Qwen-Image: the sum is scaled so that the norm of each patch of latents of this side is that of prediction
  // `conditional`. 0: it is not scaled.
  int64_t kept_norm_patch = 0;
  size_t conditional = 0;
};

struct EncodedPrompt {
  Guidance guidance;
  int64_t prompt_tokens = 0;          // of the positive prompt, after truncation
  bool cached = false;                // whether no text encoder had to run
  std::vector<std::string> warnings;  // for the user: which text was truncated
};

// The source of a rectified flow's sigmas if the sampler accepts given ones.
enum class FlowSigmas {
  kSampler,  // the sampler's defaults
  kLinear,   // n values from 1 down to 1/n, before the shift
  // The same values as torch.linspace computes them, which is in single precision.
  kSingleLinear,
};

// The shape of one image's latents, [channels, height, width], and the grid of tokens that they become.
struct LatentGeometry {
  int64_t channels = 0, height = 0, width = 0;
  TokenGrid grid;
};

// A loaded model. Used by one thread at a time.
class Family {
 public:
  virtual ~Family() = default;

  virtual const Transformer& transformer() const = 0;
  virtual at::ScalarType dtype() const = 0;
  virtual at::Device device() const = 0;
  virtual int64_t weight_bytes() const = 0;

  // This rank's parameters of the transformer, sharing its storage. Empty unless the model was loaded for training.
  virtual std::span<const Param> parameters() const { return {}; }

  // Lets `residency` hold the transformer's weights: from now on they are in memory only while it has brought them, and
  // transformer() brings what each call needs. Only for a model that was loaded for training.
  virtual void KeepWeightsIn(std::shared_ptr<WeightResidency> residency) {
    TORCH_CHECK(false, "the weights of this model cannot be moved");
  }

  // Brings the weights on demand; null if they are resident.
  virtual WeightResidency* residency() const { return nullptr; }

  // The products of this model that adapters can apply to.
  virtual AdaptableModel adaptable() const { return {}; }

  // Height and width must be valid by the family's description.
  virtual LatentGeometry Geometry(int64_t height, int64_t width) const = 0;

  // How many tokens the transformer adds to those of an image.
  virtual int64_t PaddingOf(TokenGrid grid) const { return 0; }

  // Whether rows with texts of different lengths can share a batch because padding is masked.
  virtual bool masks_padding() const = 0;
  // Whether every text has the same length, because it is padded to one. Otherwise rows share a batch only if their
  // prompts happen to be equally long, and in training each sample is a pass.
  virtual bool pads_texts() const { return true; }
  virtual FlowSigmas flow_sigmas() const { return FlowSigmas::kSampler; }
  // Whether the dynamic shift of a flow follows FLUX.2's formula in place of the scheduler's configuration.
  virtual bool has_empirical_shift() const { return false; }

  // Encodes prompts into finite conditioning. Returns InvalidArgument for a prompt that cannot be read,
  // FailedPrecondition if another rank encodes prompts, DataLoss if a text encoder's states are not finite. Collective,
  // with equal results, if LoadOptions::text_ranks share the text encoders out.
  virtual absl::StatusOr<EncodedPrompt> Encode(const PromptRequest& request,
                                               const parallel::ForwardContext& context) = 0;

  // Encodes prompts that Encode will soon be called with, as many as the prompt cache holds, so that an encoder that is
  // read from its files for each use is read twice for all of them. Returns how many of them Encode will find in the
  // cache. An invalid prompt is not reported here but by Encode.
  virtual int64_t EncodeAhead(absl::Span<const PromptRequest> requests, const parallel::ForwardContext& context) {
    return 0;
  }

  // While `held` is true, text encoders and an autoencoder that are read for each use stay in memory for the next one.
  // Afterwards they and all encoded prompts are released.
  virtual void HoldEncoders(bool held) {}

  // ToPatches: latents [b, c, h, w] → the transformer's patches [b, n, features], without padding. ToPrediction: the
  // transformer's output, with the padding of the geometry's grid → the sampler's input [b, c, h, w].
  virtual at::Tensor ToPatches(const at::Tensor& latents) const = 0;
  virtual at::Tensor ToPrediction(const at::Tensor& output, const LatentGeometry& geometry) const = 0;

  // Latents [b, c, h, w], the same on every rank of context.world → image [b, 3, H, W], about [−1, 1], in max(fp32,
  // dtype), finite, on the first rank; the other ranks return an image without rows. Returns DataLoss if the image is
  // not finite, and the errors of reading an autoencoder that is not kept in memory.
  virtual absl::StatusOr<at::Tensor> Decode(const at::Tensor& latents, const parallel::ForwardContext& context) = 0;

  // image [b, 3, H, W] in [−1, 1], the same on every rank of context.world, of a size valid by the family's description
  // → the autoencoder's posterior, the same on every rank. Returns the errors of Decode.
  virtual absl::StatusOr<LatentPosterior> EncodeImage(const at::Tensor& image,
                                                      const parallel::ForwardContext& context) = 0;
};

}  // namespace tessera::models
