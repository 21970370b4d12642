// Names of models on the Hugging Face hub. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::base {

// The prefix of a model's folder in the hub's cache: models--ORG--NAME.
inline constexpr char kHubFolderPrefix[] = "models--";

// Returns "ORG/NAME" for that text and for models--ORG--NAME, and nothing for other texts. By the hub's rules each part
// has 1 to 96 letters, digits, '-', '_' and '.', without '-' or '.' at an end and without "--" and "..", so that no
// name is a path that leads elsewhere.
std::optional<std::string> ReadHubName(std::string_view text);

// Returns "ORG/NAME" of the model in the hub's cache that `path` passes through; nothing for other paths.
std::optional<std::string> HubNameOfPath(std::string_view path);

// Returns the command that completes the download at `path`: "tessera pull ORG/NAME", with this placeholder if the path
// does not contain the name.
std::string HubDownloadCommand(std::string_view path);

}  // namespace tessera::base
