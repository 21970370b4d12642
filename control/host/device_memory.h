// MemoryBudget and DeviceMemory hold byte counts of a device's own memory, as a rank reports them. Plain values, free
// of LibTorch.
#pragma once

#include <cstdint>
#include <tuple>

#include "absl/status/status.h"
#include "base/fields/field_error.h"
#include "base/fields/fields.h"

namespace tessera::control {

// How much of a device's memory a rank may use in addition to the weights that it holds there, in bytes.
struct MemoryBudget {
  uint64_t most = 0;  // if no other process uses any
  uint64_t free = 0;  // now; no more than `most`

  bool operator==(const MemoryBudget&) const = default;
};

// Use of a device's memory in bytes. The part that is not free, used or cached belongs to other processes and the
// driver.
struct DeviceMemory {
  uint64_t total = 0;
  uint64_t free = 0;    // not allocated by any process
  uint64_t used = 0;    // by tensors of the rank
  uint64_t cached = 0;  // kept by the rank for future tensors

  bool operator==(const DeviceMemory&) const = default;
};

constexpr auto FieldsOf(const MemoryBudget*) {
  return std::tuple(base::Field("most", &MemoryBudget::most, base::Integer{.low = 1}),
                    base::Field("free", &MemoryBudget::free));
}
inline absl::Status CheckRules(const MemoryBudget& budget) {
  if (budget.free <= budget.most) return absl::OkStatus();
  return base::ErrorOfField("free", " is more than the most");
}

constexpr auto FieldsOf(const DeviceMemory*) {
  using base::Field;
  return std::tuple(Field("total", &DeviceMemory::total, base::Integer{.low = 1}), Field("free", &DeviceMemory::free),
                    Field("used", &DeviceMemory::used), Field("cached", &DeviceMemory::cached));
}
inline absl::Status CheckRules(const DeviceMemory& memory) {
  if (memory.free <= memory.total && memory.used <= memory.total && memory.cached <= memory.total) {
    return absl::OkStatus();
  }
  return base::ErrorOfField("total", " is less than a part of it");
}

}  // namespace tessera::control
