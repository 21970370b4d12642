// Predicts how much main memory a placement of a model's weights needs, beside the memory of the device that
// MemoryFit predicts. Weights that wait stay in main memory, pinned or not. Pages of files do not count, because the
// system drops them when memory is short. Pure; free of LibTorch. Implemented in memory_fit.cc.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "control/model/memory_fit.h"

namespace tessera::control {

// Of the programs, their libraries and their buffers, without weights.
inline constexpr int64_t kProgramBytes = int64_t{1} << 30;

// What is read from the files of text encoders for each prompt.
enum class EncoderReads : uint8_t {
  kNone,    // nothing, because they stay in memory
  kWhole,   // all of it, one encoder at a time
  kLayers,  // all of it, a layer at a time
};
constexpr auto NamesOf(EncoderReads) { return std::array{"no", "whole", "layers"}; }

struct MainMemoryNeed {
  int64_t bytes = 0;  // at any time
  EncoderReads reads = EncoderReads::kNone;
};

// Returns what the placement `fit` of these needs takes of main memory. If that is more than is available, text
// encoders that would wait are read for each prompt instead, whole or else a layer at a time, if this is enough.
MainMemoryNeed MainMemoryOf(const FitNeeds& needs, const MemoryFit& fit, int64_t available);

// Returns "at most 8.9 GiB of main memory", and how text encoders are read for each prompt.
std::string MainMemoryText(const MainMemoryNeed& need);

// Returns the storage to which a plain transformer can be quantized on loading (fp8 or Q8_0) so that main memory is
// large enough; nothing if there is none.
std::optional<WeightStorage> StorageInMainMemory(std::span<const ComponentWeights> components, const FitQuery& query,
                                                 const FitDevice& device, int64_t available);

// Returns OK if main memory is large enough for the placement. Otherwise RESOURCE_EXHAUSTED, in one sentence that names
// the storage of the transformer with which it would be.
absl::Status CheckMainMemory(std::span<const ComponentWeights> components, const FitQuery& query,
                             const FitDevice& device, int64_t available);

// Weights that wait in pageable memory because the system refuses to pin more of it, as WSL does.
struct PageableWeights {
  int64_t bytes = 0;            // of pageable memory in which weights wait
  int64_t waiting_bytes = 0;    // of all memory in which weights wait
  double bytes_per_second = 0;  // of copies from pageable memory; 0: unknown
};

// Returns the fit with the time of its copies if as much as possible of what is copied in a step is in the pageable
// memory. `fit` has the time of copies from pinned memory.
MemoryFit WithPageable(MemoryFit fit, const PageableWeights& weights);

// Returns "3.00 GiB of the 9.00 GiB in which weights wait are pageable …", with the time of a step of WithPageable if
// it is known and blocks are copied.
std::string PageableText(const MemoryFit& fit, const PageableWeights& weights);

}  // namespace tessera::control
