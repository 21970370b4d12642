// PredictionProof proves on a group's workers that the images of a batch do not change each other: the model's
// prediction for one of them in the batch equals its prediction for that image alone.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "base/log/log_line.h"
#include "server/workers/step_loop.h"
#include "server/workers/worker_group.h"

namespace tessera::server {

// Holds for the model as these workers have loaded it.
class PredictionProof final : public BatchProof {
 public:
  // `bound` is a BatchBound. `log` gets a line for each batch that differs. All arguments outlive the proof.
  PredictionProof(WorkerGroup& workers, double bound, base::EventLog log, std::string group)
      : workers_(workers), bound_(bound), log_(std::move(log)), group_(std::move(group)) {}

  bool IsProven(const control::JobStarted& started, size_t tasks) const override;
  absl::StatusOr<bool> Prove(const std::vector<TaskId>& tasks, const control::JobStarted& started) override;

 private:
  // Height, width and the number of tasks, which decide how a batch is computed.
  using Shape = std::tuple<int32_t, int32_t, size_t>;

  WorkerGroup& workers_;
  const double bound_;
  const base::EventLog log_;
  const std::string group_;  // the group's name
  std::set<Shape> proven_;
};

}  // namespace tessera::server
