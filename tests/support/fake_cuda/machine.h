// Machine is the machine that the fake CUDA simulates: its cards, their memory, and the state of each host thread. The
// functions of the CUDA libraries (runtime.cc, launches.cc, capture.cc, cublas.cc, cudnn.cc, driver.cc) are thin
// wrappers around it.
//
// The fake replaces cudart, cuBLAS, cuDNN and the driver under the real LibTorch and the real plug-in. It computes
// nothing: kernels are counted by name, and every byte copied from a device is 1. So it proves which operations are
// issued and that CUDA allows them, never a value.
//
// Device memory is an address range without access rights. A host that reads through a device pointer crashes, and
// models of full size take no memory.
//
// Environment variables, read once:
//   FAKE_CUDA_DEVICES     number of cards, 1 to 8; default 1
//   FAKE_CUDA_MEMORY_MIB  memory of each card; default 143771, an H200
//   FAKE_CUDA_CONTEXT_MIB memory of a process's context on a card; default 520, as on an H100
//   FAKE_CUDA_CARDS       prefix of file names: processes with the same prefix share the cards' memory; unset, each
//                         process has the cards to itself
//   FAKE_CUDA_ARCH        compute capability; default 90
//   FAKE_CUDA_DRIVER      CUDA release that the driver supports; default 13000
//   FAKE_CUDA_CUDNN       cuDNN version; default 91900
//   FAKE_CUDA_FAULT       a file into which a test may write a number N: the process that launches a kernel next
//                         removes it, and after N more launches every call fails as after an illegal address
//   FAKE_CUDA_FAIL        calls that fail, separated by commas: FUNCTION:N is the N-th call of that function in each
//                         process, 1/FUNCTION:N the N-th in threads whose current device is card 1
//   FAKE_CUDA_NVLINK      1: NVML reports NVLink on all cards; default 0
//   FAKE_CUDA_NCCL_VIA    the transport between ranks in NCCL's log; default P2P/CUMEM
//   FAKE_CUDA_CLOCK       1: issued work takes time (clock.h); default 0
//   FAKE_CUDA_LOG         see event_log.h
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/fake_cuda/card_memory.h"
#include "tests/support/fake_cuda/event_log.h"

namespace tessera::fake_cuda {

inline constexpr int kMostDevices = 8;

struct Options {
  int devices = 1;
  size_t memory_bytes = 0;  // per card
  size_t context_bytes = 0;
  size_t pinned_bytes = 0;  // of host memory that can be pinned
  std::string cards;        // prefix of file names; "": this process has the cards to itself
  int major = 9, minor = 0;
  int driver = 13000;
  size_t cudnn = 91900;
  bool nvlink = false;
  bool clock = false;
  std::string nccl_via;
  std::string fault_file;
  std::map<std::string, long> failing_calls;  // the number of the call that fails, by function or device/function

  static Options FromEnvironment();
};

// Ranges of addresses, ordered by their first address. Thread-safe.
class AddressRanges final {
 public:
  struct Range {
    size_t bytes = 0;
    int device = 0;
  };

  void Add(void* begin, Range range);
  std::optional<Range> Remove(void* begin);
  std::optional<Range> Find(const void* address) const;  // the range that contains `address`
  // Returns whether the memory begins in one range and ends in another one, or in none.
  bool IsSplit(const void* memory, size_t bytes) const;
  size_t Bytes() const;  // of all ranges

 private:
  mutable std::mutex mutex_;
  std::map<const char*, Range> ranges_;
};

// The machine of this process. Thread-safe; the current device and the last error are per thread.
class Machine final {
 public:
  Machine();

  const Options& options() const { return options_; }
  EventLog& log() { return log_; }

  // Allocates device memory like cudaMalloc: takes it from the card and reserves addresses. Null if the card is full.
  // The usage in the log is that of this process, without its context.
  void* Allocate(size_t bytes, int device);
  bool Free(void* begin);
  // The two halves of Allocate, which are separate calls for the driver's virtual memory.
  bool Take(size_t bytes, int device);
  void GiveBack(size_t bytes, int device);
  void* Reserve(size_t bytes, int device);
  void Unreserve(void* begin);
  size_t FreeBytes(int device);

  AddressRanges& device_memory() { return device_memory_; }
  AddressRanges& pinned_memory() { return pinned_memory_; }
  AddressRanges& mappings() { return mappings_; }  // the driver's virtual memory

  // Sets the real content of device memory. Only the plug-in's probe, the one kernel that the fake computes, has any.
  void SetContent(const void* begin, std::string bytes);
  std::string ContentAt(const void* begin, size_t bytes);

  // Counts a launch. False after a test's requested fault.
  bool CountLaunch();
  bool failed() const;

  // Counts a call of a function that has requested failures. True if this call must fail.
  bool FailsNow(const std::string& function);

  // Creates and logs the device's context at the first call for it that needs one. False if the card has no room for
  // it.
  bool NeedContext(int device);

 private:
  const Options options_;
  EventLog log_;
  AddressRanges device_memory_, pinned_memory_, mappings_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<CardMemory>> cards_;
  std::array<size_t, kMostDevices> used_{};  // by this process, per device
  std::map<const void*, std::string> contents_;
  std::optional<long> launches_left_;  // until the requested fault
  std::map<std::string, long> calls_;  // counts of the functions with requested failures
  std::array<bool, kMostDevices> contexts_{};
  bool failed_ = false;
};

// Created at the first call and never destroyed, because LibTorch's libraries call CUDA while the process ends.
Machine& TheMachine();

// Returns the current device of the calling thread.
int& CurrentDevice();

// Every function of cudart returns through it: it keeps the error for cudaGetLastError, logs it, and turns success into
// failure once the device has failed.
cudaError_t Finish(const char* function, cudaError_t error = cudaSuccess);
// Finish for a function that needs no context.
cudaError_t FinishWithoutContext(const char* function, cudaError_t error = cudaSuccess);
cudaError_t& LastError();

}  // namespace tessera::fake_cuda
