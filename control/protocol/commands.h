// All commands that a front end sends to a worker (control/protocol/command_number.h). Plain values, free of LibTorch
// and protobuf.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>

#include "base/fields/fields.h"
#include "control/protocol/command_number.h"
#include "control/protocol/job_commands.h"
#include "control/protocol/model_commands.h"
#include "control/protocol/training_commands.h"

namespace tessera::control {

// Counts the commands of all controllers of a worker so far. Ranks with equal counts have executed the same commands.
struct WorkerProgress {
  uint64_t commands = 0;
  uint64_t failures = 0;

  bool operator==(const WorkerProgress&) const = default;
};
constexpr auto FieldsOf(const WorkerProgress*) {
  return std::tuple(base::Field("commands", &WorkerProgress::commands),
                    base::Field("failures", &WorkerProgress::failures));
}

// Asks a worker that has outlived its controllers for its progress.
struct Resume {
  using Reply = WorkerProgress;
};
constexpr auto FieldsOf(const Resume*) { return std::tuple(); }

// Ends the worker, which replies, closes the stream and exits.
struct Shutdown {
  using Reply = Ended;
};
constexpr auto FieldsOf(const Shutdown*) { return std::tuple(); }

using ChannelCommands = std::tuple<Resume, Shutdown>;
template <CommandOf<ChannelCommands> Command>
inline constexpr uint32_t kCommandNumber<Command> = 3 * kMostCommandsOfList + kCommandIndex<Command, ChannelCommands>;

using Commands = decltype(std::tuple_cat(std::declval<ModelCommands>(), std::declval<JobCommands>(),
                                         std::declval<TrainingCommands>(), std::declval<ChannelCommands>()));

static_assert(std::tuple_size_v<ModelCommands> <= kMostCommandsOfList &&
              std::tuple_size_v<JobCommands> <= kMostCommandsOfList &&
              std::tuple_size_v<TrainingCommands> <= kMostCommandsOfList);

}  // namespace tessera::control
