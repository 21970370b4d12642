// FakeCudaLog reads what the fake CUDA (machine.h) recorded of a process, and computes what each denoising step cost.
//
// The events and their fields. GRAPH is the number of the graph that records the operation, or 0 if it is executed:
//   name N KERNEL                    the mangled name of the kernel N
//   kernel GRAPH N BLOCKS THREADS
//   product GRAPH LIBRARY DTYPE ROWS COLUMNS LENGTH BATCH EPILOGUE   of matrices as cuBLAS sees them: ROWS are features
//   attention GRAPH LIBRARY DTYPE QUERIES KEYS                       shapes as 1x24x4608x128
//   convolution GRAPH LIBRARY DTYPE INPUT WEIGHTS
//   copy GRAPH H2D|D2H|D2D|H2H BYTES pinned|pageable async|sync
//   memset GRAPH BYTES
//   nccl GRAPH FUNCTION CALLS COMMUNICATOR   a group of calls or a single call; FUNCTION is the first call's
//   transfer FUNCTION COUNT TYPE PEER COMMUNICATOR RANK RANKS   one NCCL call; PEER is the root of a broadcast
//   communicator NAME RANK RANKS     created
//   variable NAME=VALUE              an NCCL variable in the environment
//   capture GRAPH, captured GRAPH OPERATIONS, graph GRAPH OPERATIONS      begun, ended, launched
//   capture_failed GRAPH
//   load_in_capture CODE             a kernel's name, or what a library computes: not loaded before the capture began
//   context DEVICE                   created by the first call for the device that needs one
//   wait FUNCTION                    the host waits for the device
//   malloc BYTES USED, free BYTES USED, pin BYTES
//   busy STREAM ENGINE BEGIN END     by the card's clock (clock.h), in nanoseconds; compute, H2D, D2H, pageable or nccl
//   resident BYTES                   the process's peak of main memory so far
//   error FUNCTION CODE
//   stub FUNCTION                    a function that the fake does not implement was called
//   default_stream FUNCTION          an operation on a default stream, by function, library or kernel
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct FakeCudaEvent {
  int64_t microseconds = 0;
  int thread = 0;
  std::string kind;
  std::vector<std::string> fields;

  int64_t Number(size_t field) const { return std::stoll(fields.at(field)); }
};

// The cost of one denoising step.
struct FakeCudaStep {
  std::map<std::string, int> operations;  // counts by short kernel or function name
  int count = 0;                          // sum of `operations`; those of a graph count at every launch
  int waits = 0;                          // in the issuing thread, while it issues the step
  int pageable_copies = 0;
  int mallocs = 0;
  int fp32_products = 0;
  int exchanges = 0;  // groups of NCCL calls, and single calls
  // Bytes that this process sent through NCCL, by function and communicator. Received bytes are not included.
  std::map<std::pair<std::string, std::string>, int64_t> given_bytes;
  int64_t bytes_to_host = 0;
  // Rows of the products of a dtype and a length, summed.
  std::map<std::string, std::map<int64_t, int64_t>> product_rows;
  double issue_milliseconds = 0;
};

class FakeCudaLog final {
 public:
  // Reads the log of one process. An unreadable line fails the test.
  static FakeCudaLog Read(const std::string& path);
  // Reads the logs of all processes that ran with FAKE_CUDA_LOG=prefix and launched a kernel.
  static std::vector<FakeCudaLog> ReadAll(const std::string& prefix);

  const std::vector<FakeCudaEvent>& events() const { return events_; }
  int Count(const std::string& kind) const;
  std::vector<FakeCudaEvent> Of(const std::string& kind) const;
  // "stub f", "error f 2", "load_in_capture f" or "default_stream f" for each kind of event that a correct run does not
  // have.
  std::vector<std::string> Faults() const;
  // Returns the maximum of allocated device memory, in bytes.
  int64_t PeakBytes() const;
  // Returns the maximum of the process's resident main memory, in bytes.
  int64_t PeakHostBytes() const;
  // How long an engine ("H2D", "nccl") was busy, in nanoseconds of the card's clock, and how much of that time the card
  // computed as well. Counted from the first product, so loading is excluded,
  // or, unless it is empty, from the first kernel with `after` in its name.
  struct Busy {
    int64_t all = 0, computing = 0;

    double overlap() const { return all == 0 ? 0 : static_cast<double>(computing) / static_cast<double>(all); }
  };
  Busy BusyWith(const std::string& engine, const std::string& after = "") const;
  // How long the card computed and copied in the operations that began in a span of its clock, in nanoseconds.
  struct Span {
    int64_t all = 0, computing = 0, copying = 0;
  };
  Span Between(int64_t begin, int64_t end) const;
  std::vector<FakeCudaStep> Steps() const;
  // Returns the operations after the last step, which decode its image.
  FakeCudaStep AfterSteps() const;
  // Returns whether the event copies the state of a step, two 64-bit numbers, to the host.
  static bool EndsStep(const FakeCudaEvent& event);
  // Returns whether the event is an attention with at least so many queries.
  static bool Attends(const FakeCudaEvent& event, int64_t queries);

  // Returns a short form of a kernel's demangled name, such as "elementwise direct_copy_kernel_cuda".
  static std::string ShortName(const std::string& mangled);

 private:
  // Returns all steps, and the operations after the last one.
  std::pair<std::vector<FakeCudaStep>, FakeCudaStep> Divide() const;

  std::vector<FakeCudaEvent> events_;
  std::map<int64_t, std::string> names_;  // short names of kernels
};

// Returns a readable table of a process's last step but one: its operations by name, the most frequent first; the time
// that the host took to issue the steps between the first and the last; and the device memory taken.
std::string FakeCudaTable(const FakeCudaLog& log);

}  // namespace tessera
