// The pretend device is a test device that behaves like a GPU where it matters to our code: its tensors cannot be mixed
// with host tensors, its graphs hold addresses, and captured work is done only when the graph is launched. It uses host
// memory and the CPU's operators, so results are those of the CPU. Operators without an implementation for it run their
// reference compositions, as on a GPU without our kernels. In addition to the default stream, each thread has a stream
// for copies to the device. A reader that does not wait for such a copy reads the old contents, and a copy that may
// overwrite what the default stream has not read yet fails.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace tessera {

// Linking this library registers the device (PrivateUse1 of LibTorch).
inline const at::Device kPretendDevice(at::kPrivateUse1, 0);

// Operators that have run on the device so far.
int64_t PretendDeviceCalls();

// Operations of the calling thread that would make the host wait for a GPU.
struct HostWaits {
  int64_t waits = 0;            // for results: a number that is read, a blocking copy, a wait for an event
  int64_t pageable_copies = 0;  // copies from and to host memory that the device cannot access directly
  HostWaits operator-(const HostWaits& other) const {
    return {waits - other.waits, pageable_copies - other.pageable_copies};
  }
  bool operator==(const HostWaits&) const = default;
};
HostWaits PretendDeviceWaits();

// Copies of the calling thread on the stream for copies: all so far, and those for which nothing has waited yet.
struct PretendCopies {
  int64_t issued = 0, under_way = 0;
  bool operator==(const PretendCopies&) const = default;
};
PretendCopies PretendDeviceCopies();

// While `depends`, the last bits of a matrix product depend on its number of rows, as on a GPU whose library selects
// kernels by it. Call it only while no thread runs operators of the device.
void RoundByShapeOnPretendDevice(bool depends);

// Copies between host and device that the calling thread has requested so far.
int64_t PretendHostCopies();

// While `fails`, every operator, copy and event of the device fails as after an illegal address.
void FailPretendDevice(bool fails);

// Limits the bytes of pinned memory that live at the same time. An allocation above the limit fails, as where the
// system locks only so much memory.
void LimitPretendPinnedMemory(int64_t bytes);

// Sets the memory size that the device reports; 0: it reports none.
void SizePretendDevice(int64_t bytes);

// Work on the device's streams that is executed late, as seen by operators of the default stream. Thread-safe.
class LateWork {
 public:
  virtual ~LateWork() = default;
  // Called before an operator or a copy of the calling thread: executes all earlier work on its stream.
  virtual void BeforeOperator() = 0;
  // Called when that operator reads or writes this device memory.
  virtual void OnUse(const void* memory, int64_t bytes) = 0;
  // Returns whether issued work still uses the block, to which nothing else refers any more. If so, the implementation
  // passes it to PretendMemory::Free after that work.
  virtual bool TakesOver(void* block) = 0;
};

// Sets the late work, or removes it if null. Call it only while no thread uses the device. The object must outlive that
// use.
void SetLateWorkOnPretendDevice(LateWork* work);
// Executes late work as before an operator of the calling thread.
void DoLateWorkOfPretendDevice();

// Return the bytes of live tensors on the device, and set their limit. An allocation above the limit is out of memory.
int64_t PretendDeviceBytes();
void LimitPretendDevice(int64_t bytes);

}  // namespace tessera
