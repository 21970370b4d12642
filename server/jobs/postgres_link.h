// What a job store in PostgreSQL does beside its calls, on a thread and over a connection of its own: it listens to
// what other servers change (LISTEN), tells them what this one has changed (NOTIFY), and has its lease renewed in time.
//
// A notice is a hint and may be lost; what is true is in the tables. So every cut of the link, and every now and then,
// is an occasion to compare. Notices of many changes travel together, in a transaction that changes nothing: those of
// the changes themselves never wait for each other to be told.
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
#include "base/file_descriptor.h"
#include "server/jobs/postgres.h"
#include "server/jobs/postgres_rows.h"

namespace tessera::server {

// All are called on the link's thread, and none when it has ended.
struct PostgresLinkHooks {
  std::function<absl::Status(PostgresConnection&)> check;  // of each new connection
  std::function<void()> renew;                             // the lease; often enough
  std::function<void(const std::vector<uint64_t>& jobs)> changed;
  std::function<void()> compare;                 // there may be changes of which there was no notice
  std::function<void(const absl::Status&)> cut;  // the database is not reached
};

class PostgresLink final {
 public:
  // `renewals`: how often the lease is renewed.
  PostgresLink(PostgresAddress address, ServerId server, absl::Duration renewals, PostgresLinkHooks hooks);
  ~PostgresLink();

  // Begins; called once. What the hooks use is there by then, the link itself included.
  void Start();

  // This server has changed these jobs; the others learn it soon. Thread-safe, as the next ones are.
  void Notify(absl::Span<const uint64_t> jobs);
  // As a notice of another server about the job.
  void LookAt(uint64_t job);
  // Compare soon.
  void Compare();
  // Ends the thread; the others are notified that this server has gone.
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

  // Of the thread.
  std::unique_ptr<PostgresConnection> connection_;
  absl::Duration next_renewal_ = absl::ZeroDuration(), next_compare_ = absl::ZeroDuration();
  std::thread thread_;
};

}  // namespace tessera::server
