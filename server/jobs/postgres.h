// PostgresConnection wraps libpq with absl::Status: one connection, statements whose parameters are always bound, and
// the meaning of its errors.
//
// A connection belongs to one thread at a time. Every call has a deadline: a database that does not answer counts as
// lost. A connection that has returned UNAVAILABLE because it is lost stays lost; open another one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/jobs/sql.h"

struct pg_conn;
struct pg_result;

namespace tessera::server {

struct PostgresAddress {
  std::string dsn;            // libpq connection string without a password
  std::string password_file;  // file whose first line is the password, read for every connection; empty: no password
};

// The rows of one statement.
class PostgresRows {
 public:
  explicit PostgresRows(pg_result* result) : result_(result) {}
  PostgresRows(PostgresRows&& other) noexcept : result_(std::exchange(other.result_, nullptr)) {}
  PostgresRows& operator=(PostgresRows&& other) noexcept {
    std::swap(result_, other.result_);
    return *this;
  }
  ~PostgresRows();

  int size() const;
  int64_t changed() const;        // rows that the statement inserted, updated or deleted
  absl::string_view tag() const;  // the command's tag: "COMMIT"
  bool IsNull(int row, int column) const;
  int64_t Int(int row, int column) const;              // any integer type, or boolean
  absl::string_view Bytes(int row, int column) const;  // text or bytea, valid as long as the rows live; empty for NULL

 private:
  pg_result* result_;
};

class PostgresConnection final : public SqlDatabase {
 public:
  // INVALID_ARGUMENT: the connection string is malformed or contains a password. FAILED_PRECONDITION: the password file
  // cannot be read. UNAVAILABLE: with libpq's message.
  static absl::StatusOr<std::unique_ptr<PostgresConnection>> Open(const PostgresAddress& address);
  ~PostgresConnection() override;

  PostgresConnection(const PostgresConnection&) = delete;
  PostgresConnection& operator=(const PostgresConnection&) = delete;

  // Executes one statement. RESOURCE_EXHAUSTED: the disk is full. DATA_LOSS: damage. ABORTED: the transaction
  // conflicted with others and may be repeated. UNAVAILABLE: the connection is lost, or any other error that may pass.
  // INTERNAL: a defect of this program.
  absl::StatusOr<PostgresRows> Query(const char* sql, absl::Span<const SqlValue> values = {});
  absl::Status Visit(const char* sql, absl::Span<const SqlValue> values,
                     absl::FunctionRef<void(const SqlRow&)> visit) override;
  absl::StatusOr<int64_t> Update(const char* sql, absl::Span<const SqlValue> values) override;
  // Executes several statements without parameters.
  absl::Status RunScript(const char* sql);

  // COMMIT. ABORTED if the database has rolled back instead.
  absl::Status Commit();

  bool is_lost() const { return is_lost_; }

  // Returns the payloads that NOTIFY sent until now on channels that this connection listens to.
  std::vector<std::string> TakeNotices();
  int socket() const;

 private:
  explicit PostgresConnection(pg_conn* connection) : connection_(connection) {}
  absl::StatusOr<PostgresRows> Answer();
  absl::Status Wait(bool for_write, absl::Duration deadline);
  absl::Status Lost();

  pg_conn* connection_;
  bool is_lost_ = false;
};

}  // namespace tessera::server
