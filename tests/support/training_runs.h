// TrainingRuns computes the gradients of a golden model's loss on any mesh, for a batch of four samples with prompts of
// odd lengths. Ranks are threads; TESSERA_RENDEZVOUS in the environment works as in layout_runs.h.
#pragma once

#include <c10/core/AutogradState.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/training/target_modules.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/loading/eight_bits.h"
#include "models/loading/load_options.h"
#include "models/loading/sharded_weights.h"
#include "models/text_encoders/picture_processor.h"
#include "parallel/plan/stage_balance.h"
#include "parallel/segment/mesh_groups.h"
#include "runtime/samplers/sampler_config.h"
#include "runtime/training/gradients.h"
#include "runtime/training/objective.h"
#include "runtime/training/optimizer.h"
#include "runtime/training/sample_noise.h"
#include "runtime/training/trained_adapter.h"
#include "runtime/training/training_pass.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/random_tensor.h"
#include "tests/support/thread_ranks.h"

namespace tessera {

// Returns the part of a whole parameter's tensor that a tensor rank holds.
inline at::Tensor PartOf(const at::Tensor& whole, const models::ParamSpec& spec, const models::TensorShard& shard) {
  if (spec.role == models::LinearRole::kReplicated) return whole;
  const int64_t dim = spec.role == models::LinearRole::kColumn ? 0 : 1;
  std::vector<at::Tensor> parts;
  for (const models::ChannelRange& run : shard.ranges(whole.size(dim), spec.parts)) {
    parts.push_back(whole.narrow(dim, run.begin, run.count));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, dim);
}

class TrainingRuns {
 public:
  static constexpr size_t kSamples = 4;

  // Matrices in the model's dtype, in eight bits, or dequantised from eight bits to the model's dtype.
  enum class Matrices { kPlain, kEightBits, kDequantised };

  struct Options {
    bool recompute = false;
    bool sequence_parallel = false;
    int steps = 1;   // optimizer steps with the same batch; the last one's result counts
    int passes = 1;  // micro-batches that share a replica's samples
    double max_norm = 0;
    bool adapter = false;     // trains a LoRA of all matrix products instead of the weights
    bool sharded = false;     // shards the model's weights over the data ranks
    bool references = false;  // every sample looks at two pictures
    bool rendezvous = false;  // a send waits for its receiver
    Matrices matrices = Matrices::kPlain;
    at::Device device = at::kCPU;       // must use memory that the host can address
    std::vector<int64_t> waiting = {};  // blocks whose weights stay in host memory until needed
    std::function<void()> before_last_step = {}, behind_last_step = {};  // on each rank
  };

  // The result of one optimizer step on one rank.
  struct Result {
    std::map<std::string, at::Tensor> gradients;  // this rank's part of each; if sharded, its rows
    double norm = 0;
    std::vector<double> losses;                   // of this rank's samples
    std::map<std::string, models::RowSpan> rows;  // of its part, if sharded
    int64_t weight_bytes = 0;                     // of this rank's part of the model
    bool swaps = false;                           // whether weights of blocks are swapped
    int64_t most_bytes = 0;                       // the most that the model's storages held at once, if sharded
  };

  // `model` is a pipeline of the golden sets, or the path of another one. `pipeline` is the class that runs it, by
  // default that of its folder.
  explicit TrainingRuns(const std::string& model, const std::string& pipeline = "") {
    absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(GoldenPipeline(model));
    TORCH_CHECK(folder.ok(), std::string(folder.status().message()));
    entry_ = *models::FindFamily(pipeline.empty() ? folder->class_name() : pipeline);
    folder_.emplace(*std::move(folder));
    description_ = *entry_->describe(*folder_);
    absl::StatusOr<base::ConfigReader> scheduler = folder_->Config("scheduler");
    TORCH_CHECK(scheduler.ok(), std::string(scheduler.status().message()));
    scheduler_ = *runtime::ParseSamplerConfig(*scheduler);
    max_sequence_length_ = description_.default_max_sequence_length;
    if (entry_->family != "hunyuandit") max_sequence_length_ = std::min<int64_t>(max_sequence_length_, 37);
    const bool one_size = description_.min_size == description_.max_size;
    height_ = one_size ? description_.min_size : 3 * description_.size_multiple;
    width_ = one_size ? description_.min_size : 5 * description_.size_multiple;
  }

  const models::FamilyDescription& description() const { return description_; }

  std::unique_ptr<models::Family> Load(models::WeightShare share, Matrices matrices = Matrices::kPlain,
                                       at::Device device = at::kCPU) const {
    absl::StatusOr<std::unique_ptr<models::Family>> family =
        entry_->load(*folder_, {.dtype = at::kDouble,
                                .device = device,
                                .for_training = true,
                                .quantize = matrices == Matrices::kEightBits,
                                .share = share});
    TORCH_CHECK(family.ok(), std::string(family.status().message()));
    if (matrices == Matrices::kDequantised) Dequantise(**family, *Load(share, Matrices::kEightBits));
    return *std::move(family);
  }

