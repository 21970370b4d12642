#include "control/control_channel_wire.h"

#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace tessera {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 18;
constexpr int32_t kMaxThreads = 1 << 12;
constexpr uint64_t kMaxCacheBytes = uint64_t{1} << 40;
constexpr int kMaxBatch = 1024;
constexpr int64_t kMaxLatents = int64_t{1} << 24;  // values

absl::Status OutOfRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", valid values are ", low, " to ", high));
}

absl::Status CheckText(absl::string_view field, absl::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", text.size(), " bytes, at most ", kMaxTextBytes, " are accepted"));
  }
  if (text.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(field, " contains a NUL byte"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ComponentPlacement> FromWire(absl::string_view field, internal::Placement wire) {
  switch (wire) {
    case internal::PLACEMENT_RANK0:
      return ComponentPlacement::kRank0;
    case internal::PLACEMENT_CPU:
      return ComponentPlacement::kCpu;
    case internal::PLACEMENT_UNLOADED:
      return ComponentPlacement::kUnloaded;
    default:  // a number that another version may know
      return OutOfRange(field, wire, internal::Placement_MIN, internal::Placement_MAX);
  }
}

absl::StatusOr<std::vector<uint64_t>> CheckBatch(const std::vector<uint64_t>& jobs) {
  if (jobs.empty() || jobs.size() > kMaxBatch) return OutOfRange("number of jobs", jobs.size(), 1, kMaxBatch);
  std::set<uint64_t> distinct;
  for (uint64_t job : jobs) {
    if (!distinct.insert(job).second) {
      return absl::InvalidArgumentError(absl::StrCat("job ", job, " occurs twice in one batch"));
    }
  }
  return jobs;
}

}  // namespace

absl::StatusOr<std::string> FromWire(const internal::Describe& wire) {
  RETURN_IF_ERROR(CheckText("model", wire.model()));
  return wire.model();
}

absl::StatusOr<std::vector<uint64_t>> FromWire(const internal::Step& wire) {
  return CheckBatch({wire.jobs().begin(), wire.jobs().end()});
}

absl::StatusOr<std::vector<uint64_t>> BatchOf(const internal::Predict& wire) {
  std::vector<uint64_t> jobs = {wire.job()};
  jobs.insert(jobs.end(), wire.beside().begin(), wire.beside().end());
  return CheckBatch(jobs);
}

absl::StatusOr<LatentValues> FromWire(const internal::Predict& wire) {
  LatentValues latents = {.shape = {wire.shape().begin(), wire.shape().end()}};
  int64_t values = 1;
  for (int64_t size : latents.shape) {
    if (size < 1 || size > kMaxLatents / values) return OutOfRange("size of the latents", size, 1, kMaxLatents);
    values *= size;
  }
  if (wire.values().size() != static_cast<size_t>(values) * sizeof(double)) {
    return absl::InvalidArgumentError("the latents' values do not fill their shape");
  }
  latents.values.resize(static_cast<size_t>(values));
  std::memcpy(latents.values.data(), wire.values().data(), wire.values().size());
  return latents;
}

absl::StatusOr<LoadParameters> FromWire(const internal::Load& wire) {
  for (const auto& [field, text] : {std::pair{"model", &wire.model()},
                                    {"dtype", &wire.dtype()},
                                    {"device", &wire.device()},
                                    {"record", &wire.record()}}) {
    RETURN_IF_ERROR(CheckText(field, *text));
  }
  if (wire.threads() < 0 || wire.threads() > kMaxThreads) return OutOfRange("threads", wire.threads(), 0, kMaxThreads);
  ASSIGN_OR_RETURN(ComponentPlacement text_encoders, FromWire("placement of the text encoders", wire.text_encoders()));
  ASSIGN_OR_RETURN(ComponentPlacement autoencoder, FromWire("placement of the autoencoder", wire.autoencoder()));
  if (wire.prompt_cache_bytes() > kMaxCacheBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt cache is ", wire.prompt_cache_bytes(),
                                                   " bytes, at most ", kMaxCacheBytes, " are accepted"));
  }
  return LoadParameters{.model = wire.model(),
                        .dtype = wire.dtype(),
                        .device = wire.device(),
                        .threads = wire.threads(),
                        .text_encoders = text_encoders,
                        .autoencoder = autoencoder,
                        .prompt_cache_bytes = wire.prompt_cache_bytes(),
                        .stream_blocks = wire.stream_blocks(),
                        .record = wire.record()};
}

internal::BlockKind ToWire(BlockKind kind) {
  switch (kind) {
    case BlockKind::kImage:
      return internal::BLOCK_KIND_IMAGE;
    case BlockKind::kCross:
      return internal::BLOCK_KIND_CROSS;
    case BlockKind::kJoint:
      return internal::BLOCK_KIND_JOINT;
    case BlockKind::kFused:
      return internal::BLOCK_KIND_FUSED;
  }
  return internal::BLOCK_KIND_IMAGE;
}

