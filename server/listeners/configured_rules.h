// Makes the rules for the contents of requests that a configuration describes.
#pragma once

#include "absl/status/statusor.h"
#include "base/log/log_line.h"
#include "server/calls/request_rules.h"
#include "server/config/server_config.h"

namespace tessera::server {

// `log` gets the checks that fail. NOT_FOUND or INVALID_ARGUMENT if input_check.headers_file cannot be read or is not
// valid.
absl::StatusOr<RequestRules> RequestRulesOf(const ServerConfig& config, const base::EventLog& log);

}  // namespace tessera::server
