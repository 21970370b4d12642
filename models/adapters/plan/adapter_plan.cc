#include "models/adapters/plan/adapter_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "models/adapters/plan/adapter_config.h"
#include "models/adapters/plan/adapter_error.h"
#include "models/weights/stored_types.h"
#include "models/weights/tensor_file.h"

namespace tessera::models {
namespace {

using Fault = AdapterFault;

// The prefix of a file's names, which identifies the tool that wrote it.
enum class Naming { kDiffusers, kPeft, kKohya, kComfy, kBare };
constexpr auto NamesOf(Naming) { return std::array{"diffusers", "PEFT", "kohya", "ComfyUI", "their authors' own"}; }

// The role of a tensor in its module, by the suffix of its name, and the suffix of its counterpart in the pair.
enum class Leaf { kDown, kUp, kAlpha };
struct LeafName {
  std::string_view suffix;
  Leaf leaf;
  std::string_view other;
};
constexpr std::array kLeaves{
    LeafName{".lora_A.weight", Leaf::kDown, ".lora_B.weight"},
    LeafName{".lora_B.weight", Leaf::kUp, ".lora_A.weight"},
    LeafName{".lora_down.weight", Leaf::kDown, ".lora_up.weight"},
    LeafName{".lora_up.weight", Leaf::kUp, ".lora_down.weight"},
    LeafName{".lora.down.weight", Leaf::kDown, ".lora.up.weight"},
    LeafName{".lora.up.weight", Leaf::kUp, ".lora.down.weight"},
    LeafName{".down.weight", Leaf::kDown, ".up.weight"},
    LeafName{".up.weight", Leaf::kUp, ".down.weight"},
    LeafName{".alpha", Leaf::kAlpha, ""},
};

// A tensor's name split into the plain name and the name that PEFT gave the adapter: "x.lora_A.default.weight" is
// "x.lora_A.weight" and "default". PEFT's name distinguishes several adapters of a model and has no dots.
struct PlainName {
  std::string name, adapter;
};
PlainName PlainNameOf(const std::string& name) {
  for (const std::string_view mark : {".lora_A.", ".lora_B.", ".lora_magnitude_vector."}) {
    const size_t at = name.rfind(mark);
    if (at == std::string::npos) continue;
    const size_t begin = at + mark.size(), end = name.find('.', begin);
    if (end == std::string::npos || end == begin) break;
    return {.name = name.substr(0, begin) + name.substr(end + 1), .adapter = name.substr(begin, end - begin)};
  }
  return {.name = name, .adapter = ""};
}

// Whether a tensor is the embedding of a word that was trained together with the adapter. Covers the names written by
// kohya's tools and OneTrainer (bundle_emb), ai-toolkit (emb_params), diffusers' training scripts (clip_l, clip_g, t5,
// <token>) and AUTOMATIC1111's web UI (string_to_param), and the whole table that PEFT writes.
bool IsEmbedding(std::string_view name) {
  constexpr std::array<std::string_view, 6> kNames{"emb_params", "clip_l", "clip_g", "t5", "t5xxl", "string_to_param"};
  constexpr std::array<std::string_view, 2> kPrefixes{"bundle_emb.", "string_to_param."};
  constexpr std::array<std::string_view, 3> kEnds{".token_embedding.weight", ".embed_tokens.weight", ".shared.weight"};
  return std::ranges::find(kNames, name) != kNames.end() || (name.starts_with('<') && name.ends_with('>')) ||
         std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); }) ||
         std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

// Tensors of adapters that are not plain low-rank, with the name of each kind.
struct UnsupportedLeaf {
  std::string_view mark, kind;
};
constexpr std::array kUnsupported{
    UnsupportedLeaf{".lora_magnitude_vector", "DoRA"},
    UnsupportedLeaf{".dora_scale", "DoRA"},
    UnsupportedLeaf{".lokr_", "LoKr"},
    UnsupportedLeaf{".hada_", "LoHa"},
    UnsupportedLeaf{".oft_", "OFT"},
    UnsupportedLeaf{".lora_mid.", "LoCon"},
    UnsupportedLeaf{".diff_b", "diff_b (biases that are added whole)"},
    UnsupportedLeaf{".diff", "diff (weights that are added whole)"},
    UnsupportedLeaf{".lora_B.bias", "LoRA with biases"},
    UnsupportedLeaf{"_norm.scale", "Black Forest Labs' LoRA with norm scales"},
};

