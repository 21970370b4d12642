// What waits for its gradient between the two halves of a pass: the memory that sharing out tokens is for.
#include "tests/support/saved_activations.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace tessera::runtime {
namespace {

// A model whose first block is run as often as a test wants.
class RepeatedBlock final : public models::Transformer {
 public:
  RepeatedBlock(const models::Transformer& model, int blocks) : model_(model), blocks_(blocks) {}

  int num_blocks() const override { return blocks_; }
  bool joint_text() const override { return model_.joint_text(); }
  int64_t output_features() const override { return model_.output_features(); }
  models::Positions Place(models::TokenGrid grid, at::Device device) const override {
    return model_.Place(grid, device);
  }
  models::Positions PlaceText(int64_t tokens, at::Device device) const override {
    return model_.PlaceText(tokens, device);
  }
  models::PromptState Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                           const parallel::ForwardContext& context) const override {
    return model_.Read(text, extras, context);
  }
  models::StepEmbedding EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                  const parallel::ForwardContext& context) const override {
    return model_.EmbedStep(timesteps, prompt, context);
  }
  at::Tensor Modulate(int index, const models::StepEmbedding& step,
                      const parallel::ForwardContext& context) const override {
    return model_.Modulate(index == blocks_ ? model_.num_blocks() : 0, step, context);
  }
  at::Tensor Embed(const at::Tensor& patches, const at::Tensor& positions,
                   const parallel::ForwardContext& context) const override {
    return model_.Embed(patches, positions, context);
  }
  void Block(int, models::BlockState& state, const models::Conditioning& conditioning,
             const parallel::ForwardContext& context) const override {
    model_.Block(0, state, conditioning, context);
  }
  at::Tensor Head(const models::BlockState& state, const models::Conditioning& conditioning,
                  const parallel::ForwardContext& context) const override {
    return model_.Head(state, conditioning, context);
  }

 private:
  const models::Transformer& model_;
  const int blocks_;
};

class RepeatedFamily final : public models::Family {
 public:
  RepeatedFamily(models::Family& family, int blocks) : family_(family), transformer_(family.transformer(), blocks) {}

  const models::Transformer& transformer() const override { return transformer_; }
  at::ScalarType dtype() const override { return family_.dtype(); }
  at::Device device() const override { return family_.device(); }
  int64_t weight_bytes() const override { return family_.weight_bytes(); }
  models::ImageSize BinnedSize(models::ImageSize requested) const override { return family_.BinnedSize(requested); }
  models::LatentGeometry Geometry(int64_t height, int64_t width) const override {
    return family_.Geometry(height, width);
  }
  bool masks_padding() const override { return family_.masks_padding(); }
  absl::StatusOr<models::EncodedPrompt> Encode(const models::PromptRequest& request,
                                               const parallel::ForwardContext& context) override {
    return family_.Encode(request, context);
  }
  at::Tensor ToPatches(const at::Tensor& latents) const override { return family_.ToPatches(latents); }
  at::Tensor ToPrediction(const at::Tensor& output, const models::LatentGeometry& geometry) const override {
    return family_.ToPrediction(output, geometry);
  }
  absl::StatusOr<at::Tensor> Decode(const at::Tensor& latents, const parallel::ForwardContext& context) override {
    return family_.Decode(latents, context);
  }
  absl::StatusOr<models::LatentPosterior> EncodeImage(const at::Tensor& image,
                                                      const parallel::ForwardContext& context) override {
    return family_.EncodeImage(image, context);
  }

 private:
  models::Family& family_;
  RepeatedBlock transformer_;
};

class SavedActivationsTest : public testing::TestWithParam<const char*> {
 protected:
  struct Pass {
    int blocks = 1;
    bool recompute = false;
    int ranks = 1;  // tensor, which share out tokens
  };

