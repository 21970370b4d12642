#include "runtime/training/exports/kohya_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <set>

#include "models/adapters/adapter.h"
#include "models/weights/safetensors.h"
#include "tests/support/random_tensor.h"
#include "tests/support/test_folder.h"

namespace tessera::runtime {
namespace {

using models::AdaptableModel;
using models::AdapterNames;
using models::OriginalNames;
using models::ProductSpec;
using testing::HasSubstr;

constexpr int64_t kDim = 4;

// The products that the tests need of a FLUX.1 transformer with one block of each kind.
AdaptableModel TinyFlux() {
  std::vector<ProductSpec> products = {{.name = "x_embedder", .out = kDim, .in = 3},
                                       {.name = "proj_out", .out = 3, .in = kDim},
                                       {.name = "norm_out.linear", .out = 2 * kDim, .in = kDim},
                                       {.name = "transformer_blocks.0.attn.to_out.0", .out = kDim, .in = kDim},
                                       {.name = "single_transformer_blocks.0.proj_mlp", .out = 4 * kDim, .in = kDim}};
  for (const char* block : {"transformer_blocks.0.attn.", "single_transformer_blocks.0.attn."}) {
    for (const char* part : {"to_q", "to_k", "to_v"}) {
      products.push_back({.name = std::string(block) + part, .out = kDim, .in = kDim});
    }
  }
  products.push_back({.name = "time_text_embed.guidance_embedder.linear_1", .out = kDim, .in = 6});
  return {.originals = OriginalNames::kFlux, .components = {{"transformer", products}}};
}

// An SD3 transformer whose last context block reads (scale, shift), like the second of two blocks.
AdaptableModel TinySd3() {
  return {.originals = OriginalNames::kSd3,
          .components = {{"transformer",
                          {{.name = "transformer_blocks.0.norm1_context.linear", .out = 6 * kDim, .in = kDim},
                           {.name = "transformer_blocks.1.norm1_context.linear", .out = 2 * kDim, .in = kDim}}}}};
}

AdapterModule Module(const AdaptableModel& model, const std::string& name, int64_t rank, double alpha) {
  for (const ProductSpec& product : model.components.at("transformer")) {
    if (product.name != name) continue;
    const uint64_t seed = std::hash<std::string>()(name);
    return {.name = name,
            .a = Random({rank, product.in}, seed).to(at::kFloat),
            .b = Random({product.out, rank}, seed + 1).to(at::kFloat),
            .alpha = alpha};
  }
  ADD_FAILURE() << "the model has no " << name;
  return {};
}

// Returns the change of a module's weight in double precision.
at::Tensor Delta(const AdapterModule& module) {
  return module.b.to(at::kDouble).mm(module.a.to(at::kDouble)) * (module.alpha / module.a.size(0));
}

class KohyaFileTest : public testing::Test {
 protected:
  std::string Path() const { return folder_ / "a.safetensors"; }

  absl::Status Write(const AdaptableModel& model, std::vector<AdapterModule> modules) {
    const AdapterNames names(model);
    return WriteKohyaFile(
        Path(), {.modules = std::move(modules), .base_digest = "abc", .step = 7, .trigger_phrase = "tok"}, names);
  }

  // Returns the names of the file's modules.
  std::set<std::string> Modules() const {
    std::set<std::string> names;
    const models::SafetensorsFile file = File();
    for (const models::StoredTensor& tensor : file.tensors()) {
      names.insert(tensor.name.substr(0, tensor.name.find('.')));
    }
    return names;
  }

  models::SafetensorsFile File() const {
    auto file = models::SafetensorsFile::Open(Path(), "a");
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  at::Tensor Read(const std::string& name) const {
    const models::SafetensorsFile file = File();
    const models::StoredTensor* stored = file.Find(name);
    if (stored == nullptr) {
      ADD_FAILURE() << "no tensor " << name;
      return at::zeros({1, 1});
    }
    at::Tensor values = at::empty(stored->shape, at::kFloat);
    EXPECT_TRUE(file.Read(*stored, 0, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()}).ok());
    return values.to(at::kDouble);
  }

