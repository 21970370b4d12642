#include "server/planning/machine.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/macros/status_macros.h"
#include "control/parameters/placement.h"

namespace tessera::server {
namespace {

// Sources: data sheets of NVIDIA for A100 (2021), H100 SXM (2023), H200 SXM (2024), B200 in HGX (2025), L20, L40, L40S
// (2023), H20 (2024), GeForce RTX 4090 (2022). NVLink and PCIe in one direction are half of the totals given there.
constexpr GpuPreset kGpus[] = {
    {"A100-40", 312, 19.5, 1555, 40, 300, 32, 108}, {"A100-80", 312, 19.5, 2039, 80, 300, 32, 108},
    {"B200", 2250, 75, 8000, 180, 900, 64, 148},    {"H100", 989, 67, 3350, 80, 450, 64, 132},
    {"H20", 148, 44, 4000, 96, 450, 64, 78},        {"H200", 989, 67, 4800, 141, 450, 64, 132},
    {"L20", 119.5, 59.8, 864, 48, 0, 32, 92},       {"L40", 181, 90.5, 864, 48, 0, 32, 142},
    {"L40S", 362, 91.6, 864, 48, 0, 32, 142},       {"RTX-4090", 165, 82.6, 1008, 24, 0, 32, 128},
};

// On NVLink and networks, NCCL reaches four fifths of the line rate with large messages (nccl-tests). Over PCIe, the
// bytes are written to the host's memory and read from it again.
constexpr double kLineShare = 0.8, kStagedShare = 0.5;
constexpr double kNvlinkSeconds = 25e-6, kPcieSeconds = 40e-6, kEthernetSeconds = 80e-6;
constexpr double kEthernetBytesSecond = 12.5e9;  // 100 Gbit/s for each GPU
// A block has twenty operators in a graph that is launched for each step: norms, modulation, products, attention,
// activation, residual and the operators between them.
constexpr double kBlockSeconds = 20 * 4e-6;

}  // namespace

Machine Machine::For(int ranks, int busy) const {
  const auto share =
      std::ranges::find_if(shares, [&](const ProcessorShare& one) { return one.ranks == ranks && one.busy == busy; });
  if (share == shares.end()) return *this;
  Machine machine = *this;
  machine.product_flops = share->product_flops;
  machine.attention_flops = share->attention_flops;
  machine.memory_bytes_second = share->memory_bytes_second;
  machine.block_seconds = share->block_seconds;
  if (is_one_host()) machine.memory_bytes = memory_bytes / ranks;
  machine.link = share->link;
  return machine;
}

int Machine::most_ranks() const { return shares.empty() ? 0 : shares.back().ranks; }

absl::Span<const GpuPreset> GpuPresets() { return kGpus; }

std::string NearestName(const std::string& text, absl::Span<const std::string> names) {
  const auto distance = [wanted = absl::AsciiStrToLower(text)](const std::string& name) {
    const std::string other = absl::AsciiStrToLower(name);
    std::vector<size_t> row(other.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < wanted.size(); ++i) {
      size_t diagonal = row[0]++;
      for (size_t j = 0; j < other.size(); ++j) {
        const size_t changed = diagonal + (wanted[i] == other[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
      }
    }
    return row.back();
  };
  return *std::ranges::min_element(names, {}, distance);
}

absl::StatusOr<GpuPreset> FindGpu(const std::string& name) {
  std::vector<std::string> names;
  for (const GpuPreset& gpu : kGpus) {
    if (absl::EqualsIgnoreCase(name, gpu.name)) return gpu;
    names.push_back(gpu.name);
  }
  constexpr size_t kLongestShown = 64;
  return absl::InvalidArgumentError(absl::StrCat("gpu is '", name.substr(0, kLongestShown), "'; valid values are ",
                                                 absl::StrJoin(names, ", "), ", and the nearest is ",
                                                 NearestName(name.substr(0, kLongestShown), names)));
}

absl::StatusOr<Machine> MachineOf(const GpuPreset& gpu, Link link, control::Dtype dtype, const Efficiency& efficiency) {
  if (dtype == control::Dtype::kFp64) {
    return absl::InvalidArgumentError("dtype is fp64; valid values for a plan of GPUs are bf16 and fp32");
  }
  const double flops = (dtype == control::Dtype::kBf16 ? gpu.bf16_tflops : gpu.fp32_tflops) * 1e12;
  Machine machine = {.name = gpu.name,
                     .product_flops = flops * efficiency.products,
                     .attention_flops = flops * efficiency.attention,
                     .memory_bytes_second = gpu.memory_gb_second * 1e9 * efficiency.memory,
                     .block_seconds = kBlockSeconds,
                     .processors = gpu.processors,
                     .memory_bytes = gpu.memory_gb * 1e9,
                     .link = {}};
  switch (link) {
    case Link::kNvlink:
      if (gpu.nvlink_gb_second == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("link is nvlink, which ", gpu.name, " does not have; valid values are pcie and ethernet"));
      }
      machine.link = {.bytes_per_second = gpu.nvlink_gb_second * 1e9 * kLineShare, .seconds = kNvlinkSeconds};
      break;
    case Link::kPcie:
      machine.link = {
          .bytes_per_second = gpu.pcie_gb_second * 1e9 * kStagedShare, .seconds = kPcieSeconds, .shared = true};
      break;
    case Link::kEthernet:
      machine.link = {.bytes_per_second = kEthernetBytesSecond * kLineShare, .seconds = kEthernetSeconds};
      break;
  }
  return machine;
}

}  // namespace tessera::server
