// Graphs of the pretended device (pretend_device.h): the calls that ran on it between the begin and the end of a
// capture, issued again into the same memory. As on a GPU they hold addresses and not tensors, and numbers of the host
// as they were.
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
  // The capture of the calling thread; null: it captures nothing.
  static PretendGraph* Current();
  static bool Begin();
  static PretendGraph* End() noexcept;
  // What a capture cannot hold: the graph becomes null. Nothing where nothing is captured.
  static void Spoil();

  ~PretendGraph();

  // A call with these arguments, tensors among them as tensors of the host over the device's memory; and where each of
  // its results goes, an undefined tensor for one that lies in an argument.
  void AddCall(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments,
               std::vector<std::vector<at::Tensor>> results);
  // Work of others in this place.
  void AddWork(std::function<void()> work) { calls_.push_back({.work = std::move(work)}); }
  // That it reads or writes this tensor of the device, which the graph itself does not hold.
  void AddUse(const at::Tensor& x);

  // Throws c10::Error where memory that a call uses was freed since.
  void Launch();
  int64_t bytes() const;

 private:
  struct Call {
    std::optional<c10::OperatorHandle> op = std::nullopt;  // none: `work`
    std::function<void()> work = nullptr;
    std::vector<c10::IValue> arguments = {};
    std::vector<std::vector<at::Tensor>> results = {};
  };

  std::vector<Call> calls_;
  std::vector<PretendBlock> used_, kept_;
  bool spoiled_ = false;
};

}  // namespace tessera
