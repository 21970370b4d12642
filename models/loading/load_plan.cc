#include "models/loading/load_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "control/model/block_name.h"
#include "control/model/model_description.h"
#include "models/keymaps/key_map.h"
#include "models/loading/waiting_chunks.h"

namespace tessera::models {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kBufferBytes = int64_t{64} << 20;
constexpr std::array<std::array<absl::string_view, 3>, 4> kTogether = {
    {{"q", "k", "v"}, {"q_proj", "k_proj", "v_proj"}, {"query", "key", "value"}, {"wi_0", "wi_1"}}};

// Adds two non-negative numbers.
int64_t Sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kMost : sum;
}

int64_t Product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMost : product;
}

// Whether the tensor is of the larger model that a text encoder is a part of. A file may hold all of that model; such
// tensors are never read. The vision tower of Qwen2.5-VL is read if prompts can hold pictures.
bool IsOfALargerModel(const std::string& tensor, bool reads_pictures) {
  if (tensor.starts_with("visual.") || tensor.starts_with("model.visual.")) return !reads_pictures;
  for (const char* scope :
       {"decoder.", "language_model.lm_head.", "lm_head.", "model.multi_modal_projector.", "model.vision_tower.",
        "multi_modal_projector.", "vision_model.", "vision_tower.", "visual_projection."}) {
    if (tensor.starts_with(scope)) return true;
  }
  return false;
}

// Whether the tensor is the matrix of a product. Tables that a text encoder looks up row by row are not.
bool IsMatrix(control::ComponentRole role, const std::string& name, const StoredTensor& tensor) {
  if (tensor.shape.size() != 2) return false;
  constexpr std::array<absl::string_view, 4> kTables = {"embed", "relative_attention_bias", "shared.", "token_embd"};
  return role != control::ComponentRole::kTextEncoder ||
         std::ranges::none_of(kTables, [&](absl::string_view table) { return absl::StrContains(name, table); });
}

// Whether the tensor is a table that stays as it is stored (models/layers/token_embedding.h).
bool IsTokenTable(control::ComponentRole role, const std::string& name, const StoredTensor& tensor) {
  if (role != control::ComponentRole::kTextEncoder || tensor.shape.size() != 2) return false;
  return name == "shared.weight" || name == "token_embd.weight" || name == "embed_tokens.weight" ||
         name.ends_with(".embed_tokens.weight");
}

// Whether a product's tensor in a component of this role can wait in main memory.
bool CanWait(control::ComponentRole role, const std::string& name, const StoredTensor& tensor) {
  if (role == control::ComponentRole::kTransformer) return IsModulation(name);
  return role == control::ComponentRole::kTextEncoder && name.ends_with(".weight") && IsMatrix(role, name, tensor);
}

// Returns the bytes of the weight in the storage of the request; nothing if it is plain.
std::optional<int64_t> PackedSize(const std::string& name, const WeightLocation& location, control::ComponentRole role,
                                  const LoadRequest& request) {
  const bool keeps = role == control::ComponentRole::kTransformer || role == control::ComponentRole::kTextEncoder;
  if (request.quantize || !keeps) return std::nullopt;
  if (!IsMatrix(role, name, location.tensor) && !IsTokenTable(role, name, location.tensor)) return std::nullopt;
  const std::vector<int64_t>& shape = location.tensor.shape;
  const auto with_scales = [&](int64_t bytes, int64_t scales) {
    return Sum(bytes, Product(Product(shape[0], scales), sizeof(float)));
  };
  // The storage of a request is that of the transformer.
  switch (role == control::ComponentRole::kTransformer ? request.placement.weights : control::WeightStorage::kStored) {
    case control::WeightStorage::kStored:
      if (location.quantization == nullptr || location.is_flat) return std::nullopt;
      return with_scales(static_cast<int64_t>(location.bytes()), ScalesPerRow(location, shape[1]));
    case control::WeightStorage::kFp8:
    case control::WeightStorage::kInt8:
      return with_scales(Product(shape[0], shape[1]), 1);
    case control::WeightStorage::kQ8_0:
      if (shape[1] % kernels::BlockOf(kernels::QuantType::kQ8_0).values != 0) return std::nullopt;
      return Product(shape[0], kernels::RowBytes(kernels::QuantType::kQ8_0, shape[1]));
    case control::WeightStorage::kBf16:
      break;
  }
  return std::nullopt;
}

