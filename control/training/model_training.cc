#include "control/training/model_training.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "control/model/group_share.h"
#include "control/model/model_description.h"
#include "control/parameters/placement.h"
#include "control/pictures/reference_size.h"
#include "control/training/target_modules.h"
#include "parallel/plan/stage_balance.h"

namespace tessera::control {
namespace {

constexpr char kTransformer[] = "transformer";
constexpr double kBlockBytes = 34;   // per token and feature, at two bytes a number
constexpr double kSharedBytes = 24;  // the part of it that tensor ranks shard
// A block that is computed again holds its gradients as well: so many times what it holds in a step that makes images
// (ModelCost::values_per_token), as measured for Z-Image, FLUX.2 and Qwen-Image (docs/gpu.md).
constexpr double kLiveInBackward = 3.2;
constexpr size_t kSwapBuffers = 2;  // blocks in device buffers: the one in use and the next

double ElementBytesOf(TrainDtype dtype) { return dtype == TrainDtype::kBf16 ? 2 : dtype == TrainDtype::kFp32 ? 4 : 8; }

// The bytes of a weight of the transformer in training, as the mean of all: matrices that are quantized in their file
// stay so under an adapter.
double WeightBytesOf(const TrainConfig& config, const ModelDescription& model) {
  const double plain = ElementBytesOf(config.train.dtype);
  if (config.network.type != NetworkType::kLora) return plain;
  const WeightStorage storage = config.train.quantize ? WeightStorage::kInt8 : WeightStorage::kStored;
  WeightSize all;
  for (const ComponentWeights& component : model.weights) {
    if (component.role != ComponentRole::kTransformer) continue;
    all += component.frame;
    all += component.modulations;
    for (const WeightSize& block : component.blocks) all += block;
  }
  if (all.elements == 0) return config.train.quantize ? 1 : plain;
  return static_cast<double>(BytesOf(all, storage, static_cast<int64_t>(plain))) / static_cast<double>(all.elements);
}

double TransformerParameters(const ModelDescription& model) {
  return static_cast<double>(ParametersOf(model, ComponentRole::kTransformer));
}

// Number of matrices [width, width] of a block's attention that an adapter changes.
int64_t ProjectionsOf(const parallel::BlockExchange& block) {
  const int64_t second = block.second_attention ? 4 : 0;
  switch (block.kind) {
    case parallel::BlockKind::kImage:
    case parallel::BlockKind::kUnified:
      return 4 + second;
    case parallel::BlockKind::kCross:
      return 8 + second;  // includes the cross-attention between text and image
    case parallel::BlockKind::kJoint:
      return (block.text_ends ? 7 : 8) + second;
    case parallel::BlockKind::kFused:
      break;
  }
  return 3 + second;  // the output is projected together with the MLP
}

// Sizes of the transformer's blocks, in any unit.
struct BlockSizes {
  std::vector<double> blocks;
  double others = 0;  // parameters outside all blocks

