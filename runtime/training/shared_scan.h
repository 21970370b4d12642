// Scans the images of a run on all its ranks together: each rank reads its share of the files once.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "control/training/dataset.h"
#include "parallel/communicator.h"

namespace tessera::runtime {

// Runs control::ScanDatasets with the same result or error on every rank. Collective, on a communicator of host memory.
// Calls `progress` for every image that this rank reads. Returns ABORTED if the ranks do not find the same names and
// captions.
absl::StatusOr<control::TrainingSet> ScanTogether(const control::DatasetOptions& options, parallel::Communicator& ranks,
                                                  const std::function<void()>& progress);

}  // namespace tessera::runtime
