// Looks what a model is and how a group of it would be laid out: asks the model's files, with a worker of its own.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "server/serving/service_options.h"

namespace tessera::server {

// What is needed to start a group.
struct DescribedGroup {
  ServedGroupOptions options;  // with the model's folder
  control::ModelDescription model;
  parallel::Layout layout;
};

class GroupDescriber final {
 public:
  // `owner` of the worker, as in WorkerProcessOptions.
  GroupDescriber(const ProgressBounds& progress, std::string owner) : progress_(progress), owner_(std::move(owner)) {}

  // Errors name the model. Used by one thread.
  absl::StatusOr<DescribedGroup> Describe(const ServedGroupOptions& group);

  // Ends what is under way, and whatever would begin later. Thread-safe.
  void Stop();

 private:
  absl::StatusOr<control::ModelDescription> DescribeModel(const std::string& folder);

  const ProgressBounds progress_;
  const std::string owner_;
  std::mutex mutex_;
  std::shared_ptr<WorkerGroup> group_;  // guarded by mutex_
  bool stopping_ = false;               // guarded by mutex_
};

}  // namespace tessera::server