  double Of(int64_t begin, int64_t end) const {
    return std::accumulate(blocks.begin() + begin, blocks.begin() + end, 0.0);
  }
  double sum() const { return others + Of(0, static_cast<int64_t>(blocks.size())); }
};

// A block that waits takes its modulations with it. If the sizes are unknown, a block with separate weights for text
// and image counts as two.
BlockSizes BlockSizesOf(const ModelDescription& model) {
  const std::vector<parallel::BlockExchange>& blocks = model.transformer.exchange.blocks;
  BlockSizes sizes{.blocks = {}, .others = TransformerParameters(model)};
  for (const ComponentWeights& component : model.weights) {
    if (component.role != ComponentRole::kTransformer || component.blocks.size() != blocks.size()) continue;
    const double modulation =
        static_cast<double>(component.modulations.elements) / static_cast<double>(component.blocks.size());
    for (const WeightSize& block : component.blocks) {
      sizes.blocks.push_back(static_cast<double>(block.elements) + modulation);
    }
    sizes.others -= sizes.Of(0, static_cast<int64_t>(sizes.blocks.size()));
    if (sizes.others >= 0) return sizes;
  }
  sizes = {};
  for (const parallel::BlockExchange& block : blocks) {
    sizes.blocks.push_back(block.kind == parallel::BlockKind::kJoint ? 2 : 1);
  }
  return sizes;
}

double LargestBlockShare(const ModelDescription& model) {
  const BlockSizes sizes = BlockSizesOf(model);
  return sizes.blocks.empty() ? 0 : *std::ranges::max_element(sizes.blocks) / sizes.sum();
}

// The result has the unit of the sizes.
SwappedParameters SwappedOf(const BlockSizes& sizes, int64_t blocks_to_swap, int64_t begin, int64_t end) {
  SwappedParameters swapped;
  double largest = 0;
  size_t count = 0;
  for (const int64_t block : SwappedBlocks(static_cast<int64_t>(sizes.blocks.size()), blocks_to_swap)) {
    if (block < begin || block >= end) continue;
    ++count;
    largest = std::max(largest, sizes.blocks[static_cast<size_t>(block)]);
    swapped.waiting += sizes.blocks[static_cast<size_t>(block)];
  }
  swapped.buffers = largest * static_cast<double>(std::min(count, kSwapBuffers));
  return swapped;
}

// The largest values of any pipeline stage.
struct LargestStage {
  double weights = 1;       // share of the transformer's weights
  double on_device = 1;     // share on the device, including swap buffers but not swapped blocks
  double block_inputs = 0;  // blocks, each counted once per micro-batch in flight in its stage
};

LargestStage LargestStageOf(const TrainConfig& config, const ModelDescription& model) {
  const auto blocks = static_cast<int>(model.transformer.exchange.blocks.size());
  const auto stages = static_cast<int>(config.parallelism.pipe);
  LargestStage largest{.block_inputs = static_cast<double>(blocks)};
  std::vector<double> costs = model.transformer.block_flops;
  if (costs.size() != static_cast<size_t>(blocks)) costs.assign(static_cast<size_t>(blocks), 1);
  const absl::StatusOr<std::vector<int>> balanced = parallel::BalanceStages(costs, stages);
  if (blocks == 0 || (stages > 1 && !balanced.ok())) return largest;  // such a run is refused
  const std::vector<int> bounds = stages > 1 ? *balanced : std::vector{0, blocks};
  const BlockSizes sizes = BlockSizesOf(model);
  largest = {.weights = 0, .on_device = 0, .block_inputs = 0};
  for (int stage = 0; stage < stages; ++stage) {
    const int begin = bounds[static_cast<size_t>(stage)], end = bounds[static_cast<size_t>(stage) + 1];
    const int64_t under_way =
        stages > 1 ? std::min<int64_t>(stages - stage, config.train.gradient_accumulation_steps) : 1;
    const double own = sizes.others + sizes.Of(begin, end);
    const SwappedParameters swapped = SwappedOf(sizes, config.train.blocks_to_swap, begin, end);
    largest.weights = std::max(largest.weights, own / sizes.sum());
    largest.on_device = std::max(largest.on_device, (own - swapped.waiting + swapped.buffers) / sizes.sum());
    largest.block_inputs = std::max(largest.block_inputs, static_cast<double>((end - begin) * under_way));
  }
  return largest;
}

double ActivationBytes(const TrainConfig& config, const ModelDescription& model, const LargestSample& sample) {
  const TransformerShape& shape = model.transformer;
  if (!shape.known()) return 0;
  const TrainParallelism& parallelism = config.parallelism;
  const auto tensor = static_cast<double>(parallelism.tensor);
  const Bucket& bucket = sample.bucket;
  auto tokens = static_cast<double>(ImageTokens(model.cost, {.height = bucket.height, .width = bucket.width}));
  if (model.cost.joint_text) tokens += model.cost.text_tokens + static_cast<double>(sample.control_tokens);
  tokens = tokens * static_cast<double>(config.train.batch_size) / static_cast<double>(parallelism.data) /
           static_cast<double>(parallelism.ulysses * parallelism.ring);
  const double numbers = tokens * static_cast<double>(shape.exchange.width);
  const double element = ElementBytesOf(config.train.dtype);
  const double own = parallelism.sequence_parallel ? (kBlockBytes - kSharedBytes) / tensor : kBlockBytes - kSharedBytes;
  const double block = numbers * element / 2 * (own + kSharedBytes / tensor);
  const double blocks = LargestStageOf(config, model).block_inputs;
  if (!config.train.gradient_checkpointing) return blocks * block;
  const double live = kLiveInBackward * model.cost.values_per_token / static_cast<double>(shape.exchange.width);
  return blocks * numbers * element / (parallelism.sequence_parallel ? tensor : 1) +
         block * std::max(1.0, 2 * live / kBlockBytes);
}

// Bytes on the device while samples are encoded: of text encoders, autoencoder and what they compute.
struct EncoderBytes {
  int64_t whole = 0;  // with all of them on the device
  // The products of text encoders wait in main memory, and each is on the device while it is used. The largest is about
  // half of a block.
  int64_t waiting = 0;
};

EncoderBytes EncoderBytesOf(const TrainConfig& config, const ModelDescription& model, const LargestSample& sample) {
  constexpr int64_t kLeastComputed = int64_t{128} << 20;
  const auto element = static_cast<int64_t>(ElementBytesOf(config.train.dtype));
  const ImageWork picture{.size = {.height = sample.bucket.height, .width = sample.bucket.width}};
  const double codec = DecodeBytes(model.cost, picture, {.element_bytes = element});
  const int64_t computed = std::max(kLeastComputed, static_cast<int64_t>(codec));
  EncoderBytes bytes{.whole = computed, .waiting = computed};
  for (const ComponentWeights& component : model.weights) {
    if (component.role == ComponentRole::kTransformer) continue;
    int64_t blocks = 0, largest = 0;
    for (const WeightSize& block : component.blocks) {
      const int64_t size = BytesOf(block, WeightStorage::kStored, element);
      blocks += size;
      largest = std::max(largest, size);
    }
    const int64_t frame = BytesOf(component.frame, WeightStorage::kStored, element);
    bytes.whole += frame + blocks;
    bytes.waiting += frame + (component.role == ComponentRole::kTextEncoder ? largest / 2 : blocks);
  }
  return bytes;
}

}  // namespace

BucketRule BucketRuleOf(const ModelDescription& model) {
  return {.multiple = std::lcm(std::max(model.size_multiple, 1), model.cost.token_side),
          .min_side = std::max(model.min_size, 1),
          .max_side = std::max(model.max_size, 1)};
}

int64_t DefaultResolution(const ModelDescription& model) {
  const int multiple = BucketRuleOf(model).multiple;
  return std::max(model.default_height / multiple, 1) * multiple;
}

ControlRules ControlRulesOf(const PictureRules& pictures) {
  if (pictures.use != PictureInput::kReference) return {};
  return {.fit = pictures.fit, .most = pictures.most, .required = pictures.required};
}

DatasetOptions DatasetOptionsOf(const TrainConfig& config, const ModelDescription& model) {
  return {.datasets = config.datasets,
          .trigger_word = config.trigger_word,
          .default_resolution = DefaultResolution(model),
          .rule = BucketRuleOf(model),
          .controls = ControlRulesOf(model.pictures)};
}

std::vector<std::string> DefaultTargetModules(const ModelDescription& model) {
  std::vector<std::string> modules = {"to_q", "to_k", "to_v", "to_out.0"};
  const auto has_text_stream = [](const parallel::BlockExchange& block) {
    return block.kind == parallel::BlockKind::kJoint;
  };
  if (std::ranges::any_of(model.transformer.exchange.blocks, has_text_stream)) {
    modules.insert(modules.end(), {"add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"});
  }
  // The attention of FLUX.2's single blocks is projected together with their MLP.
  constexpr std::array kFused{"to_qkv_mlp_proj", "attn.to_out"};
  for (const char* const fused : kFused) {
    const auto is_fused = [fused](const MatrixProduct& product) {
      return product.component == kTransformer && IsTarget(product.name, fused);
    };
    if (std::ranges::any_of(model.products, is_fused)) modules.emplace_back(fused);
  }
  return modules;
}

int64_t AdapterParameters(const ModelDescription& model, const TrainNetwork& network) {
  const std::vector<std::string> targets =
      network.target_modules.empty() ? DefaultTargetModules(model) : network.target_modules;
  int64_t weights = 0;
  for (const MatrixProduct& product : model.products) {
    if (product.component != kTransformer || !IsTargetOfAny(product.name, targets)) continue;
    weights += network.linear * (product.out + product.in);
  }
  if (weights > 0) return weights;
  int64_t projections = 0;
  for (const parallel::BlockExchange& block : model.transformer.exchange.blocks) projections += ProjectionsOf(block);
  return projections * network.linear * 2 * model.transformer.exchange.width;
}

absl::Status CheckTargetModules(const TrainConfig& config, const ModelDescription& model) {
  std::vector<std::string> modules;
  for (const MatrixProduct& product : model.products) {
    if (product.component == kTransformer) modules.push_back(product.name);
  }
  if (config.network.type == NetworkType::kFull || modules.empty()) return absl::OkStatus();
  return CheckTargets(config.network.target_modules, modules);
}

absl::Status CheckBlocksToSwap(int64_t blocks_to_swap, const ModelDescription& model) {
  if (blocks_to_swap >= 0 && blocks_to_swap <= model.blocks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("train.blocks_to_swap is ", blocks_to_swap, "; valid values are 0 to ",
                                                 model.blocks, ", the number of the model's blocks"));
}

absl::Status CheckBlocksToSwap(const TrainConfig& config, const ModelDescription& model) {
  if (config.parallelism.zero == ZeroStage::kFull && config.train.blocks_to_swap > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.blocks_to_swap is ", config.train.blocks_to_swap,
                     "; with parallelism.zero: 3 the weights of every block are split over the data ranks, so it must "
                     "be 0; or set parallelism.zero to 0 or 1"));
  }
  return CheckBlocksToSwap(config.train.blocks_to_swap, model);
}

