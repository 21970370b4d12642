#include "server/listeners/refusal_log.h"

#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kInterval = absl::Minutes(1);

}  // namespace

void RefusalLog::Refused(absl::Duration now, int64_t most) {
  int64_t refused = 0;
  {
    const std::lock_guard lock(mutex_);
    ++refused_;
    if (now - said_ < kInterval) return;
    said_ = now;
    refused = std::exchange(refused_, 0);
  }
  if (!log_) return;
  log_({base::LogLevel::kWarning,
        absl::StrCat("listener ", listener_, " has no descriptor for ", refused,
                     refused == 1 ? " connection" : " connections",
                     ": idle ones are closed, and others wait or are refused; at most ", most,
                     " files may be open (RLIMIT_NOFILE): raise it (ulimit -n, LimitNOFILE= of a systemd service, "
                     "--ulimit nofile= for docker)"),
        {{"listener", listener_}}});
}

}  // namespace tessera::server
