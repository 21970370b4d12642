#include "client/cli/train/train_import.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/text/utf8.h"
#include "client/cli/exit_code.h"
#include "client/cli/train/config_template.h"
#include "client/cli/train/imported_config.h"
#include "client/cli/train/train_init.h"

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
  const std::string output = options.output.empty() ? kDefaultTrainConfig : options.output;
  std::error_code ignored;
  if (output != "-" && fs::exists(output, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat("--output is ", base::QuotedValue(output),
                                                   ", which exists; name a new file, or - for standard output"));
  }
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
  if (output == "-") {
    std::fwrite(yaml.data(), 1, yaml.size(), stdout);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(At(Stage::kOutput, base::WriteFileAtomically(output, yaml, {.overwrite = false})));
  std::fprintf(stderr, "%s: from %s, with %zu %s\n", output.c_str(), options.file.c_str(), imported.notes.size(),
               imported.notes.size() == 1 ? "note" : "notes");
  return absl::OkStatus();
}

}  // namespace tessera::client
