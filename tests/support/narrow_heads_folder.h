// NarrowHeadsFolder holds a golden model whose transformer has twice the heads at half the width, so that eight ranks
// can share its eight heads. The weights are the golden ones; those whose length is the width of a head are cut in
// half.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/macros/status_macros.h"
#include "models/weights/safetensors_writer.h"
#include "models/weights/weight_folder.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/test_folder.h"

namespace tessera {

class NarrowHeadsFolder {
 public:
  // `model` is a pipeline of the golden sets.
  explicit NarrowHeadsFolder(const std::string& model) {
    const std::string golden = GoldenPipeline(model);
    std::filesystem::copy(golden, path(), std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(path() + "/transformer");
    std::stringstream config;
    config << std::ifstream(golden + "/transformer/config.json").rdbuf();
    folder_.Write("model/transformer/config.json",
                  absl::StrReplaceAll(config.str(), {{"\"num_attention_heads\": 4", "\"num_attention_heads\": 8"},
                                                     {"\"attention_head_dim\": 16", "\"attention_head_dim\": 8"},
                                                     {"\"attention_head_dim\": 24", "\"attention_head_dim\": 12"},
                                                     {"\"n_heads\": 4", "\"n_heads\": 8"},
                                                     {"\"n_kv_heads\": 4", "\"n_kv_heads\": 8"},
                                                     {"4,\n    6,\n    6", "2,\n    2,\n    4"},
                                                     {"4,\n    2,\n    6", "2,\n    2,\n    2"},
                                                     {"4,\n    4,\n    4,\n    4", "2,\n    2,\n    2,\n    2"}}));
    const absl::Status written = WriteWeights(golden + "/transformer");
    EXPECT_TRUE(written.ok()) << written;
  }

  std::string path() const { return folder_ / "model"; }

 private:
  static bool IsOfAHead(const std::string& tensor) {
    return absl::StrContains(tensor, ".norm_q.") || absl::StrContains(tensor, ".norm_k.") ||
           absl::StrContains(tensor, ".norm_added_q.") || absl::StrContains(tensor, ".norm_added_k.");
  }

  absl::Status WriteWeights(const std::string& golden) const {
    ASSIGN_OR_RETURN(const models::WeightFolder weights, models::WeightFolder::Open(golden, "transformer"));
    std::vector<models::TensorEntry> entries;
    for (const auto& [name, location] : weights.tensors()) {
      entries.push_back({.name = name, .type = location.tensor.type, .shape = location.tensor.shape});
      if (IsOfAHead(name)) entries.back().shape.at(0) /= 2;
    }
    ASSIGN_OR_RETURN(
        models::SafetensorsWriter writer,
        models::SafetensorsWriter::Create(path() + "/transformer/diffusion_pytorch_model.safetensors", entries, {}));
    for (const auto& [name, location] : weights.tensors()) {
      std::vector<std::byte> bytes(location.tensor.bytes() / (IsOfAHead(name) ? 2 : 1));
      RETURN_IF_ERROR(weights.Read(location, 0, bytes));
      RETURN_IF_ERROR(writer.Append(name, bytes));
    }
    return writer.Finish().status();
  }

  TestFolder folder_;
};

}  // namespace tessera
