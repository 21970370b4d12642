// Tests the names of exported adapters against the key maps of tests/golden-files: an adapter of all modules of a
// family has exactly the names under which ComfyUI's checkpoints hold these modules, and none is left.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files/file.h"
#include "base/json/json.h"
#include "models/adapters/adapter.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/weights/model_folder.h"
#include "models/weights/safetensors.h"
#include "runtime/training/exports/kohya_file.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/random_tensor.h"
#include "tests/support/test_folder.h"

namespace tessera::runtime {
namespace {

// Replaces the number of a block by "N", because the models here have other numbers of blocks than those of the maps.
std::string WithoutBlock(const std::string& name) {
  for (const char* const blocks : {"blocks.", "layers.", "refiner."}) {
    const size_t at = name.find(blocks);
    if (at == std::string::npos) continue;
    const size_t begin = at + std::string_view(blocks).size();
    size_t end = begin;
    while (end < name.size() && absl::ascii_isdigit(static_cast<unsigned char>(name[end]))) ++end;
    if (end > begin) return absl::StrCat(name.substr(0, begin), "N", name.substr(end));
  }
  return name;
}

// What a name in the file stands for: diffusers' modules in order, and whether the halves of their rows are exchanged.
struct Meaning {
  std::vector<std::string> modules;
  bool swapped = false;

