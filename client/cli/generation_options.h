// What can be asked of an image on the command line, as typed, and the request that it means.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "server/api/generation_request.h"

namespace tessera::client {

// What was typed, by the ids of server/api/request_fields.h.
struct GenerationOptions {
  std::map<std::string, std::optional<std::string>> texts;
  std::map<std::string, std::optional<bool>> switches;
  std::map<std::string, std::vector<std::string>> lists;  // of options that may be given several times

  std::string Typed(const std::string& id) const;  // empty: it was not
};

// The values must live as long as `app`.
void AddGenerationOptions(CLI::App& app, GenerationOptions& options);

// An adapter as typed: "style.safetensors", or with its scale "style.safetensors:0.8". What is behind the last colon is
// the scale where it is a number.
server::AdapterRequest ParseAdapter(const std::string& text);

// With a random seed where none was typed. INVALID_ARGUMENT for what cannot be understood; whether it is valid is the
// validator's business.
absl::StatusOr<server::GenerationRequest> RequestOf(const GenerationOptions& options);

}  // namespace tessera::client
