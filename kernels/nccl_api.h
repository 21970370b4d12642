// NCCL as one table of functions: what parallel/nccl calls, free of NCCL's and CUDA's headers. The CUDA plug-in fills
// it from the library that LibTorch is linked to, tests have one without a GPU. Results, types and numbers are NCCL's
// own.
//
// Communicators do not block: a call may return kInProgress, and the communicator may be used again only once its
// asynchronous error is no longer that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::kernels {

// Another one with every change of the table, or of what its functions promise.
inline constexpr int kNcclApiVersion = 1;

// The first NCCL that splits communicators with a configuration, and the one whose structures the table passes.
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

// What the ranks of a world find each other by. One of them makes it and hands it to the others.
struct NcclId {
  std::array<char, 128> bytes = {};
};

// A communicator of NCCL's.
struct NcclComm;

struct NcclApi {
  int version = kNcclApiVersion;

  // 22809 of 2.28.9.
  NcclResult (*get_version)(int* version) = nullptr;
  NcclResult (*get_unique_id)(NcclId* id) = nullptr;

  // Returns at once; the communicator is there when its asynchronous error is kSuccess. `ctas`: the most thread blocks
  // that a call on it takes from the device; 0: as many as NCCL likes.
  NcclResult (*init_rank)(NcclComm** comm, int ranks, const NcclId& id, int rank, int ctas) = nullptr;
  // Every rank of `comm` calls it. Those of one color are a communicator, in the order of their keys; it is written
  // when the asynchronous error of `comm` is kSuccess, and is there when its own is.
  NcclResult (*split)(NcclComm* comm, int color, int key, NcclComm** part, int ctas) = nullptr;

  // What is called between the two is one call, whose transfers cannot block one another. The stream is the device's.
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*send)(const void* from, size_t count, NcclType type, int peer, NcclComm* comm, void* stream) = nullptr;
  NcclResult (*receive)(void* to, size_t count, NcclType type, int peer, NcclComm* comm, void* stream) = nullptr;
  // Sums. `from` may be `to`.
  NcclResult (*all_reduce)(const void* from, void* to, size_t count, NcclType type, NcclComm* comm,
                           void* stream) = nullptr;
  NcclResult (*all_gather)(const void* from, void* to, size_t count_of_one, NcclType type, NcclComm* comm,
                           void* stream) = nullptr;
  NcclResult (*reduce_scatter)(const void* from, void* to, size_t count_of_one, NcclType type, NcclComm* comm,
                               void* stream) = nullptr;
  // In place.
  NcclResult (*broadcast)(void* values, size_t count, NcclType type, int root, NcclComm* comm, void* stream) = nullptr;

  NcclResult (*async_error)(NcclComm* comm, NcclResult* error) = nullptr;
  const char* (*error_text)(NcclResult result) = nullptr;
  const char* (*last_error)(NcclComm* comm) = nullptr;  // may be empty

  // Ends what the device does for the communicator, and destroys it.
  NcclResult (*abort)(NcclComm* comm) = nullptr;
  // Nothing of it is under way on any rank.
  NcclResult (*destroy)(NcclComm* comm) = nullptr;
};

// What the table is filled from, in the order of its members.
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
