// The adapters that a worker has in memory, the most recently used ones within a bound of bytes. A job that runs with
// an adapter keeps its own hold on the tensors, so that none disappears under it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "control/adapter_use.h"
#include "models/adapters/adapter.h"

namespace tessera::runtime {

// Used by one thread.
class LoadedAdapters {
 public:
  static constexpr int64_t kMaxBytes = int64_t{1} << 30;

  // `place`: what this rank holds of an adapter; `is_flow`: whether the model predicts a flow.
  LoadedAdapters(models::AdaptableModel model, const models::AdapterPlace& place, bool is_flow,
                 int64_t max_bytes = kMaxBytes)
      : model_(std::move(model)), place_(place), is_flow_(is_flow), max_bytes_(max_bytes) {}

  // The sum of a job's adapters, each from its file unless an adapter of that digest is in memory; null where none
  // changes anything. Errors name the adapter and are about the field "loras": INVALID_ARGUMENT for a file that does
  // not fit the model or that was trained to predict something else than the model can, or than another of the job's
  // adapters; FAILED_PRECONDITION for one whose bytes are not those of the digest, or that is gone.
  absl::StatusOr<models::SharedAdapters> Sum(std::span<const control::AdapterUse> uses);

  int64_t bytes() const { return bytes_; }
  int64_t reads() const { return reads_; }  // files that were read so far

 private:
  absl::StatusOr<std::shared_ptr<const models::Adapter>> Get(const control::AdapterUse& use);
  absl::Status CheckPrediction(const control::AdapterUse& use, const models::Adapter& adapter) const;

  const models::AdaptableModel model_;
  const models::AdapterPlace place_;
  const bool is_flow_;
  const int64_t max_bytes_;
  std::list<std::shared_ptr<const models::Adapter>> adapters_;  // most recent first
  int64_t bytes_ = 0;
  int64_t reads_ = 0;
};

}  // namespace tessera::runtime
