// DeviceRuntime is the table of functions, other than operators, that the runtime calls on one kind of device: the
// identity of a device, its memory, marks in the order of its work, pinned host memory, and graphs. The CPU has one
// table (kernels/device_runtimes.cc), the CUDA plug-in supplies another, and tests supply their own. The header does
// not use LibTorch, so that a plug-in of another version is recognised before anything in it is called.
//
// "Work" is what the calling thread has issued on the device's current stream; "current" is the stream on which that
// thread issues. Functions that are not noexcept throw c10::Error if the device fails, as operators do. Any thread may
// call them unless a comment restricts it.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/nccl_api.h"

namespace c10 {
struct Allocator;
}

namespace tessera::kernels {

// Incremented with every change to the table or to what its functions promise.
inline constexpr int kDeviceRuntimeVersion = 3;

// Sizes in bytes of a device's memory. The rest of `total`, which is neither free, used nor cached, belongs to other
// processes and the driver.
struct DeviceMemory {
  int64_t total = 0;
  int64_t free = 0;    // unallocated
  int64_t used = 0;    // held by tensors of this process
  int64_t cached = 0;  // kept by this process for future tensors
};

// Everything outside our own code that can change the numbers of a result. A string is empty if the part is absent.
struct DeviceIdentity {
  std::string device;  // model name
  std::string driver;
  std::string cudnn;
  std::string nccl;
  bool joins_nccl = false;  // a whole card, not a slice of one, that this NCCL supports

  bool operator==(const DeviceIdentity&) const = default;
};

// A position in the order of a device's work. Each kind of device derives its marks and graphs from these two types.
struct DeviceMark {};

// Captured work that can be issued again as a whole. It reads and writes the memory addresses that it used during
// capture: the caller keeps the memory that existed before the capture alive and refills it; the graph keeps the memory
// that was allocated during the capture.
struct DeviceGraph {};

struct DeviceRuntime {
  int version = kDeviceRuntimeVersion;

  // Returns the index of the device with this vendor name ("GPU-…", "MIG-…"). Returns a negative number on failure and
  // sets `problem` to text that continues "device is GPU-…; ".
  int (*find)(const std::string& name, std::string& problem) noexcept = nullptr;

  // Checks driver, device and LibTorch in this order. Then makes the device and one stream, the same for the life of
  // the process, current for the calling thread, which is the one that computes. Returns an empty string on success,
  // else a message for the user that continues "device is cuda; ".
  std::string (*open)(int device) noexcept = nullptr;

  // Needs no opened device and uses none of its memory. Returns a message as `open` does.
  std::string (*identify)(int device, DeviceIdentity& identity) noexcept = nullptr;

  // Returns false and leaves `memory` unchanged if the sizes are unknown, as they are for the memory of the host.
  bool (*read_memory)(int device, DeviceMemory& memory) noexcept = nullptr;
  // Releases the memory that is kept for future tensors.
  void (*release_cache)(int device) = nullptr;
  // Makes tensors of this process take at most so many bytes from now on; allocations beyond that fail.
  void (*limit_memory)(int device, int64_t bytes) = nullptr;

  // Returns whether the device still works. An allocation failure does not stop it; a device fault (an invalid address,
  // broken memory) stops it for the rest of this process. Waits for all work.
  bool (*works)(int device) noexcept = nullptr;

  // Returns a mark after all work so far. The caller destroys it.
  DeviceMark* (*record_mark)(int device) = nullptr;
  bool (*is_reached)(const DeviceMark& mark) = nullptr;
  void (*wait)(const DeviceMark& mark) = nullptr;
  // Device time in seconds between two marks, both of which must be reached.
  double (*seconds_between)(const DeviceMark& from, const DeviceMark& to) = nullptr;
  void (*destroy_mark)(DeviceMark* mark) noexcept = nullptr;

  // Allocates host memory that the device can read and write directly.
  c10::Allocator* (*pinned_memory)() = nullptr;

  // Starts a capture: until end_capture, work is recorded into a graph instead of being executed. Returns false if this
  // kind of device has no graphs. During a capture the calling thread may not wait for the device, read from it, or
  // copy host memory that is not pinned. Only one capture may be active.
  bool (*begin_capture)(int device) = nullptr;
  // Ends the capture in every case. Returns null if the captured work contained something that a graph cannot hold.
  DeviceGraph* (*end_capture)(int device) noexcept = nullptr;
  // Bytes that the graph added to the memory it shares with earlier graphs.
  int64_t (*graph_bytes)(const DeviceGraph& graph) noexcept = nullptr;
  void (*launch)(DeviceGraph& graph) = nullptr;
  // Requires that all work of the graph has completed.
  void (*destroy_graph)(DeviceGraph* graph) noexcept = nullptr;
  // Returns whether the calling thread is between begin_capture and end_capture.
  bool (*is_capturing)(int device) noexcept = nullptr;

  // The remaining functions serve libraries that issue work on the device. This one returns the vendor name of the
  // card, which is unique in the machine, or an empty string for a slice of a card.
  std::string (*card)(int device) noexcept = nullptr;
  // Returns the calling thread's current stream, and a second stream of high priority, which is the same in every call.
  // Both are handles of the vendor's type.
  void* (*current_stream)(int device) = nullptr;
  void* (*side_stream)(int device) = nullptr;
  // Makes work issued on `stream` from now on wait until everything issued so far on `other` has completed.
  void (*wait_for_stream)(int device, void* stream, void* other) = nullptr;
  // Returns null on failure and sets `problem` to a message for the user that continues "NCCL is not used: ".
  const NcclApi* (*nccl)(std::string& problem) noexcept = nullptr;
};

}  // namespace tessera::kernels