control::ComponentPlacement PlacementOf(control::ComponentRole role, const LoadRequest& request) {
  if (role == control::ComponentRole::kTextEncoder) return request.placement.text_encoders;
  return role == control::ComponentRole::kAutoencoder ? control::PlacementOf(request.placement.autoencoder)
                                                      : control::ComponentPlacement::kRank0;
}

// Returns the allocation that a text encoder's matrix is part of: its layers multiply by several matrices at once
// (text_encoders/).
std::string AllocationOf(const std::string& tensor) {
  const absl::string_view module = absl::StripSuffix(tensor, ".weight");
  const size_t dot = module.rfind('.');
  if (dot == absl::string_view::npos) return tensor;
  const absl::string_view scope = module.substr(0, dot), name = module.substr(dot + 1);
  for (const auto& together : kTogether) {
    if (std::ranges::find(together, name) != together.end()) return absl::StrCat(scope, ".", together.front());
  }
  return tensor;
}

MemoryNeed NeedOf(const std::vector<PlannedComponent>& components, MemoryKind kind, const LoadRequest& request) {
  MemoryNeed need;
  int64_t most_beyond = -1;  // beyond the resident components; -1 if there is no component
  int64_t run = request.run_bytes;
  int64_t held = 0;  // in training, by all components that are in memory only during use
  const auto count = [&](int64_t transient, int64_t loading) {
    if (request.for_training) held = Sum(held, std::exchange(transient, 0));
    most_beyond = std::max(most_beyond, Sum(transient, loading));
  };
  for (const PlannedComponent& component : components) {
    if (kind == MemoryKind::kHost && component.is_transient()) {
      count(component.waiting_bytes, 0);
    } else if (kind == MemoryKind::kHost) {
      need.resident = Sum(need.resident, component.waiting_bytes);
    }
    // Modulations pass through the device while an image is generated.
    if (component.role == control::ComponentRole::kTransformer && component.offloaded_bytes > 0 &&
        request.offload != Offloaded::kNone && !request.for_training) {
      run = Sum(run, component.largest_bytes);
    }
    // The autoencoder comes to the device in order to decode.
    if (component.is_parked && component.role == control::ComponentRole::kAutoencoder) run = Sum(run, component.bytes);
    if (component.memory != kind) continue;
    need.resident = Sum(need.resident, component.bytes - component.transient_bytes);
    count(component.transient_bytes, component.is_parked ? 0 : component.largest_bytes);
  }
  // Files are read through buffers in main memory, whatever the destination of their tensors.
  if (kind == MemoryKind::kHost && !components.empty()) most_beyond = std::max<int64_t>(most_beyond, 0);
  if (most_beyond < 0) return need;
  most_beyond = Sum(Sum(most_beyond, held), kBufferBytes);
  if (kind == MemoryKind::kDevice) most_beyond = std::max(most_beyond, run);
  need.peak = Sum(need.resident, most_beyond);
  return need;
}

int64_t CachedPromptBytes(const LoadRequest& request) {
  return request.on_device && request.encodes_prompts ? request.prompt_cache_bytes : 0;
}

// What is in memory of a component at one time, and how much of that only during use: parameters or packed bytes.
struct InMemory {
  int64_t all = 0, transient = 0;
};

// How much of a component is in memory at one time.
enum class Presence : uint8_t { kPart, kBlocksStreamed, kStreamed, kSharded };

InMemory InMemoryOf(const PackedBytes& sizes, Presence presence, int64_t parts) {
  if (presence == Presence::kStreamed) {
    const int64_t all = Sum(sizes.frame, sizes.block);
    return {.all = all, .transient = all};
  }
  if (presence == Presence::kBlocksStreamed) {  // the frame is read again together with a block
    const int64_t transient = Sum(sizes.frame, sizes.block);
    return {.all = Sum(sizes.frame, transient), .transient = transient};
  }
  if (presence == Presence::kSharded) {
    const int64_t transient = Sum(sizes.frame, std::max(sizes.frame, Product(2, sizes.block)));
    return {.all = Sum(sizes.rows, transient), .transient = transient};
  }
  return {.all = sizes.all / parts + (sizes.all % parts != 0)};
}

