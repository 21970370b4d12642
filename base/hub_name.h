// Names of models on the Hugging Face hub. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::base {

// How the hub's cache begins the name of a model's folder: models--ORG--NAME.
inline constexpr char kHubFolderPrefix[] = "models--";

// "ORG/NAME" for that and for models--ORG--NAME; nothing for any other text. By the hub's rules each part has 1 to 96
// letters, digits, '-', '_' and '.', without '-' or '.' at an end and without "--" and "..", so that no name is a path
// that leads elsewhere.
std::optional<std::string> ReadHubName(std::string_view text);

// "ORG/NAME" of the model in the hub's cache that `path` leads through; nothing for every other path.
std::optional<std::string> HubNameOfPath(std::string_view path);

// What completes the download of what lies at `path`: "hf download ORG/NAME", with that word for the name where the
// path does not tell it.
std::string HubDownloadCommand(std::string_view path);

}  // namespace tessera::base
