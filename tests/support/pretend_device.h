// A device for tests that behaves as a GPU does where that matters to our code: its tensors may not be mixed with the
// host's. Its memory is the host's and its operators are the CPU's, so results are those of the CPU. Operators without
// a version for it run their reference compositions, as on a GPU without kernels of ours.
#pragma once

#include <ATen/ATen.h>

namespace tessera {

// Linking this library registers the device (PrivateUse1 of LibTorch).
inline const at::Device kPretendDevice(at::kPrivateUse1, 0);

// Operators that have run on the device so far.
int64_t PretendDeviceCalls();

}  // namespace tessera