// The tensors of one of `parts` equal parts of a component that wait one by one.
struct OffloadedPart {
  int64_t parameters = 0, plain = 0, packed = 0;  // the plain ones and their bytes, and the bytes of the packed ones
  int64_t largest = 0;                            // bytes

  int64_t bytes() const { return Sum(plain, packed); }
};

OffloadedPart OffloadedPartOf(const PlannedComponent& component, int64_t parts, int64_t element_bytes) {
  OffloadedPart part{.packed = component.packed.offloadable / parts, .largest = component.packed.largest / parts};
  for (const int64_t whole : component.offloadable) {
    part.parameters = Sum(part.parameters, whole / parts);
    part.largest = std::max(part.largest, Product(whole / parts, element_bytes));
  }
  part.plain = Product(part.parameters, element_bytes);
  return part;
}

// Of a text encoder that waits, the device holds the tensors outside the blocks, one block and the next one during use.
void Park(PlannedComponent& component, int64_t element_bytes) {
  const int64_t whole = component.bytes;
  component.offloaded_bytes = whole;
  component.waiting_bytes = WaitingBytes(whole, component.largest_bytes);
  if (component.role == control::ComponentRole::kTextEncoder) {
    const int64_t parameters = Sum(component.frame_parameters, Product(2, component.block_parameters));
    const int64_t packed = Sum(component.packed.frame, Product(2, component.packed.block));
    component.bytes = std::min(whole, Sum(Product(parameters, element_bytes), packed));
  }
  component.transient_bytes = component.bytes;
}

// Only the sizes of the components do not depend on the request; all other figures follow from both.
LoadPlan Plan(std::vector<PlannedComponent> components, const LoadRequest& request) {
  LoadPlan plan{.request = request, .components = std::move(components)};
  for (PlannedComponent& component : plan.components) {
    const control::ComponentPlacement placement = PlacementOf(component.role, request);
    const bool transformer = component.role == control::ComponentRole::kTransformer;
    const int64_t parts = transformer ? request.transformer_parts : 1;
    const bool streamed =
        transformer && request.placement.stream_blocks && Sum(component.block_parameters, component.packed.block) > 0;
    const bool sharded = placement == control::ComponentPlacement::kSharded && request.ranks > 1;
    const bool by_layers = placement == control::ComponentPlacement::kStreamed;
    const Presence presence = streamed    ? Presence::kBlocksStreamed
                              : sharded   ? Presence::kSharded
                              : by_layers ? Presence::kStreamed
                                          : Presence::kPart;
    const auto [parameters, transient] = InMemoryOf({.all = component.parameters,
                                                     .block = component.block_parameters,
                                                     .frame = component.frame_parameters,
                                                     .rows = component.row_parameters},
                                                    presence, parts);
    const InMemory packed = InMemoryOf(component.packed, presence, parts);
    component.memory =
        request.on_device && placement != control::ComponentPlacement::kCpu ? MemoryKind::kDevice : MemoryKind::kHost;
    const bool stays_in_memory = placement != control::ComponentPlacement::kUnloaded && !by_layers;
    const bool may_wait = component.memory == MemoryKind::kDevice && presence == Presence::kPart;
    const int64_t element = control::ElementBytes(request.dtype);
    const Offloaded least = transformer ? Offloaded::kModulations : Offloaded::kAll;
    component.is_parked = may_wait && !transformer && request.offload == Offloaded::kAll && stays_in_memory;
    const bool offloads =
        may_wait && request.offload >= least && !component.is_parked && !(transformer && request.for_training);
    const OffloadedPart part = offloads ? OffloadedPartOf(component, parts, element) : OffloadedPart{};
    // A device has buffers for the blocks that wait in the host's memory.
    const bool swaps = transformer && request.on_device;
    const int64_t waiting = swaps ? std::min(request.waiting_parameters, parameters) : 0;
    const int64_t element_bytes = transformer && request.quantize ? 1 : element;
    const int64_t waiting_blocks =
        Sum(Product(waiting, element_bytes), swaps && may_wait ? request.waiting_block_bytes : 0);
    component.offloaded_bytes = Sum(part.bytes(), waiting_blocks);
    component.waiting_bytes =
        Sum(stays_in_memory ? WaitingBytes(part.bytes(), part.largest) : part.bytes(), waiting_blocks);
    component.bytes =
        Sum(Product(Sum(parameters - part.parameters - waiting, swaps ? request.buffer_parameters : 0), element_bytes),
            packed.all - part.packed);
    if (swaps && may_wait) {
      component.bytes =
          std::max<int64_t>(component.bytes - request.waiting_block_bytes, 0) + request.block_buffer_bytes;
    }
    // Rows and layers are converted by the buffer.
    component.largest_bytes =
        sharded || by_layers ? 0 : Product(component.largest_parameters, control::ElementBytes(request.dtype));
    component.transient_bytes = placement == control::ComponentPlacement::kUnloaded
                                    ? component.bytes
                                    : Sum(Product(transient, control::ElementBytes(request.dtype)), packed.transient);
    if (component.is_parked) Park(component, element);
  }
  plan.host = NeedOf(plan.components, MemoryKind::kHost, request);
  plan.device = NeedOf(plan.components, MemoryKind::kDevice, request);
  const int64_t prompts = CachedPromptBytes(request);
  plan.device.resident = Sum(plan.device.resident, prompts);
  plan.device.peak = Sum(plan.device.peak, prompts);
  return plan;
}