// Whether the name contains the mark as whole parts: ".diff" is not in "model.diffusion_model".
bool HasMark(std::string_view name, std::string_view mark) {
  const bool is_begin = mark.ends_with('.') || mark.ends_with('_');
  for (size_t at = name.find(mark); at != std::string_view::npos; at = name.find(mark, at + 1)) {
    const std::string_view rest = name.substr(at + mark.size());
    if (is_begin || rest.empty() || rest.starts_with('.')) return true;
  }
  return false;
}

// The tensors of one module name in the file.
struct Entry {
  const StoredTensor *down = nullptr, *up = nullptr, *alpha = nullptr;
  std::string other;  // if only one tensor of the pair is present, the name of the missing one
};

// The modules that an Entry's name refers to.
struct Target {
  NamedModules named;
  std::string module;  // matched with the patterns of a LoraConfig; empty if no configuration applies
};

absl::Status Refuse(Fault fault, const SafetensorsFile& file, const std::string& what) {
  return AdapterError(fault, absl::StrCat(file.name(), ": ", what));
}

Naming NamingOf(std::string_view name) {
  struct Prefix {
    std::string_view prefix;
    Naming naming;
  };
  constexpr std::array kPrefixes{
      Prefix{"transformer.", Naming::kDiffusers},
      Prefix{"text_encoder.", Naming::kDiffusers},
      Prefix{"text_encoder_2.", Naming::kDiffusers},
      Prefix{"text_encoder_3.", Naming::kDiffusers},
      Prefix{"unet.", Naming::kDiffusers},
      Prefix{"base_model.model.", Naming::kPeft},
      Prefix{"lora_", Naming::kKohya},
      Prefix{"lycoris_", Naming::kKohya},
      Prefix{"diffusion_model.", Naming::kComfy},
      Prefix{"model.diffusion_model.", Naming::kComfy},
      Prefix{"text_encoders.", Naming::kComfy},
  };
  for (const Prefix& prefix : kPrefixes) {
    if (name.starts_with(prefix.prefix)) return prefix.naming;
  }
  return Naming::kBare;
}

// Plans one file for one model.
class Planner {
 public:
  Planner(const SafetensorsFile& file, const AdapterNames& names) : file_(file), names_(names) {}

  absl::StatusOr<AdapterPlan> Plan(const std::optional<std::string>& adapter_config) {
    if (file_.tensors().empty()) return Refuse(Fault::kEmpty, file_, "the file holds no tensors");
    AdapterPlan plan;
    RETURN_IF_ERROR(SortTensors(plan.embeddings));
    naming_ = NamingOf(entries_.begin()->first);
    RETURN_IF_ERROR(ReadConfigs(adapter_config));
    RETURN_IF_ERROR(CheckNaming(adapter_config.has_value()));
    RETURN_IF_ERROR(CheckFamily());
    for (const auto& [name, entry] : entries_) RETURN_IF_ERROR(PlanEntry(name, entry, plan.factors));
    return plan;
  }

 private:
  absl::Status ReadConfigs(const std::optional<std::string>& adapter_config);
  absl::Status SortTensors(std::vector<std::string>& embeddings);
  absl::Status AddFactor(const StoredTensor& tensor, const LeafName& leaf, const PlainName& plain);
  absl::Status CheckNaming(bool has_config);
  absl::Status CheckFamily() const;
  absl::Status PlanEntry(const std::string& name, const Entry& entry, std::vector<PlannedFactors>& plan);

  // Returns the modules that a name refers to; NotFound without a message if there are none.
  absl::StatusOr<Target> Resolve(const std::string& name) const;
  absl::StatusOr<Target> ResolveKohya(const std::string& name) const;
  absl::StatusOr<Target> ResolveComfy(const std::string& name) const;
  absl::StatusOr<Target> OneModule(const std::string& component, const ProductSpec* module,
                                   const std::string& name) const;
  absl::StatusOr<Target> OriginalOr(const std::string& name, const ProductSpec* module) const;
  absl::Status UnknownModule(const std::string& name) const;
  absl::Status CheckPair(const std::string& name, const Entry& entry) const;
  absl::Status CheckShapes(const std::string& name, const Entry& entry, const NamedModules& named) const;
  absl::StatusOr<double> ScaleOf(const std::string& name, const Entry& entry, const Target& target) const;
  absl::StatusOr<double> AlphaIn(const StoredTensor& tensor) const;
  const LoraConfig* ConfigOf(const std::string& component) const {
    const auto found = configs_.find(component);
    return found == configs_.end() ? nullptr : &found->second;
  }

