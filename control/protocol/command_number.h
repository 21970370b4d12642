// The number of a command in the stream, for code that is the same for all commands.
//
// A command is a struct with a Reply. Both are described (base/fields/fields.h), and the list at the end of their
// header has the command; the control channel encodes, checks and answers it from that. To add a command, add its
// struct to job_commands.h, model_commands.h or training_commands.h and to the list there, and to
// control/protocol/command_handler.h how a CommandHandler answers it. Both ends always come from one build, which
// WorkerVersion ensures.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

namespace tessera::control {

// The index of a command in its list; the list's size if it is in another one.
template <class Command, class List>
inline constexpr uint32_t kCommandIndex = 0;
template <class Command, class First, class... Rest>
inline constexpr uint32_t kCommandIndex<Command, std::tuple<First, Rest...>> =
    std::is_same_v<Command, First> ? 0 : 1 + kCommandIndex<Command, std::tuple<Rest...>>;
template <class Command>
inline constexpr uint32_t kCommandIndex<Command, std::tuple<>> = 0;  // after the last

template <class Command, class List>
concept CommandOf = kCommandIndex<Command, List> < std::tuple_size_v<List>;

// The numbers of each list begin at a multiple of this one.
inline constexpr uint32_t kMostCommandsOfList = 16;

// Specialized next to each list.
template <class Command>
inline constexpr uint32_t kCommandNumber = ~uint32_t{0};

// Whether the command may take as long as loading a model.
template <class Command>
constexpr bool IsLong() {
  if constexpr (requires { Command::kIsLong; }) return Command::kIsLong;
  return false;
}

}  // namespace tessera::control
