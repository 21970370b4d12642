// The lines of the log that calls leave, one each, with the level that an operator filters by.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/log_line.h"
#include "server/calls/call_record.h"

namespace tessera::server {

// Thread-safe.
class CallLog {
 public:
  // A health check or a scrape is of the level debug while it is answered as the one before it on the same path was;
  // the first one counts as if one before it had succeeded. What a defect broke is an error, what cannot be served for
  // now a warning, every other call info.
  base::LogLine LineOf(const CallRecord& call);

 private:
  base::LogLevel LevelOf(const CallRecord& call);

  std::mutex mutex_;
  // The last status of each check, by protocol and route. Guarded by mutex_.
  std::map<std::pair<std::string, std::string>, int> checks_;
};

}  // namespace tessera::server
