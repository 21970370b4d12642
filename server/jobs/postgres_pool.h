// PostgresPool holds a job store's connections to its database: as many as callers need at once, up to a bound, and new
// ones after the database was lost. Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/jobs/postgres.h"

namespace tessera::server {

class PostgresPool final {
 public:
  // Checks each new connection; its error is returned to the call for which the connection was made.
  using Check = std::function<absl::Status(PostgresConnection&)>;

  PostgresPool(PostgresAddress address, size_t connections, Check check)
      : address_(std::move(address)), connections_(connections), check_(std::move(check)) {}

  // Calls with a connection that no other caller has meanwhile. UNAVAILABLE if none is available; `call` was not called
  // then. While the database cannot be reached, at most one connection is tried per pause, which doubles up to a
  // second, and until the next try all callers get the last result at once.
  absl::Status With(absl::FunctionRef<absl::Status(PostgresConnection&)> call);

 private:
  absl::StatusOr<std::unique_ptr<PostgresConnection>> Take();
  absl::StatusOr<std::unique_ptr<PostgresConnection>> Connect();
  void Return(std::unique_ptr<PostgresConnection> connection);  // null: it was lost

  const PostgresAddress address_;
  const size_t connections_;
  const Check check_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<std::unique_ptr<PostgresConnection>> idle_;
  size_t taken_ = 0;
  absl::Status refused_;  // error of the last try to connect
  absl::Duration pause_ = absl::ZeroDuration(), next_try_ = absl::ZeroDuration();
};

}  // namespace tessera::server
