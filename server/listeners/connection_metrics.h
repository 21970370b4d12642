// The connections of the HTTP listeners in Prometheus' terms. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/http/http_server.h"

namespace tessera::server {

// Complete families in the text format, one sample for each listener that there is.
std::string ConnectionMetricsText(const std::vector<std::pair<std::string, HttpConnectionCounts>>& listeners);

}  // namespace tessera::server
