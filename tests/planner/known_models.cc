#include "tests/planner/known_models.h"

#include "control/model/model_description.h"
#include "parallel/plan/stage_balance.h"

namespace tessera {
namespace {

using parallel::BlockKind;

struct Published {
  int joint = 0, fused = 0, cross = 0, image = 0;  // number of blocks of each kind
  int64_t width = 0;
  int heads = 0;
  int64_t output_features = 0;
  int text_tokens = 0;
  int side = 1024;  // default size in pixels
  double guidance_scale = 0;
  double parameters = 0, text_parameters = 0, autoencoder_parameters = 84e6;
  bool long_skips = false;  // from each block of the first half to one of the second
};

void AddBlocks(const Published& published, control::TransformerShape& shape) {
  for (const auto& [kind, count] : {std::pair(BlockKind::kJoint, published.joint),
                                    {BlockKind::kFused, published.fused},
                                    {BlockKind::kCross, published.cross},
                                    {BlockKind::kImage, published.image}}) {
    for (int i = 0; i < count; ++i) shape.exchange.blocks.push_back({.kind = kind});
  }
  const int blocks = static_cast<int>(shape.exchange.blocks.size());
  if (published.long_skips) {
    for (int b = 0; b < blocks / 2 - 1; ++b) shape.exchange.long_skips.push_back({.from = b, .to = blocks - 1 - b});
  }
}

Published PublishedModel(const std::string& name) {
  constexpr double kT5Xxl = 4.762e9, kClipL = 0.123e9, kClipG = 0.695e9;
  if (name == "flux") {
    return {.joint = 19,
            .fused = 38,
            .width = 3072,
            .heads = 24,
            .output_features = 64,
            .text_tokens = 512,
            .parameters = 11.901e9,
            .text_parameters = kT5Xxl + kClipL};
  }
  if (name == "sd3") {
    return {.joint = 24,
            .width = 1536,
            .heads = 24,
            .output_features = 64,
            .text_tokens = 333,
            .guidance_scale = 7,
            .parameters = 2.028e9,
            .text_parameters = kT5Xxl + kClipL + kClipG};
  }
  if (name == "pixart") {
    return {.cross = 28,
            .width = 1152,
            .heads = 16,
            .output_features = 32,
            .text_tokens = 120,
            .guidance_scale = 4.5,
            .parameters = 0.611e9,
            .text_parameters = kT5Xxl};
  }
  if (name == "hunyuandit") {
    return {.cross = 40,
            .width = 1408,
            .heads = 16,
            .output_features = 32,
            .text_tokens = 333,
            .guidance_scale = 5,
            .parameters = 1.5e9,
            .text_parameters = 2.02e9,
            .long_skips = true};
  }
  if (name == "dit") {
    return {.image = 28,
            .width = 1152,
            .heads = 16,
            .output_features = 32,
            .text_tokens = 0,
            .side = 256,
            .guidance_scale = 4,
            .parameters = 0.675e9};
  }
  if (name == "hunyuanvideo") {
    // 129 frames are decoded from 33 by 3 x 3 x 3 convolutions, which multiplies the operations per pixel of the tall
    // image.
    constexpr double kDecoding = 129.0 / 33 * 3;
    return {.joint = 20,
            .fused = 40,
            .width = 3072,
            .heads = 24,
            .output_features = 64,
            .text_tokens = 256,
            .parameters = 12.8e9,
            .text_parameters = 0,
            .autoencoder_parameters = 84e6 * kDecoding};
  }
  return {.joint = 42,
          .width = 3072,
          .heads = 48,
          .output_features = 64,
          .text_tokens = 226,
          .guidance_scale = 6,
          .parameters = 5.57e9,
          .text_parameters = 0,
          .autoencoder_parameters = 0};
}

}  // namespace

control::ModelDescription KnownModel(const std::string& name) {
  const Published published = PublishedModel(name);
  control::ModelDescription model = {.family = name,
                                     .size_multiple = 16,
                                     .min_size = 16,
                                     .max_size = 1 << 16,
                                     .default_height = published.side,
                                     .default_width = published.side,
                                     .default_steps = 28,
                                     .max_steps = 1000,
                                     .default_guidance_scale = published.guidance_scale,
                                     .heads = published.heads};
  control::TransformerShape& shape = model.transformer;
  shape = {.exchange = {.width = published.width,
                        .output_features = published.output_features,
                        .prediction_features = published.output_features,
                        .blocks = {},
                        .long_skips = {}},
           .block_flops = {}};
  AddBlocks(published, shape);
  model.cost = {.token_side = 16, .text_tokens = published.text_tokens};
  shape.block_flops = control::SetTransformer(shape.exchange, /*mlp_ratio=*/4,
                                              {.height = published.side, .width = published.side}, model.cost);
  model.cost.encode_flops_per_token = 2 * published.text_parameters;
  // Stable Diffusion's decoder has 84 million parameters, with its encoder, and 4.73 million multiply-adds for each
  // pixel.
  model.cost.decode_flops_per_pixel = 9.46e6 * published.autoencoder_parameters / 84e6;
  model.cost.decode_values_per_pixel = 256 + 3 * 128;
  model.blocks = static_cast<int32_t>(shape.exchange.blocks.size());
  const auto add = [&](const char* component, control::ComponentRole role, double parameters) {
    model.components.push_back({.name = component,
                                .role = role,
                                .class_name = "",
                                .parameters = static_cast<uint64_t>(parameters),
                                .dtype = "bf16",
                                .files = {}});
  };
  add("transformer", control::ComponentRole::kTransformer, published.parameters);
  add("text_encoder", control::ComponentRole::kTextEncoder, published.text_parameters);
  add("vae", control::ComponentRole::kAutoencoder, published.autoencoder_parameters);
  return model;
}

}  // namespace tessera
