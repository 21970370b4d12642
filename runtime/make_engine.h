// The engine for those who must not include LibTorch.
#pragma once

#include <memory>

#include "runtime/commands.h"

namespace tessera {

std::unique_ptr<CommandHandler> MakeEngine();

}  // namespace tessera
