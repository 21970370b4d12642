#include "server/jobs/postgres_pool.h"

#include <algorithm>
#include <utility>

#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kFirstRetryPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestRetryPause = absl::Seconds(1);
constexpr absl::Duration kWait = absl::Seconds(10);  // for a connection that others use

}  // namespace

absl::Status PostgresPool::With(absl::FunctionRef<absl::Status(PostgresConnection&)> call) {
  ASSIGN_OR_RETURN(std::unique_ptr<PostgresConnection> connection, Take());
  absl::Status status = call(*connection);
  Return(connection->is_lost() ? nullptr : std::move(connection));
  return status;
}

absl::StatusOr<std::unique_ptr<PostgresConnection>> PostgresPool::Take() {
  std::unique_lock lock(mutex_);
  const bool free = changed_.wait_for(lock, absl::ToChronoMilliseconds(kWait),
                                      [this] { return !idle_.empty() || taken_ < connections_; });
  if (!free) return absl::UnavailableError("the database of the job store is too slow: all connections are in use");
  ++taken_;
  if (!idle_.empty()) {
    std::unique_ptr<PostgresConnection> connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }
  if (!refused_.ok() && base::SteadyNow() < next_try_) {
    --taken_;
    return refused_;
  }
  // Until this try has ended, other callers get the result of the last one.
  next_try_ = base::SteadyNow() + kLongestRetryPause;
  lock.unlock();
  absl::StatusOr<std::unique_ptr<PostgresConnection>> connection = Connect();
  lock.lock();
  refused_ = connection.status();
  pause_ = connection.ok() ? absl::ZeroDuration() : std::clamp(2 * pause_, kFirstRetryPause, kLongestRetryPause);
  next_try_ = base::SteadyNow() + pause_;
  if (!connection.ok()) {
    --taken_;
    changed_.notify_one();
  }
  return connection;
}

absl::StatusOr<std::unique_ptr<PostgresConnection>> PostgresPool::Connect() {
  ASSIGN_OR_RETURN(std::unique_ptr<PostgresConnection> connection, PostgresConnection::Open(address_));
  RETURN_IF_ERROR(check_(*connection));
  return connection;
}

void PostgresPool::Return(std::unique_ptr<PostgresConnection> connection) {
  std::vector<std::unique_ptr<PostgresConnection>> lost;
  const std::lock_guard lock(mutex_);
  --taken_;
  if (connection == nullptr) {
    lost.swap(idle_);  // connections to the same database, probably lost too
  } else {
    idle_.push_back(std::move(connection));
  }
  changed_.notify_one();
}

}  // namespace tessera::server