// Returns the map of the names in the component's file, if it is a file.
absl::StatusOr<std::optional<KeyMap>> KeysOf(const ModelFolder& folder, const std::string& component,
                                             const std::string& class_name) {
  const ComponentSource source = folder.Source(component);
  if (!source.part) return std::nullopt;
  ASSIGN_OR_RETURN(const base::ConfigReader config, folder.Config(component));
  return KeyMapOf(class_name, config.json(), source.part->form);
}

// Returns the name of the parameter that a tensor holds, the first of several; the tensor's own name if it is unknown.
std::string ParameterOf(const std::optional<KeyMap>& keys, const std::string& tensor) {
  const std::optional<MappedKey> key = keys ? keys->Map(tensor) : std::nullopt;
  return key ? key->parameters.front() : tensor;
}

struct Available {
  int64_t host = 0;
  std::optional<int64_t> device;

  int64_t HostShortage(const LoadPlan& plan) const { return std::max<int64_t>(plan.host.peak - host, 0); }
  int64_t DeviceShortage(const LoadPlan& plan) const {
    return device ? std::max<int64_t>(plan.device.peak - *device, 0) : 0;
  }
  int64_t Shortage(const LoadPlan& plan) const { return Sum(HostShortage(plan), DeviceShortage(plan)); }
};

// Returns the command-line options that change `from` into `to`.
std::vector<std::string> Options(const LoadRequest& from, const LoadRequest& to) {
  std::vector<std::string> options;
  if (to.placement.text_encoders != from.placement.text_encoders) {
    options.push_back(absl::StrCat("--text-encoders ", base::EnumName(to.placement.text_encoders)));
  }
  if (to.placement.autoencoder != from.placement.autoencoder) {
    options.push_back(absl::StrCat("--autoencoder ", base::EnumName(to.placement.autoencoder)));
  }
  if (to.dtype != from.dtype) options.push_back(absl::StrCat("--dtype ", base::EnumName(to.dtype)));
  if (to.placement.stream_blocks && !from.placement.stream_blocks) options.emplace_back("--stream-blocks");
  return options;
}

// Returns `current` and then the placements that take a different amount of memory.
template <class Placement>
std::vector<Placement> Placements(Placement current, bool on_device) {
  std::vector<Placement> placements = {current};
  for (const Placement other : {Placement::kUnloaded, Placement::kCpu, Placement::kRank0}) {
    if (other != current && (on_device || other == Placement::kUnloaded)) placements.push_back(other);
  }
  return placements;
}

// In the host's memory, ranks that share text encoders out take more than one rank that has them.
std::vector<control::ComponentPlacement> TextPlacements(const LoadRequest& request) {
  constexpr control::ComponentPlacement kSharded = control::ComponentPlacement::kSharded,
                                        kStreamed = control::ComponentPlacement::kStreamed;
  std::vector<control::ComponentPlacement> placements = Placements(request.placement.text_encoders, request.on_device);
  if (request.on_device && request.ranks > 1 && placements.front() != kSharded) placements.push_back(kSharded);
  if (placements.front() != kStreamed) placements.push_back(kStreamed);
  return placements;
}

