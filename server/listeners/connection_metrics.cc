#include "server/listeners/connection_metrics.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

struct Family {
  const char* name;
  const char* type;
  const char* help;
  uint64_t (*value)(const HttpConnectionCounts& counts);
};

constexpr Family kFamilies[] = {
    {"tessera_connections", "gauge", "Open connections.",
     [](const HttpConnectionCounts& c) -> uint64_t { return c.open; }},
    {"tessera_connections_accepted_total", "counter", "Connections that were accepted.",
     [](const HttpConnectionCounts& c) { return c.accepted; }},
    {"tessera_connections_closed_idle_total", "counter", "Idle connections that were closed to make room for others.",
     [](const HttpConnectionCounts& c) { return c.closed_idle; }},
    {"tessera_connections_refused_total", "counter",
     "Connections that were closed at once, because all others had a running request.",
     [](const HttpConnectionCounts& c) { return c.refused; }},
    {"tessera_receiving_bytes", "gauge", "Bytes of large request bodies that are held in memory or being read.",
     [](const HttpConnectionCounts& c) -> uint64_t { return c.bodies.held; }},
    {"tessera_receiving_waits", "gauge", "Large request bodies that wait for memory.",
     [](const HttpConnectionCounts& c) -> uint64_t { return c.bodies.waiting; }},
};

}  // namespace

std::string ConnectionMetricsText(const std::vector<std::pair<std::string, HttpConnectionCounts>>& listeners) {
  std::string text;
  for (const Family& family : kFamilies) {
    absl::StrAppend(&text, "# HELP ", family.name, " ", family.help, "\n# TYPE ", family.name, " ", family.type, "\n");
    for (const auto& [listener, counts] : listeners) {
      absl::StrAppend(&text, family.name, "{listener=\"", listener, "\"} ", family.value(counts), "\n");
    }
  }
  return text;
}

}  // namespace tessera::server
