#include "models/adapters/plan/adapter_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/macros/planted.h"
#include "models/keymaps/key_map.h"
#include "models/keymaps/key_tables.h"

namespace tessera::models {
namespace {

// XLabs' processors: 1 is the image, 2 the text. That of a single block covers only queries, keys and values.
constexpr std::array kXlabsNames{
    KeyRow{"double_blocks.{}.processor.qkv_lora1",
           "transformer_blocks.{}.attn.to_q transformer_blocks.{}.attn.to_k transformer_blocks.{}.attn.to_v"},
    KeyRow{"double_blocks.{}.processor.qkv_lora2",
           "transformer_blocks.{}.attn.add_q_proj transformer_blocks.{}.attn.add_k_proj "
           "transformer_blocks.{}.attn.add_v_proj"},
    KeyRow{"double_blocks.{}.processor.proj_lora1", "transformer_blocks.{}.attn.to_out.0"},
    KeyRow{"double_blocks.{}.processor.proj_lora2", "transformer_blocks.{}.attn.to_add_out"},
    KeyRow{"single_blocks.{}.processor.qkv_lora",
           "single_transformer_blocks.{}.attn.to_q single_transformer_blocks.{}.attn.to_k "
           "single_transformer_blocks.{}.attn.to_v"},
    KeyRow{"single_blocks.{}.processor.proj_lora", "single_transformer_blocks.{}.proj_out"},
};

std::string Underscores(std::string_view name) {
  return absl::StrReplaceAll(absl::string_view(name.data(), name.size()), {{".", "_"}});
}

std::string Numbered(std::string_view name, int64_t block) {
  return absl::StrReplaceAll(absl::string_view(name.data(), name.size()), {{"{}", absl::StrCat(block)}});
}

// Returns 7 for "transformer_blocks.7.attn.to_q" and for "layers.7.attention.to_q"; -1 for a module outside all blocks.
int64_t BlockOf(std::string_view name) {
  for (const std::string_view blocks : {"blocks.", "layers.", "refiner."}) {
    const size_t at = name.find(blocks);
    if (at == std::string_view::npos) continue;
    int64_t block = -1;
    std::from_chars(name.data() + at + blocks.size(), name.data() + name.size(), block);
    return block;
  }
  return -1;
}

const ProductSpec* FindIn(
    const std::map<std::string, std::map<std::string, const ProductSpec*, std::less<>>, std::less<>>& tables,
    std::string_view component, std::string_view name) {
  const auto table = tables.find(component);
  if (table == tables.end()) return nullptr;
  const auto found = table->second.find(name);
  return found == table->second.end() ? nullptr : found->second;
}

}  // namespace

AdapterNames::AdapterNames(const AdaptableModel& model) : model_(model) {
  for (const auto& [component, products] : model.components) {
    for (const ProductSpec& product : products) {
      std::vector<std::string> names = product.aliases;
      names.push_back(product.name);
      for (const std::string& name : names) {
        dotted_[component][name] = &product;
        underscored_[component][Underscores(name)] = &product;
      }
    }
  }
  AddOriginals();
}

// Adds the name for one block if the model has its modules.
void AdapterNames::AddOriginal(const ExpandedKeyRow& row, int64_t block) {
  NamedModules named{.original = Numbered(row.file, block),
                     .component = "transformer",
                     .halves_exchanged = row.row.operation == KeyOperation::kSwap};
  for (const std::string& module : std::vector<std::string>(absl::StrSplit(Numbered(row.parameters, block), ' '))) {
    const ProductSpec* product = Module("transformer", module);
    if (product == nullptr) return;
    named.modules.push_back(product);
  }
  if (base::Planted("adapter_halves_not_exchanged")) named.halves_exchanged = false;
  std::string name = Underscores(named.original);
  originals_.emplace(std::move(name), std::move(named));  // a row for one block precedes that for all
}

void AdapterNames::AddOriginals() {
  int64_t blocks = 1;
  for (const auto& [name, product] : dotted_["transformer"]) blocks = std::max(blocks, BlockOf(name) + 1);
  // Rows of parameters that are not products of the model, such as norms, are left out by AddOriginal.
  const auto add = [&](std::span<const KeyRow> rows, const std::vector<KeyNumber>& numbers = {}) {
    for (const ExpandedKeyRow& row : ExpandKeyRows(rows, numbers)) {
      const bool numbered = row.file.find("{}") != std::string::npos;
      // Some blocks lack some modules, for example the blocks of SD3.5 without a second attention.
      for (int64_t block = 0; block < (numbered ? blocks : 1); ++block) AddOriginal(row, block);
    }
  };
  switch (model_.originals) {
    case OriginalNames::kNone:
      break;
    case OriginalNames::kFlux:
      add(kFluxKeys.rows);
      add(kXlabsNames);
      break;
    case OriginalNames::kFlux2:
      add(kFlux2Keys.rows);
      break;
    case OriginalNames::kSd3:
      add(kSd3Keys.rows, LastBlock(blocks));
      break;
    case OriginalNames::kZImage:
      add(kZImageKeys.rows, ZImageStacks());
      break;
    case OriginalNames::kQwenImage:
      // The authors published the model with diffusers' names, which all tools use.
      for (const auto& [name, product] : dotted_["transformer"]) {
        if (name != product->name) continue;  // an alias
        originals_[Underscores(name)] = {.original = name, .component = "transformer", .modules = {product}};
      }
      break;
  }
}

const ProductSpec* AdapterNames::Module(std::string_view component, std::string_view name) const {
  return FindIn(dotted_, component, name);
}

const ProductSpec* AdapterNames::Underscored(std::string_view component, const std::string& name) const {
  return FindIn(underscored_, component, name);
}

const NamedModules* AdapterNames::Original(const std::string& name) const {
  const auto found = originals_.find(Underscores(name));
  return found == originals_.end() ? nullptr : &found->second;
}

std::string_view ForeignFamily(std::string_view name, OriginalNames originals) {
  const absl::string_view text(name.data(), name.size());
  const auto has = [&](absl::string_view mark) { return absl::StrContains(text, mark); };
  if (absl::StartsWith(text, "unet.")) return "Stable Diffusion 1, 2 or XL";
  for (const char* mark : {"input_blocks", "output_blocks", "middle_block", "down_blocks", "up_blocks", "mid_block"}) {
    if (has(mark)) return "Stable Diffusion 1, 2 or XL";
  }
  struct Mark {
    OriginalNames originals;
    absl::string_view mark, family;
  };
  // The marks of a family that no other family's names contain.
  constexpr std::array kMarks{Mark{OriginalNames::kSd3, "joint_blocks", "Stable Diffusion 3"},
                              Mark{OriginalNames::kZImage, "noise_refiner", "Z-Image"},
                              Mark{OriginalNames::kZImage, "context_refiner", "Z-Image"},
                              Mark{OriginalNames::kFlux2, "to_qkv_mlp_proj", "FLUX.2"},
                              Mark{OriginalNames::kFlux2, "stream_modulation", "FLUX.2"},
                              Mark{OriginalNames::kQwenImage, "img_mlp.net", "Qwen-Image"},
                              Mark{OriginalNames::kQwenImage, "img_mlp_net", "Qwen-Image"},
                              Mark{OriginalNames::kFlux, "proj_mlp", "FLUX.1"},
                              Mark{OriginalNames::kFlux, "img_mod.lin", "FLUX.1"},
                              Mark{OriginalNames::kFlux, "img_mod_lin", "FLUX.1"}};
  for (const Mark& mark : kMarks) {
    if (originals != mark.originals && has(mark.mark)) return {mark.family.data(), mark.family.size()};
  }
  if (originals != OriginalNames::kFlux && originals != OriginalNames::kFlux2) {
    for (const char* mark : {"double_blocks", "single_blocks", "single_transformer_blocks"}) {
      if (has(mark)) return "FLUX.1 or FLUX.2";
    }
  }
  return {};
}

}  // namespace tessera::models
