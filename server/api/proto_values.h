// Converts between the messages of proto/tessera/v1 and the plain values of the service. Pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "server/api/image_request.h"
#include "server/api/job.h"
#include "server/api/request_values.h"
#include "server/api/served_model.h"
#include "server/api/server_info.h"
#include "tessera/v1/image_service.pb.h"

namespace tessera::server {

// Does not check values; ValidateImageRequest does.
ImageRequest FromProto(const v1::ImageRequest& message);
v1::ImageRequest ToProto(const ImageRequest& request);
absl::StatusOr<ListOptions> FromProto(const v1::ListJobsRequest& message);

v1::Job ToProto(const Job& job);
v1::Image ToProto(const FinishedImage& image);
v1::JobEvent ToProto(const JobEvent& event);
v1::Model ToProto(const ServedModel& model);
v1::Model ToProto(const ServedModel& model, const ServedAdapter& adapter);  // an adapter of `model`
v1::ServerInfo ToProto(const ServerInfo& info);

}  // namespace tessera::server
