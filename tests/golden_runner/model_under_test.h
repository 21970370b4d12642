// ModelUnderTest is a golden transformer of any family, with the conversions that its cases need.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/loading/param_table.h"
#include "models/transformer.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {

struct ModelUnderTest {
  ModelUnderTest(at::ScalarType dtype, at::Device device, models::WeightShare share)
      : table(dtype, device, share), dtype(dtype), device(device) {}

  models::ParamTable table;
  at::ScalarType dtype;
  at::Device device;
  std::unique_ptr<models::Transformer> model;

  int64_t heads = 0;

  // For a model whose rows cannot share a pass, because their texts or images have different sizes: the tensors of each
  // row, as a batch of one. Null: all rows share a pass.
  std::function<std::vector<Tensors>(const Tensors& in)> rows;
  // Makes the input of a case from its tensors "in.*".
  std::function<models::TransformerInput(const Tensors& in)> input;
  // Makes an input with the family's shapes that is in no golden.
  std::function<models::TransformerInput()> made_up_input;
  // Converts the head's result to the format of the reference's output.
  std::function<at::Tensor(const at::Tensor& head, models::TokenGrid grid)> output;
  // The reference's names of intermediate outputs: of a block, such as "block.3", and of the conditioning's embedding.
  std::function<std::string(int block)> block_name = [](int block) { return "block." + std::to_string(block); };
  std::string embedding_name = "temb";
  // Returns the states that the reference records after a block, or before the first one (-1). The last `references`
  // rows of the text are tokens of reference pictures.
  std::function<std::vector<std::pair<std::string, at::Tensor>>(int block, const models::BlockState& state,
                                                                int64_t references)>
      states;
  // Returns the reference's sinusoids by name, and other values specific to the family.
  std::function<std::vector<std::pair<std::string, at::Tensor>>(const models::TransformerInput& input,
                                                                const Tensors& gold, const models::ForwardPass& pass)>
      extras;
};

// After the name of a class: the model whose references attend only to one another.
inline constexpr char kIsolated[] = " with isolated references";

// Opens the model by its transformer's class. Returns Unimplemented if the class is not built. `config_path` may be
// outside `folder`.
absl::StatusOr<std::unique_ptr<ModelUnderTest>> OpenModel(const std::string& class_name, const std::string& folder,
                                                          const std::string& config_path, at::ScalarType dtype,
                                                          at::Device device, models::WeightShare share = {});

// Returns a case's argument "img_shapes" as [b, pictures, 3].
at::Tensor PictureSizes(const base::Json& shapes);

// The inputs of the passes of a case: one for all rows, or one for each.
std::vector<Tensors> RowsOf(const ModelUnderTest& model, const Tensors& inputs);

// Returns the head's result for the image and, because the reference computes it too, for the reference pictures.
at::Tensor HeadOf(const models::Transformer& model, const models::ForwardPass& pass, models::BlockState state,
                  int64_t references, const parallel::ForwardContext& context);

// Returns the output for all rows of a case on one rank.
at::Tensor OutputOf(const ModelUnderTest& under_test, const Tensors& inputs);

// cos(frequency · j), where j is the flat index.
at::Tensor Wave(const at::Tensor& like, double frequency);

}  // namespace tessera::golden
