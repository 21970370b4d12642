// WatchJob watches one job from its current state on.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/api/image_service.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

// See ImageService::Watch. Events that happen while the job's state is read are delivered after it.
absl::StatusOr<std::unique_ptr<JobWatch>> WatchJob(const ServingContext& context, const std::string& tenant,
                                                   const std::string& job, WatchedEvents events,
                                                   ImageService::Listener listener);

}  // namespace tessera::server
