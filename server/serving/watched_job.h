// A watch of one job from the state in which it is found.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/api/image_service.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

// As ImageService::Watch. What happens while the job's state is read is told after it.
absl::StatusOr<std::unique_ptr<JobWatch>> WatchJob(const ServingContext& context, const std::string& tenant,
                                                   const std::string& job, WatchedEvents events,
                                                   ImageService::Listener listener);

}  // namespace tessera::server
