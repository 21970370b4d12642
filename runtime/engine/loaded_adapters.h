// LoadedAdapters caches the most recently used adapters in a worker's memory, up to a bound in bytes. A job that uses
// an adapter holds a reference to its tensors, so eviction does not affect it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "models/adapters/adapter.h"

namespace tessera::control {
struct AdapterUse;
}

namespace tessera::runtime {

// Used by one thread.
class LoadedAdapters {
 public:
  static constexpr int64_t kMaxBytes = int64_t{1} << 30;

  // `place` is the part of an adapter that this rank holds; `is_flow` is whether the model predicts a flow.
  LoadedAdapters(models::AdaptableModel model, const models::AdapterPlace& place, bool is_flow,
                 int64_t max_bytes = kMaxBytes)
      : model_(std::move(model)), place_(place), is_flow_(is_flow), max_bytes_(max_bytes) {}

  // Returns the sum of a job's adapters. Each is read from its file unless an adapter with its digest is in memory.
  // Returns null if none has an effect. Errors name the adapter and refer to the field "loras": INVALID_ARGUMENT for a
  // file that does not fit the model, or whose prediction type the model cannot use or differs from another adapter's
  // of the job; FAILED_PRECONDITION for a file whose bytes do not have the digest, or that is missing.
  absl::StatusOr<models::SharedAdapters> Sum(std::span<const control::AdapterUse> uses);

  int64_t bytes() const { return bytes_; }
  int64_t reads() const { return reads_; }  // number of files that were read

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
