#include "control/command_wire.h"

#include <concepts>
#include <cstdlib>
#include <cstring>
#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/field_error.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "control/message_fields.h"

namespace tessera::control {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaxTextBytes = size_t{1} << 18;
constexpr int32_t kMaxThreads = 1 << 12;
constexpr uint64_t kMaxCacheBytes = uint64_t{1} << 40;
constexpr int kMaxBatch = 1024;
constexpr int64_t kMaxLatents = int64_t{1} << 24;  // values
constexpr int64_t kMaxSamples = int64_t{1} << 32;
constexpr int32_t kMaxSide = 1 << 16;
constexpr int32_t kMaxTokens = 1 << 16;
constexpr int32_t kMaxBlocks = 1 << 16;
// Bounds of the shape that a worker reports of its transformer, so that what is computed from it is soon done and fits
// into 63 bits.
constexpr int32_t kMaxShapeBlocks = 1 << 10;
constexpr int64_t kMaxFeatures = int64_t{1} << 16;
constexpr double kMaxBlockFlops = 1e30;

// The messages have the numbers of these.
static_assert(static_cast<int>(ComponentPlacement::kUnloaded) == internal::Placement_MAX);
static_assert(static_cast<int>(parallel::BlockKind::kFused) == internal::BlockKind_MAX);
static_assert(static_cast<int>(ComponentRole::kTextEncoder) == internal::ComponentRole_MAX);

template <typename T, typename Plain>
concept Is = std::same_as<std::remove_const_t<T>, Plain>;

// Each calls visit(name, field) for the fields of a struct that its message has under the same name.
void VisitFields(const auto& visit, Is<ModelComponent> auto& component) {
  visit("name", component.name);
  visit("role", component.role);
  visit("class_name", component.class_name);
  visit("parameters", component.parameters);
  visit("bytes", component.bytes);
  visit("dtype", component.dtype);
  visit("files", component.files);
}

void VisitFields(const auto& visit, Is<MatrixProduct> auto& product) {
  visit("component", product.component);
  visit("name", product.name);
  visit("out", product.out);
  visit("in", product.in);
  visit("aliases", product.aliases);
}

void VisitFields(const auto& visit, Is<parallel::LongSkip> auto& skip) {
  visit("from", skip.from);
  visit("to", skip.to);
}

// The message has the costs of the blocks within the blocks, so those are no fields here.
void VisitFields(const auto& visit, Is<TransformerShape> auto& shape) {
  visit("width", shape.exchange.width);
  visit("output_features", shape.exchange.output_features);
  visit("prediction_features", shape.exchange.prediction_features);
  visit("token_side", shape.token_side);
  visit("text_tokens", shape.text_tokens);
  visit("long_skips", shape.exchange.long_skips);
}

// All but the shape of the transformer, which may be unknown.
void VisitFields(const auto& visit, Is<ModelDescription> auto& model) {
  visit("pipeline", model.pipeline);
  visit("family", model.family);
  visit("digest", model.digest);
  visit("components", model.components);
  visit("size_multiple", model.size_multiple);
  visit("min_size", model.min_size);
  visit("max_size", model.max_size);
  visit("default_height", model.default_height);
  visit("default_width", model.default_width);
  visit("default_steps", model.default_steps);
  visit("max_steps", model.max_steps);
  visit("default_guidance_scale", model.default_guidance_scale);
  visit("default_resolution_binning", model.default_resolution_binning);
  visit("can_bin", model.can_bin);
  visit("default_clean_caption", model.default_clean_caption);
  visit("default_max_sequence_length", model.default_max_sequence_length);
  visit("max_sequence_length", model.max_sequence_length);
  visit("options", model.options);
  visit("default_sampler", model.default_sampler);
  visit("samplers", model.samplers);
  visit("heads", model.heads);
  visit("blocks", model.blocks);
  visit("products", model.products);
  visit("original_names", model.original_names);
  visit("libraries", model.libraries);
  visit("instruction_set", model.instruction_set);
  visit("warnings", model.warnings);
}

void VisitFields(const auto& visit, Is<LoadParameters> auto& load) {
  visit("model", load.model);
  visit("dtype", load.dtype);
  visit("device", load.device);
  visit("threads", load.threads);
  visit("text_encoders", load.text_encoders);
  visit("autoencoder", load.autoencoder);
  visit("prompt_cache_bytes", load.prompt_cache_bytes);
  visit("stream_blocks", load.stream_blocks);
  visit("offload", load.offload);
  visit("record", load.record);
  visit("training", load.training);
  visit("quantize", load.quantize);
  visit("blocks_to_swap", load.blocks_to_swap);
}

void VisitFields(const auto& visit, Is<MemoryBudget> auto& memory_budget) {
  visit("most", memory_budget.most);
  visit("free", memory_budget.free);
}

void VisitFields(const auto& visit, Is<DeviceMemory> auto& memory) {
  visit("total", memory.total);
  visit("free", memory.free);
  visit("used", memory.used);
  visit("cached", memory.cached);
}

void VisitFields(const auto& visit, Is<DeviceIdentity> auto& identity) {
  visit("device", identity.device);
  visit("driver", identity.driver);
  visit("cudnn", identity.cudnn);
  visit("nccl", identity.nccl);
  visit("communicator", identity.communicator);
}

void VisitFields(const auto& visit, Is<Loaded> auto& loaded) {
  visit("seconds", loaded.seconds);
  visit("weight_bytes", loaded.weight_bytes);
  visit("memory_budget", loaded.memory_budget);
  visit("device_memory", loaded.device_memory);
  visit("contents", loaded.contents);
}

void VisitFields(const auto& visit, Is<JobStarted> auto& started) {
  visit("height", started.height);
  visit("width", started.width);
  visit("generated_height", started.generated_height);
  visit("generated_width", started.generated_width);
  visit("sampler", started.sampler);
  visit("prompt_tokens", started.prompt_tokens);
  visit("max_sequence_length", started.max_sequence_length);
  visit("seconds", started.seconds);
  visit("cached", started.cached);
  visit("warnings", started.warnings);
}

void VisitFields(const auto& visit, Is<Stepped> auto& stepped) {
  visit("completed", stepped.completed);
  visit("seconds", stepped.seconds);
  visit("digest", stepped.digest);
  visit("device_memory", stepped.device_memory);
}

void VisitFields(const auto& visit, Is<Decoded> auto& decoded) {
  visit("height", decoded.height);
  visit("width", decoded.width);
  visit("seconds", decoded.seconds);
  visit("completed", decoded.completed);
}

void VisitFields(const auto& visit, Is<TrainingStart> auto& start) {
  visit("config", start.config);
  visit("checkpoint", start.checkpoint);
}

void VisitFields(const auto& visit, Is<TrainingStarted> auto& started) {
  visit("step", started.step);
  visit("trained_parameters", started.trained_parameters);
  visit("samples", started.samples);
  visit("checkpoint", started.checkpoint);
  visit("warnings", started.warnings);
}

void VisitFields(const auto& visit, Is<SamplesPrepared> auto& prepared) {
  visit("prepared", prepared.prepared);
  visit("samples", prepared.samples);
  visit("cached_pictures", prepared.cached_pictures);
  visit("cached_captions", prepared.cached_captions);
  visit("warnings", prepared.warnings);
}

void VisitFields(const auto& visit, Is<Trained> auto& trained) {
  visit("step", trained.step);
  visit("loss", trained.loss);
  visit("gradient_norm", trained.gradient_norm);
  visit("learning_rate", trained.learning_rate);
  visit("seconds", trained.seconds);
  visit("skipped", trained.skipped);
  visit("loss_ratio", trained.loss_ratio);
}

void VisitFields(const auto& visit, Is<TrainingSaved> auto& saved) {
  visit("checkpoint", saved.checkpoint);
  visit("exported", saved.exported);
  visit("seconds", saved.seconds);
  visit("warnings", saved.warnings);
}

const FieldDescriptor* FieldOf(const Message& message, const char* name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr) std::abort();  // a field of a struct without its line in the message
  return field;
}

