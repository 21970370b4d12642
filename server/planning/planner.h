// Plans how to make a model's images on a number of devices: it lists layouts of a group and the number of groups,
// predicts the time and memory of each, and recommends one. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "control/model/main_memory.h"
#include "control/model/memory_fit.h"
#include "control/model/model_description.h"
#include "server/planning/layout_time.h"

namespace tessera::server {

inline constexpr int64_t kMaxPlannedDevices = 1024;

struct PlanRequest {
  control::ModelDescription model;
  PlannedImage work;
  Machine machine;
  int64_t devices = 1;                        // 1 to kMaxPlannedDevices
  std::optional<double> slo;                  // maximum seconds for an image
  bool approximate = false;                   // whether layouts with stale steps may be recommended
  control::WeightStorage weights = {};        // how the transformer's weights are kept
  std::optional<uint64_t> memory_limit = {};  // of a device, in bytes; absent: all of the machine's
  std::optional<uint64_t> main_memory = {};   // in bytes; absent: not known, so that anything fits
};

// What one rank on one device keeps on it, and how long a step takes if main memory is reached at this rate.
struct LinkFit {
  double bytes_per_second = 0;
  control::MemoryFit fit;
  control::MainMemoryNeed main;
};

// The rates of usual links to main memory: PCIe 3.0 x8, 3.0 x16 and 4.0 x16.
inline constexpr double kMemoryLinks[] = {6e9, 12e9, 25e9};

// One layout, on as many groups as the devices allow.
struct Plan {
  parallel::Layout layout;
  int64_t replicas = 1;
  int64_t idle = 0;  // unused devices
  LayoutTime time;
  double images_per_hour = 0;  // of all replicas
  uint64_t memory_bytes = 0;   // of the rank that needs most
  uint64_t missing_bytes = 0;  // memory that a device lacks; 0: it fits
  RankWeights weights;
  int64_t step_bytes = 0;  // sent in a step by the rank that sends most, also with patches

  bool fits() const { return missing_bytes == 0; }
};

struct Plans {
  std::vector<Plan> plans;            // fastest first
  std::optional<size_t> recommended;  // index; absent: nothing fits, or nothing meets the objective
  std::string reason;                 // a sentence that says why
  int64_t layouts_timed = 0;          // number of layouts evaluated
  std::vector<LinkFit> fits;          // at the rates of kMemoryLinks; empty if one device is too small
  std::string unfit;                  // why `fits` is empty
};

// The memory of a machine with one device, in bytes.
struct DeviceAndMain {
  uint64_t device = 0;
  std::optional<uint64_t> main = {};  // absent: not known
};

// Returns the placement of the weights in this memory, at the rates of kMemoryLinks, where computing a step takes
// `compute_seconds`. RESOURCE_EXHAUSTED if nothing fits, with a storage that does; FAILED_PRECONDITION if the sizes of
// the model's weights are unknown.
absl::StatusOr<std::vector<LinkFit>> FitsOf(const control::ModelDescription& model, const PlannedImage& work,
                                            control::WeightStorage weights, const DeviceAndMain& memory,
                                            double compute_seconds);

// INVALID_ARGUMENT for a number of devices or seconds out of range. Needs no model.
absl::Status CheckObjective(const PlanRequest& request);

// INVALID_ARGUMENT also for an invalid size or number of steps. FAILED_PRECONDITION if the shape of the model's
// transformer is unknown.
absl::StatusOr<Plans> MakePlans(const PlanRequest& request);

}  // namespace tessera::server
