// PromptOptions for programs: those that differ from their defaults, by the names that requests use.
#pragma once

#include <boost/json.hpp>

#include "control/prompt_options.h"

namespace tessera::client {

boost::json::object PromptOptionsJson(const control::PromptOptions& options);

}  // namespace tessera::client
