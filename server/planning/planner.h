// Every way to make a model's images on a number of devices: layouts of a group, and how many groups there are. Says
// what each takes, whether it fits, and which one to use. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/planning/layout_time.h"

namespace tessera::server {

inline constexpr int64_t kMaxPlannedDevices = 1024;

struct PlanRequest {
  control::ModelDescription model;
  ImageWork work;
  Machine machine;
  int64_t devices = 1;        // 1 to kMaxPlannedDevices
  std::optional<double> slo;  // seconds that an image may take
  bool approximate = false;   // layouts with stale steps may be recommended
};

// One layout, on as many groups as the devices suffice for.
struct Plan {
  parallel::Layout layout;
  int64_t replicas = 1;
  int64_t idle = 0;  // devices
  LayoutTime time;
  double images_per_hour = 0;  // of all replicas
  uint64_t memory_bytes = 0;   // of the rank that needs most
  uint64_t missing_bytes = 0;  // that a device lacks of them; 0: it fits
  RankWeights weights;
  int64_t step_bytes = 0;  // that a rank sends: the one that sends most. With patches, too

  bool fits() const { return missing_bytes == 0; }
};

struct Plans {
  std::vector<Plan> plans;            // fastest first
  std::optional<size_t> recommended;  // index; none: nothing fits, or nothing keeps to the objective
  std::string reason;                 // a sentence: why that one, or why none
  int64_t layouts_timed = 0;          // work that was done
};

// InvalidArgument for a number of devices or seconds that is out of range. Needs no model.
absl::Status CheckObjective(const PlanRequest& request);

// InvalidArgument also for a size or a number of steps that no image has. FailedPrecondition where the shape of the
// model's transformer is not known.
absl::StatusOr<Plans> MakePlans(const PlanRequest& request);

}  // namespace tessera::server
