// Checks for numbers that a model must not produce: NaN or infinite latents make every later step NaN, and a decoded
// NaN is a black or white picture.
#pragma once

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera::models {

// Returns DataLoss if an element of `tensor` is NaN or infinite. `what` names the tensor in the message to the user.
// Waits for the device.
inline absl::Status CheckFinite(const at::Tensor& tensor, absl::string_view what) {
  if (tensor.isfinite().all().item<bool>()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      what, " is not finite; the model's weights are damaged, or its dtype is too narrow for it: fp32 is the widest"));
}

}  // namespace tessera::models
