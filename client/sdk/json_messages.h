// The messages of the API as HTTP's JSON, and back. What a server says is checked before it is believed: errors are
// INTERNAL, the other end is no Tessera server. Pure functions.
#pragma once

#include <google/protobuf/message.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/event_stream.h"
#include "tessera/v1/image_service.pb.h"

namespace tessera::client {

// The body of POST /v1/jobs: each field that is set, under its own name. Whether its value is valid is the server's
// business; INVALID_ARGUMENT for a number that JSON does not have.
absl::StatusOr<std::string> ToJson(const v1::ImageRequest& request);

// Fills a Job, ListJobsResponse, ListModelsResponse or ServerInfo with what an answer says of it.
absl::Status FromJson(const std::string& json, google::protobuf::Message& message);

// Nothing for an event that is no event of a job, such as one of a later version.
absl::StatusOr<std::optional<v1::JobEvent>> EventOf(const ServerEvent& event);

// The error that an answer of a status from 300 on tells. `retry_after` is the header of that name.
absl::Status ReadError(int status, const std::string& body, const std::string& retry_after);

// "queued" for JOB_STATE_QUEUED.
std::string JobStateWord(v1::JobState state);

}  // namespace tessera::client
