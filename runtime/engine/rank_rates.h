// Measures how fast this machine's ranks compute and exchange, on the operators of a transformer's blocks. A plan for
// ranks that share a host's processors, or have a GPU each, is computed from these rates.
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
  int64_t width = 0;  // of a token; must be a multiple of the heads
  int64_t heads = 0;
  at::Device device = at::kCPU;          // of this rank; must be open
  int64_t rows = 256, tokens = 1024;     // rows of products; tokens of attention and of the operators between products
  int64_t exchanged_elements = 1 << 20;  // sent to each other rank in exchanges that measure the rate
  double effort = 1;                     // scales the work of a round; less work is less accurate
};

// Returns a shape that keeps the device busy.
RatedShape ShapeFor(at::Device device, at::ScalarType dtype, int64_t width, int64_t heads);

// The rates of one rank while the first `busy` ranks of the group compute and the others wait.
struct ComputeRates {
  int busy = 1;
  double product_flops = 0;        // operations per second of products with packed weights
  double attention_flops = 0;      // operations per second of attention
  double memory_bytes_second = 0;  // of the operators between products, if one token moves 2 · 16 widths per block
  double operator_seconds = 0;     // of one operator on very little data
};

// The rates while all ranks of the group exchange with all others.
struct ExchangeRates {
  double seconds = 0;           // fixed cost of an exchange
  double bytes_second = 0;      // sent by one rank
  double sum_bytes_second = 0;  // sent by one rank in a sum, counted as in CommCount
};

struct RankRates {
  std::string device;                     // model of the device
  int64_t memory_bytes = 0;               // the device's memory, if each rank has a separate device
  std::vector<ComputeRates> compute;      // one for each divisor of the number of ranks
  std::optional<ExchangeRates> exchange;  // absent for one rank
};

// Collective over all ranks of `world` and of `control`, which has the same ranks and waits on the host. Each figure is
// that of the fastest of several rounds, measured between barriers, so the slowest rank determines it. Throws what
// operators and communicators throw.
RankRates MeasureRankRates(const RatedShape& shape, parallel::Communicator& world, parallel::Communicator& control);

// Returns one JSON object.
std::string JsonOf(const RankRates& rates);

}  // namespace tessera::runtime
