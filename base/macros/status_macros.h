// Macros that return the error of a called function, in one line.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status of an expression, an absl::Status, unless it is OK. For functions that return an absl::Status or
// an absl::StatusOr.
#define RETURN_IF_ERROR(...)                                                   \
  do {                                                                         \
    if (absl::Status returned_status = (__VA_ARGS__); !returned_status.ok()) { \
      return returned_status;                                                  \
    }                                                                          \
  } while (false)

// Assigns the value of an expression, an absl::StatusOr, to `target`, a variable or a declaration of one without a
// comma. Returns its status if there is no value. It expands to several statements, so it cannot be the body of an `if`
// without braces.
#define ASSIGN_OR_RETURN(target, ...) TESSERA_ASSIGN_OR_RETURN(TESSERA_JOIN(status_or_, __LINE__), target, __VA_ARGS__)

#define TESSERA_ASSIGN_OR_RETURN(status_or, target, ...)     \
  auto status_or = (__VA_ARGS__);                            \
  if (!status_or.ok()) return std::move(status_or).status(); \
  target = *std::move(status_or)
#define TESSERA_JOIN(a, b) TESSERA_JOIN_NOW(a, b)
#define TESSERA_JOIN_NOW(a, b) a##b