  auto operator<=>(const Meaning&) const = default;
};

// The weights of a map by their names in the file, all without block numbers and ".weight". A name has two meanings if
// the last block differs from the others.
std::map<std::string, std::set<Meaning>> ReadKeyMap(const std::string& name) {
  const std::string path = absl::StrCat("tests/golden-files/keymaps/", name, ".transformer.json");
  std::map<std::string, std::set<Meaning>> rows;
  const absl::StatusOr<std::string> text = base::ReadWholeFile(path, path, size_t{1} << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  const absl::StatusOr<base::Json> json = base::ParseJson(text.value_or("{}"), path);
  if (!json.ok() || json->Find("rows") == nullptr) {
    ADD_FAILURE() << path << " has no rows";
    return rows;
  }
  constexpr absl::string_view kWeight = ".weight";
  for (const base::Json& row : json->Find("rows")->items()) {
    const std::string& file = *row.items()[0].AsString();
    const std::string& operation = *row.items()[1].AsString();
    if (!absl::EndsWith(file, kWeight)) continue;
    Meaning meaning{.modules = {}, .swapped = operation == "swap"};
    for (size_t i = 2; i < row.items().size(); ++i) {
      meaning.modules.push_back(WithoutBlock(std::string(absl::StripSuffix(*row.items()[i].AsString(), kWeight))));
    }
    rows[WithoutBlock(std::string(absl::StripSuffix(file, kWeight)))].insert(std::move(meaning));
  }
  return rows;
}

struct Family {
  const char *pipeline, *key_map;
};

class KeyMapTest : public testing::TestWithParam<Family> {
 protected:
  KeyMapTest() {
    const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(GoldenPipeline(GetParam().pipeline));
    EXPECT_TRUE(folder.ok()) << folder.status();
    model_ = (*models::FindFamily(folder->class_name()))->describe(*folder)->adaptable;
    for (const models::ProductSpec& product : products()) {
      const auto seed = static_cast<uint64_t>(adapter_.modules.size());
      adapter_.modules.push_back({.name = product.name,
                                  .a = Random({2, product.in}, seed).to(at::kFloat),
                                  .b = Random({product.out, 2}, 1000 + seed).to(at::kFloat),
                                  .alpha = 3});
    }
  }

  const std::vector<models::ProductSpec>& products() const { return model_.components.at("transformer"); }

  // The change of each module's weight by an exported file.
  std::map<std::string, at::Tensor> Deltas(const std::string& path) const {
    std::map<std::string, at::Tensor> deltas;
    const absl::StatusOr<models::Adapter> read = models::ReadAdapter(path, model_, {.dtype = at::kDouble});
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) return deltas;
    for (const auto& [module, factors] : read->components.at("transformer")) {
      deltas[module] = factors.b.mm(factors.a) * factors.scale;
    }
    return deltas;
  }

  TestFolder folder_;
  models::AdaptableModel model_;
  AdapterExport adapter_{.modules = {}, .base_digest = "abc", .step = 7};
};

TEST_P(KeyMapTest, EveryKeyOfAnExportIsOneOfTheMapAndEveryModuleIsReached) {
  const std::string path = folder_ / "comfyui.safetensors";
  const models::AdapterNames names(model_);
  const absl::Status written = WriteComfyFile(path, adapter_, names);
  ASSERT_TRUE(written.ok()) << written;
  const absl::StatusOr<models::SafetensorsFile> file = models::SafetensorsFile::Open(path, "comfyui");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::map<std::string, std::set<Meaning>> rows = ReadKeyMap(GetParam().key_map);
  std::set<std::string> reached;  // diffusers' modules
  for (const models::StoredTensor& tensor : file->tensors()) {
    absl::string_view key = tensor.name;
    ASSERT_TRUE(absl::ConsumePrefix(&key, "diffusion_model.")) << tensor.name;
    ASSERT_TRUE(absl::ConsumeSuffix(&key, ".lora_A.weight") || absl::ConsumeSuffix(&key, ".lora_B.weight"))
        << tensor.name;
    const auto row = rows.find(WithoutBlock(std::string(key)));
    ASSERT_NE(row, rows.end()) << tensor.name << " is not in the key map";
    const models::NamedModules* named = names.Original(std::string(key));
    ASSERT_NE(named, nullptr) << key;
    EXPECT_EQ(named->original, key);
    Meaning meaning{.modules = {}, .swapped = named->halves_exchanged};
    for (const models::ProductSpec* module : named->modules) {
      meaning.modules.push_back(WithoutBlock(module->name));
      reached.insert(module->name);
    }
    EXPECT_TRUE(row->second.contains(meaning)) << key << " stands for other modules or another order of rows";
  }
  EXPECT_EQ(reached.size(), products().size());
  // A matrix of the map that this model has, and the export lacks, would be a name that was forgotten.
  std::set<std::string> modules, used;
  for (const std::string& module : reached) used.insert(WithoutBlock(module));
  for (const models::ProductSpec& product : products()) modules.insert(WithoutBlock(product.name));
  for (const auto& [key, meanings] : rows) {
    for (const Meaning& meaning : meanings) {
      for (const std::string& module : meaning.modules) {
        EXPECT_TRUE(!modules.contains(module) || used.contains(module)) << key << " is not reached";
      }
    }
  }
}

// Scales that are not powers of two are rounded once in fp32.
TEST_P(KeyMapTest, EveryFormOfAnExportIsReadAsTheSameChange) {
  const models::AdapterNames names(model_);
  ASSERT_TRUE(WritePeftFile(folder_ / "diffusers.safetensors", adapter_).ok());
  ASSERT_TRUE(WriteComfyFile(folder_ / "comfyui.safetensors", adapter_, names).ok());
  ASSERT_TRUE(WriteKohyaFile(folder_ / "kohya.safetensors", adapter_, names).ok());
  const std::map<std::string, at::Tensor> expected = Deltas(folder_ / "diffusers.safetensors");
  ASSERT_EQ(expected.size(), products().size());
  for (const char* const form : {"comfyui.safetensors", "kohya.safetensors"}) {
    const std::map<std::string, at::Tensor> deltas = Deltas(folder_ / form);
    ASSERT_EQ(deltas.size(), expected.size()) << form;
    for (const auto& [module, delta] : expected) {
      EXPECT_LE((deltas.at(module) - delta).abs().max().item<double>(), 1e-6 * delta.abs().max().item<double>())
          << form << ": " << module;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, KeyMapTest,
                         testing::Values(Family{"flux_dev", "flux_small"}, Family{"flux_schnell", "flux_small"},
                                         Family{"sd3", "sd3_tiny"}, Family{"sd35", "sd35_small"},
                                         Family{"z_image_base", "z_small"}, Family{"flux2_klein", "klein_small"},
                                         Family{"qwen_image", "qwen_small"}),
                         [](const testing::TestParamInfo<Family>& info) { return std::string(info.param.pipeline); });

}  // namespace
}  // namespace tessera::runtime
