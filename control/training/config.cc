#include "control/training/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/json.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "base/yaml_document.h"
#include "base/yaml_reader.h"
#include "control/adapter_use.h"
#include "parallel/plan/layout.h"

namespace tessera::control {
namespace {

using base::YamlMapping;
using base::YamlRange;

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr base::YamlBounds kBounds = {.depth = 8, .nodes = 20000, .anchors = 16, .aliases = 64};
constexpr YamlRange kSteps = {0, 100000000};
constexpr YamlRange kSide = {16, 16384};  // pixels

// The fewest digits that read back as the same number.
std::string Shortest(double value) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

// Writes what YamlMapping reads, by the same calls, as JSON.
class JsonWriter {
 public:
  void operator()(const char* key, const std::string& value) { Key(key), Text(value); }
  void operator()(const char* key, bool value) { Key(key), json_ += value ? "true" : "false"; }
  void operator()(const char* key, const std::vector<std::string>& values) {
    List(key, values, [this](const std::string& value) { Text(value); });
  }
  void operator()(const char* key, int64_t value, YamlRange) { Key(key), absl::StrAppend(&json_, value); }
  void operator()(const char* key, double value, YamlRange) { Key(key), Number(value); }
  void operator()(const char* key, const std::vector<int64_t>& values, YamlRange) {
    List(key, values, [this](int64_t value) { absl::StrAppend(&json_, value); });
  }
  void operator()(const char* key, const std::vector<double>& values, YamlRange) {
    List(key, values, [this](double value) { Number(value); });
  }
  template <base::NamedEnum Enum>
  void operator()(const char* key, Enum value) {
    Key(key), Text(base::EnumName(value));
  }

  template <typename Visit>
  void Nested(const char* key, const Visit& visit) {
    Key(key), Open('{'), visit(*this), Close('}');
  }
  template <typename Item, typename Visit>
  void Each(const char* key, const std::vector<Item>& items, const Visit& visit) {
    List(key, items, [&](const Item& item) { Open('{'), visit(*this, item), Close('}'); });
  }

  void Open(char bracket) { json_ += bracket, first_ = true; }
  void Close(char bracket) { json_ += bracket, first_ = false; }
  std::string Take() { return std::move(json_); }

 private:
  void Comma() {
    if (!std::exchange(first_, false)) json_ += ", ";
  }
  void Key(const char* key) { Comma(), absl::StrAppend(&json_, "\"", key, "\": "); }
  void Number(double value) { json_ += Shortest(value); }
  void Text(std::string_view value) {
    json_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') {
        absl::StrAppend(&json_, "\\", std::string(1, c));
      } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
        absl::StrAppend(&json_, "\\u", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad4));
      } else {
        json_ += c;
      }
    }
    json_ += '"';
  }
  template <typename Item, typename Write>
  void List(const char* key, const std::vector<Item>& items, const Write& write) {
    Key(key), Open('[');
    for (const Item& item : items) Comma(), write(item);
    Close(']');
  }

  std::string json_;
  bool first_ = true;
};

// The walks over the keys, by which they are read and written. `visit` has, for each type of a value, a call with its
// key, the value and the range of numbers; Nested for a mapping within, Each for a list of mappings.
template <typename Visit, typename Dataset>
void VisitDataset(Visit& visit, Dataset& dataset) {
  visit("folder_path", dataset.folder_path);
  visit("caption_ext", dataset.caption_ext);
  visit("caption_dropout_rate", dataset.caption_dropout_rate, YamlRange{0, 1});
  visit("resolution", dataset.resolution, kSide);
  visit("num_repeats", dataset.num_repeats, YamlRange{1, 10000});
  visit("is_reg", dataset.is_reg);
  visit("bad_images", dataset.bad_images);
  visit("cache_latents_to_disk", dataset.cache_latents_to_disk);
  visit("cache_text_embeddings", dataset.cache_text_embeddings);
}

// Without an alpha of its own an adapter's is its rank.
void Alpha(YamlMapping& visit, TrainNetwork& network) {
  network.linear_alpha = static_cast<double>(network.linear);
  visit("linear_alpha", network.linear_alpha, {1e-6, 1e6});
}
void Alpha(JsonWriter& visit, const TrainNetwork& network) { visit("linear_alpha", network.linear_alpha, YamlRange()); }

template <typename Visit, typename Network>
void VisitNetwork(Visit& visit, Network& network) {
  visit("type", network.type);
  visit("linear", network.linear, YamlRange{1, 4096});
  Alpha(visit, network);
  visit("init", network.init);
  visit("target_modules", network.target_modules);
  visit("from_scratch", network.from_scratch);
}

