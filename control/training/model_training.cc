#include "control/training/model_training.h"

#include <algorithm>
#include <numeric>

#include "parallel/plan/stage_balance.h"

namespace tessera::control {
namespace {

constexpr double kBlockBytes = 34;   // of a token and feature, at two bytes a number
constexpr double kSharedBytes = 24;  // of these, what tensor ranks share out
constexpr double kSwapBuffers = 2;   // blocks in the device's memory beside those that stay: in use, and on its way

double ElementBytesOf(TrainDtype dtype) { return dtype == TrainDtype::kBf16 ? 2 : dtype == TrainDtype::kFp32 ? 4 : 8; }

double TransformerParameters(const ModelDescription& model) {
  double parameters = 0;
  for (const ModelComponent& component : model.components) {
    if (component.role == ComponentRole::kTransformer) parameters += static_cast<double>(component.parameters);
  }
  return parameters;
}

// Matrices [width, width] of a block's attention that an adapter changes.
int64_t ProjectionsOf(const parallel::BlockExchange& block) {
  const int64_t second = block.second_attention ? 4 : 0;
  switch (block.kind) {
    case parallel::BlockKind::kImage:
      return 4 + second;
    case parallel::BlockKind::kCross:
      return 8 + second;  // from the text to the image there is an attention of its own
    case parallel::BlockKind::kJoint:
      return (block.text_ends ? 7 : 8) + second;
    case parallel::BlockKind::kFused:
      break;
  }
  return 3 + second;  // what comes out is projected together with the MLP
}

// The share of the transformer's weights in its largest block: one where text and image have weights of their own
// counts as two.
double LargestBlockShare(const ModelDescription& model) {
  double sum = 0, largest = 0;
  for (const parallel::BlockExchange& block : model.transformer.exchange.blocks) {
    const double size = block.kind == parallel::BlockKind::kJoint ? 2 : 1;
    sum += size;
    largest = std::max(largest, size);
  }
  return sum > 0 ? largest / sum : 0;
}

// What the pipeline stage that holds most of something holds.
struct LargestStage {
  double weights = 1;       // share of the transformer's
  double block_inputs = 0;  // blocks, each as often as there are micro-batches under way in its stage
};

LargestStage LargestStageOf(const TrainConfig& config, const ModelDescription& model) {
  const std::vector<parallel::BlockExchange>& blocks = model.transformer.exchange.blocks;
  const auto stages = static_cast<int>(config.parallelism.pipe);
  LargestStage largest{.weights = 1, .block_inputs = static_cast<double>(blocks.size())};
  if (stages == 1) return largest;
  std::vector<double> costs = model.transformer.block_flops;
  if (costs.size() != blocks.size()) costs.assign(blocks.size(), 1);
  const absl::StatusOr<std::vector<int>> bounds = parallel::BalanceStages(costs, stages);
  if (!bounds.ok()) return largest;  // no such run begins
  const auto size_of = [&](int begin, int end) {
    double size = 0;
    for (int block = begin; block < end; ++block) {
      size += blocks[static_cast<size_t>(block)].kind == parallel::BlockKind::kJoint ? 2 : 1;
    }
    return size;
  };
  largest = {.weights = 0, .block_inputs = 0};
  for (int stage = 0; stage < stages; ++stage) {
    const int begin = (*bounds)[static_cast<size_t>(stage)], end = (*bounds)[static_cast<size_t>(stage) + 1];
    const int64_t under_way = std::min<int64_t>(stages - stage, config.train.gradient_accumulation_steps);
    largest.weights = std::max(largest.weights, size_of(begin, end) / size_of(0, bounds->back()));
    largest.block_inputs = std::max(largest.block_inputs, static_cast<double>((end - begin) * under_way));
  }
  return largest;
}

double ActivationBytes(const TrainConfig& config, const ModelDescription& model, const Bucket& bucket) {
  const TransformerShape& shape = model.transformer;
  if (!shape.known() || shape.token_side < 1) return 0;
  const TrainParallelism& parallelism = config.parallelism;
  const auto tensor = static_cast<double>(parallelism.tensor);
  const int64_t columns = bucket.width / shape.token_side, rows = bucket.height / shape.token_side;
  auto tokens = static_cast<double>(columns * rows);
  if (shape.exchange.joint_text()) tokens += shape.text_tokens;
  tokens = tokens * static_cast<double>(config.train.batch_size) / static_cast<double>(parallelism.data) /
           static_cast<double>(parallelism.ulysses * parallelism.ring);
  const double numbers = tokens * static_cast<double>(shape.exchange.width);
  const double element = ElementBytesOf(config.train.dtype);
  const double own = parallelism.sequence_parallel ? (kBlockBytes - kSharedBytes) / tensor : kBlockBytes - kSharedBytes;
  const double block = numbers * element / 2 * (own + kSharedBytes / tensor);
  const double blocks = LargestStageOf(config, model).block_inputs;
  if (!config.train.gradient_checkpointing) return blocks * block;
  return blocks * numbers * element / (parallelism.sequence_parallel ? tensor : 1) + block;
}

}  // namespace

BucketRule BucketRuleOf(const ModelDescription& model) {
  const int token_side = std::max(model.transformer.token_side, 1);
  return {.multiple = std::lcm(std::max(model.size_multiple, 1), token_side),
          .min_side = std::max(model.min_size, 1),
          .max_side = std::max(model.max_size, 1)};
}

int64_t DefaultResolution(const ModelDescription& model) {
  const int multiple = BucketRuleOf(model).multiple;
  return std::max(model.default_height / multiple, 1) * multiple;
}

DatasetOptions DatasetOptionsOf(const TrainConfig& config, const ModelDescription& model) {
  return {.datasets = config.datasets,
          .trigger_word = config.trigger_word,
          .default_resolution = DefaultResolution(model),
          .rule = BucketRuleOf(model)};
}

std::vector<std::string> DefaultTargetModules(const ModelDescription& model) {
  std::vector<std::string> modules = {"to_q", "to_k", "to_v", "to_out.0"};
  if (model.transformer.exchange.joint_text()) {
    modules.insert(modules.end(), {"add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"});
  }
  return modules;
}

int64_t AdapterParameters(const ModelDescription& model, int64_t rank) {
  int64_t projections = 0;
  for (const parallel::BlockExchange& block : model.transformer.exchange.blocks) projections += ProjectionsOf(block);
  return projections * rank * 2 * model.transformer.exchange.width;
}

TrainingMemory PredictMemory(const TrainConfig& config, const ModelDescription& model, const Bucket& bucket) {
  const TrainParallelism& parallelism = config.parallelism;
  const bool is_lora = config.network.type == NetworkType::kLora;
  const auto tensor = static_cast<double>(parallelism.tensor), data = static_cast<double>(parallelism.data);
  const double element = ElementBytesOf(config.train.dtype);
  const double master = config.train.dtype == TrainDtype::kFp64 ? 8 : 4;
  const double weight_share = parallelism.zero == ZeroStage::kFull ? tensor * data : tensor;
  const double state_share = parallelism.zero == ZeroStage::kNone ? 1 : data;

  const double of_all_stages = TransformerParameters(model);
  const double parameters = of_all_stages * LargestStageOf(config, model).weights;
  const bool shards_weights = parallelism.zero == ZeroStage::kFull && parallelism.data > 1;
  const double block = shards_weights ? of_all_stages * LargestBlockShare(model) / tensor : 0;  // gathered
  double weights = parameters * (config.train.quantize ? 1 : element) / weight_share;
  if (const auto swapped = static_cast<double>(config.train.blocks_to_swap); swapped > 0 && model.blocks > 0) {
    weights *= std::min(model.blocks - swapped + kSwapBuffers, static_cast<double>(model.blocks)) / model.blocks;
    weights = std::max(weights, 0.0);
  }
  // Of the two factors of each module tensor ranks share out one.
  const double trained = is_lora ? static_cast<double>(AdapterParameters(model, config.network.linear)) *
                                       LargestStageOf(config, model).weights * (1 + 1 / tensor) / 2
                                 : parameters / tensor;
  const double states = config.train.ema_decay > 0 ? 4 : 3;
  TrainingMemory memory;
  // A block that is gathered is there twice: in its place, and as the message of its parts.
  memory.weights = static_cast<uint64_t>(weights + 2 * block * (config.train.quantize ? 1 : element));
  memory.adapter = is_lora ? static_cast<uint64_t>(trained * element) : 0;
  // An adapter's are on every data rank. Those of a block's weights come from autograd in the dtype of the computation
  // and are summed in fp32.
  memory.gradients = static_cast<uint64_t>(
      shards_weights && !is_lora ? trained * master / data + block * (element + master) : trained * master);
  memory.optimizer = static_cast<uint64_t>(trained * master * states / state_share);
  memory.activations = static_cast<uint64_t>(ActivationBytes(config, model, bucket));
  return memory;
}

}  // namespace tessera::control