  const SafetensorsFile& file_;
  const AdapterNames& names_;
  LoraConfigs configs_;
  std::map<std::string, Entry> entries_;  // by the tensors' names without their suffixes
  Naming naming_ = Naming::kBare;
  const StoredTensor* named_ = nullptr;  // the first factor
  std::string adapter_;                  // PEFT's name in the name of `named_`
  std::set<const ProductSpec*> planned_;
};

absl::Status Planner::ReadConfigs(const std::optional<std::string>& adapter_config) {
  if (adapter_config) {
    ASSIGN_OR_RETURN(configs_, ParseAdapterConfig(*adapter_config));
  } else if (const auto text = file_.metadata().find("lora_adapter_metadata"); text != file_.metadata().end()) {
    ASSIGN_OR_RETURN(configs_, ParseAdapterMetadata(text->second, naming_ == Naming::kPeft));
  } else if (naming_ == Naming::kPeft &&
             std::ranges::none_of(entries_, [](const auto& entry) { return entry.second.alpha != nullptr; })) {
    ASSIGN_OR_RETURN(configs_, ParseAdapterHeader(file_.metadata()));
  }
  const bool has_magnitudes = std::ranges::any_of(file_.tensors(), [](const StoredTensor& tensor) {
    return tensor.name.find(".lora_magnitude_vector") != std::string::npos;
  });
  for (const auto& [component, config] : configs_) {
    if (config.dora && !has_magnitudes) {
      return Refuse(
          Fault::kMissingTensor, file_,
          absl::StrCat("the tensors lora_magnitude_vector are missing, and ", config.file, " has \"use_dora\""));
    }
  }
  return absl::OkStatus();
}

absl::Status Planner::SortTensors(std::vector<std::string>& embeddings) {
  const StoredTensor* unknown = nullptr;
  for (const StoredTensor& tensor : file_.tensors()) {
    const PlainName plain = PlainNameOf(tensor.name);
    for (const UnsupportedLeaf& leaf : kUnsupported) {
      if (!HasMark(plain.name, leaf.mark)) continue;
      return Refuse(Fault::kUnsupportedKind, file_,
                    absl::StrCat("the tensor ", tensor.name, " belongs to an adapter of the kind ",
                                 std::string(leaf.kind), "; only plain LoRA is supported"));
    }
    const auto* leaf = std::ranges::find_if(kLeaves, [&](const LeafName& l) { return plain.name.ends_with(l.suffix); });
    if (leaf != kLeaves.end()) {
      RETURN_IF_ERROR(AddFactor(tensor, *leaf, plain));
    } else if (IsEmbedding(tensor.name)) {
      embeddings.push_back(tensor.name);
    } else if (unknown == nullptr) {
      unknown = &tensor;
    }
  }
  if (entries_.empty()) {
    if (unknown == nullptr) unknown = &file_.tensors().front();
    return Refuse(Fault::kNotAnAdapter, file_,
                  absl::StrCat("the file is not an adapter: it holds the tensor ", unknown->name, " ",
                               ShapeText(unknown->shape), " and no tensor of a low-rank pair"));
  }
  if (unknown == nullptr) return absl::OkStatus();
  return Refuse(Fault::kUnknownTensor, file_,
                absl::StrCat("the tensor ", unknown->name, " is not a tensor of an adapter; remove it"));
}

absl::Status Planner::AddFactor(const StoredTensor& tensor, const LeafName& leaf, const PlainName& plain) {
  const std::string name = plain.name.substr(0, plain.name.size() - leaf.suffix.size());
  Entry& entry = entries_[name];
  const StoredTensor*& place = leaf.leaf == Leaf::kDown ? entry.down : leaf.leaf == Leaf::kUp ? entry.up : entry.alpha;
  if (place != nullptr) {
    const bool same = plain.adapter == PlainNameOf(place->name).adapter;
    return Refuse(Fault::kMixedFormats, file_,
                  absl::StrCat("the tensors ", place->name, " and ", tensor.name,
                               same ? " are the same under two names" : " are of two adapters; save one of them"));
  }
  place = &tensor;
  if (leaf.leaf == Leaf::kAlpha) return absl::OkStatus();
  if (named_ == nullptr) {
    named_ = &tensor;
    adapter_ = plain.adapter;
  }
  if (plain.adapter != adapter_) {
    return Refuse(
        Fault::kMixedFormats, file_,
        absl::StrCat("the tensors ", named_->name, " and ", tensor.name, " are of two adapters; save one of them"));
  }
  entry.other = absl::StrCat(name, std::string(leaf.other));
  constexpr std::string_view kWeight = "weight";
  if (!adapter_.empty()) entry.other.insert(entry.other.size() - kWeight.size(), adapter_ + ".");
  return absl::OkStatus();
}

