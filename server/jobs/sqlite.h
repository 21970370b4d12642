// SqliteDatabase wraps SQLite with absl::Status: one connection, its prepared statements, and the meaning of its
// errors.
//
// A connection and its statements belong to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/jobs/sql.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tessera::server {

// A prepared statement with its parameters, from 1, and its columns, from 0. It is reset when it goes out of scope, and
// its connection keeps it for the next use; so each SQL text can be in use only once at a time.
class SqliteStatement final : public SqlRow {
 public:
  SqliteStatement(sqlite3* database, sqlite3_stmt* statement) : database_(database), statement_(statement) {}
  SqliteStatement(SqliteStatement&& other) noexcept;
  SqliteStatement& operator=(SqliteStatement&&) = delete;
  ~SqliteStatement() override;

  SqliteStatement& Bind(int index, int64_t value);
  SqliteStatement& BindText(int index, absl::string_view value);
  SqliteStatement& BindBlob(int index, absl::string_view value);
  // Binds the values to the parameters that are named by their numbers (sql.h).
  SqliteStatement& BindNamed(absl::Span<const SqlValue> values);

  absl::StatusOr<bool> Step();  // false: no more rows
  absl::Status Run();           // for statements without rows

  bool IsNull(int column) const override;
  int64_t Int(int column) const override;
  absl::string_view Bytes(int column) const override;  // valid until the next Step

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_;
  int bind_result_ = 0;
};

class SqliteDatabase final : public SqlDatabase {
 public:
  struct Options {
    std::string path;
    std::string vfs;  // empty: the system default
  };

  // Creates the file if it does not exist. WAL mode, synchronous=FULL.
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> Open(const Options& options);
  ~SqliteDatabase() override;

  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;

  // `sql` must be a constant, because its address is the key of the cached statement.
  absl::StatusOr<SqliteStatement> Prepare(const char* sql);

  absl::Status Visit(const char* sql, absl::Span<const SqlValue> values,
                     absl::FunctionRef<void(const SqlRow&)> visit) override;
  absl::StatusOr<int64_t> Update(const char* sql, absl::Span<const SqlValue> values) override;

  // Executes one or several statements without parameters and rows.
  absl::Status Execute(const char* sql);

  // Returns the bytes of a blob from `offset` on, `count` of them or as many as there are, without reading the rest
  // into memory. Returns nullopt if the row does not exist.
  absl::StatusOr<std::optional<std::string>> ReadBlob(const char* table, const char* column, int64_t row,
                                                      uint64_t offset, size_t count);

  // PRAGMA quick_check: DATA_LOSS with the first error found. Reads the whole file.
  absl::Status Check();

  bool InTransaction() const;
  int64_t Changes() const;  // rows that the last statement changed

 private:
  explicit SqliteDatabase(sqlite3* database) : database_(database) {}

  sqlite3* database_;
  std::unordered_map<const char*, sqlite3_stmt*> statements_;
};

// Returns whether a failed statement means that the whole transaction must be rolled back: RESOURCE_EXHAUSTED,
// UNAVAILABLE or DATA_LOSS of the storage, but not the store's refusal of a row.
bool IsStorageFailure(const absl::Status& status);

}  // namespace tessera::server
