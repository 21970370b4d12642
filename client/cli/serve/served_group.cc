#include "client/cli/serve/served_group.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fields/enum_names.h"
#include "base/json/json.h"
#include "base/machine/machine_memory.h"
#include "base/macros/status_macros.h"
#include "client/cli/models/model_location.h"
#include "control/host/device.h"
#include "server/api/generation_request.h"

namespace tessera::client {
namespace {

// Memory that workers take at their first image and that no prediction includes, such as kernels that are generated
// then, all together.
constexpr double kUnpredictedBytes = 16 << 20;

// Returns what determines the bytes of an image: the canonical folder, its components and the dtype.
std::string MeaningOf(const control::LoadParameters& load) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(load.model, error);
  std::vector<std::string> others = load.files.text_encoders;
  for (const std::string* path : {&load.files.autoencoder, &load.files.tokenizer}) {
    if (!path->empty()) others.push_back(*path);
  }
  return absl::StrCat(base::Quote(error ? load.model : canonical.string()),
                      others.empty() ? "" : absl::StrCat(" with ", absl::StrJoin(others, ", ")),
                      load.files.without_t5 ? " without T5" : "", " in ", base::EnumName(load.dtype));
}

}  // namespace

absl::Status CheckNamesOf(const std::vector<server::ServedGroupOptions>& groups) {
  std::map<std::string, std::string> meanings;
  for (const server::ServedGroupOptions& group : groups) {
    const std::string meaning = MeaningOf(group.load);
    std::vector<std::string> names = group.aliases;
    names.push_back(group.name);
    for (const std::string& name : names) {
      const std::string& first = meanings.emplace(name, meaning).first->second;
      if (first == meaning) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("groups: the name ", base::Quote(name), " means both ", first, " and ", meaning,
                       "; give one of the groups another name, or both the same folder and dtype"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<server::ServedGroupOptions> ServedGroupOf(const server::GroupConfig& config,
                                                         const std::string& model_folders, bool any_model) {
  absl::StatusOr<std::string> folder = FindModel(config.model, model_folders);
  if (!folder.ok() && any_model) folder = config.model;
  if (!folder.ok()) return folder.status();
  server::ServedGroupOptions group;
  group.name = config.name.empty() ? ModelName(*folder) : config.name;
  group.aliases = config.aliases;
  group.layout.layout = config.layout;
  group.count = config.count;
  for (const std::string& text : config.warmup) {
    ASSIGN_OR_RETURN(const server::PictureSize size, server::ParsePictureSize(text));
    group.warmup.push_back(size);
  }
  group.load.model = *folder;
  group.load.files = config.files;
  group.load.placement = config.placement;
  for (const std::string& device : config.devices) {
    ASSIGN_OR_RETURN(group.load.dtype, server::ServedDtype(config.dtype, control::DeviceOnItsHost(device)));
  }
  group.load.device = absl::StrJoin(config.devices, ",");
  if (config.layout == "auto" || config.devices.size() > 1) {
    group.layout.ranks = static_cast<int>(std::min<size_t>(config.devices.size(), parallel::kMaxRanks + 1));
  }
  if (absl::StatusOr<std::optional<parallel::Layout>> layout = server::ReadLayout(group.layout); !layout.ok())
    return layout.status();
  return group;
}

server::HostMemory MemoryOfHost() {
  const double total = static_cast<double>(base::ReadTotalMemory());
  const double available = static_cast<double>(base::ReadMachineMemory().available());
  if (const auto group = base::ReadControlGroupMemory(); group && static_cast<double>(group->limit) <= total) {
    return {.total = total,
            .available = available,
            .in_use = static_cast<double>(group->in_use) + kUnpredictedBytes,
            .is_limit = true};
  }
  return {.total = total,
          .available = available,
          .in_use = static_cast<double>(base::ReadProcessMemory(base::ProcessFamily()))};
}

}  // namespace tessera::client