class FieldWriter {
 public:
  explicit FieldWriter(Message& message) : message_(message), writer_(message) {}

  void operator()(const char* name, const auto& value) const { Put(FieldOf(message_, name), value); }

 private:
  void Put(const FieldDescriptor* to, const auto& value) const { writer_.Put(to, value); }
  void Put(const FieldDescriptor* to, const std::string& text) const {
    writer_.Put(to, to->type() == FieldDescriptor::TYPE_STRING ? base::ReplaceInvalidUtf8(text) : text);
  }
  void Put(const FieldDescriptor* to, const std::vector<std::string>& texts) const {
    for (const std::string& text : texts) writer_.Add(to, base::ReplaceInvalidUtf8(text));
  }
  template <typename Item>
  void Put(const FieldDescriptor* to, const std::optional<Item>& item) const {
    if (item.has_value()) VisitFields(FieldWriter(writer_.PutMessage(to)), *item);
  }
  template <typename Item>
  void Put(const FieldDescriptor* to, const std::vector<Item>& items) const {
    for (const Item& item : items) VisitFields(FieldWriter(writer_.AddMessage(to)), item);
  }

  const Message& message_;
  const MessageWriter writer_;
};

class FieldReader {
 public:
  explicit FieldReader(const Message& message) : message_(message), reader_(message) {}