  // Returns the change defined by kohya's format: alpha / (rows of down) times up down.
  at::Tensor FileDelta(const std::string& module) const {
    const at::Tensor down = Read("lora_unet_" + module + ".lora_down.weight");
    const at::Tensor up = Read("lora_unet_" + module + ".lora_up.weight");
    return up.mm(down) * (Read("lora_unet_" + module + ".alpha").item<double>() / static_cast<double>(down.size(0)));
  }

  TestFolder folder_;
};

// Scales that are not powers of two are rounded once in fp32.
constexpr double kTolerance = 1e-6;

void ExpectNear(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_LE((a - b).abs().max().item<double>(), kTolerance * b.abs().max().item<double>());
}

TEST_F(KohyaFileTest, QueriesKeysAndValuesBecomeOneModuleWithTheSameProduct) {
  const AdaptableModel model = TinyFlux();
  // First ranks that differ with equal scales, then scales that differ.
  for (const double last_alpha : {6.0, 5.0}) {
    const std::vector<AdapterModule> modules = {Module(model, "transformer_blocks.0.attn.to_q", 2, 4),
                                                Module(model, "transformer_blocks.0.attn.to_k", 1, 2),
                                                Module(model, "transformer_blocks.0.attn.to_v", 3, last_alpha)};
    ASSERT_TRUE(Write(model, modules).ok());
    EXPECT_THAT(Modules(), testing::ElementsAre("lora_unet_double_blocks_0_img_attn_qkv"));
    const at::Tensor delta = FileDelta("double_blocks_0_img_attn_qkv");
    for (int64_t part = 0; part < 3; ++part) {
      ExpectNear(delta.narrow(0, part * kDim, kDim), Delta(modules[static_cast<size_t>(part)]));
    }
  }
}

TEST_F(KohyaFileTest, APartThatWasNotTrainedDoesNotChange) {
  const AdaptableModel model = TinyFlux();
  const AdapterModule v = Module(model, "single_transformer_blocks.0.attn.to_v", 2, 3);
  ASSERT_TRUE(Write(model, {v}).ok());
  const at::Tensor delta = FileDelta("single_blocks_0_linear1");
  ASSERT_EQ(delta.size(0), 7 * kDim);
  ExpectNear(delta.narrow(0, 2 * kDim, kDim), Delta(v));
  EXPECT_EQ(delta.narrow(0, 0, 2 * kDim).abs().max().item<double>(), 0);
  EXPECT_EQ(delta.narrow(0, 3 * kDim, 4 * kDim).abs().max().item<double>(), 0);
}

TEST_F(KohyaFileTest, ModulesOfTheirOwnKeepTheirFactors) {
  const AdaptableModel model = TinyFlux();
  const AdapterModule in = Module(model, "x_embedder", 2, 1),
                      out = Module(model, "transformer_blocks.0.attn.to_out.0", 3, 3);
  ASSERT_TRUE(Write(model, {in, out}).ok());
  EXPECT_THAT(Modules(), testing::ElementsAre("lora_unet_double_blocks_0_img_attn_proj", "lora_unet_img_in"));
  EXPECT_TRUE(at::equal(Read("lora_unet_img_in.lora_down.weight"), in.a.to(at::kDouble)));
  EXPECT_TRUE(at::equal(Read("lora_unet_img_in.lora_up.weight"), in.b.to(at::kDouble)));
  EXPECT_EQ(Read("lora_unet_img_in.alpha").item<double>(), 1);
  ExpectNear(FileDelta("double_blocks_0_img_attn_proj"), Delta(out));
}

TEST_F(KohyaFileTest, TheHalvesOfShiftAndScaleAreExchanged) {
  const AdaptableModel flux = TinyFlux(), sd3 = TinySd3();
  const AdapterModule norm = Module(flux, "norm_out.linear", 2, 2);
  ASSERT_TRUE(Write(flux, {norm}).ok());
  const at::Tensor delta = Delta(norm);
  ExpectNear(FileDelta("final_layer_adaLN_modulation_1"),
             at::cat({delta.narrow(0, kDim, kDim), delta.narrow(0, 0, kDim)}));

  const AdapterModule first = Module(sd3, "transformer_blocks.0.norm1_context.linear", 2, 2);
  const AdapterModule last = Module(sd3, "transformer_blocks.1.norm1_context.linear", 2, 2);
  ASSERT_TRUE(Write(sd3, {first, last}).ok());
  ExpectNear(FileDelta("joint_blocks_0_context_block_adaLN_modulation_1"), Delta(first));
  const at::Tensor exchanged = Delta(last);
  ExpectNear(FileDelta("joint_blocks_1_context_block_adaLN_modulation_1"),
             at::cat({exchanged.narrow(0, kDim, kDim), exchanged.narrow(0, 0, kDim)}));
}

TEST_F(KohyaFileTest, TheHeaderSaysWhatToolsAskFor) {
  const AdaptableModel flux = TinyFlux(), sd3 = TinySd3();
  ASSERT_TRUE(Write(flux, {Module(flux, "x_embedder", 2, 1), Module(flux, "proj_out", 2, 1)}).ok());
  const std::map<std::string, std::string> expected = {{"format", "pt"},
                                                       {"modelspec.architecture", "flux-1-dev/lora"},
                                                       {"modelspec.trigger_phrase", "tok"},
                                                       {"ss_base_model_version", "flux1"},
                                                       {"ss_network_alpha", "1.0"},
                                                       {"ss_network_dim", "2"},
                                                       {"ss_network_module", "networks.lora_flux"},
                                                       {"tessera.base_digest", "abc"},
                                                       {"tessera.step", "7"}};
  EXPECT_EQ(File().metadata(), expected);
  ASSERT_TRUE(Write(sd3, {Module(sd3, "transformer_blocks.0.norm1_context.linear", 2, 1)}).ok());
  EXPECT_EQ(File().metadata().at("ss_network_module"), "networks.lora_sd3");
  EXPECT_EQ(File().metadata().at("modelspec.architecture"), "stable-diffusion-3/lora");
}

TEST_F(KohyaFileTest, ThisServerReadsTheSameProductsFromEveryFormat) {
  const AdaptableModel model = TinyFlux();
  AdapterExport adapter{.base_digest = "abc", .step = 7};
  double alpha = 1;
  for (const ProductSpec& product : model.components.at("transformer")) {
    adapter.modules.push_back(Module(model, product.name, 1 + static_cast<int64_t>(alpha) % 3, alpha));
    alpha += 1;
  }
  const AdapterNames names(model);
  const std::string peft = folder_ / "peft.safetensors", folder = folder_ / "folder";
  ASSERT_TRUE(WriteKohyaFile(Path(), adapter, names).ok());
  const std::string comfy = folder_ / "comfy.safetensors";
  ASSERT_TRUE(WriteComfyFile(comfy, adapter, names).ok());
  ASSERT_TRUE(WritePeftFile(peft, adapter).ok());
  ASSERT_TRUE(WritePeftFolder(folder, adapter).ok());
  for (const std::string& path : {Path(), comfy, peft, folder}) {
    const auto read = models::ReadAdapter(path, model, {});
    ASSERT_TRUE(read.ok()) << path << ": " << read.status();
    const auto& factors = read->components.at("transformer");
    ASSERT_EQ(factors.size(), adapter.modules.size()) << path;
    for (const AdapterModule& module : adapter.modules) {
      const parallel::LowRankFactors& own = factors.at(module.name);
      ExpectNear(own.b.to(at::kDouble).mm(own.a.to(at::kDouble)) * own.scale, Delta(module));
    }
  }
}

TEST_F(KohyaFileTest, WhatHasNoNameInTheFormatIsRefusedByName) {
  AdaptableModel model = TinyFlux();
  const AdapterModule q = Module(model, "x_embedder", 2, 1);
  AdapterModule unknown = q;
  unknown.name = "transformer_blocks.7.attn.to_q";
  EXPECT_THAT(std::string(Write(model, {unknown}).message()),
              HasSubstr("\"transformer_blocks.7.attn.to_q\" is not a module of the model"));
  AdapterModule wide = q;
  wide.a = at::zeros({2, 5});
  EXPECT_THAT(std::string(Write(model, {wide}).message()), HasSubstr("do not fit a weight [4, 3]"));
  model.components["transformer"].push_back({.name = "extra", .out = 2, .in = 2});
  EXPECT_THAT(std::string(Write(model, {Module(model, "extra", 1, 1)}).message()),
              HasSubstr("\"extra\" has no name of the model's authors"));
  model.originals = OriginalNames::kNone;
  EXPECT_THAT(std::string(Write(model, {q}).message()), HasSubstr("others are exported as PEFT files"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

}  // namespace
}  // namespace tessera::runtime