absl::Status Planner::CheckNaming(bool has_config) {
  const std::string& first = entries_.begin()->first;
  for (const auto& [name, entry] : entries_) {
    if (NamingOf(name) == naming_) continue;
    return Refuse(Fault::kMixedFormats, file_,
                  absl::StrCat("the names are of two formats: ", first, " is as ", base::EnumName(naming_),
                               " writes it, ", name, " as ", base::EnumName(NamingOf(name)), "; save one of them"));
  }
  if (configs_.empty() || naming_ == Naming::kPeft || (!has_config && naming_ == Naming::kDiffusers)) {
    return absl::OkStatus();
  }
  return Refuse(Fault::kMixedFormats, file_,
                absl::StrCat(configs_.begin()->second.file, " belongs to tensors with names as ",
                             has_config ? "PEFT" : "diffusers", " writes them, and ", first, " is not such a name"));
}

// Returns an error for a file that was made for another family: its names say so, or it has no module in common with
// the model.
absl::Status Planner::CheckFamily() const {
  const std::string* unknown = nullptr;
  bool any_known = false;
  for (const auto& [name, entry] : entries_) {
    const std::string_view family = ForeignFamily(name, names_.model().originals);
    if (!family.empty()) {
      return Refuse(
          Fault::kWrongFamily, file_,
          absl::StrCat("the file was made for ", std::string(family), ", another family than this model: ", name));
    }
    const absl::StatusOr<Target> target = Resolve(name);
    if (absl::IsNotFound(target.status())) {
      if (unknown == nullptr) unknown = &name;
    } else {
      any_known = true;
    }
  }
  if (any_known || unknown == nullptr) return absl::OkStatus();
  return Refuse(Fault::kWrongFamily, file_,
                absl::StrCat("no module of the file is in this model; it was made for another family or size. The "
                             "first is ",
                             *unknown));
}

absl::StatusOr<Target> Planner::OneModule(const std::string& component, const ProductSpec* module,
                                          const std::string& name) const {
  if (!names_.model().components.contains(component)) {
    return Refuse(Fault::kUnsupportedComponent, file_,
                  absl::StrCat(name, " is of a component of this model that takes no adapters"));
  }
  if (module == nullptr) return absl::NotFoundError("");
  return Target{.named = {.component = component, .modules = {module}}, .module = ""};
}

// Files of some tools use diffusers' names in place of the authors'.
absl::StatusOr<Target> Planner::OriginalOr(const std::string& name, const ProductSpec* module) const {
  if (const NamedModules* original = names_.Original(name); original != nullptr) {
    return Target{.named = *original, .module = ""};
  }
  return OneModule("transformer", module, name);
}

absl::StatusOr<Target> Planner::ResolveKohya(const std::string& name) const {
  struct Prefix {
    std::string_view prefix;
    const char* component;
  };
  constexpr std::array kPrefixes{Prefix{"lora_te1_", "text_encoder"}, Prefix{"lora_te2_", "text_encoder_2"},
                                 Prefix{"lora_te3_", "text_encoder_3"}, Prefix{"lora_transformer_", "transformer"}};
  for (const Prefix& prefix : kPrefixes) {
    if (!name.starts_with(prefix.prefix)) continue;
    return OneModule(prefix.component, names_.Underscored(prefix.component, name.substr(prefix.prefix.size())), name);
  }
  for (const std::string_view prefix : {"lora_unet_", "lycoris_"}) {
    if (!name.starts_with(prefix)) continue;
    const std::string rest = name.substr(prefix.size());
    return OriginalOr(rest, names_.Underscored("transformer", rest));
  }
  return absl::NotFoundError("");
}

absl::StatusOr<Target> Planner::ResolveComfy(const std::string& name) const {
  struct Prefix {
    std::string_view prefix;
    const char* component;
  };
  constexpr std::array kPrefixes{Prefix{"text_encoders.clip_l.transformer.", "text_encoder"},
                                 Prefix{"text_encoders.clip_g.transformer.", "text_encoder_2"},
                                 Prefix{"text_encoders.", "text_encoder_3"}};
  for (const Prefix& prefix : kPrefixes) {
    if (!name.starts_with(prefix.prefix)) continue;
    return OneModule(prefix.component, names_.Module(prefix.component, name.substr(prefix.prefix.size())), name);
  }
  constexpr std::string_view kTransformer = "diffusion_model.";
  const std::string rest = name.substr(name.find(kTransformer) + kTransformer.size());
  return OriginalOr(rest, names_.Module("transformer", rest));
}