  void operator()(const char* name, auto& value) const { Get(FieldOf(message_, name), value); }

 private:
  void Get(const FieldDescriptor* from, auto& value) const { reader_.Get(from, value); }
  void Get(const FieldDescriptor* from, std::vector<std::string>& texts) const { reader_.Get(from, texts); }
  template <typename Item>
  void Get(const FieldDescriptor* from, std::optional<Item>& item) const {
    if (reader_.Has(from)) VisitFields(FieldReader(reader_.GetMessage(from)), item.emplace());
  }
  template <typename Item>
  void Get(const FieldDescriptor* from, std::vector<Item>& items) const {
    items.resize(static_cast<size_t>(reader_.Size(from)));
    for (size_t i = 0; i < items.size(); ++i) {
      VisitFields(FieldReader(reader_.GetMessage(from, static_cast<int>(i))), items[i]);
    }
  }

  const Message& message_;
  const MessageReader reader_;
};

void WriteFields(const auto& from, Message& to) { VisitFields(FieldWriter(to), from); }
void ReadFields(const Message& from, auto& to) { VisitFields(FieldReader(from), to); }

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

absl::Status CheckPlacement(absl::string_view field, internal::Placement wire) {
  if (internal::Placement_IsValid(wire)) return absl::OkStatus();
  return OutOfRange(field, wire, internal::Placement_MIN, internal::Placement_MAX);
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

absl::Status CheckMemory(const internal::DeviceMemory& memory) {
  const uint64_t total = memory.total();
  if (total > 0 && memory.free() <= total && memory.used() <= total && memory.cached() <= total) {
    return absl::OkStatus();
  }
  return ProtocolError("a device without a valid size of its memory");
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
  TransformerShape shape;
  ReadFields(wire, shape);
  for (const internal::TransformerBlock& block : wire.blocks()) {
    if (!internal::BlockKind_IsValid(block.kind())) {
      return ProtocolError("a transformer with an unknown kind of block");
    }
    if (!(block.flops() >= 0 && block.flops() <= kMaxBlockFlops)) {
      return ProtocolError("a transformer with a block without a valid cost");
    }
    shape.exchange.blocks.push_back({.kind = static_cast<parallel::BlockKind>(block.kind()),
                                     .second_attention = block.second_attention(),
                                     .text_ends = block.text_ends()});
    shape.block_flops.push_back(block.flops());
  }
  if (wire.long_skips_size() > blocks) return ProtocolError("a transformer with more long skips than blocks");
  for (const internal::LongSkip& skip : wire.long_skips()) {
    if (skip.from() < 0 || skip.to() <= skip.from() || skip.to() >= blocks) {
      return ProtocolError("a transformer with a long skip that leads nowhere");
    }
  }
  return shape;
}

}  // namespace

absl::StatusOr<std::string> FromWire(const internal::Describe& wire) {
  RETURN_IF_ERROR(CheckText("model", wire.model()));
  return wire.model();
}

absl::StatusOr<std::string> FromWire(const internal::Identify& wire) {
  RETURN_IF_ERROR(CheckText("device", wire.device()));
  return wire.device();
}

absl::StatusOr<std::vector<uint64_t>> FromWire(const internal::Step& wire) {
  return CheckBatch({wire.jobs().begin(), wire.jobs().end()});
}