// Returns all plans for the same folder, those with the fewest changes first, and among these the ones that keep the
// dtype first. Dtypes wider than the requested one never help.
std::vector<LoadPlan> Alternatives(const LoadPlan& plan) {
  const LoadRequest& request = plan.request;
  std::vector<LoadPlan> alternatives;
  for (const control::Dtype dtype : {control::Dtype::kFp64, control::Dtype::kFp32, control::Dtype::kBf16}) {
    if (control::ElementBytes(dtype) > control::ElementBytes(request.dtype)) continue;
    for (const control::ComponentPlacement text_encoders : TextPlacements(request)) {
      for (const control::AutoencoderPlacement autoencoder :
           Placements(request.placement.autoencoder, request.on_device)) {
        LoadRequest other = request;
        other.dtype = dtype;
        other.placement.text_encoders = text_encoders;
        other.placement.autoencoder = autoencoder;
        alternatives.push_back(Plan(plan.components, other));
      }
    }
  }
  std::stable_sort(alternatives.begin(), alternatives.end(), [&](const LoadPlan& a, const LoadPlan& b) {
    return Options(request, a.request).size() < Options(request, b.request).size();
  });
  return alternatives;
}

// Whether `b` makes all the changes to `from` that `a` makes; then `b` is not worth listing if `a` fits.
bool Includes(const LoadRequest& from, const LoadRequest& a, const LoadRequest& b) {
  const auto same = [](auto origin, auto first, auto second) { return first == origin || first == second; };
  return control::ElementBytes(b.dtype) <= control::ElementBytes(a.dtype) &&
         same(from.placement.text_encoders, a.placement.text_encoders, b.placement.text_encoders) &&
         same(from.placement.autoencoder, a.placement.autoencoder, b.placement.autoencoder);
}

enum class Round { kDown, kNearest, kUp };

std::string GiB(int64_t bytes, Round round = Round::kNearest) {
  const double hundredths = static_cast<double>(bytes) * 100 / (int64_t{1} << 30);
  const double whole = round == Round::kDown ? std::floor(hundredths)
                       : round == Round::kUp ? std::ceil(hundredths)
                                             : std::round(hundredths);
  return absl::StrFormat("%.2f GiB", whole / 100);
}

std::string Need(const LoadPlan& plan) {
  std::string text = absl::StrCat(GiB(plan.host.peak, Round::kUp), " of main memory");
  if (plan.request.on_device) absl::StrAppend(&text, " and ", GiB(plan.device.peak, Round::kUp), " of device memory");
  return text;
}

std::string Shortages(const LoadPlan& plan, const Available& available, const base::MachineMemory& host) {
  std::string text;
  if (available.HostShortage(plan) > 0) {
    absl::StrAppend(&text, "; of main memory ", GiB(plan.host.peak, Round::kUp), " are needed, and ",
                    host.available_in(), " has ", GiB(available.host, Round::kDown), " available");
  }
  if (available.DeviceShortage(plan) > 0) {
    absl::StrAppend(&text, "; of device memory ", GiB(plan.device.peak, Round::kUp), " are needed, and the device has ",
                    GiB(*available.device, Round::kDown), " available");
  }
  return text;
}

std::string Table(const LoadPlan& plan) {
  size_t width = std::string("component").size();
  for (const PlannedComponent& component : plan.components) width = std::max(width, component.name.size());
  std::string table = absl::StrFormat("\n  %-*s  %12s  %12s  %s", static_cast<int>(width), "component", "parameters",
                                      base::EnumName(plan.request.dtype), "in");
  for (const PlannedComponent& component : plan.components) {
    absl::StrAppendFormat(&table, "\n  %-*s  %10.1f M  %12s  %s%s%s", static_cast<int>(width), component.name,
                          static_cast<double>(component.parameters) / 1e6, GiB(component.bytes),
                          component.memory == MemoryKind::kDevice ? "device memory" : "main memory",
                          component.offloaded_bytes == 0
                              ? ""
                              : absl::StrCat(", and ", GiB(component.offloaded_bytes), " offloaded to main memory",
                                             component.waiting_bytes == component.offloaded_bytes
                                                 ? ""
                                                 : absl::StrCat(", where they take ", GiB(component.waiting_bytes))),
                          component.transient_bytes == 0 ? ""
                          : component.transient_bytes == component.bytes
                              ? component.role == control::ComponentRole::kTextEncoder &&
                                        plan.request.placement.text_encoders == control::ComponentPlacement::kStreamed
                                    ? " while in use, a layer at a time"
                                    : " while in use"
                          : component.role == control::ComponentRole::kTextEncoder
                              ? absl::StrCat(", of which ", GiB(component.transient_bytes), " while in use")
                              : ", a block at a time");
  }
  for (const auto& [name, need] : {std::pair("main memory", plan.host), std::pair("device memory", plan.device)}) {
    if (need.peak == 0) continue;
    absl::StrAppend(
        &table, "\n  together in ", name, ": ", GiB(need.resident), " permanently, at most ",
        GiB(need.peak, Round::kUp), " at a time (what is being loaded, its largest tensor twice, buffers",
        need.peak == plan.device.peak && plan.request.run_bytes > 0 ? "; or an image being generated)" : ")");
  }
  if (const int64_t prompts = CachedPromptBytes(plan.request); prompts > 0) {
    absl::StrAppend(&table, "\n  of device memory ", GiB(prompts), " are for encoded prompts (--prompt-cache)");
  }
  return table;
}

