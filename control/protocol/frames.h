// Defines the messages of a control channel: commands from the front end and replies from the worker.
//
// The worker listens on a Unix socket. The front end opens one connection per rank and sends every rank the same
// totally ordered log of commands. Each reply carries the number of its command; the last reply to a command is kDone
// or kError.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "base/fields/binary_fields.h"
#include "base/fields/field_error.h"
#include "control/protocol/command_number.h"

namespace tessera::control {

inline constexpr size_t kMaxFrameBytes = size_t{160} << 20;  // latents are the largest content

struct CommandFrame {
  uint64_t sequence = 0;  // 1, 2, 3, …
  uint32_t command = 0;   // kCommandNumber
  std::string fields;     // EncodeFields of the command
};
constexpr auto FieldsOf(const CommandFrame*) {
  return std::tuple(base::Field("sequence", &CommandFrame::sequence), base::Field("command", &CommandFrame::command),
                    base::Field("fields", &CommandFrame::fields, base::Bytes()));
}

enum class ReplyKind : uint8_t {
  kPart,   // one part of a reply in several parts, such as Rows
  kDone,   // the command's Reply
  kError,  // ErrorReply
};
constexpr auto NamesOf(ReplyKind) { return std::array{"part", "done", "error"}; }

struct ReplyFrame {
  uint64_t sequence = 0;  // of the command that this answers
  uint32_t command = 0;
  ReplyKind kind = ReplyKind::kDone;
  std::string fields;
};
constexpr auto FieldsOf(const ReplyFrame*) {
  return std::tuple(base::Field("sequence", &ReplyFrame::sequence), base::Field("command", &ReplyFrame::command),
                    base::Field("kind", &ReplyFrame::kind), base::Field("fields", &ReplyFrame::fields, base::Bytes()));
}

struct ErrorReply {
  int32_t code = 0;     // absl::StatusCode
  std::string message;  // for users: which field, which value, what is valid
  std::string field;    // name of the job's parameter that the message begins with; empty: none
};
constexpr auto FieldsOf(const ErrorReply*) {
  return std::tuple(base::Field("code", &ErrorReply::code), base::Field("message", &ErrorReply::message),
                    base::Field("field", &ErrorReply::field));
}

inline ErrorReply ErrorReplyOf(const absl::Status& status) {
  return {.code = static_cast<int32_t>(status.code()),
          .message = std::string(status.message()),
          .field = base::FieldOf(status)};
}

// Returns UNKNOWN for a code that does not exist.
inline absl::Status StatusOf(const ErrorReply& error) {
  const bool known = error.code > 0 && error.code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  return base::WithField(
      absl::Status(known ? static_cast<absl::StatusCode>(error.code) : absl::StatusCode::kUnknown, error.message),
      error.field);
}

template <class Command>
std::string EncodeCommand(uint64_t sequence, const Command& command) {
  return base::EncodeFields(
      CommandFrame{.sequence = sequence, .command = kCommandNumber<Command>, .fields = base::EncodeFields(command)});
}

}  // namespace tessera::control