absl::StatusOr<int32_t> CountOf(const internal::Step& wire) {
  if (wire.count() < 0 || wire.count() > kMaxStepsTogether) {
    return OutOfRange("number of steps", wire.count(), 0, kMaxStepsTogether);
  }
  return std::max(wire.count(), 1);
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

// Empty stands for the default.
template <typename Enum>
absl::Status CheckName(absl::string_view field, const std::string& text) {
  if (text.empty() || base::EnumOf<Enum>(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", base::Quote(text), "; valid values are ",
                                                 absl::StrJoin(base::EnumNames<Enum>(), ", ")));
}

absl::StatusOr<LoadParameters> FromWire(const internal::Load& wire) {
  for (const auto& [field, text] :
       {std::pair{"model", &wire.model()}, {"device", &wire.device()}, {"record", &wire.record()}}) {
    RETURN_IF_ERROR(CheckText(field, *text));
  }
  if (wire.threads() < 0 || wire.threads() > kMaxThreads) return OutOfRange("threads", wire.threads(), 0, kMaxThreads);
  if (wire.blocks_to_swap() < 0 || wire.blocks_to_swap() > kMaxBlocks) {
    return OutOfRange("blocks_to_swap", wire.blocks_to_swap(), 0, kMaxBlocks);
  }
  RETURN_IF_ERROR(CheckName<Dtype>("dtype", wire.dtype()));
  RETURN_IF_ERROR(CheckName<Offload>("offload", wire.offload()));
  RETURN_IF_ERROR(CheckPlacement("placement of the text encoders", wire.text_encoders()));
  RETURN_IF_ERROR(CheckPlacement("placement of the autoencoder", wire.autoencoder()));
  if (wire.prompt_cache_bytes() > kMaxCacheBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt cache is ", wire.prompt_cache_bytes(),
                                                   " bytes, at most ", kMaxCacheBytes, " are accepted"));
  }
  LoadParameters parameters;
  ReadFields(wire, parameters);
  return parameters;
}

absl::StatusOr<TrainingStart> FromWire(const internal::StartTraining& wire) {
  RETURN_IF_ERROR(CheckText("config", wire.config()));
  RETURN_IF_ERROR(CheckText("checkpoint", wire.checkpoint()));
  TrainingStart start;
  ReadFields(wire, start);
  return start;
}

absl::StatusOr<std::string> FromWire(const internal::ExportTraining& wire) {
  RETURN_IF_ERROR(CheckText("path", wire.path()));
  if (wire.path().empty()) return absl::InvalidArgumentError("path is empty; it must be a file");
  return wire.path();
}

absl::StatusOr<int64_t> FromWire(const internal::PrepareSamples& wire) {
  if (wire.most() < 1 || wire.most() > kMaxSamples) return OutOfRange("most", wire.most(), 1, kMaxSamples);
  return wire.most();
}

absl::Status ProtocolError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("the worker broke the control protocol: ", what));
}

absl::Status FromWire(const internal::Error& error) {
  const bool known = error.code() > 0 && error.code() <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  return base::WithField(
      absl::Status(known ? static_cast<absl::StatusCode>(error.code()) : absl::StatusCode::kUnknown, error.message()),
      error.field());
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
  ReadFields(wire, description);
  if (wire.has_transformer()) {
    ASSIGN_OR_RETURN(description.transformer, FromWire(wire.transformer(), wire.blocks()));
  }
  return description;
}

absl::StatusOr<Loaded> FromWire(const internal::Loaded& wire) {
  if (wire.has_memory_budget() &&
      (wire.memory_budget().most() < 1 || wire.memory_budget().free() > wire.memory_budget().most())) {
    return ProtocolError("a device without a valid size of its memory");
  }
  if (wire.has_device_memory()) RETURN_IF_ERROR(CheckMemory(wire.device_memory()));
  Loaded loaded;
  ReadFields(wire, loaded);
  return loaded;
}

DeviceIdentity FromWire(const internal::DeviceIdentity& wire) {
  DeviceIdentity identity;
  ReadFields(wire, identity);
  return identity;
}

absl::StatusOr<JobStarted> FromWire(const internal::JobStarted& wire) {
  if (wire.height() < 1 || wire.height() > kMaxSide || wire.width() < 1 || wire.width() > kMaxSide) {
    return ProtocolError("a job started without a valid size");
  }
  JobStarted started;
  ReadFields(wire, started);
  return started;
}

