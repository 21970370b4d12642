// PretendGraph holds graphs of the pretend device (pretend_device.h): the calls on it between the beginning and the end
// of a capture, which are issued again on the same memory. As on a GPU they hold addresses rather than tensors, and
// fixed values of host scalars.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/device_runtime.h"
#include "tests/support/pretend_memory.h"

namespace tessera {

struct PretendGraph : kernels::DeviceGraph {
 public:
  // Returns the capture of the calling thread, or null.
  static PretendGraph* Current();
  static bool Begin();
  static PretendGraph* End() noexcept;
  // Called for work that a capture cannot contain: invalidates the graph and throws c10::Error. Does nothing without a
  // capture.
  static void Spoil();

  ~PretendGraph();

  // Adds a call. `arguments` contain tensors as host tensors over the device's memory. `results` are the targets of its
  // results; an undefined tensor is a result that lies in an argument.
  void AddCall(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments,
               std::vector<std::vector<at::Tensor>> results);
  // Adds other work at this position.
  void AddWork(std::function<void()> work) { calls_.push_back({.work = std::move(work)}); }
  // Records that the graph reads or writes `x`, a device tensor that it does not own.
  void AddUse(const at::Tensor& x);

  // Throws c10::Error if memory that a call uses has been freed since the capture.
  void Launch();
  int64_t bytes() const;

 private:
  struct Call {
    std::optional<c10::OperatorHandle> op = std::nullopt;  // without a value, `work` is called
    std::function<void()> work = nullptr;
    std::vector<c10::IValue> arguments = {};
    std::vector<std::vector<at::Tensor>> results = {};
  };

  std::vector<Call> calls_;
  std::vector<PretendBlock> used_, kept_;
  bool spoiled_ = false;
};

}  // namespace tessera
