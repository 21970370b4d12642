// How fast this machine's ranks compute and exchange, measured on the operators of a transformer's blocks: what a plan
// for ranks that share a host's processors, or have a GPU each, is computed from.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace tessera::runtime {

struct RatedShape {
  at::ScalarType dtype = at::kFloat;
  int64_t width = 0;  // of a token, a multiple of the heads
  int64_t heads = 0;
  at::Device device = at::kCPU;          // of this rank, an opened one
  int64_t rows = 256, tokens = 1024;     // of products; of attention and of what lies between products
  int64_t exchanged_elements = 1 << 20;  // to each other rank, in exchanges that show the rate
  double effort = 1;                     // work of a round; less says less
};

// The shape that keeps such a device busy.
RatedShape ShapeFor(at::Device device, at::ScalarType dtype, int64_t width, int64_t heads);

// Of one rank, while the first `busy` ranks of the group compute and the others wait.
struct ComputeRates {
  int busy = 1;
  double product_flops = 0;        // operations a second of products with packed weights
  double attention_flops = 0;      // likewise of attention
  double memory_bytes_second = 0;  // of what lies between products, if a token of a block moved 2 · 16 widths
  double operator_seconds = 0;     // of one operator on next to nothing
};

// While all ranks of the group exchange with all others.
struct ExchangeRates {
  double seconds = 0;           // of an exchange, beside its bytes
  double bytes_second = 0;      // that a rank sends
  double sum_bytes_second = 0;  // that a rank sends of a sum, as CommCount has them
};

struct RankRates {
  std::string device;                     // its model, and
  int64_t memory_bytes = 0;               // its memory, where each rank has one of its own
  std::vector<ComputeRates> compute;      // one for each divisor of the number of ranks
  std::optional<ExchangeRates> exchange;  // absent for one rank
};

// All ranks of `world` call it together, and of `control`, which has the same and waits on the host. Each figure is of
// the fastest of several rounds, from one barrier to the next, so the slowest rank counts. Throws what operators and
// communicators throw.
RankRates MeasureRankRates(const RatedShape& shape, parallel::Communicator& world, parallel::Communicator& control);

// One JSON object.
std::string JsonOf(const RankRates& rates);

}  // namespace tessera::runtime
