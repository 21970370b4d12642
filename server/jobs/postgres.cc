#include "server/jobs/postgres.h"

#include <libpq-fe.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(10);  // per statement
constexpr size_t kMaxPasswordBytes = 4096;

// Joins the lines of libpq's messages, which contain "hint:" and the like and name hosts and users. For the log only.
std::string OneLine(const char* text) {
  std::string line = text == nullptr ? "" : text;
  std::ranges::replace(line, '\n', ' ');
  absl::StripAsciiWhitespace(&line);
  return line;
}

absl::StatusCode CodeOf(absl::string_view state) {
  if (state == "53100") return absl::StatusCode::kResourceExhausted;  // disk_full
  if (absl::StartsWith(state, "XX00") && state != "XX000") return absl::StatusCode::kDataLoss;
  if (state == "40001" || state == "40P01") return absl::StatusCode::kAborted;  // serialization, deadlock
  for (const absl::string_view passes : {"08", "53", "55", "57", "58", "25006", "28", "3D"}) {
    if (absl::StartsWith(state, passes)) return absl::StatusCode::kUnavailable;
  }
  return absl::StatusCode::kInternal;
}

class PostgresRow final : public SqlRow {
 public:
  PostgresRow(const PostgresRows& rows, int row) : rows_(rows), row_(row) {}
  bool IsNull(int column) const override { return rows_.IsNull(row_, column); }
  int64_t Int(int column) const override { return rows_.Int(row_, column); }
  absl::string_view Bytes(int column) const override { return rows_.Bytes(row_, column); }

 private:
  const PostgresRows& rows_;
  const int row_;
};

absl::StatusOr<std::string> PasswordOf(const PostgresAddress& address) {
  if (address.password_file.empty()) return std::string();
  const std::optional<std::string> text = base::ReadSmallFile(address.password_file, kMaxPasswordBytes);
  if (!text || text->size() > kMaxPasswordBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the password file of the store, '", address.password_file, "', cannot be read"));
  }
  return text->substr(0, text->find_first_of("\r\n"));
}

absl::Status CheckDsn(const std::string& dsn) {
  char* error = nullptr;
  PQconninfoOption* options = PQconninfoParse(dsn.c_str(), &error);
  if (options == nullptr) {
    const std::string reason = OneLine(error);
    PQfreemem(error);
    return absl::InvalidArgumentError(absl::StrCat("the dsn of the store is not a connection string: ", reason));
  }
  bool has_password = false;
  for (const PQconninfoOption* option = options; option->keyword != nullptr; ++option) {
    has_password |= std::strcmp(option->keyword, "password") == 0 && option->val != nullptr;
  }
  PQconninfoFree(options);
  if (!has_password) return absl::OkStatus();
  return absl::InvalidArgumentError("the dsn of the store has a password in it; put it into the password_file");
}

}  // namespace

SqlValue SqlValue::Numbers(absl::Span<const uint64_t> numbers) {
  return SqlValue(Kind::kNumbers, absl::StrCat("{", absl::StrJoin(numbers, ","), "}"));
}

PostgresRows::~PostgresRows() { PQclear(result_); }

int PostgresRows::size() const { return PQntuples(result_); }

int64_t PostgresRows::changed() const {
  int64_t rows = 0;
  return absl::SimpleAtoi(PQcmdTuples(result_), &rows) ? rows : 0;
}

absl::string_view PostgresRows::tag() const { return PQcmdStatus(result_); }

bool PostgresRows::IsNull(int row, int column) const { return PQgetisnull(result_, row, column) != 0; }

int64_t PostgresRows::Int(int row, int column) const {
  const absl::string_view bytes = Bytes(row, column);
  if (bytes.empty()) return 0;
  // The format is big-endian with 1, 2, 4 or 8 bytes; only a boolean has 1.
  uint64_t value = bytes.size() > 1 && static_cast<int8_t>(bytes[0]) < 0 ? ~uint64_t{0} : 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return static_cast<int64_t>(value);
}

absl::string_view PostgresRows::Bytes(int row, int column) const {
  return {PQgetvalue(result_, row, column), static_cast<size_t>(PQgetlength(result_, row, column))};
}

absl::StatusOr<std::unique_ptr<PostgresConnection>> PostgresConnection::Open(const PostgresAddress& address) {
  RETURN_IF_ERROR(CheckDsn(address.dsn));
  ASSIGN_OR_RETURN(const std::string password, PasswordOf(address));
  // Values before the connection string are defaults that it may override.
  const char* keywords[] = {
      "connect_timeout", "tcp_user_timeout", "application_name", "client_encoding", "dbname", "password", nullptr};
  const char* values[] = {
      "3", "10000", "tessera", "UTF8", address.dsn.c_str(), password.empty() ? nullptr : password.c_str(), nullptr};
  std::unique_ptr<PostgresConnection> connection(
      new PostgresConnection(PQconnectdbParams(keywords, values, /*expand_dbname=*/1)));
  if (PQstatus(connection->connection_) != CONNECTION_OK) return connection->Lost();
  PQsetNoticeProcessor(
      connection->connection_, [](void*, const char*) {}, nullptr);
  if (PQsetnonblocking(connection->connection_, 1) != 0) return connection->Lost();
  // An answer must mean that the change is on the disk, whatever the database's setting is.
  RETURN_IF_ERROR(
      connection->RunScript("SET synchronous_commit = on; SET default_transaction_isolation = 'read committed'; "
                            "SET statement_timeout = '8s'; SET search_path = tessera"));
  return connection;
}

