// Proves on the group's own workers that images leave each other alone in a batch: what the model predicts for one of
// them beside the others is what it predicts for it by itself.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "base/log_line.h"
#include "server/workers/step_loop.h"
#include "server/workers/worker_group.h"

namespace tessera::server {

// The proof for the model as it is loaded in these workers.
class PredictionProof final : public BatchProof {
 public:
  // `bound`: as BatchBound has it. `log` is told of batches that differ. All that is passed outlives it.
  PredictionProof(WorkerGroup& workers, double bound, base::EventLog log, std::string group)
      : workers_(workers), bound_(bound), log_(std::move(log)), group_(std::move(group)) {}

  bool IsProven(const control::JobStarted& started, size_t tasks) const override;
  absl::StatusOr<bool> Prove(const std::vector<TaskId>& tasks, const control::JobStarted& started) override;

 private:
  // What decides how a batch is computed: height, width, and the number of tasks.
  using Shape = std::tuple<int32_t, int32_t, size_t>;

  WorkerGroup& workers_;
  const double bound_;
  const base::EventLog log_;
  const std::string group_;  // its name
  std::set<Shape> proven_;
};

}  // namespace tessera::server