absl::Status CheckPredictionType(const TrainConfig& config, const ModelDescription& model) {
  const bool is_flow = std::ranges::find(model.samplers, "flow-euler") != model.samplers.end();
  if (!is_flow || config.train.prediction_type == TrainedPrediction::kScheduler) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("train.prediction_type is ", base::EnumName(config.train.prediction_type),
                   "; this model is trained by flow matching alone, for which it must be scheduler"));
}

SwappedParameters SwappedParametersOf(const ModelDescription& model, int64_t blocks_to_swap, int64_t begin,
                                      int64_t end) {
  const BlockSizes sizes = BlockSizesOf(model);
  if (sizes.blocks.empty()) return {};
  const auto last = static_cast<int64_t>(sizes.blocks.size());
  const SwappedParameters swapped = SwappedOf(sizes, blocks_to_swap, begin, std::min(end, last));
  const double unit = TransformerParameters(model) / sizes.sum();
  return {.waiting = swapped.waiting * unit, .buffers = swapped.buffers * unit};
}

int64_t ControlTokens(const ModelDescription& model, absl::Span<const ControlPicture> pictures) {
  int64_t tokens = 0;
  for (const ControlPicture& picture : pictures) {
    const absl::StatusOr<ReferenceSize> size = SizeOfReference(model.pictures.fit, picture.size);
    if (!size.ok()) continue;  // such a picture is not in a set
    tokens += ImageTokens(model.cost, {.height = size->read.height, .width = size->read.width}) +
              PromptTokensOf(model.pictures.fit, picture.size);
  }
  return tokens;
}