absl::StatusOr<Target> Planner::Resolve(const std::string& name) const {
  switch (naming_) {
    case Naming::kKohya:
      return ResolveKohya(name);
    case Naming::kComfy:
      return ResolveComfy(name);
    case Naming::kBare:
      return OriginalOr(name, names_.Module("transformer", name));
    case Naming::kPeft: {
      const std::string rest = name.substr(std::string_view("base_model.model.").size());
      const ProductSpec* module = names_.Module("transformer", rest);
      // Names that are also diffusers' are PEFT's, whose scale is in a configuration.
      if (configs_.empty() && names_.model().originals != OriginalNames::kQwenImage) {
        if (const NamedModules* original = names_.Original(rest); original != nullptr) {
          return Target{.named = *original, .module = ""};
        }
      }
      ASSIGN_OR_RETURN(Target target, OneModule("transformer", module, name));
      target.module = rest;
      return target;
    }
    case Naming::kDiffusers:
      break;
  }
  const std::string component = name.substr(0, name.find('.')), rest = name.substr(component.size() + 1);
  ASSIGN_OR_RETURN(Target target, OneModule(component, names_.Module(component, rest), name));
  target.module = rest;
  return target;
}

absl::Status Planner::UnknownModule(const std::string& name) const {
  std::vector<std::string> known;
  const std::string component = name.substr(0, name.find('.'));
  const auto products = names_.model().components.find(component);
  if (naming_ == Naming::kDiffusers && products != names_.model().components.end()) {
    for (const ProductSpec& product : products->second) known.push_back(absl::StrCat(component, ".", product.name));
  }
  const std::string nearest = base::NearestName(name, known);
  return Refuse(Fault::kUnknownModule, file_,
                absl::StrCat("the model has no matrix product ", name,
                             nearest.empty() ? "" : absl::StrCat("; the nearest is ", nearest)));
}

absl::Status Planner::CheckPair(const std::string& name, const Entry& entry) const {
  if (entry.down == nullptr && entry.up == nullptr) {
    return Refuse(Fault::kMissingPair, file_, absl::StrCat("the tensor ", name, ".alpha has no factors in the file"));
  }
  if (entry.down != nullptr && entry.up != nullptr) return absl::OkStatus();
  const StoredTensor& present = entry.down != nullptr ? *entry.down : *entry.up;
  return Refuse(Fault::kMissingPair, file_,
                absl::StrCat("the tensor ", entry.other, " is missing; ", present.name, " needs it"));
}

