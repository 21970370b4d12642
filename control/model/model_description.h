// ModelDescription holds what a front end needs to know about a model. A worker reads it from the configuration and the
// headers of the weight files. Plain values, free of LibTorch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields/fields.h"
#include "control/model/component_role.h"
#include "control/model/model_cost.h"
#include "control/model/weight_sizes.h"
#include "control/pictures/picture_input.h"
#include "parallel/plan/layout_bytes.h"

namespace tessera::control {

struct JobParameters;
struct PictureUse;

// A component of a pipeline: transformer, text_encoder, vae, …
struct ModelComponent {
  std::string name;
  ComponentRole role = ComponentRole::kOther;
  std::string class_name;
  uint64_t parameters = 0;
  uint64_t bytes = 0;              // as stored
  std::string dtype;               // as stored; "mixed" where there are several
  std::string quantization;        // the forms of quantized weights: "Q4_K, Q6_K"; empty if there are none
  std::vector<std::string> files;  // names relative to the model's folder
};

// The shape of a transformer, which determines what the ranks exchange and how blocks can be divided among pipeline
// stages.
struct TransformerShape {
  parallel::ExchangeModel exchange;  // without blocks if it is unknown
  std::vector<double> block_flops;   // FLOPs of each block at the default size

  bool known() const { return !exchange.blocks.empty(); }
};

// A matrix product of a component to which an adapter can be added.
struct MatrixProduct {
  std::string component;
  std::string name;  // diffusers' name of the module
  int64_t out = 0;
  int64_t in = 0;
  std::vector<std::string> aliases;
};

struct ModelDescription {
  std::string pipeline;  // _class_name of model_index.json
  std::string family;
  std::string digest;  // sha-256 over configuration files and headers of weight files, hex
  std::vector<ModelComponent> components;
  int32_t size_multiple = 1;  // height and width are multiples of it, unless resolution binning is on
  int32_t min_size = 1;       // pixels, each side
  int32_t max_size = 1;
  int32_t default_height = 0;
  int32_t default_width = 0;
  int32_t default_steps = 0;
  int32_t max_steps = 0;
  double default_guidance_scale = 0;
  // The name of the model to train in place of this one, which is distilled to few steps; empty: it is not distilled.
  std::string base_model;
  bool default_resolution_binning = false;
  bool can_bin = false;  // the model has a table of sizes
  bool default_clean_caption = false;
  PictureRules pictures;  // which pictures of a request the model takes, and what it does with them
  int32_t default_max_sequence_length = 0;
  int32_t max_sequence_length = 0;
  std::vector<std::string>
      options;  // the PromptOptions that the model reads, named as in control/parameters/prompt_options.h
  std::string default_sampler;
  std::vector<std::string> samplers;
  int32_t heads = 0;
  int32_t blocks = 0;
  TransformerShape transformer;
  ModelCost cost;
  std::vector<ComponentWeights> weights;  // sizes of the components' weights; empty if unknown
  std::vector<MatrixProduct> products;    // of the components that accept adapters; empty if unknown
  std::string original_names;         // naming scheme of modules in tools other than diffusers: flux, sd3, … or none
  std::string libraries;              // libraries of the worker and their settings; certificates contain it
  std::string instruction_set;        // that the worker computes with (kernels/cpu/isa.h)
  std::vector<std::string> warnings;  // for example about unknown fields of configuration files

