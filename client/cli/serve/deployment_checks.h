// Checks a machine and its files for an operator, before a server runs there or after it fails. The checks make no
// lasting changes and need no model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/threads/task_limits.h"
#include "control/host/cuda_compat.h"
#include "control/host/host_topology.h"
#include "server/config/server_config.h"

namespace tessera::client {

enum class Health { kOk, kWarning, kFailed };

struct Finding {
  Health health = Health::kOk;
  std::string what;  // what was checked
  std::string found;
  std::string advice;  // empty if no action is needed
};

// Checks that the folder is writable in the way the server writes it, and how much space is free.
Finding CheckDataFolder(const std::string& folder);

// Checks whether the store can be read, what is queued in it, and whether a server uses it (then sets `in_use`).
Finding CheckJobStore(const std::string& data_folder, bool& in_use);

// Checks a job queue that several servers share.
Finding CheckSharedStore(const server::StoreConfig& store);

// Checks whether other users can read the stored data: earlier versions created folders that everyone can read.
Finding CheckPrivacy(const std::string& data_folder);

// `in_use`: a server with this data folder is running and may be using the port.
Finding CheckListener(const std::string& name, const server::ListenConfig& listener, bool in_use);

Finding CheckKeysFile(const std::string& what, const std::string& path);
std::vector<Finding> CheckTlsFiles(const server::TlsConfig& tls, absl::Time now);

// Checks the limit of open files for this many connections; below `needed` a server does not start.
Finding CheckOpenFiles(int64_t connections, int64_t needed);

// Checks that the limits leave enough processes and threads for a server.
Finding CheckProcesses(int64_t needed, const std::vector<base::TaskLimit>& limits);

// How much memory a process may lock. An InfiniBand or RoCE adapter needs locked memory for sending and receiving.
struct LockedMemory {
  std::optional<int64_t> limit;  // bytes; nullopt: unlimited
  bool exempt = false;           // has the effective capability IPC_LOCK
};
LockedMemory ReadLockedMemory();

// For groups on cuda if the machine has an active port.
Finding CheckLockedMemory(const LockedMemory& locked);

// Checks the total number of threads of all groups.
Finding CheckThreads(int64_t threads);

// Checks the machine's memory against the bytes of weights that its processes will hold.
Finding CheckMemory(int64_t bytes);

Finding CheckClock(absl::Time now);

// Checks that the worker program can be started and is from the same build.
Finding CheckWorker();

// For groups on cuda: checks the worker program's plug-in and the driver's devices.
Finding CheckCuda(const std::string& worker);

// For groups on cuda: checks whether the driver supports CUDA 13.0, either directly or through `compat`, this
// installation's cuda-compat folder (control::CudaCompatOf).
Finding CheckDriver(const control::NvidiaDriver& driver, const std::string& compat);

// Reports where this machine's GPUs and InfiniBand devices are and how the GPUs are connected. Empty if there are
// neither.
std::vector<Finding> CheckTopology(const control::HostTopology& topology);

}  // namespace tessera::client