absl::Status Planner::CheckShapes(const std::string& name, const Entry& entry, const NamedModules& named) const {
  for (const StoredTensor* tensor : {entry.down, entry.up}) {
    if (!IsFloating(tensor->type)) {
      return Refuse(Fault::kUnsupportedKind, file_,
                    absl::StrCat("the tensor ", tensor->name, " is stored as ", StoredTypeName(tensor->type),
                                 "; factors must be F64, F32, F16 or BF16"));
    }
    if (tensor->shape.size() != 2) {
      return Refuse(
          Fault::kWrongShape, file_,
          absl::StrCat("the tensor ", tensor->name, " is ", ShapeText(tensor->shape), "; it must be a matrix"));
    }
  }
  int64_t out = 0;
  for (const ProductSpec* module : named.modules) out += module->out;
  const int64_t in = named.modules.front()->in, rank = entry.down->shape[0];
  if (entry.down->shape[1] != in) {
    return Refuse(Fault::kWrongShape, file_,
                  absl::StrCat("the tensor ", entry.down->name, " is ", ShapeText(entry.down->shape),
                               "; its module has ", in, " inputs, so it must be [rank, ", in, "]"));
  }
  if (entry.up->shape[0] != out) {
    return Refuse(Fault::kWrongShape, file_,
                  absl::StrCat("the tensor ", entry.up->name, " is ", ShapeText(entry.up->shape), "; its module has ",
                               out, " outputs, so it must be [", out, ", rank]"));
  }
  if (rank == 0 || entry.up->shape[1] != rank) {
    return Refuse(Fault::kWrongShape, file_,
                  absl::StrCat("the factors of ", name, " have ranks ", rank, " and ", entry.up->shape[1],
                               "; they must be equal and at least 1"));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Planner::AlphaIn(const StoredTensor& tensor) const {
  const bool is_scalar = tensor.shape.empty() || (tensor.shape.size() == 1 && tensor.shape[0] == 1);
  if (!is_scalar || !IsFloating(tensor.type)) {
    return Refuse(Fault::kBadAlpha, file_,
                  absl::StrCat("the tensor ", tensor.name, " is ", ShapeText(tensor.shape), " of ",
                               StoredTypeName(tensor.type), "; alpha must be one floating-point number"));
  }
  std::array<std::byte, 8> bytes{};
  RETURN_IF_ERROR(file_.Read(tensor, 0, std::span(bytes).first(static_cast<size_t>(tensor.bytes()))));
  // The file is little-endian, like the machine.
  const double alpha = FloatingNumber(tensor.type, std::bit_cast<uint64_t>(bytes));
  if (std::isfinite(alpha)) return alpha;
  return Refuse(Fault::kBadAlpha, file_,
                absl::StrCat("the tensor ", tensor.name, " is ", alpha, "; alpha must be a finite number"));
}

absl::StatusOr<double> Planner::ScaleOf(const std::string& name, const Entry& entry, const Target& target) const {
  const int64_t rank = entry.down->shape[0];
  const LoraConfig* config = target.module.empty() ? nullptr : ConfigOf(target.named.component);
  if (config == nullptr) {
    if (entry.alpha == nullptr && naming_ == Naming::kPeft && !target.module.empty()) {
      return Refuse(Fault::kMissingConfig, file_,
                    "the tensors are named as in a PEFT folder, and their scale is not given: the file's folder has no "
                    "adapter_config.json, and neither the header nor the tensors have alpha");
    }
    if (entry.alpha == nullptr) return 1.0;
    ASSIGN_OR_RETURN(const double alpha, AlphaIn(*entry.alpha));
    return alpha / static_cast<double>(rank);
  }
  if (entry.alpha != nullptr) {
    return Refuse(
        Fault::kMetadataDisagrees, file_,
        absl::StrCat("both ", config->file, " and the tensor ", entry.alpha->name, " give alpha; remove one of them"));
  }
  if (const int64_t stated = config->RankOf(target.module); stated != rank && stated != LoraConfig::kUnknownRank) {
    return Refuse(Fault::kMetadataDisagrees, file_,
                  absl::StrCat("the rank of ", name, " is ", rank, ", and by ", base::Quote(config->prefix + "r"),
                               " and \"rank_pattern\" of ", config->file, " it is ", stated));
  }
  const double alpha = config->AlphaOf(target.module), ranks = static_cast<double>(rank);
  return alpha / (config->rslora ? std::sqrt(ranks) : ranks);
}

absl::Status Planner::PlanEntry(const std::string& name, const Entry& entry, std::vector<PlannedFactors>& plan) {
  for (const StoredTensor* tensor : {entry.down, entry.up}) {
    if (tensor == nullptr || tensor->shape.size() <= 2) continue;
    return Refuse(Fault::kUnsupportedKind, file_,
                  absl::StrCat(name, " is the adapter of a convolution; only LoRA of matrix products is supported"));
  }
  absl::StatusOr<Target> target = Resolve(name);
  if (absl::IsNotFound(target.status())) return UnknownModule(name);
  if (!target.ok()) return target.status();
  RETURN_IF_ERROR(CheckPair(name, entry));
  const NamedModules& named = target->named;
  RETURN_IF_ERROR(CheckShapes(name, entry, named));
  ASSIGN_OR_RETURN(const double scale, ScaleOf(name, entry, *target));
  int64_t row = 0;
  for (const ProductSpec* module : named.modules) {
    if (!planned_.insert(module).second) {
      return Refuse(
          Fault::kMixedFormats, file_,
          absl::StrCat(name, " is for ", module->name, ", and so are other tensors of the file; save one of them"));
    }
    plan.push_back({.component = named.component,
                    .module = module,
                    .down = entry.down,
                    .up = entry.up,
                    .first_row = row,
                    .halves_exchanged = named.halves_exchanged,
                    .scale = scale});
    row += module->out;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AdapterPlan> PlanAdapter(const SafetensorsFile& file, const std::optional<std::string>& adapter_config,
                                        const AdapterNames& names) {
  return Planner(file, names).Plan(adapter_config);
}

}  // namespace tessera::models