std::string Advice(const LoadPlan& plan, const Available& available) {
  const std::vector<LoadPlan> alternatives = Alternatives(plan);
  std::vector<LoadPlan> fitting;
  const auto add = [&](bool streams) {
    for (const LoadPlan& alternative : alternatives) {
      const auto placement = alternative.request.placement.text_encoders;
      const bool changes = placement != plan.request.placement.text_encoders;
      if ((changes && placement == control::ComponentPlacement::kStreamed) != streams) continue;
      if (available.Shortage(alternative) > 0) continue;
      const bool included = std::any_of(fitting.begin(), fitting.end(), [&](const LoadPlan& smaller) {
        return Includes(plan.request, smaller.request, alternative.request);
      });
      if (!included) fitting.push_back(alternative);
    }
  };
  add(/*streams=*/false);
  // Every prompt then waits for the files.
  if (fitting.empty()) add(/*streams=*/true);
  std::string advice;
  for (const LoadPlan& alternative : fitting) {
    absl::StrAppend(&advice, advice.empty() ? "\nit fits with" : "\nor with", " ",
                    absl::StrJoin(Options(plan.request, alternative.request), " "), ": ", Need(alternative));
  }
  if (!advice.empty()) return advice;
  const LoadPlan& least = *std::min_element(
      alternatives.begin(), alternatives.end(),
      [&](const LoadPlan& a, const LoadPlan& b) { return available.Shortage(a) < available.Shortage(b); });
  const std::vector<std::string> options = Options(plan.request, least.request);
  advice =
      absl::StrCat("\nno choice of --dtype, --text-encoders and --autoencoder is enough: ", Need(least),
                   " are needed at least", options.empty() ? "" : absl::StrCat(", with ", absl::StrJoin(options, " ")));
  LoadRequest streamed = least.request;
  streamed.placement.stream_blocks = true;
  const LoadPlan last_resort = Plan(plan.components, streamed);
  if (!plan.request.placement.stream_blocks && available.Shortage(last_resort) == 0) {
    absl::StrAppend(&advice, "\nit fits with ", absl::StrJoin(Options(plan.request, streamed), " "),
                    ", which reads every block from its file at every step: ", Need(last_resort));
  }
  return advice;
}

}  // namespace

