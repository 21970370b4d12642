#include "control/training/config.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/fields/json_fields.h"
#include "base/files/file.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/text/utf8.h"
#include "base/yaml/yaml_document.h"
#include "base/yaml/yaml_fields.h"
#include "control/parameters/adapter_use.h"
#include "parallel/plan/layout.h"

namespace tessera::control {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr base::YamlBounds kBounds = {.depth = 8, .nodes = 20000, .anchors = 16, .aliases = 64};

absl::Status Wrong(std::string_view message) { return absl::InvalidArgumentError(std::string(message)); }

absl::Status CheckDatasets(const TrainConfig& config) {
  if (config.datasets.empty()) {
    return Wrong("datasets is empty; it must be a list with at least one {folder_path: FOLDER}");
  }
  for (size_t i = 0; i < config.datasets.size(); ++i) {
    const std::string name = absl::StrCat("datasets[", i, "]");
    if (config.datasets[i].folder_path.empty()) {
      return Wrong(absl::StrCat(name, ".folder_path is missing; it must be a folder with images"));
    }
    const std::vector<std::string>& control = config.datasets[i].control_path;
    if (std::ranges::any_of(control, [](const std::string& folder) { return folder.empty(); })) {
      return Wrong(absl::StrCat(name, ".control_path has an empty entry; each must be a folder with pictures"));
    }
    const std::string& extension = config.datasets[i].caption_ext;
    if (extension.empty() || extension.find('/') != std::string::npos) {
      return Wrong(absl::StrCat(name, ".caption_ext is ", base::QuotedValue(extension),
                                "; it must be the end of a file's name, such as txt"));
    }
  }
  return absl::OkStatus();
}

// Checks how the batch is divided, and how many ranks that takes.
absl::Status CheckRanks(const TrainConfig& config) {
  const TrainParallelism& parallelism = config.parallelism;
  const int64_t ranks = parallel::NumRanks(parallelism.mesh());
  if (ranks > parallel::kMaxRanks) {
    return Wrong(absl::StrCat("parallelism is data ", parallelism.data, " × tensor ", parallelism.tensor, " × ulysses ",
                              parallelism.ulysses, " × ring ", parallelism.ring, " × pipe ", parallelism.pipe, " = ",
                              ranks, " ranks; valid values are 1 to ", parallel::kMaxRanks));
  }
  const int64_t batch = config.train.batch_size, data = parallelism.data;
  if (batch % data != 0) {
    const int64_t below = batch / data * data;
    const int64_t nearest = below > 0 && batch - below <= below + data - batch ? below : below + data;
    return Wrong(absl::StrCat("train.batch_size is ", batch, "; it must be a multiple of parallelism.data, which is ",
                              data, ", the nearest is ", nearest));
  }
  return absl::OkStatus();
}

absl::Status CheckPublish(const TrainConfig& config) {
  const TrainPublish& publish = config.publish;
  if (publish.name.empty()) {
    if (publish == TrainPublish()) return absl::OkStatus();
    return Wrong("publish.name is missing; it must be the name that requests will have for the adapter");
  }
  if (!IsAdapterName(publish.name)) {
    return Wrong(absl::StrCat("publish.name is ", base::QuotedValue(publish.name), "; ", kAdapterNameRule));
  }
  if (publish.server.empty()) {
    return Wrong("publish.server is missing; it must be the server's admin listener, such as http://127.0.0.1:9090");
  }
  if (publish.adapter_folder.empty()) {
    return Wrong("publish.adapter_folder is missing; it must be the adapter_folder of the server's configuration");
  }
  if (config.network.type != NetworkType::kLora) {
    return Wrong("publish is set and network.type is full; adapters alone are published, so that it must be lora");
  }
  return absl::OkStatus();
}

absl::Status CheckTogether(const TrainConfig& config) {
  for (const auto& [key, value] : {std::pair{"model", &config.model}, std::pair{"output", &config.output}}) {
    if (value->empty()) return Wrong(absl::StrCat(key, " is missing; it has no default"));
  }
  RETURN_IF_ERROR(CheckDatasets(config));
  RETURN_IF_ERROR(CheckRanks(config));
  if (config.train.optimizer_params.betas.size() != 2) {
    return Wrong(absl::StrCat("train.optimizer_params.betas has ", config.train.optimizer_params.betas.size(),
                              " values; it must have 2, such as [0.9, 0.999]"));
  }
  if ((config.train.lr_decay_steps > 0) != (config.train.lr_scheduler == LearningRateSchedule::kWarmupStableDecay)) {
    return Wrong(absl::StrCat("train.lr_decay_steps is ", config.train.lr_decay_steps, " and train.lr_scheduler ",
                              base::EnumName(config.train.lr_scheduler),
                              "; it must be more than 0 for warmup_stable_decay, and 0 for the other schedules"));
  }
  if (config.train.max_loss_ratio > 0 && config.train.max_loss_ratio <= 1) {
    return Wrong(absl::StrCat("train.max_loss_ratio is ", config.train.max_loss_ratio,
                              "; it must be more than 1, or 0 to accept any loss"));
  }
  if (config.network.type == NetworkType::kFull && config.train.quantize) {
    return Wrong("train.quantize is true; only frozen weights can be quantized, so network.type must be lora");
  }
  if (config.network.type == NetworkType::kFull && config.train.blocks_to_swap > 0) {
    return Wrong(absl::StrCat("train.blocks_to_swap is ", config.train.blocks_to_swap,
                              "; only frozen weights can be swapped, so it must be 0 where network.type is full"));
  }
  if (config.network.type == NetworkType::kFull && !config.train.assistant_adapter.empty()) {
    return Wrong(absl::StrCat("train.assistant_adapter is ", base::QuotedValue(config.train.assistant_adapter),
                              "; only an adapter is trained with one, so that network.type must be lora"));
  }
  if (config.network.type == NetworkType::kLora && config.network.from_scratch) {
    return Wrong("network.from_scratch is true; an adapter needs a trained base, so that network.type must be full");
  }
  if (config.sample.sample_every > 0 && config.sample.prompts.empty() && config.sample.samples.empty()) {
    return Wrong(absl::StrCat("sample.sample_every is ", config.sample.sample_every,
                              " and sample.prompts is empty; name prompts, or set sample_every to 0"));
  }
  return CheckPublish(config);
}

// Collects the values of a tree by their paths, as exact texts.
void Flatten(const base::Json& value, const std::string& path, std::map<std::string, std::string>& leaves) {
  for (const base::JsonMember& member : value.members()) {
    Flatten(member.value, path.empty() ? member.key : absl::StrCat(path, ".", member.key), leaves);
  }
  for (size_t i = 0; i < value.items().size(); ++i) {
    Flatten(value.items()[i], absl::StrCat(path, "[", i, "]"), leaves);
  }
  if (value.AsString() != nullptr) {
    leaves[path] = *value.AsString();
  } else if (value.AsNumber().has_value()) {
    leaves[path] = base::ShortestDigits(*value.AsNumber());
  } else if (value.AsBool().has_value()) {
    leaves[path] = *value.AsBool() ? "true" : "false";
  }
}

std::map<std::string, std::string> Leaves(const TrainConfig& config) {
  std::map<std::string, std::string> leaves;
  const absl::StatusOr<base::Json> json = base::ParseJson(TrainConfigJson(config), "config");
  if (json.ok()) Flatten(*json, "", leaves);
  return leaves;
}

// Keys that change no sum of a run, and those of its length and rate. A name that ends with a point is a mapping.
constexpr const char* kMayChange[] = {"model",
                                      "output",
                                      "train.steps",
                                      "train.lr",
                                      "train.max_loss_ratio",
                                      "train.gradient_checkpointing",
                                      "train.blocks_to_swap",
                                      "train.max_nonfinite_steps",
                                      "train.assistant_adapter",
                                      "train.break_distillation",
                                      "sample.",
                                      "save.",
                                      "publish.",
                                      "parallelism."};
// The keys of each of datasets that may change.
constexpr const char* kMayChangeOfDatasets[] = {"folder_path", "control_path", "bad_images", "cache_latents_to_disk",
                                                "cache_text_embeddings"};
constexpr char kDatasets[] = "datasets[";

bool MayChange(const std::string& path, bool same_samples) {
  if (same_samples && (absl::StartsWith(path, kDatasets) || path == "trigger_word")) return true;
  if (absl::StartsWith(path, kDatasets)) {
    const std::string of_dataset = path.substr(path.find('.') + 1), key = of_dataset.substr(0, of_dataset.find('['));
    return std::ranges::any_of(kMayChangeOfDatasets, [&](const char* name) { return key == name; });
  }
  return std::ranges::any_of(kMayChange, [&](const char* name) {
    return absl::EndsWith(name, ".") ? absl::StartsWith(path, name) : path == name;
  });
}

// The names for messages.
std::string NamesThatMayChange() {
  std::vector<std::string> names;
  for (absl::string_view name : kMayChange) {
    absl::ConsumeSuffix(&name, ".");
    names.emplace_back(name);
  }
  return absl::StrCat(absl::StrJoin(names, ", "), ", and of datasets ", absl::StrJoin(kMayChangeOfDatasets, ", "));
}

}  // namespace