  std::vector<int> BoundsOf(int stages) const { return *parallel::BalanceStages(description_.block_flops, stages); }

  models::WeightShare ShareOf(const parallel::Mesh& mesh, int rank) const {
    const std::vector<int> bounds = BoundsOf(mesh.size(parallel::Axis::kPipe));
    const auto stage = static_cast<size_t>(mesh.Coord(rank, parallel::Axis::kPipe));
    return {.tensor = {.rank = mesh.Coord(rank, parallel::Axis::kTensor), .size = mesh.size(parallel::Axis::kTensor)},
            .blocks = {.begin = bounds[stage], .end = bounds[stage + 1]}};
  }

  runtime::TrainingBatch Batch(models::Family& family, size_t first, size_t count, bool references = false) const {
    const char* prompts[] = {
        "a cat",
        "two cats on a red sofa in the evening sun, and through the window behind them the sea with "
        "three ships that come home before the storm reaches the bay and its houses",
        "", "a house by the sea"};
    const bool text = description_.max_sequence_length > 0;
    const models::LatentGeometry geometry = family.Geometry(height_, width_);
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    const absl::StatusOr<runtime::Objective> objective = runtime::Objective::Create(scheduler_, {.snr_gamma = 5});
    TORCH_CHECK(objective.ok(), std::string(objective.status().message()));
    runtime::TrainingBatch batch;
    std::vector<at::Tensor> latents, noise;
    std::vector<runtime::TrainingLevel> levels;
    for (size_t i = first; i < first + count; ++i) {
      models::PromptRequest request{.prompt = text ? prompts[i] : std::to_string(7 * i),
                                    .max_sequence_length = max_sequence_length_,
                                    .height = height_,
                                    .width = width_,
                                    .pictures = PromptPictures()};
      absl::StatusOr<models::EncodedPrompt> encoded =
          family.Encode(request, {.attention = attention, .tensor = one, .world = one});
      TORCH_CHECK(encoded.ok(), std::string(encoded.status().message()));
      batch.rows.push_back(encoded->guidance.branches.back().row);
      const runtime::SampleKey key{.seed = 3, .sample = static_cast<int64_t>(i)};
      latents.push_back(Random({geometry.channels, geometry.height, geometry.width}, i));
      noise.push_back(runtime::NormalOf(runtime::StreamOf(key, runtime::NoisePurpose::kTrainingNoise),
                                        latents.back().sizes(), at::kDouble));
      levels.push_back(objective->LevelOf(runtime::DrawLevel(key), geometry.grid.count()));
    }
    batch.sample = objective->Make(at::stack(latents), at::stack(noise), levels);
    if (references) AddReferences(family, geometry, first, count, batch);
    return batch;
  }

  // Runs one step on every rank of the mesh, which has no cfg axis. `also` runs on each rank after the step.
  using Also = std::function<void(const runtime::TrainingGroups&, runtime::Gradients&)>;
  std::vector<Result> Run(const parallel::MeshShape& shape, const Options& options, const Also& also = {}) const {
    const auto ranks = static_cast<int>(parallel::NumRanks(shape));
    const parallel::Mesh mesh = *parallel::Mesh::Create(shape, ranks);
    std::vector<Result> results(static_cast<size_t>(ranks));
    ThreadRanksOptions thread_options{.groups = parallel::TrainingMeshGroups(mesh)};
    thread_options.communicator.addresses_devices = true;
    thread_options.communicator.rendezvous = options.rendezvous || std::getenv("TESSERA_RENDEZVOUS") != nullptr;
    RunRanks(
        ranks,
        [&](ThreadRank& thread) {
          const int rank = thread.rank();
          const runtime::HostTrainingGroups communicators(options.device, thread.shared_segment(), rank,
                                                          thread_options.communicator);
          results[static_cast<size_t>(rank)] = RunRank(mesh, rank, communicators.groups(), options, also);
        },
        thread_options);
    return results;
  }

