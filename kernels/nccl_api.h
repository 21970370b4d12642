// NcclApi is the table of NCCL functions that parallel/nccl calls; it needs no headers of NCCL or CUDA. The CUDA
// plug-in fills it from the library that LibTorch is linked to; tests supply a table that needs no GPU. Results, types
// and constants have NCCL's values.
//
// Communicators do not block: a call may return kInProgress, and the communicator may be used again only once its
// asynchronous error is no longer kInProgress.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::kernels {

// Incremented with every change to the table or to what its functions promise.
inline constexpr int kNcclApiVersion = 1;

// The first NCCL version that splits communicators with a configuration; its structures are the ones passed here.
inline constexpr int kOldestNccl = 21800;

enum class NcclResult : int32_t {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class NcclType : int32_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

// Identifies a world, so that its ranks can find each other. One rank creates it and sends it to the others.
struct NcclId {
  std::array<char, 128> bytes = {};
};

// NCCL's opaque communicator.
struct NcclComm;

struct NcclApi {
  int version = kNcclApiVersion;

  // Version 2.28.9 is 22809.
  NcclResult (*get_version)(int* version) = nullptr;
  NcclResult (*get_unique_id)(NcclId* id) = nullptr;

  // Returns at once; the communicator is ready when its asynchronous error is kSuccess. `ctas` is the largest number of
  // thread blocks that a call on it may use; with 0 NCCL chooses.
  NcclResult (*init_rank)(NcclComm** comm, int ranks, const NcclId& id, int rank, int ctas) = nullptr;
  // Collective over `comm`. The ranks with the same color form a communicator, ordered by key. `part` is written once
  // the asynchronous error of `comm` is kSuccess, and is ready once that of `part` is.
  NcclResult (*split)(NcclComm* comm, int color, int key, NcclComm** part, int ctas) = nullptr;

  // The calls between these two form one call, whose transfers cannot block one another. `stream` is the device's
  // stream.
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*send)(const void* from, size_t count, NcclType type, int peer, NcclComm* comm, void* stream) = nullptr;
  NcclResult (*receive)(void* to, size_t count, NcclType type, int peer, NcclComm* comm, void* stream) = nullptr;
  // Reductions are sums. `from` may equal `to`.
  NcclResult (*all_reduce)(const void* from, void* to, size_t count, NcclType type, NcclComm* comm,
                           void* stream) = nullptr;
  NcclResult (*all_gather)(const void* from, void* to, size_t count_of_one, NcclType type, NcclComm* comm,
                           void* stream) = nullptr;
  NcclResult (*reduce_scatter)(const void* from, void* to, size_t count_of_one, NcclType type, NcclComm* comm,
                               void* stream) = nullptr;
  // Works in place.
  NcclResult (*broadcast)(void* values, size_t count, NcclType type, int root, NcclComm* comm, void* stream) = nullptr;

  NcclResult (*async_error)(NcclComm* comm, NcclResult* error) = nullptr;
  const char* (*error_text)(NcclResult result) = nullptr;
  const char* (*last_error)(NcclComm* comm) = nullptr;  // may be empty

  // Stops the communicator's work on the device and destroys it.
  NcclResult (*abort)(NcclComm* comm) = nullptr;
  // Requires that no call on the communicator is in progress on any rank.
  NcclResult (*destroy)(NcclComm* comm) = nullptr;
};

// The names of the functions that fill the table, in the order of its members.
inline constexpr std::array<const char*, 17> kNcclFunctionNames = {"ncclGetVersion",
                                                                   "ncclGetUniqueId",
                                                                   "ncclCommInitRankConfig",
                                                                   "ncclCommSplit",
                                                                   "ncclGroupStart",
                                                                   "ncclGroupEnd",
                                                                   "ncclSend",
                                                                   "ncclRecv",
                                                                   "ncclAllReduce",
                                                                   "ncclAllGather",
                                                                   "ncclReduceScatter",
                                                                   "ncclBroadcast",
                                                                   "ncclCommGetAsyncError",
                                                                   "ncclGetErrorString",
                                                                   "ncclGetLastError",
                                                                   "ncclCommAbort",
                                                                   "ncclCommDestroy"};

}  // namespace tessera::kernels
