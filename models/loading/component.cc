#include "models/loading/component.h"

#include "absl/strings/str_join.h"

namespace tessera::models {

absl::Status CheckClass(const ModelFolder& folder, const std::string& component,
                        absl::Span<const std::string_view> known) {
  if (absl::StatusOr<std::string> path = folder.ComponentPath(component); !path.ok()) return path.status();
  const std::string& class_name = folder.components().at(component).class_name;
  std::vector<std::string> names(known.begin(), known.end());
  for (const std::string& name : names) {
    if (name == class_name) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("model_index.json: ", component, " is of class ",
                                                 base::Quote(class_name), "; with ", folder.class_name(),
                                                 " it must be ", absl::StrJoin(names, " or ")));
}

}  // namespace tessera::models