absl::StatusOr<std::vector<Stepped>> FromWire(const internal::Stepped& wire) {
  std::vector<const internal::Stepped*> parts;
  for (const internal::Stepped& earlier : wire.earlier()) parts.push_back(&earlier);
  parts.push_back(&wire);
  std::vector<Stepped> steps;
  for (const internal::Stepped* part : parts) {
    if (part->has_device_memory()) RETURN_IF_ERROR(CheckMemory(part->device_memory()));
    ReadFields(*part, steps.emplace_back());
  }
  return steps;
}

absl::StatusOr<TrainingStarted> FromWire(const internal::TrainingStarted& wire) {
  if (wire.step() < 0 || wire.samples() < 1) return ProtocolError("a training run without samples");
  TrainingStarted started;
  ReadFields(wire, started);
  return started;
}

absl::StatusOr<SamplesPrepared> FromWire(const internal::SamplesPrepared& wire) {
  if (wire.prepared() < 0 || wire.prepared() > wire.samples()) return ProtocolError("more samples than there are");
  SamplesPrepared prepared;
  ReadFields(wire, prepared);
  return prepared;
}

Trained FromWire(const internal::Trained& wire) {
  Trained trained;
  ReadFields(wire, trained);
  return trained;
}

TrainingSaved FromWire(const internal::TrainingSaved& wire) {
  TrainingSaved saved;
  ReadFields(wire, saved);
  return saved;
}

TrainingEvaluated FromWire(const internal::TrainingEvaluated& wire) {
  return {.losses = {wire.losses().begin(), wire.losses().end()}};
}

void ToWire(const TrainingStart& start, internal::StartTraining* wire) { WriteFields(start, *wire); }
void ToWire(const LoadParameters& parameters, internal::Load* wire) { WriteFields(parameters, *wire); }

void ToWire(const ModelDescription& description, internal::ModelDescription* wire) {
  WriteFields(description, *wire);
  const TransformerShape& shape = description.transformer;
  if (!shape.known() || shape.block_flops.size() != shape.exchange.blocks.size()) return;
  WriteFields(shape, *wire->mutable_transformer());
  for (size_t b = 0; b < shape.block_flops.size(); ++b) {
    const parallel::BlockExchange& block = shape.exchange.blocks[b];
    internal::TransformerBlock* sent = wire->mutable_transformer()->add_blocks();
    sent->set_kind(static_cast<internal::BlockKind>(block.kind));
    sent->set_second_attention(block.second_attention);
    sent->set_text_ends(block.text_ends);
    sent->set_flops(shape.block_flops[b]);
  }
}

void ToWire(const Loaded& loaded, internal::Loaded* wire) { WriteFields(loaded, *wire); }
void ToWire(const DeviceIdentity& identity, internal::DeviceIdentity* wire) { WriteFields(identity, *wire); }
void ToWire(const JobStarted& started, internal::JobStarted* wire) { WriteFields(started, *wire); }
void ToWire(absl::Span<const Stepped> steps, internal::Stepped* wire) {
  for (const Stepped& earlier : steps.first(steps.size() - 1)) WriteFields(earlier, *wire->add_earlier());
  WriteFields(steps.back(), *wire);
}
void ToWire(const Decoded& decoded, internal::Decoded* wire) { WriteFields(decoded, *wire); }
void ToWire(const TrainingStarted& started, internal::TrainingStarted* wire) { WriteFields(started, *wire); }
void ToWire(const SamplesPrepared& prepared, internal::SamplesPrepared* wire) { WriteFields(prepared, *wire); }
void ToWire(const Trained& trained, internal::Trained* wire) { WriteFields(trained, *wire); }
void ToWire(const TrainingSaved& saved, internal::TrainingSaved* wire) { WriteFields(saved, *wire); }
void ToWire(const TrainingEvaluated& evaluated, internal::TrainingEvaluated* wire) {
  wire->mutable_losses()->Assign(evaluated.losses.begin(), evaluated.losses.end());
}

void ToWire(const absl::Status& status, internal::Error* wire) {
  wire->set_code(static_cast<int32_t>(status.code()));
  wire->set_message(base::ReplaceInvalidUtf8(status.message()));
  wire->set_field(base::FieldOf(status));
}

}  // namespace tessera::control