// A cost for each block.
void ToWire(const TransformerShape& shape, internal::TransformerShape* wire) {
  wire->set_width(shape.exchange.width);
  wire->set_output_features(shape.exchange.output_features);
  wire->set_prediction_features(shape.exchange.prediction_features);
  wire->set_token_side(shape.token_side);
  wire->set_text_tokens(shape.text_tokens);
  for (size_t b = 0; b < shape.exchange.blocks.size(); ++b) {
    const BlockExchange& block = shape.exchange.blocks[b];
    internal::TransformerBlock* sent = wire->add_blocks();
    sent->set_kind(ToWire(block.kind));
    sent->set_second_attention(block.second_attention);
    sent->set_text_ends(block.text_ends);
    sent->set_flops(shape.block_flops[b]);
  }
  for (const LongSkip& skip : shape.exchange.long_skips) {
    internal::LongSkip* sent = wire->add_long_skips();
    sent->set_from(skip.from);
    sent->set_to(skip.to);
  }
}

void ToWire(const ModelDescription& description, internal::ModelDescription* wire) {
  wire->set_pipeline(ReplaceInvalidUtf8(description.pipeline));
  wire->set_family(ReplaceInvalidUtf8(description.family));
  wire->set_digest(ReplaceInvalidUtf8(description.digest));
  for (const ModelComponent& component : description.components) {
    internal::Component* part = wire->add_components();
    part->set_name(ReplaceInvalidUtf8(component.name));
    part->set_class_name(ReplaceInvalidUtf8(component.class_name));
    part->set_parameters(component.parameters);
    part->set_bytes(component.bytes);
    part->set_dtype(ReplaceInvalidUtf8(component.dtype));
    for (const std::string& file : component.files) part->add_files(ReplaceInvalidUtf8(file));
  }
  wire->set_size_multiple(description.size_multiple);
  wire->set_min_size(description.min_size);
  wire->set_max_size(description.max_size);
  wire->set_default_height(description.default_height);
  wire->set_default_width(description.default_width);
  wire->set_default_steps(description.default_steps);
  wire->set_default_guidance_scale(description.default_guidance_scale);
  wire->set_default_resolution_binning(description.default_resolution_binning);
  wire->set_can_bin(description.can_bin);
  wire->set_default_clean_caption(description.default_clean_caption);
  wire->set_default_max_sequence_length(description.default_max_sequence_length);
  wire->set_max_sequence_length(description.max_sequence_length);
  for (const std::string& option : description.options) wire->add_options(ReplaceInvalidUtf8(option));
  wire->set_default_sampler(ReplaceInvalidUtf8(description.default_sampler));
  for (const std::string& sampler : description.samplers) wire->add_samplers(ReplaceInvalidUtf8(sampler));
  wire->set_max_steps(description.max_steps);
  wire->set_libraries(ReplaceInvalidUtf8(description.libraries));
  wire->set_instruction_set(ReplaceInvalidUtf8(description.instruction_set));
  wire->set_heads(description.heads);
  wire->set_blocks(description.blocks);
  const TransformerShape& shape = description.transformer;
  if (shape.known() && shape.block_flops.size() == shape.exchange.blocks.size()) {
    ToWire(shape, wire->mutable_transformer());
  }
  for (const std::string& warning : description.warnings) wire->add_warnings(ReplaceInvalidUtf8(warning));
}

void ToWire(const Loaded& loaded, internal::Loaded* wire) {
  wire->set_seconds(loaded.seconds);
  wire->set_weight_bytes(loaded.weight_bytes);
  if (!loaded.room.has_value()) return;
  wire->mutable_room()->set_most(loaded.room->most);
  wire->mutable_room()->set_free(loaded.room->free);
}

void ToWire(const JobStarted& started, internal::JobStarted* wire) {
  wire->set_height(started.height);
  wire->set_width(started.width);
  wire->set_generated_height(started.generated_height);
  wire->set_generated_width(started.generated_width);
  wire->set_sampler(ReplaceInvalidUtf8(started.sampler));
  wire->set_prompt_tokens(started.prompt_tokens);
  wire->set_max_sequence_length(started.max_sequence_length);
  wire->set_seconds(started.seconds);
  wire->set_cached(started.cached);
  for (const std::string& warning : started.warnings) wire->add_warnings(ReplaceInvalidUtf8(warning));
}

void ToWire(const Stepped& stepped, internal::Stepped* wire) {
  wire->set_completed(stepped.completed);
  wire->set_seconds(stepped.seconds);
  wire->set_digest(stepped.digest);
}

void ToWire(const Decoded& decoded, internal::Decoded* wire) {
  wire->set_height(decoded.height);
  wire->set_width(decoded.width);
  wire->set_seconds(decoded.seconds);
}

void ToWire(const absl::Status& status, internal::Error* wire) {
  wire->set_code(static_cast<int32_t>(status.code()));
  wire->set_message(ReplaceInvalidUtf8(status.message()));
}

}  // namespace tessera
