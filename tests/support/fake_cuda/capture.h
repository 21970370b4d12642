// Streams, events and the capture of graphs, as strict as CUDA's rules: while a stream records, a wait, an allocation
// or a copy of pageable memory is an error and spoils the graph; the thread that began a capture ends it, with every
// stream that took part joined again; what is recorded was loaded before; and an event that was recorded in a capture,
// by whatever thread, is of no use outside of it, where an H200 answers cudaErrorInvalidValue.
//
// Calls for a stream or an event are refused where the thread's current device is another one: CUDA would take some of
// them, and make a context on the wrong card.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/fake_cuda/clock.h"

namespace tessera::fake_cuda {

// What a capture records: how many operations, not what they do. Logged under its number.
struct Graph {
  long number = 0;
  long operations = 0;
  struct Stream* origin = nullptr;
  bool spoiled = false;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::vector<Interval> intervals;  // of its operations, from its launch on
};

struct Stream {
  int device = 0;
  Graph* graph = nullptr;  // that it records into
  long work = 0;           // calls that it has taken
  bool joined = true;      // whether the stream that the capture began on waits for all of its work
  long number = 0;
  // By the card's clock: when all of its work is done, and in a capture, from the graph's launch on.
  int64_t end = 0, end_in_graph = 0;
};

struct Event {
  int device = 0;
  std::chrono::steady_clock::time_point time;
  Graph* graph = nullptr;  // that it was recorded in
  Stream* stream = nullptr;
  long work = 0;    // of the stream, when it was recorded
  int64_t end = 0;  // when it is reached, as of a stream
};

// Counts an operation on the stream. The number of the graph that records it; 0: it is executed. One on a default
// stream is logged as such: it waits for none of the streams that LibTorch computes on.
long Record(const char* function, cudaStream_t stream, const Work& work = {});

// By the card's clock, when all that was issued is done: on the stream, or on all of the current device's.
int64_t EndOf(cudaStream_t stream);
int64_t EndOfDevice();

// Whether what is issued on the stream now would be recorded.
bool IsRecording(cudaStream_t stream);

// For a call that a capture forbids: the error, and the graph is spoiled; or cudaSuccess where no capture forbids it.
// `stream` is the one waited for, if the call waits for one only.
enum class Unsafe { kAllocation, kWait, kLoading };
cudaError_t CheckUnsafe(Unsafe kind, cudaStream_t stream);

// Code for a device, which CUDA loads when it is first asked for (unless CUDA_MODULE_LOADING is EAGER); a capture
// forbids that.
struct LazyCode {
  unsigned loaded = 0;  // a bit for each device
};
// CheckUnsafe's answer, where the current device does not have the code yet. `name` is for the log.
cudaError_t Load(LazyCode& code, const std::string& name);

}  // namespace tessera::fake_cuda
