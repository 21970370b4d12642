#include "kernels/cuda/nccl.h"

#include <dlfcn.h>

#include <array>
#include <climits>
#include <utility>

namespace tessera::kernels {
namespace {

// NCCL's ncclConfig_t as of version 2.18. Newer versions accept this version of it.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestNccl;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // INT_MIN: NCCL chooses
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

constexpr int kSum = 0;

Config ConfigOf(int ctas) {
  Config config;
  if (ctas > 0) config.max_ctas = ctas;
  return config;
}

// NCCL's functions, in the order of kNcclFunctionNames.
struct Library {
  NcclResult (*get_version)(int*);
  NcclResult (*get_unique_id)(NcclId*);
  NcclResult (*init_rank_config)(NcclComm**, int, NcclId, int, Config*);
  NcclResult (*split)(NcclComm*, int, int, NcclComm**, Config*);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*send)(const void*, size_t, NcclType, int, NcclComm*, void*);
  NcclResult (*receive)(void*, size_t, NcclType, int, NcclComm*, void*);
  NcclResult (*all_reduce)(const void*, void*, size_t, NcclType, int, NcclComm*, void*);
  NcclResult (*all_gather)(const void*, void*, size_t, NcclType, NcclComm*, void*);
  NcclResult (*reduce_scatter)(const void*, void*, size_t, NcclType, int, NcclComm*, void*);
  NcclResult (*broadcast)(const void*, void*, size_t, NcclType, int, NcclComm*, void*);
  NcclResult (*async_error)(NcclComm*, NcclResult*);
  const char* (*error_text)(NcclResult);
  const char* (*last_error)(NcclComm*);
  NcclResult (*abort)(NcclComm*);
  NcclResult (*destroy)(NcclComm*);
};
static_assert(sizeof(Library) == kNcclFunctionNames.size() * sizeof(void*));

Library nccl;

NcclResult InitRank(NcclComm** comm, int ranks, const NcclId& id, int rank, int ctas) {
  Config config = ConfigOf(ctas);
  return nccl.init_rank_config(comm, ranks, id, rank, &config);
}

NcclResult Split(NcclComm* comm, int color, int key, NcclComm** part, int ctas) {
  Config config = ConfigOf(ctas);
  return nccl.split(comm, color, key, part, &config);
}

NcclResult AllReduce(const void* from, void* to, size_t count, NcclType type, NcclComm* comm, void* stream) {
  return nccl.all_reduce(from, to, count, type, kSum, comm, stream);
}

NcclResult ReduceScatter(const void* from, void* to, size_t count, NcclType type, NcclComm* comm, void* stream) {
  return nccl.reduce_scatter(from, to, count, type, kSum, comm, stream);
}

NcclResult Broadcast(void* values, size_t count, NcclType type, int root, NcclComm* comm, void* stream) {
  return nccl.broadcast(values, values, count, type, root, comm, stream);
}

// Returns an empty string on success.
std::string Load(const char* name) {
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return std::string(kNcclLibrary) + " cannot be loaded; it comes with LibTorch's CUDA libraries";
  std::array<void*, kNcclFunctionNames.size()> functions;
  for (size_t i = 0; i < functions.size(); ++i) {
    functions[i] = dlsym(library, kNcclFunctionNames[i]);
    if (functions[i] == nullptr) return std::string(kNcclLibrary) + " has no " + kNcclFunctionNames[i];
  }
  nccl = __builtin_bit_cast(Library, functions);
  int version = 0;
  if (nccl.get_version(&version) != NcclResult::kSuccess)
    return std::string(kNcclLibrary) + " does not report its version";
  if (version < kOldestNccl || version / 10000 != kOldestNccl / 10000) {
    return std::string(kNcclLibrary) + " is NCCL " + NcclVersionText(version) + ", and " +
           NcclVersionText(kOldestNccl) + " or a newer 2.x is needed";
  }
  return "";
}

}  // namespace

std::string NcclVersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

const NcclApi* OpenNccl(const char* library, std::string& problem) noexcept {
  static const std::string loaded = Load(library);
  problem = loaded;
  if (!loaded.empty()) return nullptr;
  static const NcclApi api = {.get_version = nccl.get_version,
                              .get_unique_id = nccl.get_unique_id,
                              .init_rank = InitRank,
                              .split = Split,
                              .group_start = nccl.group_start,
                              .group_end = nccl.group_end,
                              .send = nccl.send,
                              .receive = nccl.receive,
                              .all_reduce = AllReduce,
                              .all_gather = nccl.all_gather,
                              .reduce_scatter = ReduceScatter,
                              .broadcast = Broadcast,
                              .async_error = nccl.async_error,
                              .error_text = nccl.error_text,
                              .last_error = nccl.last_error,
                              .abort = nccl.abort,
                              .destroy = nccl.destroy};
  return &api;
}

}  // namespace tessera::kernels