  // Returns the largest difference between any rank's gradient and its part of a single rank's gradient, relative to
  // the parameter's largest gradient. Parameters whose gradients are mere rounding errors are compared with 1e-3 of the
  // model's largest gradient.
  double WorstError(const parallel::MeshShape& shape, const std::vector<Result>& results, const Result& serial,
                    bool adapter = false) const {
    const parallel::Mesh mesh = *parallel::Mesh::Create(shape, static_cast<int>(results.size()));
    double largest = 0;
    for (const auto& [name, gradient] : serial.gradients) largest = std::max(largest, Largest(gradient));
    const std::unique_ptr<models::Family> family = Load({});
    const runtime::TrainedAdapter trained = adapter ? Adapter(*family, {}) : runtime::TrainedAdapter{};
    double worst = 0;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const models::WeightShare share = ShareOf(mesh, rank);
      const Result& result = results[static_cast<size_t>(rank)];
      worst = std::max(worst, std::abs(result.norm - serial.norm) / serial.norm);
      size_t compared = 0;
      for (const models::Param& param : adapter ? std::span(trained.params) : family->parameters()) {
        if (!param.storage.requires_grad()) continue;
        const bool elsewhere = param.block != models::Param::kNoBlock &&
                               (param.block < share.blocks.begin || param.block >= share.blocks.end);
        if (result.gradients.contains(param.spec.name) == elsewhere) return INFINITY;
        if (elsewhere) continue;
        ++compared;
        const at::Tensor whole = serial.gradients.at(param.spec.name);
        const at::Tensor& own = result.gradients.at(param.spec.name);
        at::Tensor expected = PartOf(whole, param.spec, share.tensor);
        if (!result.rows.empty()) expected = result.rows.at(param.spec.name).Of(expected);
        if (own.sizes() != expected.sizes()) return INFINITY;
        const double error = Largest(own - expected);
        worst = std::max(worst, std::isfinite(error) ? error / std::max(Largest(whole), 1e-3 * largest) : INFINITY);
      }
      if (compared != result.gradients.size()) return INFINITY;
    }
    return worst;
  }

 private:
  // Adds up the storages of the weights after each part has been brought.
  class Measured final : public models::WeightResidency {
   public:
    Measured(models::WeightResidency& weights, std::span<const models::Param> params)
        : weights_(weights), params_(params) {}

    void Bring(int part) override {
      weights_.Bring(part);
      std::map<const void*, size_t> bytes;  // of each storage once
      for (const models::Param& param : params_) {
        const at::Storage& storage = param.storage.storage();
        bytes[storage.unsafeGetStorageImpl()] = storage.nbytes();
        if (param.scales.defined()) {
          bytes[param.scales.storage().unsafeGetStorageImpl()] = param.scales.storage().nbytes();
        }
      }
      int64_t sum = 0;
      for (const auto& [storage, held] : bytes) sum += static_cast<int64_t>(held);
      most_bytes_ = std::max(most_bytes_, sum);
    }
    void Release(int part) override { weights_.Release(part); }

    int64_t most_bytes() const { return most_bytes_; }

   private:
    models::WeightResidency& weights_;
    const std::span<const models::Param> params_;
    int64_t most_bytes_ = 0;
  };

  // One picture, if prompts hold pictures.
  models::SharedPromptPictures PromptPictures() const {
    return control::PromptHoldsPictures(description_.pictures.fit) ? models::MadeUpPromptPictures(1) : nullptr;
  }

  // Two pictures of odd sizes, which differ from sample to sample.
  static void AddReferences(const models::Family& family, const models::LatentGeometry& geometry, size_t first,
                            size_t count, runtime::TrainingBatch& batch) {
    const int64_t features = geometry.channels * geometry.height * geometry.width / geometry.grid.image();
    for (const models::TokenGrid& grid : {models::TokenGrid{.height = 2, .width = 5}, {.height = 3, .width = 1}}) {
      std::vector<at::Tensor> of_samples;
      for (size_t i = first; i < first + count; ++i) {
        of_samples.push_back(Random({grid.count(), features}, 90 + 10 * batch.references.size() + i));
      }
      batch.references.push_back(at::stack(of_samples).to(family.device(), family.dtype()));
      batch.reference_grids.push_back(grid);
    }
  }

  // Returns an adapter of all matrix products. B is not zero; otherwise A would have no gradient.
  static runtime::TrainedAdapter Adapter(const models::Family& family, const models::TensorShard& shard) {
    std::vector<std::string> modules;
    const models::AdaptableModel adaptable = family.adaptable();
    for (const models::ProductSpec& product : adaptable.components.at("transformer")) modules.push_back(product.name);
    absl::StatusOr<runtime::TrainedAdapter> adapter = runtime::MakeTrainedAdapter(
        family.parameters(), shard,
        {.targets = {control::kAllLinear}, .rank = 3, .alpha = 2, .seed = 4, .modules = modules});
    TORCH_CHECK(adapter.ok(), std::string(adapter.status().message()));
    const at::NoGradGuard no_gradients;
    for (const models::Param& param : adapter->params) {
      const std::string_view name = param.spec.name;
      if (!name.ends_with(".lora_B.weight")) continue;
      const auto module = std::ranges::find(modules, name.substr(0, name.size() - std::size(".lora_B.weight") + 1));
      TORCH_CHECK(module != modules.end(), "no module of ", name);
      const auto seed = static_cast<uint64_t>(50 + (module - modules.begin()));
      param.Value().copy_(PartOf(Random(param.spec.shape, seed), param.spec, shard));
    }
    return *std::move(adapter);
  }

