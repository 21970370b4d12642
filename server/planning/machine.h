// What a plan is computed from beside the model: how fast one device computes, reads its memory and exchanges with
// others, and how much memory it has. A table of GPUs is built in. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/enum_names.h"
#include "control/placement.h"

namespace tessera::server {

enum class Link { kNvlink, kPcie, kEthernet };
constexpr auto NamesOf(Link) { return std::array{"nvlink", "pcie", "ethernet"}; }

// As its vendor's data sheet has it. Rates are of dense products without sparsity.
struct GpuPreset {
  const char* name;
  double bf16_tflops;       // TFLOP/s of the tensor cores
  double fp32_tflops;       // TFLOP/s, not TF32
  double memory_gb_second;  // GB/s
  double memory_gb;         // 10⁹ bytes
  double nvlink_gb_second;  // GB/s in one direction; 0: it has none
  double pcie_gb_second;    // GB/s in one direction
  int processors;           // streaming multiprocessors
};

// Rising by name.
absl::Span<const GpuPreset> GpuPresets();

// InvalidArgument for an unknown name, with all names and the nearest.
absl::StatusOr<GpuPreset> FindGpu(const std::string& name);

// How ranks reach each other.
struct LinkRate {
  double bytes_per_second = 0;  // that a rank sends while every other rank does
  double seconds = 0;           // of an exchange, beside its bytes
  // Ranks share one path through the host: of n ranks that all send to all others each gets 2/n of the rate.
  bool shared = false;
  double sum_bytes_per_second = 0;  // of a sum; 0: as of every exchange
  bool hidden = true;               // what a ring sends goes on while the ranks compute
};

// What one of so many ranks has of a host's processors and memory, or on a device of its own, while `busy` of them
// compute and the others wait.
struct ProcessorShare {
  int ranks = 1, busy = 1;
  std::string device;       // that each rank has for itself; empty where they share a host's processors
  double memory_bytes = 0;  // of that device
  double product_flops = 0, attention_flops = 0, memory_bytes_second = 0;
  double operator_seconds = 0, block_seconds = 0;
  LinkRate link = {};
};

// One device, or one host's processors, and the link to the others. All rates are positive.
struct Machine {
  std::string name;
  double product_flops = 0;    // operations a second of matrix products, as reached
  double attention_flops = 0;  // likewise of attention
  double memory_bytes_second = 0;
  double block_seconds = 0;  // of the host to issue the operators of a block: hidden where the device takes longer
  int processors = 0;        // that compute a tile of a product at a time; 0: work is not cut into tiles
  double memory_bytes = 0;   // 0: not known, so nothing is held against it
  LinkRate link;
  // As they were measured: by ranks, then by how many are busy, each divisor once. Empty where nothing was.
  std::vector<ProcessorShare> shares;

  // As one of `ranks` has it while `busy` compute, a divisor of them; itself without shares. The shares are there.
  Machine For(int ranks, int busy) const;
  int most_ranks() const;  // that shares are known of; 0 without
  // Whether all ranks share one host's processors and memory, so that a group has all of it.
  bool is_one_host() const { return !shares.empty() && shares.front().device.empty(); }
};

// What of a data sheet's rates is reached, unless a measurement says better.
struct Efficiency {
  double products = 0.5;
  double attention = 0.5;
  double memory = 0.8;
};

// InvalidArgument for a link that the GPU does not have, and for fp64, which nobody serves on GPUs.
absl::StatusOr<Machine> MachineOf(const GpuPreset& gpu, Link link, control::Dtype dtype,
                                  const Efficiency& efficiency = {});

// Of these the one that differs in the fewest letters, whatever their case; the first of several. `names` is not empty.
std::string NearestName(const std::string& text, absl::Span<const std::string> names);

}  // namespace tessera::server