LargestSample LargestSampleOf(const TrainingSet& set, const ModelDescription& model) {
  LargestSample largest;
  int64_t most = -1;
  for (const TrainingSample& sample : set.samples) {
    const Bucket& bucket = set.buckets[static_cast<size_t>(sample.bucket)];
    const int64_t control = ControlTokens(model, set.ControlsOf(sample));
    const int64_t tokens = ImageTokens(model.cost, {.height = bucket.height, .width = bucket.width}) + control;
    if (tokens < most || (tokens == most && !(bucket < largest.bucket))) continue;
    most = tokens;
    largest = {.bucket = bucket, .control_tokens = control};
  }
  return largest;
}

TrainingMemory PredictMemory(const TrainConfig& config, const ModelDescription& model, const LargestSample& sample) {
  const TrainParallelism& parallelism = config.parallelism;
  const bool is_lora = config.network.type == NetworkType::kLora;
  const auto tensor = static_cast<double>(parallelism.tensor), data = static_cast<double>(parallelism.data);
  const double element = ElementBytesOf(config.train.dtype), weight_bytes = WeightBytesOf(config, model);
  const double master = config.train.dtype == TrainDtype::kFp64 ? 8 : 4;
  const double weight_share = parallelism.zero == ZeroStage::kFull ? tensor * data : tensor;
  const double state_share = parallelism.zero == ZeroStage::kNone ? 1 : data;

  const double of_all_stages = TransformerParameters(model);
  const LargestStage stage = LargestStageOf(config, model);
  const double parameters = of_all_stages * stage.weights;
  const bool shards_weights = parallelism.zero == ZeroStage::kFull && parallelism.data > 1;
  const double block = shards_weights ? of_all_stages * LargestBlockShare(model) / tensor : 0;  // a gathered block
  const double weights = of_all_stages * stage.on_device * weight_bytes / weight_share;
  // Tensor ranks shard one of the two factors of each module.
  const double trained =
      is_lora ? static_cast<double>(AdapterParameters(model, config.network)) * stage.weights * (1 + 1 / tensor) / 2
              : parameters / tensor;
  const double states = config.train.ema_decay > 0 ? 4 : 3;
  TrainingMemory memory;
  // A gathered block exists twice: in its final place, and as the message with its parts.
  memory.weights = static_cast<uint64_t>(weights + 2 * block * weight_bytes);
  memory.adapter = is_lora ? static_cast<uint64_t>(trained * element) : 0;
  // Every data rank has all gradients of an adapter. Autograd returns those of a block's weights in the dtype of the
  // computation, and they are summed in fp32.
  memory.gradients = static_cast<uint64_t>(
      shards_weights && !is_lora ? trained * master / data + block * (element + master) : trained * master);
  memory.optimizer = static_cast<uint64_t>(trained * master * states / state_share);
  memory.activations = static_cast<uint64_t>(ActivationBytes(config, model, sample));
  const EncoderBytes encoders = EncoderBytesOf(config, model, sample);
  const uint64_t others = memory.total() - memory.activations;
  memory.encoding = others + static_cast<uint64_t>(encoders.whole);
  memory.encoding_waiting = others + static_cast<uint64_t>(encoders.waiting);
  return memory;
}

}  // namespace tessera::control
