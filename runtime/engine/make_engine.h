// The engine for those who must not include LibTorch.
#pragma once

#include <memory>

#include "control/command_handler.h"
#include "runtime/worker/worker_rank.h"

namespace tessera::runtime {

// `place.rank` lies within the layout, whose groups the segment has.
std::unique_ptr<control::CommandHandler> MakeEngine(const WorkerRank& place);

}  // namespace tessera::runtime
