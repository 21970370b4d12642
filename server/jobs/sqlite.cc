#include "server/jobs/sqlite.h"

#include <sqlite3.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

constexpr char kStorageFailure[] = "tessera.storage_failure";
constexpr int kBusyMilliseconds = 10000;

absl::StatusCode CodeOf(int result) {
  switch (result & 0xff) {
    case SQLITE_FULL:
      return absl::StatusCode::kResourceExhausted;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
      return absl::StatusCode::kDataLoss;
    case SQLITE_CONSTRAINT:
    case SQLITE_MISUSE:
    case SQLITE_ERROR:
    case SQLITE_RANGE:
    case SQLITE_TOOBIG:
      return absl::StatusCode::kInternal;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

const char* TextOf(int result) {
  switch (result & 0xff) {
    case SQLITE_FULL:
      return "the disk of the job store is full";
    case SQLITE_NOMEM:
      return "the job store is out of memory";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "the job store's database is damaged";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "the job store's database is in use by another process";
    case SQLITE_READONLY:
      return "the job store's database cannot be written";
    case SQLITE_CANTOPEN:
      return "the job store's database cannot be opened";
    case SQLITE_IOERR:
      return "the disk of the job store reports an error";
    default:
      return "the job store failed";
  }
}

// Returns whether the last failed operation on the file or its log ran out of space. A quota or a file size limit is as
// final as a full disk, but SQLite reports only the latter as full.
bool HadNoRoom(sqlite3* database) {
  sqlite3_file* files[2] = {};
  sqlite3_file_control(database, "main", SQLITE_FCNTL_FILE_POINTER, &files[0]);
  sqlite3_file_control(database, "main", SQLITE_FCNTL_JOURNAL_POINTER, &files[1]);
  for (sqlite3_file* file : files) {
    int error = 0;
    if (file == nullptr || file->pMethods == nullptr) continue;
    file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &error);
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) return true;
  }
  return false;
}

absl::Status ToStatus(int result, sqlite3* database) {
  if ((result & 0xff) == SQLITE_IOERR && database != nullptr && HadNoRoom(database)) result = SQLITE_FULL;
  absl::Status status(CodeOf(result), absl::StrCat(TextOf(result), " (", sqlite3_errstr(result), ", ", result, ")"));
  if (status.code() == absl::StatusCode::kInternal && database != nullptr) {
    status = absl::InternalError(absl::StrCat(status.message(), ": ", sqlite3_errmsg(database)));
  }
  status.SetPayload(kStorageFailure, absl::Cord());
  return status;
}

}  // namespace

bool IsStorageFailure(const absl::Status& status) { return status.GetPayload(kStorageFailure).has_value(); }

SqliteStatement::SqliteStatement(SqliteStatement&& other) noexcept
    : database_(other.database_),
      statement_(std::exchange(other.statement_, nullptr)),
      bind_result_(other.bind_result_) {}

SqliteStatement::~SqliteStatement() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

SqliteStatement& SqliteStatement::Bind(int index, int64_t value) {
  bind_result_ |= sqlite3_bind_int64(statement_, index, value);
  return *this;
}

SqliteStatement& SqliteStatement::BindText(int index, absl::string_view value) {
  bind_result_ |= sqlite3_bind_text64(statement_, index, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  return *this;
}

SqliteStatement& SqliteStatement::BindBlob(int index, absl::string_view value) {
  // A null pointer would bind NULL.
  bind_result_ |=
      sqlite3_bind_blob64(statement_, index, value.empty() ? "" : value.data(), value.size(), SQLITE_TRANSIENT);
  return *this;
}

SqliteStatement& SqliteStatement::BindNamed(absl::Span<const SqlValue> values) {
  for (int index = 1; index <= sqlite3_bind_parameter_count(statement_); ++index) {
    size_t number = 0;  // of "$12::bigint"
    const absl::string_view name = sqlite3_bind_parameter_name(statement_, index);
    if (!absl::SimpleAtoi(name.substr(1, name.find(':') - 1), &number) || number < 1 || number > values.size()) {
      bind_result_ = SQLITE_RANGE;
      return *this;
    }
    const SqlValue& value = values[number - 1];
    switch (value.kind()) {
      case SqlValue::Kind::kNull:
        break;
      case SqlValue::Kind::kNumber:
        Bind(index, value.number());
        break;
      case SqlValue::Kind::kText:
        BindText(index, value.bytes());
        break;
      case SqlValue::Kind::kBytes:
        BindBlob(index, value.bytes());
        break;
      case SqlValue::Kind::kNumbers:
        bind_result_ = SQLITE_MISMATCH;
        break;
    }
  }
  return *this;
}

absl::StatusOr<bool> SqliteStatement::Step() {
  if (bind_result_ != SQLITE_OK) return ToStatus(bind_result_, database_);
  const int result = sqlite3_step(statement_);
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  return ToStatus(sqlite3_extended_errcode(database_), database_);
}

absl::Status SqliteStatement::Run() { return Step().status(); }

bool SqliteStatement::IsNull(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }

int64_t SqliteStatement::Int(int column) const { return sqlite3_column_int64(statement_, column); }

absl::string_view SqliteStatement::Bytes(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? absl::string_view()
                          : absl::string_view(static_cast<const char*>(bytes), static_cast<size_t>(size));
}

absl::StatusOr<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(const Options& options) {
  sqlite3* handle = nullptr;
  const int result =
      sqlite3_open_v2(options.path.c_str(), &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                      options.vfs.empty() ? nullptr : options.vfs.c_str());
  std::unique_ptr<SqliteDatabase> database(new SqliteDatabase(handle));
  if (result != SQLITE_OK) return ToStatus(result, handle);
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, kBusyMilliseconds);
  // Data written under other settings must not be trusted more than data written under these.
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  for (const char* pragma :
       {"PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA foreign_keys=OFF", "PRAGMA cell_size_check=ON",
        "PRAGMA journal_size_limit=67108864", "PRAGMA wal_autocheckpoint=1000", "PRAGMA cache_size=-4096"}) {
    RETURN_IF_ERROR(database->Execute(pragma));
  }
  return database;
}

