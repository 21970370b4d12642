// The connections of the HTTP listeners in Prometheus form. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/http/http_server.h"

namespace tessera::server {

// Returns complete families in the text format, with one sample for each listener.
std::string ConnectionMetricsText(const std::vector<std::pair<std::string, HttpConnectionCounts>>& listeners);

}  // namespace tessera::server