parallel::MeshShape TrainParallelism::mesh() const {
  return {.data = static_cast<int>(data),
          .pipe = static_cast<int>(pipe),
          .ring = static_cast<int>(ring),
          .ulysses = static_cast<int>(ulysses),
          .tensor = static_cast<int>(tensor)};
}

absl::StatusOr<TrainConfig> ParseTrainConfig(const std::string& text) {
  if (const size_t wrong = base::FirstInvalidUtf8(text); wrong < text.size()) {
    const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(wrong), '\n');
    return Wrong(absl::StrCat("the configuration is not UTF-8 at line ", lines + 1));
  }
  ASSIGN_OR_RETURN(const YAML::Node document, base::ReadYamlDocument(text, kBounds));
  base::YamlMapping mapping(document, "");
  TrainConfig config;
  config.network.linear_alpha = 0;
  base::ReadYamlFields(mapping, config);
  RETURN_IF_ERROR(mapping.Finish());
  // By default, an adapter's alpha equals its rank.
  if (config.network.linear_alpha == 0) config.network.linear_alpha = static_cast<double>(config.network.linear);
  RETURN_IF_ERROR(CheckTogether(config));
  return config;
}

absl::StatusOr<TrainConfig> LoadTrainConfig(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadWholeFile(path, path, kMaxConfigBytes));
  absl::StatusOr<TrainConfig> config = ParseTrainConfig(text);
  if (config.ok()) return config;
  return absl::Status(config.status().code(), absl::StrCat(path, ": ", std::string(config.status().message())));
}