PostgresConnection::~PostgresConnection() { PQfinish(connection_); }

absl::Status PostgresConnection::Lost() {
  is_lost_ = true;
  return absl::UnavailableError(
      absl::StrCat("the database of the job store does not answer: ", OneLine(PQerrorMessage(connection_))));
}

absl::Status PostgresConnection::Wait(bool for_write, absl::Duration deadline) {
  const absl::Duration left = deadline - base::SteadyNow();
  pollfd waiting = {.fd = PQsocket(connection_), .events = static_cast<int16_t>(POLLIN | (for_write ? POLLOUT : 0))};
  const int found =
      left <= absl::ZeroDuration() ? 0 : poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  if (found > 0 || (found < 0 && errno == EINTR)) return absl::OkStatus();
  is_lost_ = true;
  return absl::UnavailableError(
      absl::StrCat("the database of the job store has not answered for ", absl::FormatDuration(kAnswerTimeout)));
}

absl::StatusOr<PostgresRows> PostgresConnection::Answer() {
  const absl::Duration deadline = base::SteadyNow() + kAnswerTimeout;
  for (int unsent = PQflush(connection_); unsent != 0; unsent = PQflush(connection_)) {
    if (unsent < 0) return Lost();
    RETURN_IF_ERROR(Wait(/*for_write=*/true, deadline));
    if (PQconsumeInput(connection_) == 0) return Lost();
  }
  PostgresRows last(nullptr);
  absl::Status failure;
  while (true) {
    while (PQisBusy(connection_) != 0) {
      RETURN_IF_ERROR(Wait(/*for_write=*/false, deadline));
      if (PQconsumeInput(connection_) == 0) return Lost();
    }
    pg_result* result = PQgetResult(connection_);
    if (result == nullptr) break;
    last = PostgresRows(result);
    const ExecStatusType status = PQresultStatus(result);
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK || !failure.ok()) continue;
    const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    failure =
        absl::Status(state == nullptr ? absl::StatusCode::kUnavailable : CodeOf(state),
                     absl::StrCat("the database of the job store reports: ", OneLine(PQresultErrorMessage(result))));
  }
  // Errors such as 57P01, when the database shuts down, also mean that the connection is lost.
  if (PQstatus(connection_) != CONNECTION_OK) return Lost();
  if (!failure.ok()) return failure;
  return last;
}

absl::StatusOr<PostgresRows> PostgresConnection::Query(const char* sql, absl::Span<const SqlValue> values) {
  if (is_lost_) return absl::UnavailableError("the connection to the job store's database is lost");
  std::vector<std::string> texts;  // of numbers
  std::vector<const char*> bytes;
  std::vector<int> lengths, formats;
  texts.reserve(values.size());
  for (const SqlValue& value : values) {
    const bool is_number = value.kind() == SqlValue::Kind::kNumber;
    const std::string& text = is_number ? texts.emplace_back(absl::StrCat(value.number())) : value.bytes();
    bytes.push_back(value.kind() == SqlValue::Kind::kNull ? nullptr : text.c_str());
    lengths.push_back(static_cast<int>(text.size()));
    // A text parameter of libpq ends at the first zero byte; a binary one has exactly the bytes of the text.
    formats.push_back(value.kind() == SqlValue::Kind::kText || value.kind() == SqlValue::Kind::kBytes ? 1 : 0);
  }
  if (PQsendQueryParams(connection_, sql, static_cast<int>(values.size()), nullptr, bytes.data(), lengths.data(),
                        formats.data(), /*resultFormat=*/1) == 0) {
    return Lost();
  }
  return Answer();
}

absl::Status PostgresConnection::Visit(const char* sql, absl::Span<const SqlValue> values,
                                       absl::FunctionRef<void(const SqlRow&)> visit) {
  ASSIGN_OR_RETURN(const PostgresRows rows, Query(sql, values));
  for (int row = 0; row < rows.size(); ++row) visit(PostgresRow(rows, row));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> PostgresConnection::Update(const char* sql, absl::Span<const SqlValue> values) {
  ASSIGN_OR_RETURN(const PostgresRows rows, Query(sql, values));
  return rows.changed();
}

absl::Status PostgresConnection::RunScript(const char* sql) {
  if (is_lost_) return absl::UnavailableError("the connection to the job store's database is lost");
  if (PQsendQuery(connection_, sql) == 0) return Lost();
  return Answer().status();
}

absl::Status PostgresConnection::Commit() {
  ASSIGN_OR_RETURN(const PostgresRows ended, Query("COMMIT"));
  if (ended.tag() == "COMMIT") return absl::OkStatus();
  return absl::AbortedError("the database of the job store rolled a change back");
}

std::vector<std::string> PostgresConnection::TakeNotices() {
  std::vector<std::string> notices;
  if (PQconsumeInput(connection_) == 0) is_lost_ = true;
  while (PGnotify* notice = PQnotifies(connection_)) {
    notices.emplace_back(notice->extra);
    PQfreemem(notice);
  }
  return notices;
}

int PostgresConnection::socket() const { return PQsocket(connection_); }

}  // namespace tessera::server
