#include "control/worker_client_wire.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr int32_t kMaxSide = 1 << 16;
constexpr int32_t kMaxTokens = 1 << 16;
constexpr int32_t kMaxBlocks = 1 << 16;
// Of a transformer whose shape is told: so that what is computed from it is soon done and fits into 63 bits.
constexpr int32_t kMaxShapeBlocks = 1 << 10;
constexpr int64_t kMaxFeatures = int64_t{1} << 16;
constexpr double kMaxBlockFlops = 1e30;

template <typename Strings>
std::vector<std::string> ToVector(const Strings& strings) {
  return std::vector<std::string>(strings.begin(), strings.end());
}

absl::StatusOr<BlockKind> FromWire(internal::BlockKind kind) {
  switch (kind) {
    case internal::BLOCK_KIND_IMAGE:
      return BlockKind::kImage;
    case internal::BLOCK_KIND_CROSS:
      return BlockKind::kCross;
    case internal::BLOCK_KIND_JOINT:
      return BlockKind::kJoint;
    case internal::BLOCK_KIND_FUSED:
      return BlockKind::kFused;
    default:
      return ProtocolError("a transformer with an unknown kind of block");
  }
}

absl::StatusOr<TransformerShape> FromWire(const internal::TransformerShape& wire, int32_t blocks) {
  if (wire.width() < 1 || wire.width() > kMaxFeatures || wire.output_features() < 1 ||
      wire.output_features() > kMaxFeatures || wire.prediction_features() < 1 ||
      wire.prediction_features() > kMaxFeatures) {
    return ProtocolError("a transformer without valid widths");
  }
  if (wire.token_side() < 1 || wire.token_side() > kMaxSide || wire.text_tokens() < 0 ||
      wire.text_tokens() > kMaxTokens) {
    return ProtocolError("a transformer without valid tokens");
  }
  if (wire.blocks_size() < 1 || wire.blocks_size() != blocks || blocks > kMaxShapeBlocks) {
    return ProtocolError("a transformer with another number of blocks than the model");
  }
  TransformerShape shape = {.exchange = {.width = wire.width(),
                                         .output_features = wire.output_features(),
                                         .prediction_features = wire.prediction_features(),
                                         .blocks = {},
                                         .long_skips = {}},
                            .block_flops = {},
                            .token_side = wire.token_side(),
                            .text_tokens = wire.text_tokens()};
  for (const internal::TransformerBlock& block : wire.blocks()) {
    ASSIGN_OR_RETURN(const BlockKind kind, FromWire(block.kind()));
    if (!(block.flops() >= 0 && block.flops() <= kMaxBlockFlops)) {
      return ProtocolError("a transformer with a block without a valid cost");
    }
    shape.exchange.blocks.push_back(
        {.kind = kind, .second_attention = block.second_attention(), .text_ends = block.text_ends()});
    shape.block_flops.push_back(block.flops());
  }
  if (wire.long_skips_size() > blocks) return ProtocolError("a transformer with more long skips than blocks");
  for (const internal::LongSkip& skip : wire.long_skips()) {
    if (skip.from() < 0 || skip.to() <= skip.from() || skip.to() >= blocks) {
      return ProtocolError("a transformer with a long skip that leads nowhere");
    }
    shape.exchange.long_skips.push_back({.from = skip.from(), .to = skip.to()});
  }
  return shape;
}

internal::Placement ToWire(ComponentPlacement placement) {
  switch (placement) {
    case ComponentPlacement::kRank0:
      return internal::PLACEMENT_RANK0;
    case ComponentPlacement::kCpu:
      return internal::PLACEMENT_CPU;
    case ComponentPlacement::kUnloaded:
      return internal::PLACEMENT_UNLOADED;
  }
  return internal::PLACEMENT_RANK0;
}

}  // namespace

absl::Status ProtocolError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("the worker broke the control protocol: ", what));
}

absl::Status FromWire(const internal::Error& error) {
  const bool known = error.code() > 0 && error.code() <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(error.code()) : absl::StatusCode::kUnknown,
                      error.message());
}

