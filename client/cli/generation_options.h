// Defines the command-line options of a generation request and converts them to the request.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "server/api/request_values.h"

namespace tessera::client {

// The typed values, by the ids of server/api/request_fields.h.
struct GenerationOptions {
  std::map<std::string, std::optional<std::string>> texts;
  std::map<std::string, std::optional<bool>> switches;
  std::map<std::string, std::vector<std::string>> lists;  // options that may be given several times

  std::string Typed(const std::string& id) const;  // empty if it was not typed
};

// The values must live as long as `app`.
void AddGenerationOptions(CLI::App& app, GenerationOptions& options);

// Parses an adapter as typed: "style.safetensors", or with its scale "style.safetensors:0.8". The text after the last
// colon is the scale if it is a number.
server::AdapterRequest ParseAdapter(const std::string& text);

// Returns the request, with a random seed if none or any was typed. INVALID_ARGUMENT for text that cannot be parsed;
// the validator checks the values.
absl::StatusOr<server::ImageRequest> RequestOf(const GenerationOptions& options);

}  // namespace tessera::client
