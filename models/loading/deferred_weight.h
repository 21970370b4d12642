// DeferredWeight is the weight of a product that is read from its file when it is used first. Its file has been read
// and checked before, when the model was loaded.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace tessera::models {

// A weight cannot be read any more, or is not the one that was checked.
class WeightReadError final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thread-safe.
class DeferredWeight final {
 public:
  // `make` returns the values. It may throw WeightReadError; a later call of Values then calls it again.
  explicit DeferredWeight(std::function<at::Tensor()> make) : make_(std::move(make)) {}

  // Makes the values in the first call; calls at the same time wait for it.
  const at::Tensor& Values() {
    std::call_once(is_made_, [this] {
      values_ = make_();
      make_ = nullptr;  // closes the files after the last weight
    });
    return values_;
  }

 private:
  std::once_flag is_made_;
  std::function<at::Tensor()> make_;
  at::Tensor values_;
};

}  // namespace tessera::models