std::string TrainConfigJson(const TrainConfig& config) { return base::JsonOfFields(config); }

absl::Status CheckResumed(const TrainConfig& before, const TrainConfig& now, bool same_samples) {
  const std::map<std::string, std::string> old_leaves = Leaves(before), new_leaves = Leaves(now);
  std::map<std::string, std::string> all = old_leaves;
  all.insert(new_leaves.begin(), new_leaves.end());
  const auto shown = [](const std::map<std::string, std::string>& leaves, const std::string& path) {
    const auto leaf = leaves.find(path);
    return leaf == leaves.end() ? "absent" : base::QuotedValue(leaf->second);
  };
  std::vector<std::string> changes;
  for (const auto& [path, value] : all) {
    const auto before_leaf = old_leaves.find(path), now_leaf = new_leaves.find(path);
    const bool same =
        before_leaf != old_leaves.end() && now_leaf != new_leaves.end() && before_leaf->second == now_leaf->second;
    if (same || MayChange(path, same_samples)) continue;
    changes.push_back(absl::StrCat(path, " was ", shown(old_leaves, path), " and is ", shown(new_leaves, path)));
  }
  if (changes.empty()) return absl::OkStatus();
  return Wrong(absl::StrCat("the run was started with another configuration: ", absl::StrJoin(changes, "; "), "; only ",
                            NamesThatMayChange(),
                            " may change when a run is resumed; restore the other values, or start a run "
                            "in another output folder"));
}

}  // namespace tessera::control