absl::StatusOr<LoadPlan> PlanLoad(const ModelFolder& folder, const LoadRequest& request) {
  std::vector<PlannedComponent> components;
  for (const auto& [name, listed] : folder.components()) {
    const bool encoder = listed.role == control::ComponentRole::kTextEncoder;
    if (encoder && !request.encodes_prompts) continue;
    if (!folder.HasWeights(name)) continue;
    ASSIGN_OR_RETURN(const WeightFolder weights, folder.Weights(name));
    ASSIGN_OR_RETURN(const std::optional<KeyMap> keys, KeysOf(folder, name, listed.class_name));
    PlannedComponent& component = components.emplace_back(PlannedComponent{.name = name, .role = listed.role});
    std::map<std::string, int64_t> blocks, packed_blocks;  // of each block; "" for what is outside all blocks
    std::map<std::string, int64_t> allocations;            // of the tensors that can wait
    for (const auto& [stored_name, location] : weights.tensors()) {
      // What a tensor is follows from its parameter's name, whatever the file calls it.
      const std::string tensor_name = ParameterOf(keys, stored_name);
      if (encoder && IsOfALargerModel(tensor_name, folder.HasComponent("processor"))) continue;
      const StoredTensor& tensor = location.tensor;
      const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape.front();
      const int64_t own_rows = rows / request.ranks + (rows % request.ranks != 0);
      component.stored_bytes = Sum(component.stored_bytes, static_cast<int64_t>(location.bytes()));
      if (const std::optional<int64_t> bytes = PackedSize(tensor_name, location, listed.role, request)) {
        PackedBytes& packed = component.packed;
        packed.all = Sum(packed.all, *bytes);
        if (CanWait(listed.role, tensor_name, tensor)) {
          packed.offloadable = Sum(packed.offloadable, *bytes);
          packed.largest = std::max(packed.largest, *bytes);
        }
        packed.rows = Sum(packed.rows, rows == 0 ? 0 : Product(*bytes / rows, own_rows));
        int64_t& block = packed_blocks[control::BlockName(tensor_name)];
        block = Sum(block, *bytes);
        continue;
      }
      component.parameters = Sum(component.parameters, tensor.elements());
      component.largest_parameters = std::max(component.largest_parameters, tensor.elements());
      component.row_parameters =
          Sum(component.row_parameters, rows == 0 ? 0 : Product(tensor.elements() / rows, own_rows));
      if (CanWait(listed.role, tensor_name, tensor)) {
        int64_t& allocation = allocations[encoder ? AllocationOf(tensor_name) : tensor_name];
        allocation = Sum(allocation, tensor.elements());
      }
      int64_t& block = blocks[control::BlockName(tensor_name)];
      block = Sum(block, tensor.elements());
    }
    for (const auto& [unused, elements] : allocations) component.offloadable.push_back(elements);
    for (const auto& [block, parameters] : blocks) {
      int64_t& counted = block.empty() ? component.frame_parameters : component.block_parameters;
      counted = std::max(counted, parameters);
    }
    for (const auto& [block, bytes] : packed_blocks) {
      int64_t& counted = block.empty() ? component.packed.frame : component.packed.block;
      counted = std::max(counted, bytes);
    }
  }
  return Plan(std::move(components), request);
}

absl::Status CheckProducts(const ModelFolder& folder, const control::Placement& placement) {
  if (placement.products == control::Products::kPlain || placement.weights == control::WeightStorage::kFp8) {
    return absl::OkStatus();
  }
  if (placement.weights == control::WeightStorage::kStored) {
    ASSIGN_OR_RETURN(const WeightFolder weights, folder.Weights("transformer"));
    for (const auto& [unused, location] : weights.tensors()) {
      if (location.quantization != nullptr && location.quantization->type == kernels::QuantType::kF8E4M3 &&
          !location.is_flat) {
        return absl::OkStatus();
      }
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "products is fp8, which multiplies weights in fp8 (e4m3), and the transformer has none with weights ",
      base::EnumName(placement.weights), "; use --weights fp8 --products fp8"));
}

LoadPlan WithWaiting(const LoadPlan& plan, const WaitingWeights& waiting, const base::MachineMemory& host) {
  const Available available{.host = host.available()};
  LoadRequest request = plan.request;
  request.offload = waiting.offload;
  request.waiting_block_bytes = waiting.block_bytes;
  request.block_buffer_bytes = waiting.buffer_bytes;
  LoadPlan waits = Plan(plan.components, request);
  const bool is_short = available.HostShortage(waits) > 0;
  if (!is_short || request.placement.text_encoders != control::ComponentPlacement::kRank0) return waits;
  for (const auto placement : {control::ComponentPlacement::kUnloaded, control::ComponentPlacement::kStreamed}) {
    request.placement.text_encoders = placement;
    LoadPlan released = Plan(plan.components, request);
    if (available.HostShortage(released) == 0) return released;
  }
  return waits;
}

absl::Status CheckFits(const LoadPlan& plan, const base::MachineMemory& host, std::optional<int64_t> device_available) {
  const Available available{.host = host.available(), .device = device_available};
  if (available.Shortage(plan) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the model does not fit in memory", Shortages(plan, available, host),
                                                   Table(plan), Advice(plan, available)));
}

}  // namespace tessera::models
