// The machine that the fake CUDA pretends to be: its cards, their memory, and what a host thread has done to them. The
// functions of the CUDA libraries (runtime.cc, launches.cc, capture.cc, cublas.cc, cudnn.cc, driver.cc) are thin over
// it.
//
// The fake takes the place of cudart, cuBLAS, cuDNN and the driver under the real LibTorch and the real plug-in. It
// computes nothing: kernels are counted by name, and a byte that comes back from a device is always one. So it proves
// which operations are issued and that they are legal, never a value.
//
// Device memory is an address range that nobody may touch: a host that reads through a device's pointer crashes, and
// models of full size take no memory.
//
// Environment variables, read once:
//   FAKE_CUDA_DEVICES     cards, 1 to 8; 1
//   FAKE_CUDA_MEMORY_MIB  memory of each; 143771, an H200
//   FAKE_CUDA_CONTEXT_MIB memory of a process's context on a card; 520, as on an H100
//   FAKE_CUDA_CARDS       begin of files' names: processes that have it in common share the cards' memory; none, and
//                         each process has the cards to itself
//   FAKE_CUDA_ARCH        compute capability; 90
//   FAKE_CUDA_DRIVER      CUDA release that the driver serves; 13000
//   FAKE_CUDA_CUDNN       version of cuDNN; 91900
//   FAKE_CUDA_FAULT       a file that a test may write a number N into: the process that launches a kernel next removes
//                         it, and after N more launches every call fails as after an illegal address
//   FAKE_CUDA_FAIL        calls that fail, with commas between them: FUNCTION:N is the N-th call of that function in
//   each
//                         process, 1/FUNCTION:N in those whose thread has card 1 current
//   FAKE_CUDA_NVLINK      1: NVML says that all cards have it; 0
//   FAKE_CUDA_NCCL_VIA    what NCCL's log says that ranks are connected by; P2P/CUMEM
//   FAKE_CUDA_CLOCK       1: what is issued takes time (clock.h); 0
//   FAKE_CUDA_LOG         event_log.h
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
  size_t memory_bytes = 0;  // of each
  size_t context_bytes = 0;
  std::string cards;  // begin of files' names; "": of this process alone
  int major = 9, minor = 0;
  int driver = 13000;
  size_t cudnn = 91900;
  bool nvlink = false;
  bool clock = false;
  std::string nccl_via;
  std::string fault_file;
  std::map<std::string, long> failing_calls;  // by function, or by device/function: which call of it

  static Options FromEnvironment();
};

// Ranges of addresses, by their begin. May be used by several threads.
class AddressRanges final {
 public:
  struct Range {
    size_t bytes = 0;
    int device = 0;
  };

  void Add(void* begin, Range range);
  std::optional<Range> Remove(void* begin);
  std::optional<Range> Find(const void* address) const;  // the range that it lies in
  // Whether the memory begins in one range and ends in another one, or in none.
  bool IsSplit(const void* memory, size_t bytes) const;

 private:
  mutable std::mutex mutex_;
  std::map<const char*, Range> ranges_;
};

// One for a process. May be used by several threads; the current device and the last error are a thread's own.
class Machine final {
 public:
  Machine();

  const Options& options() const { return options_; }
  EventLog& log() { return log_; }

  // Device memory as cudaMalloc gives it: taken of the card, and addresses for it. Null where the card is full. What is
  // logged as used is this process's own, without its context.
  void* Allocate(size_t bytes, int device);
  bool Free(void* begin);
  // The two halves of it, which the driver's virtual memory has apart.
  bool Take(size_t bytes, int device);
  void GiveBack(size_t bytes, int device);
  void* Reserve(size_t bytes, int device);
  void Unreserve(void* begin);
  size_t FreeBytes(int device);

  AddressRanges& device_memory() { return device_memory_; }
  AddressRanges& pinned_memory() { return pinned_memory_; }
  AddressRanges& mappings() { return mappings_; }  // of the driver's virtual memory

  // What of the device's memory has real content, for the one kernel that the fake computes: the plug-in's probe.
  void SetContent(const void* begin, std::string bytes);
  std::string ContentAt(const void* begin, size_t bytes);

  // Counts a launch. False once the fault that a test asked for has come.
  bool CountLaunch();
  bool failed() const;

  // Counts a call that may be one of those that shall fail.
  bool FailsNow(const std::string& function);

  // A context of the device is made by the first call for it that needs one; each is logged. False where the card has
  // no room for it.
  bool NeedContext(int device);

 private:
  const Options options_;
  EventLog log_;
  AddressRanges device_memory_, pinned_memory_, mappings_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<CardMemory>> cards_;
  std::array<size_t, kMostDevices> used_{};  // by this process
  std::map<const void*, std::string> contents_;
  std::optional<long> launches_left_;  // until the fault
  std::map<std::string, long> calls_;  // of functions that shall fail
  std::array<bool, kMostDevices> contexts_{};
  bool failed_ = false;
};

// Made at the first call and never destroyed: LibTorch's libraries call CUDA while the process ends.
Machine& TheMachine();

// The current device of the calling thread.
int& CurrentDevice();

// Every function of cudart ends in it: keeps the error for cudaGetLastError, logs it, and turns success into failure
// once the device has failed.
cudaError_t Finish(const char* function, cudaError_t error = cudaSuccess);
// The same of a function that needs no context.
cudaError_t FinishWithoutContext(const char* function, cudaError_t error = cudaSuccess);
cudaError_t& LastError();

}  // namespace tessera::fake_cuda
