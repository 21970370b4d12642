// A device for tests that behaves as a GPU does where that matters to our code: its tensors may not be mixed with the
// host's, its graphs hold addresses and what was captured is not done until they are launched. Its memory is the host's
// and its operators are the CPU's, so results are those of the CPU. Operators without a version for it run their
// reference compositions, as on a GPU without kernels of ours. Beside the default stream each thread has one for copies
// to the device: who does not wait for such a copy reads what was there before, and one that may overwrite what the
// default stream is yet to read fails.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace tessera {

// Linking this library registers the device (PrivateUse1 of LibTorch).
inline const at::Device kPretendDevice(at::kPrivateUse1, 0);

// Operators that have run on the device so far.
int64_t PretendDeviceCalls();

// What the calling thread has made the host do that a GPU would have had it wait for.
struct HostWaits {
  int64_t waits = 0;            // for results: a number that is read, a copy that blocks, an event that is waited for
  int64_t pageable_copies = 0;  // from and to memory of the host that the device cannot read by itself
  HostWaits operator-(const HostWaits& other) const {
    return {waits - other.waits, pageable_copies - other.pageable_copies};
  }
  bool operator==(const HostWaits&) const = default;
};
HostWaits PretendDeviceWaits();

// Of the calling thread, on the stream for copies: so far, and of them those that nothing has waited for.
struct PretendCopies {
  int64_t issued = 0, under_way = 0;
  bool operator==(const PretendCopies&) const = default;
};
PretendCopies PretendDeviceCopies();

// While `depends`, the last bits of a matrix product depend on its number of rows, as on a GPU, whose library chooses
// among its kernels by that. Set while no thread runs operators of the device.
void RoundByShapeOnPretendDevice(bool depends);

// Copies between the host and the device that the calling thread has asked for so far.
int64_t PretendHostCopies();

// While `fails`, every operator, copy and event of the device fails, as after an illegal address.
void FailPretendDevice(bool fails);

// What the device says its memory is; 0: it does not say.
void SizePretendDevice(int64_t bytes);

// Work of others on streams of the device, which is done late: as far as operators of the default stream are concerned.
// Any thread may call it.
class LateWork {
 public:
  virtual ~LateWork() = default;
  // The calling thread is about to run an operator or a copy: whatever lies before it on its stream is done first.
  virtual void BeforeOperator() = 0;
  // That operator reads or writes this memory of the device.
  virtual void OnUse(const void* memory, int64_t bytes) = 0;
  // Whether work that was issued still uses the block, which nothing else refers to any more: then whoever does the
  // work gives it to PretendMemory::Free behind it.
  virtual bool TakesOver(void* block) = 0;
};

// Null: there is none. Set while no thread uses the device; outlives its use.
void SetLateWorkOnPretendDevice(LateWork* work);
// As before an operator of the calling thread.
void DoLateWorkOfPretendDevice();

// Bytes of tensors that live on the device; and how many there may be when the calling thread wants more, or it is out
// of memory.
int64_t PretendDeviceBytes();
void LimitPretendDevice(int64_t bytes);

}  // namespace tessera
