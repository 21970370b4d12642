// ManyHeadsFolder holds the golden FLUX model with 24 heads, like FLUX.1, and five blocks, with random weights.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "models/flux/flux_transformer.h"
#include "models/loading/param_table.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera {

class ManyHeadsFolder {
 public:
  ManyHeadsFolder() {
    std::filesystem::copy("tests/golden/pipelines/flux_dev", path(), std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(path() + "/transformer");
    std::stringstream config;
    config << std::ifstream("tests/golden/pipelines/flux_dev/transformer/config.json").rdbuf();
    folder_.Write("model/transformer/config.json",
                  absl::StrReplaceAll(config.str(), {{"\"num_attention_heads\": 4", "\"num_attention_heads\": 24"},
                                                     {"\"num_single_layers\": 2", "\"num_single_layers\": 3"}}));
    models::ParamTable table(at::kFloat, at::kMeta);
    const models::FluxTransformer transformer({.heads = 24,
                                               .head_dim = 16,
                                               .double_blocks = 2,
                                               .single_blocks = 3,
                                               .channels = 64,
                                               .text_width = 32,
                                               .pooled_width = 32,
                                               .guidance = true,
                                               .axes = {4, 6, 6}},
                                              table);
    WriteWeights(table);
  }

  std::string path() const { return folder_ / "model"; }

 private:
  // Random weights, scaled so that activations keep their magnitude.
  void WriteWeights(const models::ParamTable& table) const {
    at::Generator generator = at::detail::createCPUGenerator(11);
    std::vector<std::string> entries;
    std::string data;
    for (const models::Param& param : table.params()) {
      const std::vector<int64_t>& shape = param.spec.shape;
      const double deviation = shape.size() > 1 ? 1 / std::sqrt(static_cast<double>(shape[1])) : 0.1;
      at::Tensor values = at::randn(shape, generator) * deviation;
      if (shape.size() == 1 && param.spec.name.find("norm") != std::string::npos) values += 1;
      const size_t begin = data.size();
      data.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
      entries.push_back(absl::StrCat("\"", param.spec.name, "\":{\"dtype\":\"F32\",\"shape\":[",
                                     absl::StrJoin(shape, ","), "],\"data_offsets\":[", begin, ",", data.size(), "]}"));
    }
    folder_.Write("model/transformer/diffusion_pytorch_model.safetensors",
                  SafetensorsBytes(absl::StrCat("{", absl::StrJoin(entries, ","), "}"), data));
  }

  TestFolder folder_;
};

}  // namespace tessera