  // The most bytes that a rank's tensors take in a pass forwards and backwards, beyond weights and what it is given.
  double PeakBytes(const Pass& pass) const {
    std::vector<int64_t> peaks(static_cast<size_t>(pass.ranks));
    RunRanks(pass.ranks, [&](ThreadRank& thread) {
      const std::unique_ptr<models::Family> model =
          saved_.runs().Load({.tensor = {.rank = thread.rank(), .size = pass.ranks}});
      // The embedding of tokens alone is trained: every token needs a gradient, and no weight's counts beside it.
      for (const models::Param& param : model->parameters().subspan(1)) at::Tensor(param.storage).requires_grad_(false);
      const RepeatedFamily family(*model, pass.blocks);
      const TrainingBatch batch = Batch(*model);
      parallel::SingleRank one;
      const parallel::RankGroups groups{.cfg = one,
                                        .pipe = one,
                                        .sequence = one,
                                        .ring = one,
                                        .ulysses = one,
                                        .tensor = thread.world(),
                                        .world = thread.world(),
                                        .control = one};
      TrainingPass training(family, groups, {.recompute = pass.recompute, .sequence_parallel = true});
      const TensorBytes bytes;
      training.Run(batch, 1);
      peaks[static_cast<size_t>(thread.rank())] = bytes.peak();
    });
    return static_cast<double>(*std::ranges::max_element(peaks));
  }

  // Of what enters a block on one rank.
  double InputBytes() const {
    const std::unique_ptr<models::Family> model = saved_.runs().Load({});
    const TrainingBatch batch = Batch(*model);
    const models::Transformer& transformer = model->transformer();
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    const at::Tensor patches = model->ToPatches(batch.sample.noisy);
    const at::Tensor positions = transformer.Place({.height = 16, .width = 17}, at::kCPU).embedded;
    const at::Tensor image =
        transformer.Embed(patches, positions, {.attention = attention, .tensor = one, .world = one});
    const int64_t text = transformer.joint_text() ? batch.rows[0].text.size(0) : 0;
    return static_cast<double>((image.size(1) + text) * image.size(2) * 8);
  }

  SavedActivations saved_{GetParam()};

 private:
  TrainingBatch Batch(models::Family& family) const {
    const int64_t side = saved_.runs().description().size_multiple;
    const models::LatentGeometry geometry = family.Geometry(16 * side, 17 * side);
    TrainingBatch batch = saved_.runs().Batch(family, 1, 1);
    batch.sample.noisy = Random({1, geometry.channels, geometry.height, geometry.width}, 1);
    batch.sample.target = Random({1, geometry.channels, geometry.height, geometry.width}, 2);
    return batch;
  }
};

// In fp64 and in the operators of the reference, which keep scores and more copies than a fused kernel, but of the same
// tokens. A hundredth for what does not depend on tokens.
TEST_P(SavedActivationsTest, TensorRanksThatShareOutTokensKeepTheirShareOfABlock) {
  for (const bool frozen : {false, true}) {
    const double serial = saved_.Bytes({.frozen = frozen});
    ASSERT_GT(serial, 1e6);
    for (const int ranks : {2, 4}) {
      const double all_reduce = saved_.Bytes({.ranks = ranks, .frozen = frozen}),
                   shared = saved_.Bytes({.ranks = ranks, .shares_tokens = true, .frozen = frozen});
      std::printf("%s, tensor %d%s: %.3f of one rank's bytes, %.3f without shared tokens\n", GetParam(), ranks,
                  frozen ? ", frozen" : "", shared / serial, all_reduce / serial);
      EXPECT_LE(shared, serial * (1.0 / ranks + 0.01)) << ranks << (frozen ? " frozen" : "");
    }
  }
}

// A pass over one block keeps that block's activations, and works in the same memory besides. Another block adds what
// enters it, and nothing else. Beside a block that is computed again stand its result, the gradient of that and the
// gradient of its input.
TEST_P(SavedActivationsTest, RecomputationKeepsOneBlocksActivationsAndTheInputsOfAll) {
  for (const int ranks : {1, 2}) {
    const double inputs = InputBytes() / ranks, one = PeakBytes({.ranks = ranks});
    const double two = PeakBytes({.blocks = 2, .recompute = true, .ranks = ranks}),
                 eight = PeakBytes({.blocks = 8, .recompute = true, .ranks = ranks});
    std::printf("%s, tensor %d: %.2f inputs of a block more for each, %.2f without; one block %.1f, eight %.1f\n",
                GetParam(), ranks, (eight - two) / 6 / inputs,
                (PeakBytes({.blocks = 8, .ranks = ranks}) - PeakBytes({.blocks = 2, .ranks = ranks})) / 6 / inputs,
                one / inputs, eight / inputs);
    EXPECT_LE((eight - two) / 6, inputs * 1.02) << ranks;
    EXPECT_LE(eight, one + (8 + 3) * inputs) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SavedActivationsTest, testing::Values("flux_dev", "pixart_sigma"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime
