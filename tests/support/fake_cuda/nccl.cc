// Fakes NCCL within each process: nothing passes between processes. Calls are logged and checked as far as one rank's
// view allows. A test compares the logs of the ranks (fake_cuda_log.h).
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "tests/support/fake_cuda/capture.h"
#include "tests/support/fake_cuda/machine.h"

namespace tessera::fake_cuda {
namespace {

using Result = int;  // ncclResult_t
constexpr Result kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7;

constexpr std::array<size_t, 10> kTypeBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

// A group of calls that is open in this thread.
struct OpenGroup {
  int depth = 0;
  int calls = 0;
  const char* function = nullptr;
  std::string comm;
  cudaStream_t stream = nullptr;
  size_t bytes = 0;
};
thread_local OpenGroup open_group;

struct Id {
  char bytes[128];
};

// The fields of ncclConfig_t that the fake reads.
struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

// Writes which ranks are connected, and by what, to the file that the environment names, as NCCL does.
void LogConnections(int rank, int ranks) {
  const char* level = std::getenv("NCCL_DEBUG");
  const char* name = std::getenv("NCCL_DEBUG_FILE");
  if (level == nullptr || name == nullptr || std::strcmp(level, "INFO") != 0) return;
  static std::FILE* const file = std::fopen(name, "w");
  if (file == nullptr) return;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    std::fprintf(file, "fake:%d:%d [0] NCCL INFO Channel 00/0 : %d[%d] -> %d[%d] via %s\n", getpid(), getpid(), rank,
                 rank, peer, peer, TheMachine().options().nccl_via.c_str());
  }
  std::fflush(file);
}

// Logs the NCCL variables in the environment of this process.
void LogVariables() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "NCCL_", 5) == 0) TheMachine().log().Write("variable", *entry);
  }
}

// NCCL registers the buffers of captured calls unless disabled. Release 2.28 considers only the first mapping of a
// buffer. A buffer that continues in a second mapping stays unregistered on that rank only, and the ranks then deadlock
// or write to unmapped memory.
bool RegistersCapturedBuffers() {
  const char* const registers = std::getenv("NCCL_GRAPH_REGISTER");
  return registers == nullptr || std::strcmp(registers, "0") != 0;
}

Result Launch(const char* function, int calls, const std::string& comm, cudaStream_t stream, size_t bytes) {
  TheMachine().CountLaunch();
  TheMachine().log().Write("nccl", Record(function, stream, Work::Exchange(static_cast<int64_t>(bytes))), function,
                           calls, comm);
  return kSuccess;
}

}  // namespace
}  // namespace tessera::fake_cuda

using namespace tessera::fake_cuda;  // NOLINT(build/namespaces): what follows are NCCL's own functions

extern "C" {

struct ncclComm {
  std::string name;
  int rank = 0, ranks = 0;
  int splits = 0;
  bool asked = false;  // whether the process asked if it is ready
  bool connected = false;
};

static Result Call(const char* function, const void* from, const void* to, size_t count, size_t all, int type, int peer,
                   ncclComm* comm, cudaStream_t stream) {
  if (comm == nullptr || !comm->asked || type < 0 || static_cast<size_t>(type) >= kTypeBytes.size() ||
      peer >= comm->ranks) {
    return kInvalidArgument;
  }
  for (const void* memory : {from, to}) {
    if (memory == nullptr) continue;
    const size_t bytes = all * kTypeBytes[static_cast<size_t>(type)];
    const auto range = TheMachine().device_memory().Find(memory);
    if (!range || !TheMachine().device_memory().Find(static_cast<const char*>(memory) + bytes - 1)) {
      return kInvalidArgument;
    }
    if (IsRecording(stream) && RegistersCapturedBuffers() && TheMachine().mappings().IsSplit(memory, bytes)) {
      TheMachine().log().Write("error", function, kInvalidUsage);
      TheMachine().log().Flush();
      return kInvalidUsage;
    }
  }
  // NCCL connects the ranks at their first call.
  if (!std::exchange(comm->connected, true)) LogConnections(comm->rank, comm->ranks);
  TheMachine().log().Write("transfer", function, count, type, peer, comm->name, comm->rank, comm->ranks);
  const size_t bytes = from == nullptr ? 0 : count * kTypeBytes[static_cast<size_t>(type)];
  if (open_group.depth == 0) return Launch(function, 1, comm->name, stream, bytes);
  if (open_group.calls++ == 0) open_group = {open_group.depth, 1, function, comm->name, stream};
  open_group.bytes += bytes;
  return kSuccess;
}

Result ncclGetVersion(int* version) {
  *version = 22809;
  return kSuccess;
}

Result ncclGetUniqueId(Id* id) {
  *id = {};
  std::snprintf(id->bytes, sizeof(id->bytes), "world-%d", static_cast<int>(getpid()));
  return kSuccess;
}

Result ncclCommInitRankConfig(ncclComm** comm, int ranks, Id id, int rank, Config* config) {
  if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0) return kInvalidArgument;
  if (rank < 0 || rank >= ranks || std::strncmp(id.bytes, "world-", 6) != 0) return kInvalidArgument;
  *comm = new ncclComm{.name = id.bytes, .rank = rank, .ranks = ranks};
  LogVariables();
  TheMachine().log().Write("communicator", (*comm)->name, rank, ranks);
  return kInProgress;
}

// One rank does not know how many ranks share the color. The color distinguishes the parts of one communicator.
Result ncclCommSplit(ncclComm* comm, int color, int key, ncclComm** part, Config*) {
  if (comm == nullptr || !comm->asked || key < 0) return kInvalidUsage;
  *part = new ncclComm{.name = comm->name + "/" + std::to_string(++comm->splits) + "." + std::to_string(color),
                       .rank = key,
                       .ranks = comm->ranks};
  TheMachine().log().Write("communicator", (*part)->name, key, comm->ranks);
  return kInProgress;
}

Result ncclCommGetAsyncError(ncclComm* comm, Result* error) {
  comm->asked = true;
  *error = TheMachine().failed() ? 1 : kSuccess;
  return kSuccess;
}

Result ncclGroupStart() {
  ++open_group.depth;
  return kSuccess;
}

Result ncclGroupEnd() {
  if (open_group.depth == 0) return kInvalidUsage;
  if (--open_group.depth > 0 || open_group.calls == 0) return kSuccess;
  const OpenGroup group = open_group;
  open_group = {};
  return Launch(group.function, group.calls, group.comm, group.stream, group.bytes);
}

Result ncclSend(const void* from, size_t count, int type, int peer, ncclComm* comm, cudaStream_t stream) {
  return Call("ncclSend", from, nullptr, count, count, type, peer, comm, stream);
}

Result ncclRecv(void* to, size_t count, int type, int peer, ncclComm* comm, cudaStream_t stream) {
  return Call("ncclRecv", nullptr, to, count, count, type, peer, comm, stream);
}

Result ncclAllReduce(const void* from, void* to, size_t count, int type, int, ncclComm* comm, cudaStream_t stream) {
  return Call("ncclAllReduce", from, to, count, count, type, -1, comm, stream);
}

Result ncclAllGather(const void* from, void* to, size_t count, int type, ncclComm* comm, cudaStream_t stream) {
  return Call("ncclAllGather", from, to, count, count, type, -1, comm, stream);
}

Result ncclReduceScatter(const void* from, void* to, size_t count, int type, int, ncclComm* comm, cudaStream_t stream) {
  return Call("ncclReduceScatter", from, to, count, count, type, -1, comm, stream);
}

Result ncclBroadcast(const void* from, void* to, size_t count, int type, int root, ncclComm* comm,
                     cudaStream_t stream) {
  return Call("ncclBroadcast", from, to, count, count, type, root, comm, stream);
}

const char* ncclGetErrorString(Result) { return "fake error"; }
const char* ncclGetLastError(ncclComm*) { return ""; }
Result ncclCommAbort(ncclComm*) { return kSuccess; }
Result ncclCommDestroy(ncclComm* comm) {
  delete comm;
  return kSuccess;
}

}  // extern "C"
