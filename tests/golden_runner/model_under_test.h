// A golden transformer of any family, with what its cases need to know of it.
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

  // The input of a case, from its tensors "in.*".
  std::function<models::TransformerInput(const Tensors& in)> input;
  // An input of the family's shapes that no golden knows.
  std::function<models::TransformerInput()> made_up_input;
  // The head's result as the reference's output has it.
  std::function<at::Tensor(const at::Tensor& head, models::TokenGrid grid)> output;
  // Names of the reference's intermediate outputs: of a block, "block.3"; of the conditioning's embedding.
  std::function<std::string(int block)> block_name = [](int block) { return "block." + std::to_string(block); };
  std::string embedding_name = "temb";
  // The reference's sinusoids, by name, and other figures of the family's own.
  std::function<std::vector<std::pair<std::string, at::Tensor>>(const models::TransformerInput& input,
                                                                const Tensors& gold, const models::ForwardPass& pass)>
      extras;
};

// By the transformer's class. Unimplemented for a class that is not built. `config_path` may lie outside `folder`.
absl::StatusOr<std::unique_ptr<ModelUnderTest>> OpenModel(const std::string& class_name, const std::string& folder,
                                                          const std::string& config_path, at::ScalarType dtype,
                                                          at::Device device, models::WeightShare share = {});

// cos(frequency · j) over the flat index j.
at::Tensor Wave(const at::Tensor& like, double frequency);

}  // namespace tessera::golden
