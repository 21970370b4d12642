// Converts options of a job to JSON for programs, by their names in requests.
#pragma once

#include <boost/json.hpp>
#include <vector>

namespace tessera::control {
struct AdapterUse;
struct PromptOptions;
}  // namespace tessera::control

namespace tessera::client {

// Returns the options that differ from their defaults.
boost::json::object PromptOptionsJson(const control::PromptOptions& options);

// Returns a list of name, scale and digest.
boost::json::value AdaptersJson(const std::vector<control::AdapterUse>& adapters);

}  // namespace tessera::client
