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

namespace tessera::models {
namespace {

// {} is the block's index. The modules' outputs are concatenated.
struct OriginalName {
  std::string_view original, modules;
};

// The attention of the double blocks of FLUX.1 and FLUX.2.
constexpr std::array kDoubleAttentionNames{
    OriginalName{"double_blocks.{}.img_attn.qkv",
                 "transformer_blocks.{}.attn.to_q transformer_blocks.{}.attn.to_k transformer_blocks.{}.attn.to_v"},
    OriginalName{"double_blocks.{}.txt_attn.qkv",
                 "transformer_blocks.{}.attn.add_q_proj transformer_blocks.{}.attn.add_k_proj "
                 "transformer_blocks.{}.attn.add_v_proj"},
    OriginalName{"double_blocks.{}.img_attn.proj", "transformer_blocks.{}.attn.to_out.0"},
    OriginalName{"double_blocks.{}.txt_attn.proj", "transformer_blocks.{}.attn.to_add_out"},
};

// Source: the modules of Black Forest Labs' flux (model.py), matched to diffusers' FluxTransformer2DModel.
constexpr std::array kFluxNames{
    OriginalName{"double_blocks.{}.img_mlp.0", "transformer_blocks.{}.ff.net.0.proj"},
    OriginalName{"double_blocks.{}.img_mlp.2", "transformer_blocks.{}.ff.net.2"},
    OriginalName{"double_blocks.{}.txt_mlp.0", "transformer_blocks.{}.ff_context.net.0.proj"},
    OriginalName{"double_blocks.{}.txt_mlp.2", "transformer_blocks.{}.ff_context.net.2"},
    OriginalName{"double_blocks.{}.img_mod.lin", "transformer_blocks.{}.norm1.linear"},
    OriginalName{"double_blocks.{}.txt_mod.lin", "transformer_blocks.{}.norm1_context.linear"},
    OriginalName{"single_blocks.{}.linear1",
                 "single_transformer_blocks.{}.attn.to_q single_transformer_blocks.{}.attn.to_k "
                 "single_transformer_blocks.{}.attn.to_v single_transformer_blocks.{}.proj_mlp"},
    OriginalName{"single_blocks.{}.linear2", "single_transformer_blocks.{}.proj_out"},
    OriginalName{"single_blocks.{}.modulation.lin", "single_transformer_blocks.{}.norm.linear"},
    OriginalName{"img_in", "x_embedder"},
    OriginalName{"txt_in", "context_embedder"},
    OriginalName{"time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"},
    OriginalName{"time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"},
    OriginalName{"vector_in.in_layer", "time_text_embed.text_embedder.linear_1"},
    OriginalName{"vector_in.out_layer", "time_text_embed.text_embedder.linear_2"},
    OriginalName{"guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"},
    OriginalName{"guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"},
    OriginalName{"final_layer.linear", "proj_out"},
    OriginalName{"final_layer.adaLN_modulation.1", "norm_out.linear"},
    // XLabs' processors: 1 is the image, 2 the text. That of a single block covers only queries, keys and values.
    OriginalName{"double_blocks.{}.processor.qkv_lora1",
                 "transformer_blocks.{}.attn.to_q transformer_blocks.{}.attn.to_k transformer_blocks.{}.attn.to_v"},
    OriginalName{"double_blocks.{}.processor.qkv_lora2",
                 "transformer_blocks.{}.attn.add_q_proj transformer_blocks.{}.attn.add_k_proj "
                 "transformer_blocks.{}.attn.add_v_proj"},
    OriginalName{"double_blocks.{}.processor.proj_lora1", "transformer_blocks.{}.attn.to_out.0"},
    OriginalName{"double_blocks.{}.processor.proj_lora2", "transformer_blocks.{}.attn.to_add_out"},
    OriginalName{"single_blocks.{}.processor.qkv_lora",
                 "single_transformer_blocks.{}.attn.to_q single_transformer_blocks.{}.attn.to_k "
                 "single_transformer_blocks.{}.attn.to_v"},
    OriginalName{"single_blocks.{}.processor.proj_lora", "single_transformer_blocks.{}.proj_out"},
};

// Source: the modules of Stability's sd3.5 (mmditx.py), matched to diffusers' SD3Transformer2DModel.
constexpr std::array kSd3Names{
    OriginalName{"joint_blocks.{}.x_block.attn.qkv",
                 "transformer_blocks.{}.attn.to_q transformer_blocks.{}.attn.to_k transformer_blocks.{}.attn.to_v"},
    OriginalName{"joint_blocks.{}.x_block.attn2.qkv",
                 "transformer_blocks.{}.attn2.to_q transformer_blocks.{}.attn2.to_k transformer_blocks.{}.attn2.to_v"},
    OriginalName{"joint_blocks.{}.context_block.attn.qkv",
                 "transformer_blocks.{}.attn.add_q_proj transformer_blocks.{}.attn.add_k_proj "
                 "transformer_blocks.{}.attn.add_v_proj"},
    OriginalName{"joint_blocks.{}.x_block.attn.proj", "transformer_blocks.{}.attn.to_out.0"},
    OriginalName{"joint_blocks.{}.x_block.attn2.proj", "transformer_blocks.{}.attn2.to_out.0"},
    OriginalName{"joint_blocks.{}.context_block.attn.proj", "transformer_blocks.{}.attn.to_add_out"},
    OriginalName{"joint_blocks.{}.x_block.mlp.fc1", "transformer_blocks.{}.ff.net.0.proj"},
    OriginalName{"joint_blocks.{}.x_block.mlp.fc2", "transformer_blocks.{}.ff.net.2"},
    OriginalName{"joint_blocks.{}.context_block.mlp.fc1", "transformer_blocks.{}.ff_context.net.0.proj"},
    OriginalName{"joint_blocks.{}.context_block.mlp.fc2", "transformer_blocks.{}.ff_context.net.2"},
    OriginalName{"joint_blocks.{}.x_block.adaLN_modulation.1", "transformer_blocks.{}.norm1.linear"},
    OriginalName{"joint_blocks.{}.context_block.adaLN_modulation.1", "transformer_blocks.{}.norm1_context.linear"},
    OriginalName{"context_embedder", "context_embedder"},
    OriginalName{"t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"},
    OriginalName{"t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"},
    OriginalName{"y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"},
    OriginalName{"y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"},
    OriginalName{"final_layer.linear", "proj_out"},
    OriginalName{"final_layer.adaLN_modulation.1", "norm_out.linear"},
};

// Source: the modules of Tongyi-MAI's Z-Image as in its single files, matched to diffusers' ZImageTransformer2DModel.
constexpr std::array kZImageNames{
    OriginalName{"layers.{}.attention.qkv",
                 "layers.{}.attention.to_q layers.{}.attention.to_k layers.{}.attention.to_v"},
    OriginalName{"layers.{}.attention.out", "layers.{}.attention.to_out.0"},
    OriginalName{"layers.{}.feed_forward.w1", "layers.{}.feed_forward.w1"},
    OriginalName{"layers.{}.feed_forward.w2", "layers.{}.feed_forward.w2"},
    OriginalName{"layers.{}.feed_forward.w3", "layers.{}.feed_forward.w3"},
    OriginalName{"layers.{}.adaLN_modulation.0", "layers.{}.adaLN_modulation.0"},
    OriginalName{"noise_refiner.{}.attention.qkv",
                 "noise_refiner.{}.attention.to_q noise_refiner.{}.attention.to_k noise_refiner.{}.attention.to_v"},
    OriginalName{"noise_refiner.{}.attention.out", "noise_refiner.{}.attention.to_out.0"},
    OriginalName{"noise_refiner.{}.feed_forward.w1", "noise_refiner.{}.feed_forward.w1"},
    OriginalName{"noise_refiner.{}.feed_forward.w2", "noise_refiner.{}.feed_forward.w2"},
    OriginalName{"noise_refiner.{}.feed_forward.w3", "noise_refiner.{}.feed_forward.w3"},
    OriginalName{"noise_refiner.{}.adaLN_modulation.0", "noise_refiner.{}.adaLN_modulation.0"},
    OriginalName{
        "context_refiner.{}.attention.qkv",
        "context_refiner.{}.attention.to_q context_refiner.{}.attention.to_k context_refiner.{}.attention.to_v"},
    OriginalName{"context_refiner.{}.attention.out", "context_refiner.{}.attention.to_out.0"},
    OriginalName{"context_refiner.{}.feed_forward.w1", "context_refiner.{}.feed_forward.w1"},
    OriginalName{"context_refiner.{}.feed_forward.w2", "context_refiner.{}.feed_forward.w2"},
    OriginalName{"context_refiner.{}.feed_forward.w3", "context_refiner.{}.feed_forward.w3"},
    OriginalName{"x_embedder", "all_x_embedder.2-1"},
    OriginalName{"cap_embedder.1", "cap_embedder.1"},
    OriginalName{"t_embedder.mlp.0", "t_embedder.mlp.0"},
    OriginalName{"t_embedder.mlp.2", "t_embedder.mlp.2"},
    OriginalName{"final_layer.linear", "all_final_layer.2-1.linear"},
    OriginalName{"final_layer.adaLN_modulation.1", "all_final_layer.2-1.adaLN_modulation.1"},
};

// Source: the modules of Black Forest Labs' flux2 (model.py), matched to diffusers' Flux2Transformer2DModel. The
// modulations are of all blocks, and the first product of a single block is one module in both.
constexpr std::array kFlux2Names{
    OriginalName{"double_blocks.{}.img_mlp.0", "transformer_blocks.{}.ff.linear_in"},
    OriginalName{"double_blocks.{}.img_mlp.2", "transformer_blocks.{}.ff.linear_out"},
    OriginalName{"double_blocks.{}.txt_mlp.0", "transformer_blocks.{}.ff_context.linear_in"},
    OriginalName{"double_blocks.{}.txt_mlp.2", "transformer_blocks.{}.ff_context.linear_out"},
    OriginalName{"single_blocks.{}.linear1", "single_transformer_blocks.{}.attn.to_qkv_mlp_proj"},
    OriginalName{"single_blocks.{}.linear2", "single_transformer_blocks.{}.attn.to_out"},
    OriginalName{"double_stream_modulation_img.lin", "double_stream_modulation_img.linear"},
    OriginalName{"double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear"},
    OriginalName{"single_stream_modulation.lin", "single_stream_modulation.linear"},
    OriginalName{"img_in", "x_embedder"},
    OriginalName{"txt_in", "context_embedder"},
    OriginalName{"time_in.in_layer", "time_guidance_embed.timestep_embedder.linear_1"},
    OriginalName{"time_in.out_layer", "time_guidance_embed.timestep_embedder.linear_2"},
    OriginalName{"guidance_in.in_layer", "time_guidance_embed.guidance_embedder.linear_1"},
    OriginalName{"guidance_in.out_layer", "time_guidance_embed.guidance_embedder.linear_2"},
    OriginalName{"final_layer.linear", "proj_out"},
    OriginalName{"final_layer.adaLN_modulation.1", "norm_out.linear"},
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
void AdapterNames::AddOriginal(std::string_view original, std::string_view modules, int64_t block) {
  NamedModules named{.original = Numbered(original, block), .component = "transformer"};
  for (const std::string& module : std::vector<std::string>(absl::StrSplit(Numbered(modules, block), ' '))) {
    const ProductSpec* product = Module("transformer", module);
    if (product == nullptr) return;
    named.modules.push_back(product);
  }
  // diffusers' continuous norm reads (scale, shift). It is used for the output and for SD3's last context block, whose
  // norm has two vectors while the others have six.
  const ProductSpec& first = *named.modules.front();
  named.halves_exchanged =
      first.name == "norm_out.linear" || (first.name.ends_with(".norm1_context.linear") && first.out == 2 * first.in);
  if (base::Planted("adapter_halves_not_exchanged")) named.halves_exchanged = false;
  originals_[Underscores(named.original)] = std::move(named);
}

void AdapterNames::AddOriginals() {
  int64_t blocks = 0;
  for (const auto& [name, product] : dotted_["transformer"]) blocks = std::max(blocks, BlockOf(name) + 1);
  const auto add = [&](std::span<const OriginalName> names) {
    for (const OriginalName& name : names) {
      const bool numbered = name.original.find("{}") != std::string_view::npos;
      // Some blocks lack some modules, for example the blocks of SD3.5 without a second attention.
      for (int64_t block = 0; block < (numbered ? blocks : 1); ++block) AddOriginal(name.original, name.modules, block);
    }
  };
  const bool is_flux = model_.originals == OriginalNames::kFlux, is_flux2 = model_.originals == OriginalNames::kFlux2;
  if (is_flux || is_flux2) add(kDoubleAttentionNames);
  if (is_flux) add(kFluxNames);
  if (is_flux2) add(kFlux2Names);
  if (model_.originals == OriginalNames::kSd3) add(kSd3Names);
  if (model_.originals == OriginalNames::kZImage) add(kZImageNames);
  if (model_.originals == OriginalNames::kQwenImage) {
    // The authors published the model with diffusers' names, which all tools use.
    for (const auto& [name, product] : dotted_["transformer"]) {
      if (name != product->name) continue;  // an alias
      originals_[Underscores(name)] = {.original = name, .component = "transformer", .modules = {product}};
    }
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
