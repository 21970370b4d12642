#include "client/cli/train/train_import.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "base/text/utf8.h"
#include "client/cli/train/config_output.h"
#include "client/cli/train/config_template.h"
#include "client/cli/train/imported_config.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{1} << 20;

// Files are looked for from the folder of the configuration.
ImportFiles FilesFrom(const fs::path& folder) {
  return {.read =
              [folder](const std::string& path) {
                return base::ReadWholeFile((folder / path).string(), path, kMaxFileBytes);
              },
          .folders =
              [folder](const std::string& path) {
                std::vector<std::string> names;
                std::error_code error;
                for (fs::directory_iterator entry(folder / path, error), end; !error && entry != end;
                     entry.increment(error)) {
                  std::error_code ignored;
                  if (entry->is_directory(ignored)) names.push_back(entry->path().filename().string());
                }
                std::ranges::sort(names);
                return names;
              }};
}

}  // namespace

absl::Status ImportTraining(const TrainImportOptions& options) {
  if (options.file.empty()) {
    return absl::InvalidArgumentError(
        "FILE is missing; it must be a configuration of ai-toolkit or kohya's sd-scripts (YAML, JSON or TOML)");
  }
  ASSIGN_OR_RETURN(const std::string output, ConfigOutput(options.output));
  ASSIGN_OR_RETURN(const std::string text, base::ReadWholeFile(options.file, options.file, kMaxFileBytes));
  ASSIGN_OR_RETURN(const ImportedConfig imported,
                   ImportConfig(text, options.file, options.model, FilesFrom(fs::path(options.file).parent_path())));
  std::vector<std::string> comments = {
      absl::StrCat("Imported from ", options.file, ", a configuration of ", imported.program, "."),
      "Check the keys, and try `tessera train FILE --dry-run`."};
  if (!imported.notes.empty()) comments.emplace_back("What has another meaning here, or no equivalent:");
  for (const std::string& note : imported.notes) {
    std::fprintf(stderr, "warning: %s\n", base::ReplaceControlCharacters(note).c_str());
    comments.push_back(absl::StrCat("- ", note));
  }
  const std::string yaml = CommentedConfig(imported.config, comments);
  RETURN_IF_ERROR(control::ParseTrainConfig(yaml).status());
  const size_t notes = imported.notes.size();
  return WriteConfig(output, yaml,
                     absl::StrCat("from ", options.file, ", with ", notes, notes == 1 ? " note" : " notes"));
}

}  // namespace tessera::client
