// Finds the longest sequence for which a training step fits into a memory cap per rank, for each layout that shards
// sequences, as `bench_training_sequences [MiB]`. Ranks are threads. A rank's memory is the peak of its tensors over a
// whole step (weights, gradients, AdamW's state and activations), with recomputation, in fp32. Image tokens of a small
// PixArt with random weights are added as long as they fit. Exits with 1 if a layout trains fewer tokens than required
// for its number of ranks.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "models/families/prompt_request.h"
#include "models/loading/param_table.h"
#include "models/pixart/pixart_transformer.h"
#include "models/token_grid.h"
#include "parallel/plan/mesh.h"
#include "parallel/segment/mesh_groups.h"
#include "runtime/denoising/mesh_forward.h"
#include "runtime/training/gradients.h"
#include "runtime/training/optimizer.h"
#include "runtime/training/training_groups.h"
#include "runtime/training/training_pass.h"
#include "tests/support/tensor_bytes.h"
#include "tests/support/thread_ranks.h"

namespace tessera {
namespace {

constexpr int64_t kHeads = 4, kHeadDim = 32, kBlocks = 2, kChannels = 4, kPatch = 2;
constexpr int64_t kTextTokens = 32, kTextWidth = 64;
constexpr int64_t kColumns = 8;  // of tokens; rows of this width are added
constexpr int64_t kLeastRows = 32;
constexpr double kMiB = 1 << 20;

// A PixArt without text encoder or autoencoder.
class BenchFamily final : public models::Family {
 public:
  explicit BenchFamily(const models::WeightShare& share)
      : table_(at::kFloat, at::kCPU, share),
        transformer_({.heads = kHeads,
                      .head_dim = kHeadDim,
                      .layers = kBlocks,
                      .in_channels = kChannels,
                      .out_channels = kChannels,
                      .patch = kPatch,
                      .sample_size = 64,
                      .caption_channels = kTextWidth},
                     table_) {
    for (const models::Param& param : table_.params()) param.Value().normal_(0, 0.02);
    table_.RequireGradients();
  }

  const models::Transformer& transformer() const override { return transformer_; }
  at::ScalarType dtype() const override { return at::kFloat; }
  at::Device device() const override { return at::kCPU; }
  int64_t weight_bytes() const override { return table_.bytes(); }
  std::span<const models::Param> parameters() const override { return table_.params(); }
  models::LatentGeometry Geometry(int64_t height, int64_t width) const override {
    return {.channels = kChannels, .height = height, .width = width, .grid = {height / kPatch, width / kPatch}};
  }
  bool masks_padding() const override { return true; }
  absl::StatusOr<models::EncodedPrompt> Encode(const models::PromptRequest&, const parallel::ForwardContext&) override {
    return absl::UnimplementedError("text comes encoded");
  }
  at::Tensor ToPatches(const at::Tensor& latents) const override { return models::Patchify(latents, kPatch); }
  at::Tensor ToPrediction(const at::Tensor& output, const models::LatentGeometry& geometry) const override {
    return models::Unpatchify(output, geometry.grid, kPatch);
  }
  absl::StatusOr<at::Tensor> Decode(const at::Tensor&, const parallel::ForwardContext&) override {
    return absl::UnimplementedError("there is no autoencoder");
  }
  absl::StatusOr<models::LatentPosterior> EncodeImage(const at::Tensor&, const parallel::ForwardContext&) override {
    return absl::UnimplementedError("there is no autoencoder");
  }

