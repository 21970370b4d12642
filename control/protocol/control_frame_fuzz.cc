// Any bytes as a message of the control channel, read at both ends: a command or a reply that is accepted is written
// and read again as the same bytes, and a bounded error refuses the rest.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <tuple>

#include "control/protocol/commands.h"
#include "control/protocol/frames.h"

namespace tessera::control {
namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

template <base::Described T>
void Read(const std::string& bytes) {
  T value;
  const absl::Status status = base::DecodeFields(bytes, value);
  if (!status.ok()) return Check(status.message().size() < 2000);
  T again;
  const std::string written = base::EncodeFields(value);
  Check(base::DecodeFields(written, again).ok() && base::EncodeFields(again) == written);
}

template <class... Command>
void ReadFrames(const std::string& bytes, const std::tuple<Command...>*) {
  CommandFrame command;
  if (base::DecodeFields(bytes, command).ok()) {
    ((command.command == kCommandNumber<Command> ? Read<Command>(command.fields) : void()), ...);
  }
  ReplyFrame reply;
  if (!base::DecodeFields(bytes, reply).ok()) return;
  if (reply.kind == ReplyKind::kError) return Read<ErrorReply>(reply.fields);
  if (reply.kind == ReplyKind::kPart) return Read<Rows>(reply.fields);
  ((reply.command == kCommandNumber<Command> ? Read<typename Command::Reply>(reply.fields) : void()), ...);
}

}  // namespace
}  // namespace tessera::control

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::control::ReadFrames({reinterpret_cast<const char*>(data), size},
                               static_cast<const tessera::control::Commands*>(nullptr));
  return 0;
}
