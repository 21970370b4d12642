// CallLog makes one log line per call, with the level by which operators filter.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/log/log_line.h"
#include "server/calls/call_record.h"

namespace tessera::server {

// Returns whether the call is a health check, a probe or a scrape.
bool IsCheck(const CallRecord& call);

// Thread-safe.
class CallLog {
 public:
  // A health check or a scrape has level debug while its answer equals the previous one on the same path; before the
  // first one, success is assumed. A call that failed because of a defect has level error, one that cannot be served at
  // present has warning, every other call info.
  base::LogLine LineOf(const CallRecord& call);

 private:
  base::LogLevel LevelOf(const CallRecord& call);

  std::mutex mutex_;
  // The last status of each check, by protocol and route. Guarded by mutex_.
  std::map<std::pair<std::string, std::string>, int> checks_;
};

}  // namespace tessera::server