SqliteDatabase::~SqliteDatabase() {
  for (const auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(database_);
}

absl::StatusOr<SqliteStatement> SqliteDatabase::Prepare(const char* sql) {
  sqlite3_stmt*& statement = statements_[sql];
  if (statement == nullptr) {
    const int result = sqlite3_prepare_v3(database_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
    if (result != SQLITE_OK) return ToStatus(result, database_);
  }
  return SqliteStatement(database_, statement);
}

absl::Status SqliteDatabase::Visit(const char* sql, absl::Span<const SqlValue> values,
                                   absl::FunctionRef<void(const SqlRow&)> visit) {
  ASSIGN_OR_RETURN(SqliteStatement statement, Prepare(sql));
  statement.BindNamed(values);
  while (true) {
    ASSIGN_OR_RETURN(const bool row, statement.Step());
    if (!row) return absl::OkStatus();
    visit(statement);
  }
}

absl::StatusOr<int64_t> SqliteDatabase::Update(const char* sql, absl::Span<const SqlValue> values) {
  RETURN_IF_ERROR(Visit(sql, values, [](const SqlRow&) {}));
  return Changes();
}

absl::Status SqliteDatabase::Execute(const char* sql) {
  const int result = sqlite3_exec(database_, sql, nullptr, nullptr, nullptr);
  return result == SQLITE_OK ? absl::OkStatus() : ToStatus(sqlite3_extended_errcode(database_), database_);
}

absl::StatusOr<std::optional<std::string>> SqliteDatabase::ReadBlob(const char* table, const char* column, int64_t row,
                                                                    uint64_t offset, size_t count) {
  sqlite3_blob* opened = nullptr;
  int result = sqlite3_blob_open(database_, "main", table, column, row, /*flags=*/0, &opened);
  const std::unique_ptr<sqlite3_blob, decltype(&sqlite3_blob_close)> blob(opened, sqlite3_blob_close);
  if (result == SQLITE_ERROR) return std::optional<std::string>();
  if (result != SQLITE_OK) return ToStatus(result, database_);
  const auto size = static_cast<uint64_t>(sqlite3_blob_bytes(opened));
  offset = std::min(offset, size);
  std::string bytes(std::min<uint64_t>(count, size - offset), '\0');
  result = sqlite3_blob_read(opened, bytes.data(), static_cast<int>(bytes.size()), static_cast<int>(offset));
  if (result != SQLITE_OK) return ToStatus(result, database_);
  return std::optional(std::move(bytes));
}

absl::Status SqliteDatabase::Check() {
  ASSIGN_OR_RETURN(SqliteStatement check, Prepare("PRAGMA quick_check(1)"));
  if (const absl::StatusOr<bool> row = check.Step(); !row.ok()) return row.status();
  const absl::string_view found = check.Bytes(0);
  if (found == "ok") return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the job store's database is damaged: ", absl::StrReplaceAll(found, {{"\n", " "}})));
}

bool SqliteDatabase::InTransaction() const { return sqlite3_get_autocommit(database_) == 0; }

int64_t SqliteDatabase::Changes() const { return sqlite3_changes64(database_); }

}  // namespace tessera::server
