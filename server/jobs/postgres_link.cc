#include "server/jobs/postgres_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/macros/status_macros.h"
#include "base/threads/start_thread.h"
#include "base/time/steady_time.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kCompareInterval = absl::Seconds(10);
constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr size_t kJobsOfANotice = 300;      // PostgreSQL allows 8000 bytes per notice
constexpr size_t kMostUnsent = 100 * 1000;  // while the link is down; afterwards the others compare
constexpr char kGone[] = "gone";

}  // namespace

PostgresLink::PostgresLink(PostgresAddress address, ServerId server, absl::Duration renewals, PostgresLinkHooks hooks)
    : address_(std::move(address)),
      server_(server),
      renewals_(renewals),
      hooks_(std::move(hooks)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      next_renewal_(base::SteadyNow() + renewals) {}

PostgresLink::~PostgresLink() { Stop(); }

void PostgresLink::Start() {
  thread_ = base::StartThread([this] { Run(); });
}

void PostgresLink::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

bool PostgresLink::stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void PostgresLink::Notify(absl::Span<const uint64_t> jobs) {
  {
    const std::lock_guard lock(mutex_);
    if (to_notify_.size() < kMostUnsent) to_notify_.insert(jobs.begin(), jobs.end());
  }
  Wake();
}

void PostgresLink::LookAt(uint64_t job) {
  {
    const std::lock_guard lock(mutex_);
    to_look_at_.insert(job);
  }
  Wake();
}

void PostgresLink::Compare() {
  {
    const std::lock_guard lock(mutex_);
    must_compare_ = true;
  }
  Wake();
}

void PostgresLink::Wake() {
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) < 0) return;  // the counter is full, so the thread wakes anyway
}

void PostgresLink::Wait(absl::Duration time) {
  pollfd waiting[2] = {{.fd = wake_.get(), .events = POLLIN},
                       {.fd = connection_ == nullptr ? -1 : connection_->socket(), .events = POLLIN}};
  poll(waiting, 2, static_cast<int>(absl::ToInt64Milliseconds(std::max(time, absl::ZeroDuration()))) + 1);
  uint64_t wakes = 0;
  if (read(wake_.get(), &wakes, sizeof(wakes)) < 0) return;  // the database or the timeout woke the thread
}

absl::Status PostgresLink::Connect() {
  ASSIGN_OR_RETURN(std::unique_ptr<PostgresConnection> connection, PostgresConnection::Open(address_));
  RETURN_IF_ERROR(hooks_.check(*connection));
  RETURN_IF_ERROR(connection->Run("LISTEN tessera_jobs"));
  connection_ = std::move(connection);
  return absl::OkStatus();
}

absl::Status PostgresLink::Send() {
  while (true) {
    std::vector<uint64_t> jobs;
    {
      const std::lock_guard lock(mutex_);
      const auto end =
          std::next(to_notify_.begin(), static_cast<std::ptrdiff_t>(std::min(to_notify_.size(), kJobsOfANotice)));
      jobs.assign(to_notify_.begin(), end);
      to_notify_.erase(to_notify_.begin(), end);
    }
    if (jobs.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(connection_->Run("SELECT pg_notify('tessera_jobs', $1::text)",
                                     {SqlValue::Text(absl::StrCat(server_, " ", absl::StrJoin(jobs, ",")))}));
  }
}

void PostgresLink::Receive() {
  std::set<uint64_t> jobs;
  for (const std::string& notice : connection_->TakeNotices()) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(notice, absl::MaxSplits(' ', 1));
    ServerId from = 0;
    if (!absl::SimpleAtoi(parts.first, &from) || from == server_) continue;
    if (parts.second == kGone) next_renewal_ = absl::ZeroDuration();  // renewing takes back its tasks
    for (const absl::string_view number : absl::StrSplit(parts.second, ',')) {
      uint64_t job = 0;
      if (absl::SimpleAtoi(number, &job)) jobs.insert(job);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    jobs.merge(to_look_at_);
    to_look_at_.clear();
  }
  if (!jobs.empty()) hooks_.changed({jobs.begin(), jobs.end()});
}

void PostgresLink::Run() {
  absl::Duration pause = kFirstPause;
  while (!stopping()) {
    if (connection_ == nullptr) {
      if (const absl::Status connected = Connect(); !connected.ok()) {
        hooks_.cut(connected);
        Wait(pause);
        pause = std::min(2 * pause, kLongestPause);
        continue;
      }
      pause = kFirstPause;
      next_compare_ = absl::ZeroDuration();
    }
    const absl::Status sent = Send();
    Receive();
    if (base::SteadyNow() >= next_renewal_) {
      next_renewal_ = base::SteadyNow() + renewals_;
      hooks_.renew();
    }
    bool compare = base::SteadyNow() >= next_compare_;
    {
      const std::lock_guard lock(mutex_);
      compare |= std::exchange(must_compare_, false);
    }
    if (compare) {
      next_compare_ = base::SteadyNow() + kCompareInterval;
      hooks_.compare();
    }
    if (connection_->is_lost()) {
      connection_.reset();
      next_renewal_ = absl::ZeroDuration();
      continue;
    }
    Wait(std::min(next_renewal_, next_compare_) - base::SteadyNow());
  }
  if (connection_ == nullptr || !Send().ok()) return;
  connection_->Run("SELECT pg_notify('tessera_jobs', $1::text)", {SqlValue::Text(absl::StrCat(server_, " ", kGone))})
      .IgnoreError();
}

}  // namespace tessera::server
