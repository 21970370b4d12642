// What the fake CUDA (machine.h) wrote down of a process, and what it says of the steps of its images.
//
// The events and their fields; GRAPH is the number of the graph that records the operation, 0 where it is executed:
//   name N KERNEL                    the mangled name of the kernel N
//   kernel GRAPH N BLOCKS THREADS
//   product GRAPH LIBRARY DTYPE ROWS COLUMNS LENGTH BATCH EPILOGUE   of matrices as cuBLAS sees them: ROWS are features
//   attention GRAPH LIBRARY DTYPE QUERIES KEYS                       shapes as 1x24x4608x128
//   convolution GRAPH LIBRARY DTYPE INPUT WEIGHTS
//   copy GRAPH H2D|D2H|D2D|H2H BYTES pinned|pageable async|sync
//   memset GRAPH BYTES
//   nccl GRAPH FUNCTION CALLS COMMUNICATOR   a group of calls, or a single one: of the first one's function
//   transfer FUNCTION COUNT TYPE PEER COMMUNICATOR RANK RANKS   one call of NCCL's; PEER is the root of a broadcast
//   communicator NAME RANK RANKS     made
//   variable NAME=VALUE              of NCCL's in the environment
//   capture GRAPH, captured GRAPH OPERATIONS, graph GRAPH OPERATIONS      begun, ended, launched
//   capture_failed GRAPH
//   load_in_capture CODE             a kernel's name, or what a library computes: not there before the capture began
//   context DEVICE                   made by the first call for the device that needs one
//   wait FUNCTION                    of the host for the device
//   malloc BYTES USED, free BYTES USED, pin BYTES
//   busy STREAM ENGINE BEGIN END     by the card's clock (clock.h), in nanoseconds; compute, H2D, D2H, pageable or nccl
//   error FUNCTION CODE
//   stub FUNCTION                    a function that the fake does not have was called
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

// What one step of denoising cost.
struct FakeCudaStep {
  std::map<std::string, int> operations;  // by kernel or function, in few words
  int count = 0;                          // of them all; those of a graph count at every launch of it
  int waits = 0;                          // of the thread that issues, while it issues the step
  int pageable_copies = 0;
  int mallocs = 0;
  int fp32_products = 0;
  int exchanges = 0;  // groups of calls of NCCL's, and single ones
  // Bytes that this process gave to NCCL's functions, by function and communicator; what it receives is not among them.
  std::map<std::pair<std::string, std::string>, int64_t> given_bytes;
  int64_t bytes_to_host = 0;
  // Rows of the products of a dtype and a length, summed.
  std::map<std::string, std::map<int64_t, int64_t>> product_rows;
  double issue_milliseconds = 0;
};

class FakeCudaLog final {
 public:
  // Of one process; an unreadable line fails the test.
  static FakeCudaLog Read(const std::string& path);
  // Of all processes that wrote under FAKE_CUDA_LOG=prefix, only those that launched a kernel.
  static std::vector<FakeCudaLog> ReadAll(const std::string& prefix);

  const std::vector<FakeCudaEvent>& events() const { return events_; }
  int Count(const std::string& kind) const;
  std::vector<FakeCudaEvent> Of(const std::string& kind) const;
  // "stub f", "error f 2", "load_in_capture f" or "default_stream f" for each kind of event that a sound run has none
  // of.
  std::vector<std::string> Faults() const;
  // Most bytes of device memory that were taken at once.
  int64_t PeakBytes() const;
  // Nanoseconds of the card's clock in which it was busy with this ("H2D", "nccl"), and those of them in which it
  // computed meanwhile; from the first product on, so that loading is not among them.
  struct Busy {
    int64_t all = 0, computing = 0;

    double overlap() const { return all == 0 ? 0 : static_cast<double>(computing) / static_cast<double>(all); }
  };
  Busy BusyWith(const std::string& engine) const;
  std::vector<FakeCudaStep> Steps() const;
  // What came after the last step: the decoding of its image.
  FakeCudaStep AfterSteps() const;
  // Whether it copies the state of a step, two numbers of 64 bits, to the host.
  static bool EndsStep(const FakeCudaEvent& event);

  // A kernel's demangled name as a reader would say it: "elementwise direct_copy_kernel_cuda".
  static std::string ShortName(const std::string& mangled);

 private:
  // Those of all steps, and what came after the last one.
  std::pair<std::vector<FakeCudaStep>, FakeCudaStep> Divide() const;

  std::vector<FakeCudaEvent> events_;
  std::map<int64_t, std::string> names_;  // of kernels, short
};

// For a reader: the operations by name of a process's last step but one, the most frequent first; how long the host
// took to issue the steps between the first and the last; and how much device memory was taken.
std::string FakeCudaTable(const FakeCudaLog& log);

}  // namespace tessera
