// MemoryFit decides which weights of a model stay on a device of limited memory and which wait in main memory, and
// predicts the memory and the time of a step. Pure; free of LibTorch.
//
// A rank prefers, in this order: everything stays; the modulations, which are read once per image, wait; the text
// encoders and the autoencoder wait too and are on the device only while they are used; the memory of a step is not
// kept for the next one; as few blocks of the transformer as necessary wait too, and are copied to the device for every
// step.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "control/model/weight_sizes.h"

namespace tessera::control {

// What a rank computes with.
struct FitQuery {
  WeightStorage storage = {};  // of the transformer
  int64_t element_bytes = 2;   // of a plain number
  int64_t tensor = 1;          // ranks that divide each of the transformer's weights
  int64_t first_block = 0;     // of the rank's blocks of the transformer, and the one past the last
  int64_t end_block = std::numeric_limits<int64_t>::max();
  bool has_text_encoders = true;  // on the device, at least while they are used
  bool has_autoencoder = true;
  int64_t cached_bytes = 0;      // of encoded prompts, on the device
  double step_bytes = 0;         // activations and modulations of a step
  double decode_bytes = 0;       // activations of the autoencoder
  double step_flops = 0;         // of one image
  bool keeps_step_bytes = true;  // the memory of a step may be kept for the next one (a CUDA graph)
};

// Bytes on one rank's device.
struct FitNeeds {
  struct Component {
    int64_t bytes = 0;   // of all its weights
    int64_t in_use = 0;  // on the device while it is used, if it waits
  };
  int64_t first_block = 0;
  std::vector<int64_t> blocks;  // of each of the rank's blocks
  int64_t frame = 0;            // of the transformer's weights outside them, without modulations
  int64_t modulations = 0, largest_modulation = 0;
  std::vector<Component> text_encoders;
  Component autoencoder;
  int64_t cached = 0, step = 0, decode = 0;
  bool keeps_step = true;
  double step_flops = 0;
};
FitNeeds NeedsOf(std::span<const ComponentWeights> components, const FitQuery& query);

struct FitDevice {
  int64_t free_bytes = 0;
  double link_bytes_per_second = 0;  // of copies from main memory; 0: unknown
  double flops = 0;                  // operations per second; 0: unknown
};

// The classes of weights that wait, each with all before it.
enum class Waiting : uint8_t { kNothing, kModulations, kComponents };

struct MemoryFit {
  Waiting waiting = Waiting::kNothing;
  bool keeps_step = false;      // whether the memory of a step is kept
  std::vector<int64_t> blocks;  // that wait too, by index in the transformer
  int64_t num_blocks = 0;       // of the rank
  int64_t buffers = 0;          // on the device, for these blocks
  int64_t buffer_bytes = 0;     // of all of them
  int64_t peak_bytes = 0;       // the largest memory of the device at any time
  int64_t waiting_bytes = 0;    // of main memory
  int64_t transfer_bytes = 0;   // copied to the device in a step
  double transfer_seconds = 0, compute_seconds = 0;

  double step_seconds() const { return transfer_seconds > compute_seconds ? transfer_seconds : compute_seconds; }
};

// Returns the first placement, in the order above, that fits into the free memory of the device, or the last of them if
// none does. The times are absent.
MemoryFit ClosestFit(const FitNeeds& needs, const FitDevice& device);

// Sets the times of a step of so many operations.
void PredictTimes(const FitDevice& device, double step_flops, MemoryFit& fit);

// Returns ClosestFit with its times. RESOURCE_EXHAUSTED if nothing fits, with the memory that is needed at least.
absl::StatusOr<MemoryFit> ChooseFit(const FitNeeds& needs, const FitDevice& device);

// Returns the first of these storages whose predicted step is the fastest. INVALID_ARGUMENT if nothing fits in any.
absl::StatusOr<WeightStorage> FastestStorage(std::span<const ComponentWeights> components, FitQuery query,
                                             const FitDevice& device, std::span<const WeightStorage> storages);

// Returns the storage to which a plain transformer can be quantized on loading (fp8 or Q8_0) so that its step is the
// fastest; nothing if it fits in none.
std::optional<WeightStorage> SmallerStorage(std::span<const ComponentWeights> components, const FitQuery& query,
                                            const FitDevice& device);

// Returns a sentence that says what stays, what waits and what is predicted: "the transformer stays on the device, …".
std::string FitText(const MemoryFit& fit);

}  // namespace tessera::control
