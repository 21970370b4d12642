// Converts PromptOptions to JSON for programs: the options that differ from their defaults, by their names in requests.
#pragma once

#include <boost/json.hpp>

#include "control/prompt_options.h"

namespace tessera::client {

boost::json::object PromptOptionsJson(const control::PromptOptions& options);

}  // namespace tessera::client