template <typename Visit, typename Procedure>
void VisitProcedure(Visit& visit, Procedure& train) {
  visit("steps", train.steps, YamlRange{1, kSteps.high});
  visit("batch_size", train.batch_size, YamlRange{1, 65536});
  visit("gradient_accumulation_steps", train.gradient_accumulation_steps, YamlRange{1, 65536});
  visit("gradient_checkpointing", train.gradient_checkpointing);
  visit("lr", train.lr, YamlRange{0, 10});
  visit("lr_scheduler", train.lr_scheduler);
  visit("lr_warmup_steps", train.lr_warmup_steps, kSteps);
  visit("lr_decay_steps", train.lr_decay_steps, kSteps);
  visit("low_discrepancy_timesteps", train.low_discrepancy_timesteps);
  visit("weighting_scheme", train.weighting_scheme);
  visit("logit_mean", train.logit_mean, YamlRange{-100, 100});
  visit("logit_std", train.logit_std, YamlRange{1e-6, 100});
  visit("mode_scale", train.mode_scale, YamlRange{-10, 10});
  visit("prediction_type", train.prediction_type);
  visit("snr_gamma", train.snr_gamma, YamlRange{0, 1e6});
  visit("guidance_scale", train.guidance_scale, YamlRange{0, 1000});
  visit("max_grad_norm", train.max_grad_norm, YamlRange{0, 1e9});
  visit("ema_decay", train.ema_decay, YamlRange{0, 0.9999999});
  visit.Nested("optimizer_params", [&train](auto& visit) {
    visit("betas", train.optimizer_params.betas, YamlRange{0, 0.9999999});
    visit("eps", train.optimizer_params.eps, YamlRange{1e-30, 1});
    visit("weight_decay", train.optimizer_params.weight_decay, YamlRange{0, 100});
  });
  visit("dtype", train.dtype);
  visit("max_nonfinite_steps", train.max_nonfinite_steps, kSteps);
  visit("max_loss_ratio", train.max_loss_ratio, YamlRange{0, 1e12});
  visit("quantize", train.quantize);
  visit("blocks_to_swap", train.blocks_to_swap, YamlRange{0, 1000});
}

template <typename Visit, typename Sample>
void VisitSample(Visit& visit, Sample& sample) {
  visit("sample_every", sample.sample_every, kSteps);
  visit("prompts", sample.prompts);
  visit("seed", sample.seed, YamlRange{0, double{1LL << 53}});
  visit("steps", sample.steps, YamlRange{0, 1 << 20});
  visit("guidance_scale", sample.guidance_scale, YamlRange{-1, 1000});
  visit("width", sample.width, YamlRange{0, kSide.high});
  visit("height", sample.height, YamlRange{0, kSide.high});
}

template <typename Visit, typename Publish>
void VisitPublish(Visit& visit, Publish& publish) {
  visit("server", publish.server);
  visit("adapter_folder", publish.adapter_folder);
  visit("name", publish.name);
  visit("publish_every", publish.publish_every, kSteps);
  visit("api_key_file", publish.api_key_file);
  visit("server_ca", publish.server_ca);
}

template <typename Visit, typename Parallelism>
void VisitParallelism(Visit& visit, Parallelism& parallelism) {
  const YamlRange degree = {1, parallel::kMaxRanks};
  visit("data", parallelism.data, degree);
  visit("tensor", parallelism.tensor, degree);
  visit("ulysses", parallelism.ulysses, degree);
  visit("ring", parallelism.ring, degree);
  visit("pipe", parallelism.pipe, degree);
  visit("sequence_parallel", parallelism.sequence_parallel);
  visit("zero", parallelism.zero);
}

template <typename Visit, typename Config>
void VisitConfig(Visit& visit, Config& config) {
  visit("model", config.model);
  visit("output", config.output);
  visit("seed", config.seed, YamlRange{0, double{1LL << 53}});
  visit("trigger_word", config.trigger_word);
  visit.Each("datasets", config.datasets, [](auto& visit, auto& dataset) { VisitDataset(visit, dataset); });
  visit.Nested("network", [&config](auto& visit) { VisitNetwork(visit, config.network); });
  visit.Nested("train", [&config](auto& visit) { VisitProcedure(visit, config.train); });
  visit.Nested("sample", [&config](auto& visit) { VisitSample(visit, config.sample); });
  visit.Nested("save", [&config](auto& visit) {
    visit("save_every", config.save.save_every, kSteps);
    visit("max_step_saves_to_keep", config.save.max_step_saves_to_keep, YamlRange{1, 100000});
  });
  visit.Nested("publish", [&config](auto& visit) { VisitPublish(visit, config.publish); });
  visit.Nested("parallelism", [&config](auto& visit) { VisitParallelism(visit, config.parallelism); });
}

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
    const std::string& extension = config.datasets[i].caption_ext;
    if (extension.empty() || extension.find('/') != std::string::npos) {
      return Wrong(absl::StrCat(name, ".caption_ext is ", base::QuotedValue(extension),
                                "; it must be the end of a file's name, such as txt"));
    }
  }
  return absl::OkStatus();
}

