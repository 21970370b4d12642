// Measures the memory that a block of a golden model keeps for its gradient, on ranks that share its matrices. Ranks
// are threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/families/family_description.h"
#include "parallel/functional.h"
#include "tests/support/tensor_bytes.h"
#include "tests/support/training_runs.h"

namespace tessera {

class SavedActivations {
 public:
  // `model` is a folder of tests/golden/pipelines.
  explicit SavedActivations(const char* model) : runs_(model) {}

  struct Options {
    int ranks = 1;
    bool shares_tokens = false;
    bool frozen = false;  // no weight requires a gradient
  };

  // Returns the bytes that a block keeps after its forward pass, on the tensor rank that keeps the most.
  double Bytes(const Options& options) const {
    std::vector<int64_t> saved(static_cast<size_t>(options.ranks));
    RunRanks(options.ranks, [&](ThreadRank& thread) {
      saved[static_cast<size_t>(thread.rank())] = BytesOf(options, thread.rank(), thread.world());
    });
    return static_cast<double>(*std::ranges::max_element(saved));
  }

  const TrainingRuns& runs() const { return runs_; }

 private:
  static at::Tensor Leaf(const at::Tensor& x) { return x.clone().requires_grad_(true); }

  int64_t BytesOf(const Options& options, int rank, parallel::Communicator& tensor) const {
    const std::unique_ptr<models::Family> family = runs_.Load({.tensor = {.rank = rank, .size = options.ranks}});
    if (options.frozen) {
      for (const models::Param& param : family->parameters()) at::Tensor(param.storage).requires_grad_(false);
    }
    const models::Transformer& transformer = family->transformer();
    const int64_t side = runs_.description().size_multiple;
    const models::LatentGeometry geometry = family->Geometry(16 * side, 17 * side);
    const runtime::TrainingBatch batch = runs_.Batch(*family, 1, 1);
    parallel::LocalAttention attention;
    models::BlockState state;
    models::Conditioning conditioning;
    std::optional<parallel::TensorTokens> tokens;
    {
      const at::NoGradGuard no_gradients;
      const parallel::ForwardContext plain{.attention = attention, .tensor = tensor, .world = tensor};
      std::vector<at::Tensor> extras;
      for (const at::Tensor& extra : batch.rows[0].extras) extras.push_back(extra.unsqueeze(0));
      const models::PromptState prompt = transformer.Read(batch.rows[0].text.unsqueeze(0), extras, plain);
      const models::StepEmbedding step = transformer.EmbedStep(batch.sample.timesteps, prompt.vector, plain);
      const int64_t n = geometry.grid.count(), t = prompt.text.size(1);
      const models::Positions image = transformer.Place(geometry.grid, t, at::kCPU);
      std::vector<models::Positions> positions;
      if (transformer.joint_text()) positions.push_back(transformer.PlaceText(t, geometry.grid, at::kCPU));
      positions.push_back(image);
      const models::Positions joined = models::Join(positions);
      conditioning = {
          .modulation = transformer.Modulate(0, step, plain), .text_bias = {}, .cos = joined.cos, .sin = joined.sin};
      tokens.emplace(n, t, options.ranks);
      const at::Tensor latents = Random({1, geometry.channels, geometry.height, geometry.width}, 1);
      state.image = transformer.Embed(models::Padded(family->ToPatches(latents), n), image.embedded, plain);
      state.text = prompt.text;
      if (options.shares_tokens) {
        state.image = parallel::TakeShard(state.image, 1, tokens->image(), tensor);
        if (transformer.joint_text()) state.text = parallel::TakeShard(state.text, 1, tokens->text(), tensor);
      }
    }
    conditioning.modulation = Leaf(conditioning.modulation);
    state.image = Leaf(state.image);
    state.text = Leaf(state.text);
    const parallel::ForwardContext context{.attention = attention,
                                           .tensor = tensor,
                                           .world = tensor,
                                           .tensor_tokens = options.shares_tokens ? &*tokens : nullptr};
    const TensorBytes bytes;
    transformer.Block(0, state, conditioning, context);
    return bytes.now();
  }

  TrainingRuns runs_;
};

}  // namespace tessera