  bool is_distilled() const { return !base_model.empty(); }
};

// The bounds ensure that no prediction overflows.
constexpr auto FieldsOf(const ModelCost*) {
  using base::Field, base::Integer;
  using C = ModelCost;
  constexpr base::Number kCount = {0, 1e30};
  return std::tuple(
      Field("token_side", &C::token_side, Integer{1, kMaxImageSide}),
      Field("text_tokens", &C::text_tokens, Integer{0, kMaxTokens}),
      Field("fixed_text_tokens", &C::fixed_text_tokens, Integer{0, kMaxTokens}), Field("joint_text", &C::joint_text),
      Field("references", &C::references), Field("guidance_is_input", &C::guidance_is_input),
      Field("guided_above", &C::guided_above, base::Number{0, 1}), Field("sizes", &C::sizes), Field("flops", &C::flops),
      Field("blocks", &C::blocks, Integer{1, 1 << 16}), Field("values_per_token", &C::values_per_token, kCount),
      Field("values_per_block", &C::values_per_block, kCount),
      Field("encode_flops_per_token", &C::encode_flops_per_token, kCount),
      Field("decode_flops_per_pixel", &C::decode_flops_per_pixel, kCount),
      Field("decode_values_per_pixel", &C::decode_values_per_pixel, kCount));
}

constexpr auto FieldsOf(const ModelComponent*) {
  using base::Field;
  using C = ModelComponent;
  return std::tuple(Field("name", &C::name), Field("role", &C::role), Field("class_name", &C::class_name),
                    Field("parameters", &C::parameters), Field("bytes", &C::bytes), Field("dtype", &C::dtype),
                    Field("quantization", &C::quantization), Field("files", &C::files));
}

// An unknown transformer has zeros and no blocks. The bounds ensure that everything computed from a shape fits into 63
// bits and is computed quickly.
constexpr auto FieldsOf(const TransformerShape*) {
  using base::Field, base::List;
  using S = TransformerShape;
  return std::tuple(Field("exchange", &S::exchange),
                    Field("block_flops", &S::block_flops, List<base::Number>{.each = {0, 1e30}, .most = 1 << 10}));
}
absl::Status CheckRules(const TransformerShape& shape);

constexpr auto FieldsOf(const MatrixProduct*) {
  using base::Field;
  using P = MatrixProduct;
  return std::tuple(Field("component", &P::component), Field("name", &P::name), Field("out", &P::out),
                    Field("in", &P::in), Field("aliases", &P::aliases));
}

constexpr auto FieldsOf(const ModelDescription*) {
  using base::Field, base::Integer;
  using M = ModelDescription;
  constexpr Integer kSide = {0, kMaxImageSide};
  return std::tuple(
      Field("pipeline", &M::pipeline), Field("family", &M::family), Field("digest", &M::digest),
      Field("components", &M::components), Field("size_multiple", &M::size_multiple, Integer{1, kMaxImageSide}),
      Field("min_size", &M::min_size, Integer{1, kMaxImageSide}), Field("max_size", &M::max_size, kSide),
      Field("default_height", &M::default_height, kSide), Field("default_width", &M::default_width, kSide),
      Field("default_steps", &M::default_steps), Field("max_steps", &M::max_steps, Integer{1, 1 << 30}),
      Field("default_guidance_scale", &M::default_guidance_scale), Field("base_model", &M::base_model),
      Field("default_resolution_binning", &M::default_resolution_binning), Field("can_bin", &M::can_bin),
      Field("default_clean_caption", &M::default_clean_caption), Field("pictures", &M::pictures),
      Field("default_max_sequence_length", &M::default_max_sequence_length, Integer{0, kMaxTokens}),
      Field("max_sequence_length", &M::max_sequence_length, Integer{0, kMaxTokens}), Field("options", &M::options),
      Field("default_sampler", &M::default_sampler), Field("samplers", &M::samplers), Field("heads", &M::heads),
      Field("blocks", &M::blocks, Integer{0, 1 << 16}), Field("transformer", &M::transformer), Field("cost", &M::cost),
      Field("weights", &M::weights, base::List<base::Nested>{.most = 16}), Field("products", &M::products),
      Field("original_names", &M::original_names), Field("libraries", &M::libraries),
      Field("instruction_set", &M::instruction_set), Field("warnings", &M::warnings));
}
// Checks that some multiple of size_multiple lies between min_size and max_size, and that a known transformer has as
// many blocks as the model.
absl::Status CheckRules(const ModelDescription& model);

// The forms in which the files have the transformer's quantized weights: "Q4_K, Q6_K"; empty if they are plain numbers.
std::string QuantizationOf(const ModelDescription& model);

// The parameters of all components of this role.
uint64_t ParametersOf(const ModelDescription& model, ComponentRole role);

// The job that a request without options becomes.
JobParameters DefaultJob(const ModelDescription& model);
// Returns the size with the proportions of a picture, about the area of the model's default size, and sides that the
// model takes.
ImageSize SizeLike(const ModelDescription& model, ImageSize picture);
// Returns the default size of an image that is made from or after pictures, the first of them with a mask or not.
ImageSize SizeOfPictures(const ModelDescription& model, std::span<const PictureUse> pictures, bool has_mask);
// Returns WorkOf for that job.
ImageWork DefaultWork(const ModelDescription& model);

}  // namespace tessera::control