// How the batch is dealt out, and how many ranks that takes.
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
                              "; warmup_stable_decay needs more than 0 of them, and no other schedule has any"));
  }
  if (config.train.max_loss_ratio > 0 && config.train.max_loss_ratio <= 1) {
    return Wrong(absl::StrCat("train.max_loss_ratio is ", config.train.max_loss_ratio,
                              "; it must be more than 1, or 0 for a run that goes on whatever its loss"));
  }
  if (config.network.type == NetworkType::kFull && config.train.quantize) {
    return Wrong("train.quantize is true; it stores weights that stay as they are, so that network.type must be lora");
  }
  if (config.network.type == NetworkType::kFull && config.train.blocks_to_swap > 0) {
    return Wrong(
        absl::StrCat("train.blocks_to_swap is ", config.train.blocks_to_swap,
                     "; it swaps weights that stay as they are, so that it must be 0 where network.type is full"));
  }
  if (config.network.type == NetworkType::kLora && config.network.from_scratch) {
    return Wrong("network.from_scratch is true; an adapter needs a trained base, so that network.type must be full");
  }
  if (config.sample.sample_every > 0 && config.sample.prompts.empty()) {
    return Wrong(absl::StrCat("sample.sample_every is ", config.sample.sample_every,
                              " and sample.prompts is empty; name prompts, or set sample_every to 0"));
  }
  return CheckPublish(config);
}

// The values of a tree by their paths, as exact texts.
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
    leaves[path] = Shortest(*value.AsNumber());
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

// What changes no sum of a run, and its length and rate. A name that ends with a point is a mapping.
constexpr const char* kMayChange[] = {"model",
                                      "output",
                                      "train.steps",
                                      "train.lr",
                                      "train.max_loss_ratio",
                                      "train.gradient_checkpointing",
                                      "train.blocks_to_swap",
                                      "train.max_nonfinite_steps",
                                      "sample.",
                                      "save.",
                                      "publish.",
                                      "parallelism."};
// The same of each of datasets.
constexpr const char* kMayChangeOfDatasets[] = {"folder_path", "bad_images", "cache_latents_to_disk",
                                                "cache_text_embeddings"};
constexpr char kDatasets[] = "datasets[";

bool MayChange(const std::string& path, bool same_samples) {
  if (same_samples && (absl::StartsWith(path, kDatasets) || path == "trigger_word")) return true;
  if (absl::StartsWith(path, kDatasets)) {
    const std::string key = path.substr(path.find('.') + 1);
    return std::ranges::any_of(kMayChangeOfDatasets, [&](const char* name) { return key == name; });
  }
  return std::ranges::any_of(kMayChange, [&](const char* name) {
    return absl::EndsWith(name, ".") ? absl::StartsWith(path, name) : path == name;
  });
}

// For messages.
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
  YamlMapping mapping(document, "");
  TrainConfig config;
  VisitConfig(mapping, config);
  RETURN_IF_ERROR(mapping.Finish());
  RETURN_IF_ERROR(CheckTogether(config));
  return config;
}

absl::StatusOr<TrainConfig> LoadTrainConfig(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadWholeFile(path, path, kMaxConfigBytes));
  absl::StatusOr<TrainConfig> config = ParseTrainConfig(text);
  if (config.ok()) return config;
  return absl::Status(config.status().code(), absl::StrCat(path, ": ", std::string(config.status().message())));
}

std::string TrainConfigJson(const TrainConfig& config) {
  JsonWriter writer;
  writer.Open('{');
  VisitConfig(writer, config);
  writer.Close('}');
  return writer.Take();
}

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
  return Wrong(absl::StrCat("the run was begun with another configuration: ", absl::StrJoin(changes, "; "), "; only ",
                            NamesThatMayChange(),
                            " may change when a run is resumed; give the others their values of before, or begin a run "
                            "in another output folder"));
}

}  // namespace tessera::control