 private:
  models::ParamTable table_;
  models::PixArtTransformer transformer_;
};

struct SharedSequence {
  const char* name;
  parallel::MeshShape mesh;
  bool sequence_parallel;
  double least;  // required multiple of the tokens of one rank
};

constexpr SharedSequence kLayouts[] = {
    {"one rank", {}, false, 1},
    {"ulysses 2", {.ulysses = 2}, false, 1.8},
    {"ring 2", {.ring = 2}, false, 1.8},
    {"tensor 2, sequence-sharded", {.tensor = 2}, true, 1.8},
    {"ulysses 4", {.ulysses = 4}, false, 3.4},
    {"ring 4", {.ring = 4}, false, 3.4},
    {"ulysses 2 x ring 2", {.ring = 2, .ulysses = 2}, false, 3.4},
};

runtime::TrainingBatch BatchOf(int64_t rows) {
  const std::vector<int64_t> latents = {1, kChannels, rows * kPatch, kColumns * kPatch};
  return {.sample = {.noisy = at::randn(latents),
                     .target = at::randn(latents),
                     .timesteps = at::full({1}, 500, at::kDouble),
                     .weights = {1}},
          .rows = {{.text = at::randn({kTextTokens, kTextWidth}), .extras = {}}}};
}

struct Peak {
  double bytes = 0;     // of the rank that needs most
  double constant = 0;  // the part that the rank holds between two steps
};

// Returns the peak of a step with rows · kColumns image tokens.
Peak PeakOf(const SharedSequence& layout, int64_t rows) {
  const int ranks = static_cast<int>(parallel::NumRanks(layout.mesh));
  const parallel::Mesh mesh = *parallel::Mesh::Create(layout.mesh, ranks);
  ThreadRanksOptions options{.groups = parallel::TrainingMeshGroups(mesh), .slot_bytes = 1 << 20};
  options.communicator.deadline = options.deadline = std::chrono::hours(1);
  std::vector<Peak> peaks(static_cast<size_t>(ranks));
  RunRanks(
      ranks,
      [&](ThreadRank& thread) {
        const runtime::HostTrainingGroups communicators(at::kCPU, thread.shared_segment(), thread.rank(),
                                                        options.communicator);
        const runtime::TrainingGroups groups = communicators.groups();
        const TensorBytes bytes;
        const BenchFamily family(runtime::ShareOf(mesh, thread.rank(), std::array<int, 2>{0, kBlocks}));
        runtime::Gradients gradients(family.parameters(), {.sequence_parallel = layout.sequence_parallel});
        runtime::AdamW optimizer(gradients, {});
        Peak& peak = peaks[static_cast<size_t>(thread.rank())];
        peak.constant = static_cast<double>(bytes.now());
        runtime::TrainingPass pass(family, groups.model,
                                   {.recompute = true,
                                    .sequence_parallel = layout.sequence_parallel,
                                    .gradients_ready = [&](int part) { gradients.Collect(part); }});
        pass.Run(BatchOf(rows), 1);
        gradients.Synchronize(groups);
        gradients.Clip(gradients.GlobalNorm(groups), 1);
        optimizer.Step(1e-4);
        gradients.Clear();
        peak.bytes = static_cast<double>(bytes.peak());
      },
      options);
  return *std::ranges::max_element(peaks, {}, &Peak::bytes);
}

struct Longest {
  int64_t rows = 0;  // of tokens; 0: even the smallest number does not fit
  Peak peak;
};

// Searches between the largest number that fits and the smallest that does not, until they are adjacent. The next guess
// is where a straight line through both meets the cap.
Longest LongestWithin(const SharedSequence& layout, double cap, int64_t guess) {
  Longest fits{.rows = kLeastRows, .peak = PeakOf(layout, kLeastRows)};
  if (fits.peak.bytes > cap) return {};
  int64_t too_many = 0;
  double over = 0;  // bytes for `too_many` rows
  for (int64_t rows = guess; too_many == 0 || too_many - fits.rows > 1;) {
    const Peak peak = PeakOf(layout, rows);
    if (peak.bytes <= cap) {
      const double of_a_row = (peak.bytes - fits.peak.bytes) / static_cast<double>(rows - fits.rows);
      fits = {.rows = rows, .peak = peak};
      if (too_many == 0) rows += static_cast<int64_t>((cap - peak.bytes) / of_a_row) + 1;
    } else {
      too_many = rows;
      over = peak.bytes;
    }
    if (too_many == 0) continue;
    const double share = (cap - fits.peak.bytes) / (over - fits.peak.bytes);
    rows = std::clamp(fits.rows + static_cast<int64_t>(share * static_cast<double>(too_many - fits.rows)),
                      fits.rows + 1, std::max(fits.rows + 1, too_many - 1));
  }
  return fits;
}

int Main(int argc, char** argv) {
  const double cap = (argc > 1 ? std::atof(argv[1]) : 40) * kMiB;
  std::printf("PixArt of %d blocks, %d wide, fp32, with recomputation; %.0f MiB a rank\n", static_cast<int>(kBlocks),
              static_cast<int>(kHeads * kHeadDim), cap / kMiB);
  std::printf("%-28s %8s %7s %7s %22s\n", "layout", "tokens", "times", "least", "MiB between two steps");
  int64_t of_one = 0;
  bool all_reached = true;
  for (const SharedSequence& layout : kLayouts) {
    const int64_t ranks = parallel::NumRanks(layout.mesh);
    const Longest longest = LongestWithin(layout, cap, of_one == 0 ? 4 * kLeastRows : ranks * of_one);
    if (longest.rows == 0) {
      std::fprintf(stderr, "%s: %d tokens do not fit\n", layout.name, static_cast<int>(kLeastRows * kColumns));
      return 1;
    }
    if (of_one == 0) of_one = longest.rows;
    const double times = static_cast<double>(longest.rows) / static_cast<double>(of_one);
    const bool reached = times >= layout.least;
    all_reached = all_reached && reached;
    std::printf("%-28s %8d %7.2f %7.1f %22.1f%s\n", layout.name, static_cast<int>(longest.rows * kColumns), times,
                layout.least, longest.peak.constant / kMiB, reached ? "" : "  too few");
    std::fflush(stdout);
  }
  return all_reached ? 0 : 1;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
