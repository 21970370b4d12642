// Converts between the messages of the API and HTTP's JSON. Everything that a server sends is checked; an error is
// INTERNAL and means that the other end is not a Tessera server. Pure functions.
#pragma once

#include <google/protobuf/message.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/event_stream.h"
#include "tessera/v1/image_service.pb.h"

namespace tessera::client {

// Returns the body of POST /v1/jobs: each field that is set, under its name in HTTP. The server checks the values;
// INVALID_ARGUMENT for a number that JSON cannot represent.
absl::StatusOr<std::string> ToJson(const v1::ImageRequest& request);

// Fills a Job, ListJobsResponse, ListModelsResponse or ServerInfo from a response.
absl::Status FromJson(const std::string& json, google::protobuf::Message& message);

// Returns the id of a file from the response to its upload.
absl::StatusOr<std::string> FileIdOf(const std::string& json);

// Returns nullopt for an event that is not a job event, such as one of a later version.
absl::StatusOr<std::optional<v1::JobEvent>> EventOf(const ServerEvent& event);

// Returns the error in a response with a status of 300 or more. `retry_after` is the header of that name.
absl::Status ReadError(int status, const std::string& body, const std::string& retry_after);

// "queued" for JOB_STATE_QUEUED.
std::string JobStateWord(v1::JobState state);

}  // namespace tessera::client
