// Makes the engine for code that must not include LibTorch.
#pragma once

#include <memory>

#include "control/protocol/command_handler.h"
#include "runtime/group/worker_rank.h"

namespace tessera::runtime {

// `place.rank` must be within the layout, and the segment must have the layout's groups.
std::unique_ptr<control::CommandHandler> MakeEngine(const WorkerRank& place);

}  // namespace tessera::runtime
