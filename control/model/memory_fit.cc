#include "control/model/memory_fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fields/enum_names.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "control/model/main_memory.h"
#include "control/model/swapped_blocks.h"
#include "control/parameters/weight_storage.h"

namespace tessera::control {
namespace {

constexpr int64_t kScaleBytes = 4;                      // of a row in fp8 and int8
constexpr int64_t kQ8Values = 32, kQ8Bytes = 34;        // of a block in Q8_0
constexpr int64_t kBuffers = 2;                         // for the block that computes and for the next one
constexpr int64_t kEncodingBytes = int64_t{128} << 20;  // activations of a text encoder, at most those of a step
constexpr int64_t kWideningBytes = int64_t{64} << 20;   // the widened part of a quantized matrix

int64_t Share(int64_t bytes, int64_t parts) { return (bytes + parts - 1) / parts; }

int64_t LargestOf(const std::vector<int64_t>& bytes) {
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

int64_t SumOf(const std::vector<int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

FitNeeds::Component ComponentOf(const ComponentWeights& weights, int64_t element_bytes) {
  // Their weights stay as their files hold them.
  const auto bytes_of = [&](const WeightSize& size) { return BytesOf(size, WeightStorage::kStored, element_bytes); };
  std::vector<int64_t> blocks;
  for (const WeightSize& block : weights.blocks) blocks.push_back(bytes_of(block));
  const int64_t buffers = std::min<int64_t>(kBuffers, std::ssize(blocks));
  return {.bytes = bytes_of(weights.frame) + SumOf(blocks),
          .in_use = bytes_of(weights.frame) + buffers * LargestOf(blocks)};
}

// Returns a placement without the times.
MemoryFit Placed(const FitNeeds& needs, Waiting waiting, bool keeps_step, int64_t blocks, int64_t most_buffers) {
  MemoryFit fit{.waiting = waiting,
                .keeps_step = keeps_step && needs.keeps_step,
                .blocks = {},
                .num_blocks = std::ssize(needs.blocks)};
  int64_t largest = 0;
  for (const int64_t block : SwappedBlocks(fit.num_blocks, blocks)) {
    fit.blocks.push_back(needs.first_block + block);
    fit.transfer_bytes += needs.blocks[static_cast<size_t>(block)];
    largest = std::max(largest, needs.blocks[static_cast<size_t>(block)]);
  }
  fit.buffers = std::min(blocks, most_buffers);
  fit.buffer_bytes = fit.buffers * largest;
  const bool modulations_wait = waiting >= Waiting::kModulations, components_wait = waiting == Waiting::kComponents;
  int64_t resident = needs.cached + needs.frame + SumOf(needs.blocks) - fit.transfer_bytes + fit.buffer_bytes +
                     (modulations_wait ? 0 : needs.modulations);
  int64_t encoding = 0, waiting_components = needs.autoencoder.bytes;
  for (const FitNeeds::Component& encoder : needs.text_encoders) {
    waiting_components += encoder.bytes;
    encoding = std::max(encoding, std::min(kEncodingBytes, needs.step) + (components_wait ? encoder.in_use : 0));
  }
  if (!components_wait) resident += waiting_components;
  const int64_t decoding = needs.decode + (components_wait ? needs.autoencoder.in_use : 0);
  const int64_t step = needs.step + (modulations_wait ? needs.largest_modulation : 0);
  const int64_t kept = fit.keeps_step ? needs.step : 0;
  fit.peak_bytes = resident + std::max({step, kept + encoding, kept + decoding});
  fit.waiting_bytes =
      fit.transfer_bytes + (modulations_wait ? needs.modulations : 0) + (components_wait ? waiting_components : 0);
  return fit;
}

// To which a plain transformer can be quantized on loading.
constexpr WeightStorage kSmaller[] = {WeightStorage::kFp8, WeightStorage::kQ8_0};

std::string ByteText(int64_t bytes) { return base::ByteText(static_cast<uint64_t>(std::max<int64_t>(bytes, 0))); }

// Returns the need of the placement that fits on the device.
absl::StatusOr<MainMemoryNeed> NeedOf(std::span<const ComponentWeights> components, const FitQuery& query,
                                      const FitDevice& device, int64_t available) {
  const FitNeeds needs = NeedsOf(components, query);
  ASSIGN_OR_RETURN(const MemoryFit fit, ChooseFit(needs, device));
  return MainMemoryOf(needs, fit, available);
}

}  // namespace

WeightSize& WeightSize::operator+=(const WeightSize& other) {
  elements += other.elements;
  matrices += other.matrices;
  rows += other.rows;
  stored_elements += other.stored_elements;
  stored_bytes += other.stored_bytes;
  return *this;
}

absl::Status CheckRules(const WeightSize& size) {
  if (size.matrices <= size.elements && size.rows <= size.matrices && size.stored_elements <= size.matrices) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("matrices has more elements than there are, or fewer than rows");
}

int64_t BytesOf(const WeightSize& size, WeightStorage storage, int64_t element_bytes) {
  const auto elements = static_cast<int64_t>(size.elements), matrices = static_cast<int64_t>(size.matrices),
             rows = static_cast<int64_t>(size.rows);
  switch (storage) {
    case WeightStorage::kStored:
      return static_cast<int64_t>(size.stored_bytes) +
             (elements - static_cast<int64_t>(size.stored_elements)) * element_bytes;
    case WeightStorage::kFp8:
    case WeightStorage::kInt8:
      return matrices + rows * kScaleBytes + (elements - matrices) * element_bytes;
    case WeightStorage::kQ8_0:
      return matrices / kQ8Values * kQ8Bytes + (elements - matrices / kQ8Values * kQ8Values) * element_bytes;
    case WeightStorage::kBf16:
      break;
  }
  return elements * element_bytes;
}

FitNeeds NeedsOf(std::span<const ComponentWeights> components, const FitQuery& query) {
  FitNeeds needs{.first_block = query.first_block,
                 .blocks = {},
                 .text_encoders = {},
                 .autoencoder = {},
                 .cached = query.cached_bytes,
                 .step = static_cast<int64_t>(std::ceil(query.step_bytes)),
                 .decode = static_cast<int64_t>(std::ceil(query.decode_bytes)),
                 .keeps_step = query.keeps_step_bytes,
                 .step_flops = query.step_flops};
  for (const ComponentWeights& component : components) {
    if (component.role == ComponentRole::kTextEncoder && query.has_text_encoders) {
      needs.text_encoders.push_back(ComponentOf(component, query.element_bytes));
    }
    if (component.role == ComponentRole::kAutoencoder && query.has_autoencoder) {
      needs.autoencoder = ComponentOf(component, query.element_bytes);
    }
    if (component.role != ComponentRole::kTransformer) continue;
    const auto bytes_of = [&](const WeightSize& size) { return BytesOf(size, query.storage, query.element_bytes); };
    const int64_t all = std::ssize(component.blocks), end = std::min(all, query.end_block);
    for (int64_t block = query.first_block; block < end; ++block) {
      needs.blocks.push_back(Share(bytes_of(component.blocks[static_cast<size_t>(block)]), query.tensor));
    }
    needs.frame = bytes_of(component.frame);
    const int64_t own = all == 0 ? 1 : std::ssize(needs.blocks);
    needs.modulations = static_cast<int64_t>(
        std::ceil(static_cast<double>(bytes_of(component.modulations)) * static_cast<double>(own) /
                  static_cast<double>(std::max<int64_t>(all, 1)) / static_cast<double>(query.tensor)));
    needs.largest_modulation =
        Share(static_cast<int64_t>(component.largest_modulation) * query.element_bytes, query.tensor);
    WeightSize whole = component.frame;
    for (const WeightSize& block : component.blocks) whole += block;
    const bool widens = bytes_of(whole) < BytesOf(whole, WeightStorage::kBf16, query.element_bytes);
    if (widens) needs.step += std::min(kWideningBytes, BytesOf(whole, WeightStorage::kBf16, query.element_bytes));
  }
  return needs;
}

MemoryFit ClosestFit(const FitNeeds& needs, const FitDevice& device) {
  MemoryFit fit;
  const auto fits = [&](Waiting waiting, bool keeps_step, int64_t blocks, int64_t buffers) {
    fit = Placed(needs, waiting, keeps_step, blocks, buffers);
    return fit.peak_bytes <= device.free_bytes;
  };
  const int64_t blocks = std::ssize(needs.blocks);
  bool found = fits(Waiting::kNothing, true, 0, 0) || fits(Waiting::kModulations, true, 0, 0) ||
               fits(Waiting::kComponents, true, 0, 0);
  for (int64_t waiting = 0; waiting <= blocks && !found; ++waiting) {
    found = fits(Waiting::kComponents, false, waiting, kBuffers);
  }
  if (!found && blocks > 0) fits(Waiting::kComponents, false, blocks, 1);
  return fit;
}

void PredictTimes(const FitDevice& device, double step_flops, MemoryFit& fit) {
  const auto seconds = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  fit.transfer_seconds = seconds(static_cast<double>(fit.transfer_bytes), device.link_bytes_per_second);
  fit.compute_seconds = seconds(step_flops, device.flops);
}

absl::StatusOr<MemoryFit> ChooseFit(const FitNeeds& needs, const FitDevice& device) {
  MemoryFit fit = ClosestFit(needs, device);
  if (fit.peak_bytes > device.free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the model needs at least ", base::ByteText(static_cast<uint64_t>(fit.peak_bytes)),
                     " of device memory while all other weights wait in main memory, and ",
                     base::ByteText(static_cast<uint64_t>(std::max<int64_t>(device.free_bytes, 0))), " are available"));
  }
  PredictTimes(device, needs.step_flops, fit);
  return fit;
}

absl::StatusOr<WeightStorage> FastestStorage(std::span<const ComponentWeights> components, FitQuery query,
                                             const FitDevice& device, std::span<const WeightStorage> storages) {
  std::optional<WeightStorage> fastest;
  double least = 0;
  for (const WeightStorage storage : storages) {
    query.storage = storage;
    const absl::StatusOr<MemoryFit> fit = ChooseFit(NeedsOf(components, query), device);
    if (!fit.ok() || (fastest && fit->step_seconds() >= least)) continue;
    fastest = storage;
    least = fit->step_seconds();
  }
  if (!fastest) return absl::InvalidArgumentError("the model fits in none of these storages");
  return *fastest;
}

std::optional<WeightStorage> SmallerStorage(std::span<const ComponentWeights> components, const FitQuery& query,
                                            const FitDevice& device) {
  const absl::StatusOr<WeightStorage> fastest = FastestStorage(components, query, device, kSmaller);
  return fastest.ok() ? std::optional(*fastest) : std::nullopt;
}

std::string FitText(const MemoryFit& fit) {
  std::string text;
  if (fit.waiting == Waiting::kNothing) {
    text = "all weights stay on the device";
  } else {
    const std::string blocks = absl::StrCat(fit.blocks.size(), " of the transformer's ", fit.num_blocks, " blocks, ");
    text = absl::StrCat(
        fit.blocks.empty() ? "the transformer stays on the device, and " : blocks,
        fit.waiting == Waiting::kModulations ? "modulations" : "modulations, text encoders and autoencoder",
        " wait in main memory (", base::ByteText(static_cast<uint64_t>(fit.waiting_bytes)), ")");
  }
  absl::StrAppend(&text, "; at most ", base::ByteText(static_cast<uint64_t>(fit.peak_bytes)), " of device memory");
  if (fit.transfer_bytes > 0) {
    absl::StrAppend(&text, "; ", base::ByteText(static_cast<uint64_t>(fit.transfer_bytes)),
                    " are copied for each step");
  }
  if (fit.step_seconds() > 0) absl::StrAppendFormat(&text, "; a step takes %.3g s", fit.step_seconds());
  return text;
}

MainMemoryNeed MainMemoryOf(const FitNeeds& needs, const MemoryFit& fit, int64_t available) {
  const int64_t all = kProgramBytes + fit.waiting_bytes;
  if (all <= available || fit.waiting != Waiting::kComponents || needs.text_encoders.empty()) return {.bytes = all};
  int64_t encoders = 0, largest = 0;
  for (const FitNeeds::Component& encoder : needs.text_encoders) {
    encoders += encoder.bytes;
    largest = std::max(largest, encoder.bytes);
  }
  const int64_t layers = all - encoders;
  for (const MainMemoryNeed& need : {MainMemoryNeed{.bytes = layers + largest, .reads = EncoderReads::kWhole},
                                     MainMemoryNeed{.bytes = layers, .reads = EncoderReads::kLayers}}) {
    if (need.bytes <= available) return need;
  }
  return {.bytes = all};
}

std::string MainMemoryText(const MainMemoryNeed& need) {
  std::string text = absl::StrCat("at most ", ByteText(need.bytes), " of main memory");
  if (need.reads == EncoderReads::kNone) return text;
  return absl::StrCat(text, ", because text encoders are read from their files for each prompt",
                      need.reads == EncoderReads::kLayers ? ", a layer at a time" : "");
}

std::optional<WeightStorage> StorageInMainMemory(std::span<const ComponentWeights> components, const FitQuery& query,
                                                 const FitDevice& device, int64_t available) {
  if (IsQuantizing(query.storage)) return std::nullopt;
  for (const WeightStorage smaller : kSmaller) {
    FitQuery other = query;
    other.storage = smaller;
    const absl::StatusOr<MainMemoryNeed> need = NeedOf(components, other, device, available);
    if (need.ok() && need->bytes <= available) return smaller;
  }
  return std::nullopt;
}

absl::Status CheckMainMemory(std::span<const ComponentWeights> components, const FitQuery& query,
                             const FitDevice& device, int64_t available) {
  ASSIGN_OR_RETURN(const MainMemoryNeed need, NeedOf(components, query, device, available));
  if (need.bytes <= available) return absl::OkStatus();
  std::string text = absl::StrCat("the weights that wait need ", ByteText(need.bytes), " of main memory, and ",
                                  ByteText(available), " are available");
  if (const std::optional<WeightStorage> smaller = StorageInMainMemory(components, query, device, available)) {
    return absl::ResourceExhaustedError(absl::StrCat(text, "; it fits with --weights ", base::EnumName(*smaller)));
  }
  return absl::ResourceExhaustedError(absl::StrCat(text, "; use a machine with more"));
}

MemoryFit WithPageable(MemoryFit fit, const PageableWeights& weights) {
  if (weights.bytes_per_second <= 0 || fit.transfer_bytes == 0) return fit;
  const auto copied = static_cast<double>(fit.transfer_bytes);
  const double pageable = std::min(copied, static_cast<double>(weights.bytes));
  fit.transfer_seconds = fit.transfer_seconds * (copied - pageable) / copied + pageable / weights.bytes_per_second;
  return fit;
}

std::string PageableText(const MemoryFit& fit, const PageableWeights& weights) {
  std::string text =
      absl::StrCat(ByteText(weights.bytes), " of the ", ByteText(weights.waiting_bytes),
                   " in which weights wait are pageable, because the system refuses to pin more; copies are slower");
  const MemoryFit slower = WithPageable(fit, weights);
  if (slower.transfer_seconds > 0) absl::StrAppendFormat(&text, ", and a step takes %.3g s", slower.step_seconds());
  return text;
}

}  // namespace tessera::control
