// ServerInfo is the state of a server: its queue, worker groups and nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "control/host/device_memory.h"
#include "server/api/group_state.h"
#include "server/api/node_info.h"
#include "server/api/storage_state.h"

namespace tessera::server {

struct GroupInfo {
  std::string name;
  std::string model;
  std::string layout;
  std::string dtype;
  std::vector<std::string> devices;
  GroupState state = GroupState::kStarting;
  double loaded = 0;        // GroupProgress::loaded
  std::string reason;       // the reason for the state, if it has one
  std::string certificate;  // certified, uncertified, off
  int64_t restarts = 0;
  // The memory of the ranks' devices, by rank; nullopt if the device has no separate memory or does not report it.
  std::vector<std::optional<control::DeviceMemory>> device_memories = {};
};

// Queued and running work of one model.
struct ModelQueue {
  std::string model;
  int64_t queued_jobs = 0;
  int64_t running_jobs = 0;
  double device_seconds = 0;  // predicted time of both
  absl::Duration oldest_wait;
};

struct ServerInfo {
  std::string version;
  absl::Time started = absl::InfinitePast();
  // Totals of all models.
  int64_t queued_jobs = 0;
  int64_t running_jobs = 0;
  double queued_device_seconds = 0;
  absl::Duration oldest_wait;
  std::vector<ModelQueue> queues;
  int64_t images_done = 0, images_failed = 0;  // ended since the start
  bool draining = false;
  StorageState storage = StorageState::kOk;
  int64_t unstored_images = 0;  // finished by workers and waiting to be stored; counted as running
  int64_t result_bytes = 0;     // bytes of the images that are kept
  std::vector<GroupInfo> groups;
  std::vector<NodeInfo> nodes;  // all nodes that have ever joined, by name
};

}  // namespace tessera::server
