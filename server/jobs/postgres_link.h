// PostgresLink does the background work of a job store in PostgreSQL, on a thread with a separate connection: it
// listens to other servers' changes (LISTEN), notifies them of this one's changes (NOTIFY), and has the lease renewed
// in time.
//
// A notice is a hint and may be lost; the tables have the truth. Therefore the states are compared after every
// reconnection and periodically. Notices of many changes are sent together in a transaction that changes nothing, so
// that transactions with changes never wait for each other to send notices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/files/file_descriptor.h"
#include "server/jobs/postgres.h"
#include "server/jobs/postgres_rows.h"

namespace tessera::server {

// All hooks are called on the link's thread, and none after it has ended.
struct PostgresLinkHooks {
  std::function<absl::Status(PostgresConnection&)> check;  // for each new connection
  std::function<void()> renew;                             // renews the lease; called often enough
  std::function<void(const std::vector<uint64_t>& jobs)> changed;
  std::function<void()> compare;                 // there may be changes without a notice
  std::function<void(const absl::Status&)> cut;  // the database cannot be reached
};

class PostgresLink final {
 public:
  // `renewals`: the interval at which the lease is renewed.
  PostgresLink(PostgresAddress address, ServerId server, absl::Duration renewals, PostgresLinkHooks hooks);
  ~PostgresLink();

  // Starts the thread; called once, when everything that the hooks use exists, including the link.
  void Start();

  // Notifies the other servers soon that this server has changed these jobs. Thread-safe, like the methods below.
  void Notify(absl::Span<const uint64_t> jobs);
  // Acts like a notice of another server about the job.
  void LookAt(uint64_t job);
  // Compares soon.
  void Compare();
  // Ends the thread; the other servers are notified that this one has ended.
  void Stop();

 private:
  void Run();
  absl::Status Connect();
  absl::Status Send();
  void Receive();
  void Wait(absl::Duration time);
  void Wake();
  bool stopping() const;

  const PostgresAddress address_;
  const ServerId server_;
  const absl::Duration renewals_;
  const PostgresLinkHooks hooks_;
  const base::FileDescriptor wake_;  // an eventfd

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::set<uint64_t> to_notify_, to_look_at_;
  bool must_compare_ = true;
  bool stopping_ = false;

  // Used by the thread.
  std::unique_ptr<PostgresConnection> connection_;
  absl::Duration next_renewal_ = absl::ZeroDuration(), next_compare_ = absl::ZeroDuration();
  std::thread thread_;
};

}  // namespace tessera::server
