// What the runtime asks of a kind of device beside its operators, as one table of functions: who the device is, its
// memory, marks in the order of its work, memory of the host that it reads by itself, and graphs. The CPU has one
// (kernels/device_runtimes.cc), the CUDA plug-in brings one, and tests have a device with one. LibTorch-free, so that a
// plug-in of another version can be told before any of it is used.
//
// "Work" is what the calling thread has issued on the device's current stream, "current" what it issues next. Functions
// that are not noexcept throw c10::Error where the device fails, as operators do. Any thread may call them unless said
// otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/nccl_api.h"

namespace c10 {
struct Allocator;
}

namespace tessera::kernels {

// Another one with every change of the table, or of what its functions promise.
inline constexpr int kDeviceRuntimeVersion = 2;

// Bytes of a device's own memory. What is neither free, used nor cached is taken by other processes and the driver.
struct DeviceMemory {
  int64_t total = 0;
  int64_t free = 0;    // nobody has taken it
  int64_t used = 0;    // by tensors of this process
  int64_t cached = 0;  // kept by this process for tensors to come
};

// Whatever beside our own code decides what numbers come out. Empty where there is no such thing.
struct DeviceIdentity {
  std::string device;  // its model
  std::string driver;
  std::string cudnn;
  std::string nccl;
  bool joins_nccl = false;  // the device is a card of its own that this NCCL can serve

  bool operator==(const DeviceIdentity&) const = default;
};

// A place in the order of a device's work. Each device's table has its own below these two.
struct DeviceMark {};

// Work that was captured and can be issued again as a whole. It reads and writes the memory that the work did when it
// was captured: the caller keeps what was there before and fills it anew, the graph keeps what was allocated meanwhile.
struct DeviceGraph {};

struct DeviceRuntime {
  int version = kDeviceRuntimeVersion;

  // The index of the device with a name of its maker's ("GPU-…", "MIG-…"); below 0 with what is wrong: text that
  // continues "device is GPU-…; ".
  int (*find)(const std::string& name, std::string& problem) noexcept = nullptr;

  // Checks driver, device and LibTorch in this order, then makes the device and a stream of its own current for the
  // calling thread, which is the one that computes. Returns what is missing, for a user: text that continues "device is
  // cuda; "; nothing where all is well.
  std::string (*open)(int device) noexcept = nullptr;

  // Needs no opened device, and takes none of its memory. Returns what is missing, as `open` does.
  std::string (*identify)(int device, DeviceIdentity& identity) noexcept = nullptr;

  // Nothing is written, and false returned, where nobody can tell, as for the memory of the host.
  bool (*read_memory)(int device, DeviceMemory& memory) noexcept = nullptr;
  // Gives back the memory that is kept for tensors to come.
  void (*release_cache)(int device) = nullptr;

  // Whether the device still works. It does after it had no memory for something, and never again in this process after
  // an error of its own (an address that is not there, memory that is broken). Waits for all work.
  bool (*works)(int device) noexcept = nullptr;

  // Behind all work so far; the caller destroys it.
  DeviceMark* (*record_mark)(int device) = nullptr;
  bool (*is_reached)(const DeviceMark& mark) = nullptr;
  void (*wait)(const DeviceMark& mark) = nullptr;
  // That the device took from one to the other, both of which are reached.
  double (*seconds_between)(const DeviceMark& from, const DeviceMark& to) = nullptr;
  void (*destroy_mark)(DeviceMark* mark) noexcept = nullptr;

  // Gives out memory of the host that the device reads and writes by itself.
  c10::Allocator* (*pinned_memory)() = nullptr;

  // From here to end_capture, work is kept for a graph and not done, false where this kind of device has no graphs. The
  // calling thread may then neither wait for the device, nor read from it, nor copy memory of the host that is not
  // pinned. One capture at a time.
  bool (*begin_capture)(int device) = nullptr;
  // Null where something happened since that a graph cannot hold. Ends the capture in any case.
  DeviceGraph* (*end_capture)(int device) noexcept = nullptr;
  // Memory that it took beyond what the graphs before it share with it.
  int64_t (*graph_bytes)(const DeviceGraph& graph) noexcept = nullptr;
  void (*launch)(DeviceGraph& graph) = nullptr;
  // None of its work is left to be done.
  void (*destroy_graph)(DeviceGraph* graph) noexcept = nullptr;
  // Whether the calling thread is between begin_capture and end_capture.
  bool (*is_capturing)(int device) noexcept = nullptr;

  // For work that others issue on the device. The maker's name of the card, which no other card of the machine has;
  // empty for a part of a card.
  std::string (*card)(int device) noexcept = nullptr;
  // The current stream of the calling thread, and a second one of high priority, which is the same in every call; as
  // the maker's functions take them.
  void* (*current_stream)(int device) = nullptr;
  void* (*side_stream)(int device) = nullptr;
  // What is issued on `stream` from here on begins only when all that `other` has so far is done.
  void (*wait_for_stream)(int device, void* stream, void* other) = nullptr;
  // Null with what is missing, for a user: text that continues "NCCL is not used: ".
  const NcclApi* (*nccl)(std::string& problem) noexcept = nullptr;
};

}  // namespace tessera::kernels
