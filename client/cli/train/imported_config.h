// Converts the configuration of another training program to that of `tessera train`. Pure, except for the files that
// the configuration names, which come through ImportFiles.
//
// What has no equivalent is in the notes; no setting is dropped without one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/train/foreign_config.h"
#include "control/training/config.h"

namespace tessera::client {

// The files that a configuration refers to. Relative paths are relative to the folder of the configuration.
struct ImportFiles {
  std::function<absl::StatusOr<std::string>(const std::string& path)> read;
  // The names of the folders in a folder; empty if it does not exist.
  std::function<std::vector<std::string>(const std::string& path)> folders;
};

struct ImportedConfig {
  control::TrainConfig config;
  std::string program;  // "ai-toolkit"
  std::vector<std::string> notes;
};

// Returns the configuration that the text of `path` describes. `model` replaces the model that the file names; empty:
// that one. INVALID_ARGUMENT for text that is of neither program, that names no model or no images, or whose values are
// outside of their ranges.
absl::StatusOr<ImportedConfig> ImportConfig(const std::string& text, const std::string& path, const std::string& model,
                                            const ImportFiles& files);

// Whether the settings are the arguments of one of sd-scripts' training scripts.
bool HasKohyaArguments(const ForeignConfig& foreign);

// Fill `imported` from one program's settings. Errors are as above.
absl::Status ImportAiToolkit(ForeignConfig& foreign, ImportedConfig& imported);
absl::Status ImportKohya(ForeignConfig& foreign, const ImportFiles& files, ImportedConfig& imported);

// Sets a value that was read; a missing one keeps what it is.
template <class T, class U>
void SetIfRead(const std::optional<T>& read, U& value) {
  if (read.has_value()) value = static_cast<U>(*read);
}

// ".txt" and "txt" → "txt"
std::string WithoutPoint(std::string_view extension);

// Reads an optimizer's name. All that are AdamW with other storage become AdamW, with a note.
void ImportOptimizer(const std::string& key, ForeignConfig& foreign, control::TrainConfig& config);
void ImportDtype(const std::string& key, ForeignConfig& foreign, control::TrainConfig& config);
void ImportSchedule(const std::string& key, ForeignConfig& foreign, control::TrainConfig& config);

}  // namespace tessera::client
