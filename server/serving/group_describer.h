// GroupDescriber finds out what a model is and how a group of it would be laid out, by reading the model's files in a
// worker process.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "control/model/model_description.h"
#include "server/serving/service_options.h"

namespace tessera::server {

// The data needed to start a group.
struct DescribedGroup {
  ServedGroupOptions options;  // includes the model's folder
  control::ModelDescription model;
  parallel::Layout layout;
};

class GroupDescriber final {
 public:
  // `owner` is the worker's, see WorkerProcessOptions.
  GroupDescriber(const ProgressBounds& progress, std::string owner) : progress_(progress), owner_(std::move(owner)) {}

  // Errors name the model. Must be called by one thread.
  absl::StatusOr<DescribedGroup> Describe(const ServedGroupOptions& group);

  // Ends the current call and all later ones. Thread-safe.
  void Stop();

 private:
  absl::StatusOr<control::ModelDescription> DescribeModel(const control::LoadParameters& load);

  const ProgressBounds progress_;
  const std::string owner_;
  std::mutex mutex_;
  std::shared_ptr<WorkerGroup> group_;  // guarded by mutex_
  bool stopping_ = false;               // guarded by mutex_
};

}  // namespace tessera::server
