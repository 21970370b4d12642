// SqlDatabase is what the rows of a job store (job_rows.h) need of a database: statements with bound parameters, and
// the rows that they return. SQLite (sqlite.h) and PostgreSQL (postgres.h) implement it.
//
// A statement names its parameters by their numbers and types, $1::bigint and $2::text: PostgreSQL casts them, and for
// SQLite that is the whole name of a parameter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::server {

// A parameter of a statement.
class SqlValue {
 public:
  SqlValue(int64_t number) : kind_(Kind::kNumber), number_(number) {}  // NOLINT: implicit like SQL values
  // NOLINTNEXTLINE; nullopt is NULL
  SqlValue(std::optional<int64_t> number) : kind_(number ? Kind::kNumber : Kind::kNull), number_(number.value_or(0)) {}
  static SqlValue Text(absl::string_view text) { return SqlValue(Kind::kText, text); }
  static SqlValue Bytes(absl::string_view bytes) { return SqlValue(Kind::kBytes, bytes); }
  static SqlValue Null() { return SqlValue(std::nullopt); }
  static SqlValue Numbers(absl::Span<const uint64_t> numbers);  // of type bigint[], which SQLite does not have

  enum class Kind { kNull, kNumber, kText, kBytes, kNumbers };
  Kind kind() const { return kind_; }
  int64_t number() const { return number_; }
  // A text, bytes, or numbers in PostgreSQL's syntax.
  const std::string& bytes() const { return bytes_; }

 private:
  SqlValue(Kind kind, absl::string_view bytes) : kind_(kind), bytes_(bytes) {}

  Kind kind_;
  int64_t number_ = 0;
  std::string bytes_;
};

// A row that a statement returns; its columns count from 0. Valid during the visit.
class SqlRow {
 public:
  virtual ~SqlRow() = default;

  virtual bool IsNull(int column) const = 0;
  virtual int64_t Int(int column) const = 0;              // any integer type, or boolean
  virtual absl::string_view Bytes(int column) const = 0;  // text or bytes; empty for NULL
  std::optional<int64_t> OptionalInt(int column) const {
    if (IsNull(column)) return std::nullopt;
    return Int(column);
  }
};

class SqlDatabase {
 public:
  virtual ~SqlDatabase() = default;

  // Executes one statement and visits its rows. `sql` must be a constant.
  virtual absl::Status Visit(const char* sql, absl::Span<const SqlValue> values,
                             absl::FunctionRef<void(const SqlRow&)> visit) = 0;
  // Executes one statement without rows. Returns the number of rows that it inserted, updated or deleted.
  virtual absl::StatusOr<int64_t> Update(const char* sql, absl::Span<const SqlValue> values) = 0;
  absl::Status Run(const char* sql, absl::Span<const SqlValue> values = {}) { return Update(sql, values).status(); }
};

}  // namespace tessera::server
