// Numbers that a model must not give: a picture made of one is black or white, and a step taken with one makes all
// latents NaN.
#pragma once

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera::models {

// DataLoss, which is what latents that stop being finite are answered with, where a number of `tensor` is NaN or
// infinite. `what` names the tensor to the user. Waits for the device.
inline absl::Status CheckFinite(const at::Tensor& tensor, absl::string_view what) {
  if (tensor.isfinite().all().item<bool>()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      what, " is not finite; the model's weights are damaged, or its dtype is too narrow for it: fp32 is the widest"));
}

}  // namespace tessera::models