absl::StatusOr<ModelDescription> FromWire(const internal::ModelDescription& wire) {
  if (wire.size_multiple() < 1 || wire.min_size() < 1 || wire.max_size() < wire.min_size() ||
      wire.max_size() > kMaxSide || wire.max_size() / wire.size_multiple() * wire.size_multiple() < wire.min_size() ||
      wire.max_steps() < 1) {
    return ProtocolError("a model description without valid sizes or steps");
  }
  if (wire.max_sequence_length() < 0 || wire.max_sequence_length() > kMaxTokens || wire.blocks() < 0 ||
      wire.blocks() > kMaxBlocks) {
    return ProtocolError("a model description without valid counts of tokens or blocks");
  }
  ModelDescription description;
  description.pipeline = wire.pipeline();
  description.family = wire.family();
  description.digest = wire.digest();
  for (const internal::Component& part : wire.components()) {
    description.components.push_back({.name = part.name(),
                                      .class_name = part.class_name(),
                                      .parameters = part.parameters(),
                                      .bytes = part.bytes(),
                                      .dtype = part.dtype(),
                                      .files = ToVector(part.files())});
  }
  description.size_multiple = wire.size_multiple();
  description.min_size = wire.min_size();
  description.max_size = wire.max_size();
  description.default_height = wire.default_height();
  description.default_width = wire.default_width();
  description.default_steps = wire.default_steps();
  description.max_steps = wire.max_steps();
  description.default_guidance_scale = wire.default_guidance_scale();
  description.default_resolution_binning = wire.default_resolution_binning();
  description.can_bin = wire.can_bin();
  description.default_clean_caption = wire.default_clean_caption();
  description.default_max_sequence_length = wire.default_max_sequence_length();
  description.max_sequence_length = wire.max_sequence_length();
  description.options = ToVector(wire.options());
  description.default_sampler = wire.default_sampler();
  description.samplers = ToVector(wire.samplers());
  description.heads = wire.heads();
  description.libraries = wire.libraries();
  description.instruction_set = wire.instruction_set();
  description.blocks = wire.blocks();
  if (wire.has_transformer()) {
    ASSIGN_OR_RETURN(description.transformer, FromWire(wire.transformer(), wire.blocks()));
  }
  description.warnings = ToVector(wire.warnings());
  return description;
}

absl::StatusOr<Loaded> FromWire(const internal::Loaded& wire) {
  Loaded loaded = {.seconds = wire.seconds(), .weight_bytes = wire.weight_bytes()};
  if (!wire.has_room()) return loaded;
  if (wire.room().most() < 1 || wire.room().free() > wire.room().most()) {
    return ProtocolError("a device without a valid size of its memory");
  }
  loaded.room = {.most = wire.room().most(), .free = wire.room().free()};
  return loaded;
}

absl::StatusOr<JobStarted> FromWire(const internal::JobStarted& wire) {
  if (wire.height() < 1 || wire.height() > kMaxSide || wire.width() < 1 || wire.width() > kMaxSide) {
    return ProtocolError("a job started without a valid size");
  }
  JobStarted started;
  started.height = wire.height();
  started.width = wire.width();
  started.generated_height = wire.generated_height();
  started.generated_width = wire.generated_width();
  started.sampler = wire.sampler();
  started.prompt_tokens = wire.prompt_tokens();
  started.max_sequence_length = wire.max_sequence_length();
  started.seconds = wire.seconds();
  started.cached = wire.cached();
  started.warnings = ToVector(wire.warnings());
  return started;
}

void ToWire(const LoadParameters& parameters, internal::Load* wire) {
  wire->set_model(parameters.model);
  wire->set_dtype(parameters.dtype);
  wire->set_device(parameters.device);
  wire->set_threads(parameters.threads);
  wire->set_text_encoders(ToWire(parameters.text_encoders));
  wire->set_autoencoder(ToWire(parameters.autoencoder));
  wire->set_prompt_cache_bytes(parameters.prompt_cache_bytes);
  wire->set_stream_blocks(parameters.stream_blocks);
  wire->set_record(parameters.record);
}

}  // namespace tessera
