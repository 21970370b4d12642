#include "server/service/call_record.h"

#include <boost/json.hpp>

namespace tessera {

std::string CallLogLine(const CallRecord& record, absl::Time now) {
  boost::json::object line = {{"time", absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone())},
                              {"protocol", record.protocol},
                              {"request_id", record.request_id},
                              {"method", record.method},
                              {"route", record.route},
                              {"status", record.status},
                              {"error", record.error_code},
                              {"tenant", record.tenant},
                              {"peer", record.peer},
                              {"job", record.job},
                              {"traceparent", record.trace_parent},
                              {"seconds", absl::ToDoubleSeconds(record.duration)},
                              {"request_bytes", record.request_bytes},
                              {"response_bytes", record.response_bytes}};
  return boost::json::serialize(line);
}

}  // namespace tessera
