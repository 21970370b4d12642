// Machine describes the hardware for a plan: how fast one device computes, reads its memory and exchanges data with
// others, and how much memory it has. A table of GPUs is built in. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fields/enum_names.h"

namespace tessera::control {
enum class Dtype;
}

namespace tessera::server {

enum class Link { kNvlink, kPcie, kEthernet };
constexpr auto NamesOf(Link) { return std::array{"nvlink", "pcie", "ethernet"}; }

// Values of the vendor's data sheet. Rates are of dense products without sparsity.
struct GpuPreset {
  const char* name;
  double bf16_tflops;       // TFLOP/s of the tensor cores
  double fp32_tflops;       // TFLOP/s, not TF32
  double memory_gb_second;  // GB/s
  double memory_gb;         // 10⁹ bytes
  double nvlink_gb_second;  // GB/s in one direction; 0: no NVLink
  double pcie_gb_second;    // GB/s in one direction
  int processors;           // streaming multiprocessors
};

// Ordered by name.
absl::Span<const GpuPreset> GpuPresets();

// INVALID_ARGUMENT for an unknown name, with all names and the nearest.
absl::StatusOr<GpuPreset> FindGpu(const std::string& name);

// How ranks exchange data.
struct LinkRate {
  double bytes_per_second = 0;  // sent by each rank while all ranks send
  double seconds = 0;           // latency of an exchange
  // True if ranks share one path through the host: of n ranks that all send to all others, each gets 2/n of the rate.
  bool shared = false;
  double sum_bytes_per_second = 0;  // rate of sums; 0: same as other exchanges
  bool hidden = true;               // whether a ring's transfers overlap with computation
};

// Processors and memory that one of `ranks` ranks has on a shared host or on a separate device, while `busy` of them
// compute and the others wait.
struct ProcessorShare {
  int ranks = 1, busy = 1;
  std::string device;       // each rank has one; empty if they share a host's processors
  double memory_bytes = 0;  // of that device
  double product_flops = 0, attention_flops = 0, memory_bytes_second = 0;
  double operator_seconds = 0, block_seconds = 0;
  LinkRate link = {};
};

// One device, or one host's processors, and the link to the others. All rates are positive.
struct Machine {
  std::string name;
  double product_flops = 0;    // operations per second reached in matrix products
  double attention_flops = 0;  // operations per second reached in attention
  double memory_bytes_second = 0;
  double block_seconds = 0;  // time in which the host issues a block's operators; hidden if the device takes longer
  int processors = 0;        // each computes a tile of a product at a time; 0: work is not cut into tiles
  double memory_bytes = 0;   // 0: unknown, so no memory check
  LinkRate link;
  // Measured shares, ordered by ranks, then by busy ranks, each divisor once. Empty without measurements.
  std::vector<ProcessorShare> shares;

  // Returns the machine as one of `ranks` has it while `busy`, a divisor of `ranks`, compute; the machine itself
  // without shares. The shares for these numbers must exist.
  Machine For(int ranks, int busy) const;
  int most_ranks() const;  // maximum number of ranks with shares; 0: none
  // Returns whether all ranks share one host's processors and memory, so that one group uses all of it.
  bool is_one_host() const { return !shares.empty() && shares.front().device.empty(); }
};

// Reached fractions of a data sheet's rates, in place of a measurement.
struct Efficiency {
  double products = 0.5;
  double attention = 0.5;
  double memory = 0.8;
};

// INVALID_ARGUMENT for a link that the GPU does not have, and for fp64, which is not served on GPUs.
absl::StatusOr<Machine> MachineOf(const GpuPreset& gpu, Link link, control::Dtype dtype,
                                  const Efficiency& efficiency = {});

// Returns the name that differs in the fewest letters, ignoring case; the first of several. `names` must not be empty.
std::string NearestName(const std::string& text, absl::Span<const std::string> names);

}  // namespace tessera::server
