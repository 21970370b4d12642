// Messages of proto/tessera/v1 from and to the plain values of the service. Pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "server/api/image_request.h"
#include "server/api/image_service.h"
#include "tessera/v1/image_service.pb.h"

namespace tessera::server {

// The values are ValidateImageRequest's business.
ImageRequest FromProto(const v1::ImageRequest& message);
absl::StatusOr<ListOptions> FromProto(const v1::ListJobsRequest& message);

v1::Job ToProto(const Job& job);
v1::Image ToProto(const FinishedImage& image);
v1::JobEvent ToProto(const JobEvent& event);
v1::Model ToProto(const ServedModel& model);
v1::Model ToProto(const ServedModel& model, const ServedAdapter& adapter);  // of the model
v1::ServerInfo ToProto(const ServerInfo& info);

}  // namespace tessera::server
