#include "tests/golden_runner/model_under_test.h"

#include "base/macros/status_macros.h"
#include "models/dit/dit_transformer.h"
#include "models/flux/flux_transformer.h"
#include "models/flux2/flux2_transformer.h"
#include "models/hunyuandit/hunyuandit_transformer.h"
#include "models/layers/embedding.h"
#include "models/pixart/pixart_transformer.h"
#include "models/precision.h"
#include "models/qwen_image/qwen_image_transformer.h"
#include "models/sd3/sd3_transformer.h"
#include "models/z_image/z_image_transformer.h"
#include "tests/golden_runner/golden_component.h"

namespace tessera::golden {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Returns patches, grid, span and timestep of an input with latents [b, c, h, w].
models::TransformerInput LatentInput(const Tensors& in, int64_t patch, at::ScalarType dtype) {
  const at::Tensor& latents = in.at("in.hidden_states");
  const models::TokenGrid grid{.height = latents.size(2) / patch, .width = latents.size(3) / patch};
  models::TransformerInput input{.patches = models::Patchify(latents.to(dtype), patch),
                                 .grid = grid,
                                 .span = {.begin = 0, .end = grid.count()},
                                 .timestep = in.at("in.timestep").to(at::kDouble)};
  if (const auto text = in.find("in.encoder_hidden_states"); text != in.end()) input.text = text->second.to(dtype);
  return input;
}

// Returns an input of two rows of 3 x 4 tokens.
models::TransformerInput MadeUpInput(int64_t features, int64_t text_width, at::ScalarType dtype, at::Device device) {
  const at::TensorOptions options = at::TensorOptions(dtype).device(device);
  models::TransformerInput input{.patches = Wave(at::empty({2, 12, features}, options), 1.3).to(dtype),
                                 .grid = {.height = 3, .width = 4},
                                 .span = {.begin = 0, .end = 12},
                                 .timestep = at::tensor({999.0, 13.0}, at::kDouble).to(device)};
  if (text_width > 0) input.text = Wave(at::empty({2, 5, text_width}, options), 0.7).to(dtype);
  return input;
}

template <class Config, class Model>
absl::Status Open(const std::string& folder, const std::string& config_path,
                  absl::StatusOr<Config> (*parse)(base::ConfigReader&), Config& config, ModelUnderTest& under_test) {
  const auto make = [](const Config& c, models::ParamTable& t) { return std::make_unique<Model>(c, t); };
  auto model = OpenComponent(folder, config_path, parse, make, config, under_test.table);
  if (!model.ok()) return model.status();
  under_test.model = *std::move(model);
  under_test.heads = config.heads;
  return absl::OkStatus();
}

auto Unpatchified(int64_t patch) {
  return [patch](const at::Tensor& head, models::TokenGrid grid) { return models::Unpatchify(head, grid, patch); };
}

// Returns cosines or sines in the reference's format, repeated for both channels of a pair.
at::Tensor Pairs(const at::Tensor& table) { return table.repeat_interleave(2, 1); }

absl::Status OpenPixArt(const std::string& folder, const std::string& config_path, ModelUnderTest& m) {
  models::PixArtConfig c;
  absl::Status opened =
      Open<models::PixArtConfig, models::PixArtTransformer>(folder, config_path, models::ParsePixArtConfig, c, m);
  if (!opened.ok()) return opened;
  const at::ScalarType dtype = m.dtype;
  m.input = [c, dtype](const Tensors& in) {
    models::TransformerInput input = LatentInput(in, c.patch, dtype);
    input.text_mask = in.at("in.encoder_attention_mask");
    if (in.contains("in.added_cond_kwargs.resolution")) {
      input.extras = {
          at::cat({in.at("in.added_cond_kwargs.resolution"), in.at("in.added_cond_kwargs.aspect_ratio")}, 1).to(dtype)};
    }
    return input;
  };
  const at::Device device = m.device;
  m.made_up_input = [c, dtype, device] {
    models::TransformerInput input = MadeUpInput(c.in_channels * c.patch * c.patch, c.caption_channels, dtype, device);
    if (c.additional_conditions) {
      input.extras = {at::tensor({48.0, 64.0, 0.75}, at::kDouble).repeat({2, 1}).to(device, dtype)};
    }
    return input;
  };
  m.output = Unpatchified(c.patch);
  m.embedding_name = "embedded_timestep";
  m.extras = [dtype](const models::TransformerInput& input, const Tensors&, const models::ForwardPass& pass) {
    return Named{{"time_proj", models::Sinusoid(input.timestep.to(dtype), dtype)}, {"adaln", pass.step().shared}};
  };
  return absl::OkStatus();
}

absl::Status OpenSd3(const std::string& folder, const std::string& config_path, ModelUnderTest& m) {
  models::Sd3Config c;
  absl::Status opened =
      Open<models::Sd3Config, models::Sd3Transformer>(folder, config_path, models::ParseSd3Config, c, m);
  if (!opened.ok()) return opened;
  const at::ScalarType dtype = m.dtype;
  m.input = [c, dtype](const Tensors& in) {
    models::TransformerInput input = LatentInput(in, c.patch, dtype);
    input.extras = {in.at("in.pooled_projections").to(dtype)};
    return input;
  };
  m.output = Unpatchified(c.patch);
  m.extras = [dtype](const models::TransformerInput& input, const Tensors&, const models::ForwardPass&) {
    return Named{{"time_proj", models::Sinusoid(input.timestep.to(dtype), dtype)}};
  };
  return absl::OkStatus();
}

absl::Status OpenFlux(const std::string& folder, const std::string& config_path, ModelUnderTest& m) {
  models::FluxConfig c;
  absl::Status opened =
      Open<models::FluxConfig, models::FluxTransformer>(folder, config_path, models::ParseFluxConfig, c, m);
  if (!opened.ok()) return opened;
  const at::ScalarType dtype = m.dtype;
  m.input = [c, dtype](const Tensors& in) {
    const at::Tensor last = std::get<0>(in.at("in.img_ids").max(0)).to(at::kLong).cpu();  // (0, row, column)
    const models::TokenGrid grid{.height = last[1].item<int64_t>() + 1, .width = last[2].item<int64_t>() + 1};
    models::TransformerInput input{.patches = in.at("in.hidden_states").to(dtype),
                                   .grid = grid,
                                   .span = {.begin = 0, .end = grid.count()},
                                   .timestep = in.at("in.timestep").to(at::kDouble) * 1000,
                                   .text = in.at("in.encoder_hidden_states").to(dtype),
                                   .extras = {in.at("in.pooled_projections").to(dtype)}};
    if (c.guidance) input.extras.push_back(in.at("in.guidance").to(models::AccumulationType(dtype)));
    return input;
  };
  m.output = [](const at::Tensor& head, models::TokenGrid) { return head; };
  m.block_name = [c](int block) {
    const int single = block - static_cast<int>(c.double_blocks);
    return single < 0 ? "block." + std::to_string(block) : "single." + std::to_string(single);
  };
  m.extras = [c, dtype](const models::TransformerInput& input, const Tensors&, const models::ForwardPass& pass) {
    Named named{{"time_proj", models::Sinusoid((input.timestep / 1000).to(dtype) * 1000, dtype)},
                {"rope.cos", Pairs(pass.ConditioningOf(0).cos)},
                {"rope.sin", Pairs(pass.ConditioningOf(0).sin)}};
    if (c.guidance) named.emplace_back("time_proj.1", models::Sinusoid(input.extras[1] * 1000, dtype));
    return named;
  };
  return absl::OkStatus();
}

// Sets the grid of the image and of reference pictures, and the patches of each, of tokens [b, n, features] of one
// picture after another.
void SetPictures(const at::Tensor& tokens, const std::vector<models::TokenGrid>& grids,
                 models::TransformerInput& input) {
  int64_t first = 0;
  for (const models::TokenGrid& grid : grids) {
    const at::Tensor patches = tokens.narrow(1, first, grid.count());
    if (first == 0) {
      input.patches = patches;
      input.grid = grid;
      input.span = {.begin = 0, .end = grid.count()};
    } else {
      input.references.push_back(patches);
      input.reference_grids.push_back(grid);
    }
    first += grid.count();
  }
}

// Returns the grids of pictures whose tokens have these ids [n, 4]: (10 · picture, row, column, 0).
std::vector<models::TokenGrid> GridsOf(const at::Tensor& ids) {
  std::vector<models::TokenGrid> grids;
  for (int64_t first = 0; first < ids.size(0); first += grids.back().count()) {
    const at::Tensor own = ids.index({ids.select(1, 0) == 10 * static_cast<int64_t>(grids.size())});
    const at::Tensor last = std::get<0>(own.max(0));
    grids.push_back({.height = last[1].item<int64_t>() + 1, .width = last[2].item<int64_t>() + 1});
  }
  return grids;
}

// Returns the states of a model with joint text: image and text apart, or both as one sequence. The reference has the
// tokens of reference pictures after those of the image.
Named JointStates(const std::string& name, const models::BlockState& state, int64_t references, bool joined) {
  const std::vector<at::Tensor> text = state.text.split_with_sizes({state.text.size(1) - references, references}, 1);
  const at::Tensor image = references == 0 ? state.image : at::cat({state.image, text[1]}, 1);
  if (name.empty()) return {{"patch_embed", image}, {"context", text[0]}};
  if (joined) return {{name + ".hidden", at::cat({text[0], image}, 1)}};
  return {{name + ".hidden", image}, {name + ".context", text[0]}};
}

absl::StatusOr<models::Flux2Config> ParseIsolatedFlux2(base::ConfigReader& reader) {
  ASSIGN_OR_RETURN(models::Flux2Config config, models::ParseFlux2Config(reader));
  config.isolates_references = true;
  return config;
}

template <absl::StatusOr<models::Flux2Config> (*kParse)(base::ConfigReader&)>
absl::Status OpenFlux2(const std::string& folder, const std::string& config_path, ModelUnderTest& m) {
  models::Flux2Config c;
  absl::Status opened = Open<models::Flux2Config, models::Flux2Transformer>(folder, config_path, kParse, c, m);
  if (!opened.ok()) return opened;
  const at::ScalarType dtype = m.dtype;
  const at::Device device = m.device;
  m.input = [c, dtype](const Tensors& in) {
    models::TransformerInput input{.timestep = in.at("in.timestep").to(at::kDouble) * 1000,
                                   .text = in.at("in.encoder_hidden_states").to(dtype)};
    SetPictures(in.at("in.hidden_states").to(dtype), GridsOf(in.at("in.img_ids")[0].to(at::kLong).cpu()), input);
    if (c.guidance) input.extras.push_back(in.at("in.guidance").to(models::AccumulationType(dtype)));
    return input;
  };
  m.made_up_input = [c, dtype, device] {
    models::TransformerInput input = MadeUpInput(c.channels, c.text_width, dtype, device);
    if (c.guidance) input.extras = {at::tensor({3.5, 1.0}, at::kDouble).to(device, models::AccumulationType(dtype))};
    return input;
  };
  m.output = [](const at::Tensor& head, models::TokenGrid) { return head; };
  m.block_name = [c](int block) {
    const int single = block - static_cast<int>(c.double_blocks);
    return single < 0 ? "block." + std::to_string(block) : "single." + std::to_string(single);
  };
  const auto name = m.block_name;
  m.states = [c, name](int block, const models::BlockState& state, int64_t references) {
    return JointStates(block < 0 ? "" : name(block), state, references, /*joined=*/block >= c.double_blocks);
  };
  m.extras = [c, dtype](const models::TransformerInput& input, const Tensors&, const models::ForwardPass& pass) {
    const std::vector<at::Tensor> shared =
        pass.step().shared.split_with_sizes({6 * c.width(), 6 * c.width(), 3 * c.width(), 2 * c.width()}, -1);
    const models::Conditioning conditioning = pass.ConditioningOf(0);
    const int64_t texts = input.text.size(1), images = input.grid.count();
    const auto rows = [](const at::Tensor& table, int64_t first, int64_t count) {
      return Pairs(table.narrow(0, first, count));
    };
    const int64_t first = conditioning.cos.size(0) - images;
    Named named{{"time_proj", models::Sinusoid((input.timestep / 1000).to(dtype) * 1000, dtype, c.sinusoid_channels)},
                {"modulation.image", shared[0]},
                {"modulation.text", shared[1]},
                {"modulation.single", shared[2]},
                {"rope.text.cos", rows(conditioning.cos, 0, texts)},
                {"rope.text.sin", rows(conditioning.sin, 0, texts)}};
    if (input.references.empty()) {
      named.emplace_back("rope.image.cos", rows(conditioning.cos, first, images));
      named.emplace_back("rope.image.sin", rows(conditioning.sin, first, images));
    }
    if (c.guidance) {
      named.emplace_back("time_proj.1", models::Sinusoid(input.extras[0] * 1000, dtype, c.sinusoid_channels));
    }
    return named;
  };
  return absl::OkStatus();
}

absl::Status OpenHunyuan(const std::string& folder, const std::string& config_path, ModelUnderTest& m) {
  models::HunyuanConfig c;
  absl::Status opened =
      Open<models::HunyuanConfig, models::HunyuanTransformer>(folder, config_path, models::ParseHunyuanConfig, c, m);
  if (!opened.ok()) return opened;
  const at::ScalarType dtype = m.dtype;
  m.input = [c, dtype](const Tensors& in) {
    models::TransformerInput input = LatentInput(in, c.patch, dtype);
    input.extras = {in.at("in.encoder_hidden_states_t5").to(dtype), in.at("in.text_embedding_mask"),
                    in.at("in.text_embedding_mask_t5")};
    if (c.style_and_size) input.extras.push_back(in.at("in.image_meta_size").to(dtype));
    return input;
  };
  m.output = Unpatchified(c.patch);
  const auto* model = static_cast<const models::HunyuanTransformer*>(m.model.get());
  m.extras = [model, dtype](const models::TransformerInput& input, const Tensors&, const models::ForwardPass& pass) {
    OneRank rank;
    return Named{{"time_proj", models::Sinusoid(input.timestep.to(dtype), dtype)},
                 {"pooled_t5", model->PoolText(input.extras[models::HunyuanTransformer::kT5], rank.context)},
                 {"in.image_rotary_emb.0", Pairs(pass.ConditioningOf(0).cos)},
                 {"in.image_rotary_emb.1", Pairs(pass.ConditioningOf(0).sin)}};
  };
  return absl::OkStatus();
}

absl::Status OpenDit(const std::string& folder, const std::string& config_path, ModelUnderTest& m) {
  models::DitConfig c;
  absl::Status opened =
      Open<models::DitConfig, models::DitTransformer>(folder, config_path, models::ParseDitConfig, c, m);
  if (!opened.ok()) return opened;
  const at::ScalarType dtype = m.dtype;
  m.input = [c, dtype](const Tensors& in) {
    models::TransformerInput input = LatentInput(in, c.patch, dtype);
    input.extras = {in.at("in.class_labels")};
    return input;
  };
  const at::Device device = m.device;
  m.made_up_input = [c, dtype, device] {
    models::TransformerInput input = MadeUpInput(c.in_channels * c.patch * c.patch, /*text_width=*/0, dtype, device);
    input.extras = {at::tensor({int64_t{0}, c.classes}, at::kLong).to(device)};
    return input;
  };
  m.output = Unpatchified(c.patch);
  const auto* model = static_cast<const models::DitTransformer*>(m.model.get());
  m.extras = [model](const models::TransformerInput&, const Tensors&, const models::ForwardPass& pass) {
    OneRank rank;
    return Named{{"block.0.emb", model->BlockEmbedding(0, pass.step(), rank.context)}};
  };
  return absl::OkStatus();
}

// Z-Image's inputs are one latent [c, 1, h, w] and one text [t, width] for each row.
absl::Status OpenZImage(const std::string& folder, const std::string& config_path, ModelUnderTest& m) {
  models::ZImageConfig c;
  absl::Status opened =
      Open<models::ZImageConfig, models::ZImageTransformer>(folder, config_path, models::ParseZImageConfig, c, m);
  if (!opened.ok()) return opened;
  const at::ScalarType dtype = m.dtype;
  const at::Device device = m.device;
  const auto padded = [](int64_t tokens) {
    constexpr int64_t kStep = models::ZImageConfig::kTokensPadded;
    return (tokens + kStep - 1) / kStep * kStep;
  };
  m.rows = [](const Tensors& in) {
    std::vector<Tensors> rows;
    for (int64_t row = 0; row < in.at("in.t").size(0); ++row) {
      const auto of_row = [&](const char* name) { return in.at(name + std::to_string(row)); };
      rows.push_back({{"in.x", of_row("in.x.")},
                      {"in.cap_feats", of_row("in.cap_feats.")},
                      {"in.t", in.at("in.t").narrow(0, row, 1)}});
    }
    return rows;
  };
  const auto input_of = [dtype, padded](const at::Tensor& latents, const at::Tensor& text, const at::Tensor& timestep) {
    models::TokenGrid grid{.height = latents.size(2) / 2, .width = latents.size(3) / 2};
    grid.padding = padded(grid.image()) - grid.image();
    const at::Tensor patches = models::Patchify(latents.to(dtype), 2).unflatten(2, {-1, 4}).transpose(2, 3).flatten(2);
    const int64_t tokens = text.size(1);
    return models::TransformerInput{
        .patches = models::Padded(patches, grid.count()),
        .grid = grid,
        .span = {.begin = 0, .end = grid.count()},
        .timestep = timestep,
        .text = at::constant_pad_nd(text.to(dtype), {0, 0, 0, padded(tokens) - tokens}),
        .extras = {at::full({latents.size(0)}, static_cast<double>(tokens), timestep.options())}};
  };
  m.input = [input_of](const Tensors& in) {
    return input_of(in.at("in.x").transpose(0, 1), in.at("in.cap_feats").unsqueeze(0),
                    1000 - 1000 * in.at("in.t").to(at::kDouble));
  };
  m.made_up_input = [c, input_of, dtype, device] {
    const at::TensorOptions options = at::TensorOptions(dtype).device(device);
    return input_of(Wave(at::empty({2, c.channels, 6, 8}, options), 1.3),
                    Wave(at::empty({2, 5, c.text_width}, options), 0.7),
                    at::tensor({999.0, 13.0}, at::kDouble).to(device));
  };
  m.output = [](const at::Tensor& head, models::TokenGrid grid) {
    return models::Unpatchify(head.narrow(1, 0, grid.image()), grid, 2);
  };
  const int refiners = static_cast<int>(c.refiners);
  m.states = [refiners](int block, const models::BlockState& state, int64_t) {
    if (block < 0) return Named{};
    if (block < refiners) {
      return Named{{"noise_refiner." + std::to_string(block) + ".hidden", state.image},
                   {"context_refiner." + std::to_string(refiners - 1) + ".context", state.text}};
    }
    return Named{{"block." + std::to_string(block - refiners) + ".hidden", at::cat({state.image, state.text}, 1)}};
  };
  m.extras = [c](const models::TransformerInput& input, const Tensors&, const models::ForwardPass&) {
    return Named{{"time_proj", models::Sinusoid((1000 - input.timestep) / 1000 * c.timestep_scale,
                                                models::AccumulationType(input.patches.scalar_type()))}};
  };
  return absl::OkStatus();
}

// Every row is a pass, without the padding that the reference masks in the attention.
std::vector<Tensors> RowsWithoutPadding(const Tensors& in) {
  const at::Tensor& text = in.at("in.encoder_hidden_states");
  const auto mask = in.find("in.encoder_hidden_states_mask");
  std::vector<Tensors> rows;
  for (int64_t row = 0; row < text.size(0); ++row) {
    Tensors& own = rows.emplace_back();
    for (const auto& [name, tensor] : in) {
      if (name.starts_with("in.")) own[name] = tensor.narrow(0, row, 1);
    }
    const int64_t tokens = mask == in.end() ? text.size(1) : mask->second[row].sum().item<int64_t>();
    own["in.encoder_hidden_states"] = text.narrow(0, row, 1).narrow(1, 0, tokens);
  }
  return rows;
}

absl::Status OpenQwenImage(const std::string& folder, const std::string& config_path, ModelUnderTest& m) {
  models::QwenImageConfig c;
  absl::Status opened = Open<models::QwenImageConfig, models::QwenImageTransformer>(folder, config_path,
                                                                                    models::ParseQwenImageConfig, c, m);
  if (!opened.ok()) return opened;
  const at::ScalarType dtype = m.dtype;
  const at::Device device = m.device;
  m.rows = RowsWithoutPadding;
  m.input = [dtype](const Tensors& in) {
    models::TransformerInput input{.timestep = in.at("in.timestep").to(at::kDouble) * 1000,
                                   .text = in.at("in.encoder_hidden_states").to(dtype)};
    const at::Tensor shapes = in.at("in.img_shapes")[0].cpu();  // (frames, rows, columns) of each picture
    std::vector<models::TokenGrid> grids;
    for (const at::Tensor& shape : shapes.unbind()) {
      grids.push_back({.height = shape[1].item<int64_t>(), .width = shape[2].item<int64_t>()});
    }
    SetPictures(in.at("in.hidden_states").to(dtype), grids, input);
    return input;
  };
  m.made_up_input = [c, dtype, device] { return MadeUpInput(c.channels, c.text_width, dtype, device); };
  m.output = [](const at::Tensor& head, models::TokenGrid) { return head; };
  const auto name = m.block_name;
  m.states = [c, name](int block, const models::BlockState& state, int64_t references) {
    Named states = JointStates(block < 0 ? "" : name(block), state, references, /*joined=*/false);
    if (block + 1 == c.layers) states.pop_back();  // the text after the last block is not computed
    return states;
  };
  m.extras = [dtype](const models::TransformerInput& input, const Tensors&, const models::ForwardPass&) {
    return Named{{"time_proj", models::Sinusoid((input.timestep / 1000).to(dtype) * 1000, dtype)}};
  };
  return absl::OkStatus();
}

struct Entry {
  const char* class_name;
  absl::Status (*open)(const std::string& folder, const std::string& config_path, ModelUnderTest& model);
};
constexpr Entry kEntries[] = {
    {"DiTTransformer2DModel", OpenDit},
    {"Flux2Transformer2DModel", OpenFlux2<models::ParseFlux2Config>},
    {"Flux2Transformer2DModel with isolated references", OpenFlux2<ParseIsolatedFlux2>},
    {"FluxTransformer2DModel", OpenFlux},
    {"HunyuanDiT2DModel", OpenHunyuan},
    {"PixArtTransformer2DModel", OpenPixArt},
    {"QwenImageTransformer2DModel", OpenQwenImage},
    {"SD3Transformer2DModel", OpenSd3},
    {"ZImageTransformer2DModel", OpenZImage},
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelUnderTest>> OpenModel(const std::string& class_name, const std::string& folder,
                                                          const std::string& config_path, at::ScalarType dtype,
                                                          at::Device device, models::WeightShare share) {
  for (const Entry& entry : kEntries) {
    if (class_name != entry.class_name) continue;
    auto model = std::make_unique<ModelUnderTest>(dtype, device, share);
    if (absl::Status opened = entry.open(folder, config_path, *model); !opened.ok()) return opened;
    return model;
  }
  return absl::UnimplementedError(class_name);
}

at::Tensor PictureSizes(const base::Json& shapes) {
  std::vector<int64_t> sizes;
  for (const base::Json& row : shapes.items()) {
    for (const base::Json& picture : row.items()) {
      for (const base::Json& size : picture.items()) sizes.push_back(size.AsInt().value_or(0));
    }
  }
  return at::tensor(sizes).view({std::ssize(shapes.items()), -1, 3});
}

std::vector<Tensors> RowsOf(const ModelUnderTest& model, const Tensors& inputs) {
  return model.rows ? model.rows(inputs) : std::vector{inputs};
}

at::Tensor HeadOf(const models::Transformer& model, const models::ForwardPass& pass, models::BlockState state,
                  int64_t references, const parallel::ForwardContext& context) {
  if (references > 0) {
    state.image = at::cat({state.image, state.text.narrow(1, state.text.size(1) - references, references)}, 1);
  }
  return model.Head(state, pass.ConditioningOf(model.num_blocks()), context);
}

at::Tensor OutputOf(const ModelUnderTest& under_test, const Tensors& inputs) {
  OneRank rank;
  std::vector<at::Tensor> outputs;
  for (const Tensors& row : RowsOf(under_test, inputs)) {
    const models::TransformerInput input = under_test.input(row);
    const models::ForwardPass pass(*under_test.model, input, rank.context);
    models::BlockState state = pass.Begin();
    for (int i = 0; i < under_test.model->num_blocks(); ++i) {
      under_test.model->Block(i, state, pass.ConditioningOf(i), rank.context);
    }
    const int64_t references = models::TokensOf(input.reference_grids);
    outputs.push_back(under_test.output(HeadOf(*under_test.model, pass, state, references, rank.context), input.grid));
  }
  return at::cat(outputs);
}

at::Tensor Wave(const at::Tensor& like, double frequency) {
  return at::cos(at::arange(like.numel(), at::kDouble) * frequency).reshape(like.sizes()).to(like.device());
}

}  // namespace tessera::golden