  // Writes the dequantised values of `in_eight_bits` to `family`.
  static void Dequantise(const models::Family& family, const models::Family& in_eight_bits) {
    const at::NoGradGuard no_gradients;
    for (size_t i = 0; i < family.parameters().size(); ++i) {
      const models::Param &plain = family.parameters()[i], &held = in_eight_bits.parameters()[i];
      TORCH_CHECK(plain.spec.name == held.spec.name);
      if (!held.scales.defined()) continue;
      plain.Value().copy_(models::FromEightBits(held.Value(), held.View(held.scales), at::kFloat));
    }
  }

  static double Largest(const at::Tensor& x) { return x.numel() == 0 ? 0 : x.abs().max().item<double>(); }

  Result RunRank(const parallel::Mesh& mesh, int rank, const runtime::TrainingGroups& groups, const Options& options,
                 const Also& also) const {
    // With a device, LibTorch would run the backward passes of all threads on one thread, where ranks would block each
    // other.
    if (!options.device.is_cpu()) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    models::WeightShare share = ShareOf(mesh, rank);
    share.waiting = options.waiting;
    const std::unique_ptr<models::Family> family = Load(share, options.matrices, options.device);
    const runtime::TrainedAdapter trained =
        options.adapter ? Adapter(*family, ShareOf(mesh, rank).tensor) : runtime::TrainedAdapter{};
    Result result;
    for (const models::Param& param : family->parameters()) result.weight_bytes += param.LoadedValue().nbytes();
    result.swaps = family->residency() != nullptr;
    std::optional<models::ShardedWeights> sharded;
    std::shared_ptr<Measured> measured;
    if (options.sharded) {
      sharded.emplace(family->parameters(), groups.data);
      measured = std::make_shared<Measured>(*sharded, family->parameters());
      family->KeepWeightsIn(measured);
    }
    runtime::Gradients gradients(options.adapter ? std::span(trained.params) : family->parameters(),
                                 {.sequence_parallel = options.sequence_parallel,
                                  .staged = groups.model.pipe.size() > 1,
                                  .sharded = options.sharded && !options.adapter ? &*sharded : nullptr});
    runtime::TrainingPass pass(*family, groups.model,
                               {.recompute = options.recompute,
                                .sequence_parallel = options.sequence_parallel,
                                .stage_bounds = BoundsOf(groups.model.pipe.size()),
                                .adapters = options.adapter ? &trained.factors : nullptr,
                                .weights = family->residency(),
                                .gradients_ready = [&](int part) { gradients.Collect(part); }});
    const auto replica = static_cast<size_t>(groups.data.rank()), replicas = static_cast<size_t>(groups.data.size());
    const size_t begin = kSamples * replica / replicas, own = kSamples * (replica + 1) / replicas - begin,
                 of_pass = own / static_cast<size_t>(options.passes);
    runtime::AdamW optimizer(gradients, {}, options.sharded ? &groups.data : nullptr);
    for (int step = 1; step < options.steps; ++step) {
      pass.Run(Batch(*family, begin, own, options.references), kSamples);
      gradients.Synchronize(groups);
      optimizer.Step(1e-3);
      gradients.Clear();
    }
    std::vector<runtime::TrainingBatch> micro_batches;
    for (int i = 0; i < options.passes; ++i) {
      micro_batches.push_back(Batch(*family, begin + static_cast<size_t>(i) * of_pass, of_pass, options.references));
    }
    if (options.before_last_step) options.before_last_step();
    const at::Tensor losses = pass.Run(micro_batches, kSamples);
    if (options.behind_last_step) options.behind_last_step();
    for (int64_t j = 0; j < losses.size(0); ++j) result.losses.push_back(losses[j].item<double>());
    gradients.Synchronize(groups);
    result.norm = gradients.GlobalNorm(groups);
    if (options.max_norm > 0) gradients.Clip(result.norm, options.max_norm);
    for (size_t i = 0; i < gradients.params().size(); ++i) {
      const std::string& name = gradients.params()[i].spec.name;
      result.gradients[name] = gradients.Of(i).to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
      if (gradients.sharded() != nullptr) result.rows[name] = gradients.RowsOfParam(i);
    }
    if (measured != nullptr) result.most_bytes = measured->most_bytes();
    if (also) also(groups, gradients);
    return result;
  }

  const models::FamilyEntry* entry_ = nullptr;
  std::optional<models::ModelFolder> folder_;
  models::FamilyDescription description_;
  runtime::SamplerConfig scheduler_;
  int64_t max_sequence_length_ = 0;
  int64_t height_ = 0, width_ = 0;
};

}  // namespace tessera
