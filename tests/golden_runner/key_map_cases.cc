// Runs the cases of key maps: every tensor of a single file follows from the project's map of the component, and its
// parameters lead back to it.
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "models/keymaps/key_map.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {
namespace {

// The end of a map of a text encoder in llama.cpp's names.
constexpr std::string_view kGgufExtension = ".gguf.json";

// Returns the folder of the pipeline that a map was made for: keymaps/NAME.COMPONENT.json is of the files in
// checkpoints/NAME/, whose cases state it.
absl::StatusOr<std::string> PipelineOf(const Case& test_case, const std::string& component) {
  const std::string name = std::filesystem::path(test_case.file).filename().string();
  const std::string pipeline = name.substr(0, name.find(absl::StrCat(".", component, ".")));
  ASSIGN_OR_RETURN(const std::vector<Case> cases, ReadCases(test_case.root));
  for (const Case& other : cases) {
    const base::Json* components = other.arguments.Find("components");
    if (components == nullptr || !other.Text("file").starts_with(absl::StrCat("checkpoints/", pipeline, "/"))) continue;
    for (const base::Json& held : components->items()) {
      if (held.AsString() != nullptr && *held.AsString() == component) return other.Text("base");
    }
  }
  // A set may have the pipeline's configurations without its files.
  const std::string base = absl::StrCat("bases/", pipeline);
  if (test_case.folders.Find(base) != nullptr) return base;
  return absl::InvalidArgumentError(absl::StrCat("no case has a file of ", pipeline, " with its ", component));
}

absl::StatusOr<models::KeyOperation> OperationOf(const std::string& name) {
  constexpr std::array kNames{
      std::pair{"same", models::KeyOperation::kSame}, std::pair{"concat", models::KeyOperation::kConcat},
      std::pair{"swap", models::KeyOperation::kSwap}, std::pair{"conv", models::KeyOperation::kConv}};
  for (const auto& [known, operation] : kNames) {
    if (name == known) return operation;
  }
  return absl::UnimplementedError(absl::StrCat("operation ", base::Quote(name), " of a key map"));
}

}  // namespace

absl::StatusOr<Report> RunKeyMap(const Case& test_case) {
  const std::string component = test_case.Text("component");
  ASSIGN_OR_RETURN(const std::string pipeline, PipelineOf(test_case, component));
  ASSIGN_OR_RETURN(const models::ModelFolder folder, OpenPipeline(test_case, pipeline));
  ASSIGN_OR_RETURN(const base::ConfigReader config, folder.Config(component));
  const models::NameForm form = component != "transformer" && test_case.file.ends_with(kGgufExtension)
                                    ? models::NameForm::kLlamaCpp
                                    : models::NameForm::kOriginal;
  const std::string& class_name = folder.components().at(component).class_name;
  ASSIGN_OR_RETURN(const std::optional<models::KeyMap> map, models::KeyMapOf(class_name, config.json(), form));
  if (!map) return absl::UnimplementedError(absl::StrCat("a key map of ", class_name));

  ASSIGN_OR_RETURN(const std::string text,
                   base::ReadWholeFile(test_case.Path(test_case.file), test_case.file, base::kMaxJsonBytes));
  ASSIGN_OR_RETURN(const base::Json table, base::ParseJson(text, test_case.file));
  const base::Json* rows = table.Find("rows");
  if (rows == nullptr || rows->items().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(test_case.file, " has no rows"));
  }
  Report report;
  for (const base::Json& row : rows->items()) {
    std::vector<std::string> texts;
    for (const base::Json& value : row.items()) texts.push_back(value.AsString() ? *value.AsString() : "");
    if (texts.size() < 3) return absl::InvalidArgumentError(absl::StrCat(test_case.file, ": a row is too short"));
    ASSIGN_OR_RETURN(const models::KeyOperation operation, OperationOf(texts[1]));
    const models::MappedKey expected{.operation = operation,
                                     .parameters = std::vector<std::string>(texts.begin() + 2, texts.end())};
    const std::optional<models::MappedKey> mapped = map->Map(texts[0]);
    report.Add(texts[0], mapped == expected ? 0 : 1, 0);
    for (const std::string& parameter : expected.parameters) {
      report.Add(absl::StrCat("name of ", parameter), map->NameOf(parameter) == texts[0] ? 0 : 1, 0);
    }
  }
  return report;
}

}  // namespace tessera::golden
