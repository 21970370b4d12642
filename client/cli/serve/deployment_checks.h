// What an operator wants to know of a machine and its files before a server runs there, and when it fails. Each check
// looks and changes nothing that stays; none needs a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/task_limits.h"
#include "control/cuda_compat.h"
#include "control/host_topology.h"
#include "server/config/server_config.h"

namespace tessera::client {

enum class Health { kOk, kWarning, kFailed };

struct Finding {
  Health health = Health::kOk;
  std::string what;  // was looked at
  std::string found;
  std::string advice;  // empty where nothing is to be done
};

// That the folder can be written as the server writes it, and how much room it has.
Finding CheckDataFolder(const std::string& folder);

// Whether it can be read, what waits in it, and whether a server uses it (then `in_use` is set).
Finding CheckJobStore(const std::string& data_folder, bool& in_use);

// The same of a queue that servers share.
Finding CheckSharedStore(const server::StoreConfig& store);

// Who besides the server's user can read what is kept there: folders of earlier versions let everyone.
Finding CheckPrivacy(const std::string& data_folder);

// `in_use`: a server of this data folder runs, whose ports these may be.
Finding CheckListener(const std::string& name, const server::ListenConfig& listener, bool in_use);

Finding CheckKeysFile(const std::string& what, const std::string& path);
std::vector<Finding> CheckTlsFiles(const server::TlsConfig& tls, absl::Time now);

// Open files for so many connections; with fewer than `needed` a server does not start.
Finding CheckOpenFiles(int64_t connections, int64_t needed);

// Processes and threads that a server needs, of those that are left.
Finding CheckProcesses(int64_t needed, const std::vector<base::TaskLimit>& limits);

// How much memory a process may lock, which is what an InfiniBand or RoCE adapter needs for what it sends and receives.
struct LockedMemory {
  std::optional<int64_t> limit;  // in bytes; none: unlimited
  bool exempt = false;           // by the capability IPC_LOCK, if it is effective
};
LockedMemory ReadLockedMemory();

// For groups on cuda of a machine with an active port.
Finding CheckLockedMemory(const LockedMemory& locked);

// Threads that groups ask for, all together.
Finding CheckThreads(int64_t threads);

// Bytes of weights that processes of this machine hold in its memory.
Finding CheckMemory(int64_t bytes);

Finding CheckClock(absl::Time now);

// That the worker program can be started and is of this build.
Finding CheckWorker();

// For groups on cuda: the plug-in of that worker program, and the driver's devices.
Finding CheckCuda(const std::string& worker);

// For groups on cuda: whether the driver serves CUDA 13.0, by itself or through `compat`, the folder of cuda-compat of
// this installation (control::CudaCompatOf).
Finding CheckDriver(const control::NvidiaDriver& driver, const std::string& compat);

// Where this machine's GPUs and InfiniBand devices are, and what lies between the GPUs. Empty where there are neither.
std::vector<Finding> CheckTopology(const control::HostTopology& topology);

}  // namespace tessera::client
