// Guard runs the tensor code of an engine's commands. LibTorch's exceptions become statuses, without their stack
// traces. Weights that cannot be read any more end the group. In a group of several ranks an exception poisons the
// group: the other ranks' calls end with it, and the group cannot be used any more. What all ranks find out alike (an
// invalid parameter, say) does not.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "models/loading/deferred_weight.h"
#include "parallel/communicator.h"
#include "runtime/group/worker_rank.h"

namespace tessera::runtime {

absl::Status OutOfDeviceMemory();

// Run and Poison may be called on any thread.
class Guard final {
 public:
  // `place` outlives this object.
  explicit Guard(const WorkerRank& place) : place_(place) {}

  // The device that the code runs on from now on. If it fails for good, the status is Unavailable, which ends the
  // group.
  void SetDevice(at::Device device) { device_ = device; }

  // Returns what `function` returns, a status or a StatusOr. Gradients are recorded only `with_gradients`.
  template <class Function>
  auto Run(const Function& function, bool with_gradients = false) const -> decltype(function()) {
    const c10::InferenceMode no_gradients(!with_gradients);
    try {
      return function();
    } catch (const parallel::CommError& error) {
      return absl::AbortedError(error.what());
    } catch (const models::WeightReadError& error) {
      Poison(error.what());
      return absl::UnavailableError(error.what());
    } catch (const c10::Error& error) {
      absl::Status status = StatusOf(error);
      Poison(std::string(status.message()));
      return status;
    } catch (const std::exception& error) {
      Poison(error.what());
      throw;
    }
  }

  // Ends the calls of the other ranks.
  void Poison(const std::string& reason) const;

 private:
  // Returns the error as a user may read it; the log has it in full.
  absl::Status StatusOf(const c10::Error& error) const;

  const WorkerRank& place_;
  at::Device device_ = at::kCPU;
};

}  // namespace tessera::runtime
