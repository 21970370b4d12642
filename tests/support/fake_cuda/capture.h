// Implements streams, events and graph capture with the strictness of CUDA's rules:
// - while a stream records, a wait, an allocation or a copy of pageable memory is an error and invalidates the graph;
// - a capture must end in the thread that began it, after every stream that took part has been joined again;
// - code that is recorded must have been loaded before;
// - an event that any thread recorded in a capture cannot be used outside of it; an H200 returns
//   cudaErrorInvalidValue.
//
// Calls for a stream or an event fail if the thread's current device is another one. CUDA would accept some of them and
// create a context on the wrong card.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/fake_cuda/clock.h"

namespace tessera::fake_cuda {

// The result of a capture: the number of operations, without their contents. Logged under its number.
struct Graph {
  long number = 0;
  long operations = 0;
  struct Stream* origin = nullptr;
  bool spoiled = false;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::vector<Interval> intervals;  // busy times of its operations, relative to its launch
};

struct Stream {
  int device = 0;
  Graph* graph = nullptr;  // null, or the graph that it records into
  long work = 0;           // calls that it has received
  bool joined = true;      // whether the stream that began the capture waits for all of its work
  long number = 0;
  // By the card's clock: when all of its work is done; in a capture, relative to the graph's launch.
  int64_t end = 0, end_in_graph = 0;
};

struct Event {
  int device = 0;
  std::chrono::steady_clock::time_point time;
  Graph* graph = nullptr;  // null, or the graph in whose capture it was recorded
  Stream* stream = nullptr;
  long work = 0;    // the stream's `work` when it was recorded
  int64_t end = 0;  // when it is reached, by the card's clock
};

// Counts an operation on the stream. Returns the number of the graph that records it, or 0 if it is executed. An
// operation on a default stream is logged as such, because it waits for none of the streams that LibTorch computes on.
long Record(const char* function, cudaStream_t stream, const Work& work = {});

// When all work issued so far is done, by the card's clock: on the stream, or on all streams of the current device.
int64_t EndOf(cudaStream_t stream);
int64_t EndOfDevice();

// Returns whether work issued on the stream now would be recorded.
bool IsRecording(cudaStream_t stream);

// Checks a call that captures forbid. If a capture forbids it, invalidates the graph and returns the error; otherwise
// returns cudaSuccess. `stream` is the stream that the call waits for, if it waits for only one.
enum class Unsafe { kAllocation, kWait, kLoading };
cudaError_t CheckUnsafe(Unsafe kind, cudaStream_t stream);

// Device code that CUDA loads at its first use, unless CUDA_MODULE_LOADING is EAGER. A capture forbids loading.
struct LazyCode {
  unsigned loaded = 0;  // one bit per device
};
// Loads the code on the current device if it is not loaded yet; then returns the result of CheckUnsafe. `name` is for
// the log.
cudaError_t Load(LazyCode& code, const std::string& name);

}  // namespace tessera::fake_cuda
