// Tests that an adapter written in the formats of different tools is read identically. The only things that are used of
// a file are the factors, their modules and their scales, and these must be equal to the last bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "models/adapters/plan/adapter_error.h"
#include "models/adapters/plan/adapter_files.h"
#include "models/weights/safetensors_writer.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 4, kRank = 2;
constexpr char kModule[] = "transformer_blocks.0.attn.to_out.0";
constexpr float kAlpha = 6;

AdaptableModel Model() {
  AdaptableModel model{.originals = OriginalNames::kFlux, .components = {}};
  for (const char* name : {"to_q", "to_k", "to_v", "to_out.0"}) {
    model.components["transformer"].push_back(
        {.name = absl::StrCat("transformer_blocks.0.attn.", name), .out = kWidth, .in = kWidth});
  }
  model.components["text_encoder"].push_back(
      {.name = "text_model.encoder.layers.0.self_attn.q_proj", .out = kWidth, .in = kWidth});
  return model;
}

using Header = std::map<std::string, std::string>;

class AdapterFormsTest : public testing::Test {
 protected:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    float first = 0;  // the other elements count up from it
  };

  // Returns a pair of factors and, unless `alpha` is empty, their alpha. The second factor has `rows` rows.
  static std::vector<Tensor> Pair(const std::string& down, const std::string& up, const std::string& alpha = "",
                                  int64_t rows = kWidth) {
    std::vector<Tensor> tensors = {{down, {kRank, kWidth}, 1}, {up, {rows, kRank}, 100}};
    if (!alpha.empty()) tensors.push_back({alpha, {}, kAlpha});
    return tensors;
  }

  std::string Write(const std::vector<Tensor>& tensors, const Header& header = {},
                    const std::string& file = "adapter.safetensors") const {
    std::vector<TensorEntry> entries;
    for (const Tensor& tensor : tensors) {
      entries.push_back({.name = tensor.name, .type = StoredType::kF32, .shape = tensor.shape});
    }
    std::filesystem::create_directories((folder_ / file).substr(0, (folder_ / file).rfind('/')));
    auto writer = SafetensorsWriter::Create(folder_ / file, entries, header);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const Tensor& tensor : tensors) {
      std::vector<float> values(1);
      for (const int64_t side : tensor.shape) values.resize(values.size() * static_cast<size_t>(side));
      for (size_t i = 0; i < values.size(); ++i) values[i] = tensor.first + static_cast<float>(i);
      EXPECT_TRUE(writer->Append(tensor.name, std::as_bytes(std::span(values))).ok());
    }
    EXPECT_TRUE(writer->Finish().ok());
    return folder_ / file;
  }

  // Component, module, scale, first row, whether halves are exchanged, and the bytes of both factors.
  using Served = std::vector<std::tuple<std::string, std::string, uint64_t, int64_t, bool, std::string, std::string>>;

  absl::StatusOr<Served> ServedOf(const std::string& path, std::vector<std::string>* embeddings = nullptr,
                                  const AdaptableModel& model = Model()) const {
    const absl::StatusOr<AdapterFiles> files = FilesOf(path);
    if (!files.ok()) return files.status();
    const AdapterNames names(model);
    const absl::StatusOr<PlannedAdapter> plan = PlanFiles(*files, names);
    if (!plan.ok()) return plan.status();
    if (embeddings != nullptr) *embeddings = plan->embeddings;
    const auto bytes = [&](const StoredTensor* tensor) {
      std::string text(tensor->bytes(), '\0');
      EXPECT_TRUE(plan->file.Read(*tensor, 0, std::as_writable_bytes(std::span(text))).ok());
      return text;
    };
    Served served;
    for (const PlannedFactors& factors : plan->factors) {
      served.emplace_back(factors.component, factors.module->name, std::bit_cast<uint64_t>(factors.scale),
                          factors.first_row, factors.halves_exchanged, bytes(factors.down), bytes(factors.up));
    }
    return served;
  }

  void ExpectSame(const absl::StatusOr<Served>& form, const absl::StatusOr<Served>& known, const std::string& what) {
    ASSERT_TRUE(known.ok()) << known.status();
    ASSERT_TRUE(form.ok()) << what << ": " << form.status();
    ASSERT_FALSE(known->empty());
    EXPECT_EQ(*form, *known) << what;
  }

  std::string Refused(const std::string& path, AdapterFault fault) const {
    const absl::Status status = ServedOf(path).status();
    EXPECT_EQ(FaultOf(status), fault) << status;
    return std::string(status.message());
  }

  const TestFolder folder_;
};

TEST_F(AdapterFormsTest, NamesOfOneModuleInEveryFormMeanTheSame) {
  const std::string dotted = kModule, underscored = absl::StrReplaceAll(dotted, {{".", "_"}});
  const absl::StatusOr<Served> known = ServedOf(Write(Pair(absl::StrCat("transformer.", dotted, ".lora_A.weight"),
                                                           absl::StrCat("transformer.", dotted, ".lora_B.weight"),
                                                           absl::StrCat("transformer.", dotted, ".alpha"))));
  const std::pair<std::string, std::string> endings[] = {{".lora_A.weight", ".lora_B.weight"},
                                                         {".lora_A.default.weight", ".lora_B.default.weight"},
                                                         {".lora_A.my-style_1.weight", ".lora_B.my-style_1.weight"},
                                                         {".lora_down.weight", ".lora_up.weight"},
                                                         {".lora.down.weight", ".lora.up.weight"}};
  for (const std::string& name : {"transformer." + dotted, "base_model.model." + dotted, "diffusion_model." + dotted,
                                  "model.diffusion_model." + dotted, dotted, "lora_transformer_" + underscored,
                                  "lora_unet_" + underscored, "lycoris_" + underscored}) {
    for (const auto& [down, up] : endings) {
      ExpectSame(ServedOf(Write(Pair(name + down, name + up, name + ".alpha"))), known, name + down);
    }
  }
}

TEST_F(AdapterFormsTest, NamesOfTheAuthorsInEveryFormMeanTheSame) {
  const std::string kohya = "lora_unet_double_blocks_0_img_attn_qkv";
  const absl::StatusOr<Served> known =
      ServedOf(Write(Pair(kohya + ".lora_down.weight", kohya + ".lora_up.weight", kohya + ".alpha", 3 * kWidth)));
  for (const std::string name :
       {"lycoris_double_blocks_0_img_attn_qkv", "model.diffusion_model.double_blocks.0.img_attn.qkv",
        "diffusion_model.double_blocks.0.img_attn.qkv", "base_model.model.double_blocks.0.img_attn.qkv"}) {
    ExpectSame(ServedOf(Write(Pair(name + ".lora_A.default.weight", name + ".lora_B.default.weight", name + ".alpha",
                                   3 * kWidth))),
               known, name);
  }
}

AdaptableModel ModelWith(OriginalNames originals, const std::vector<std::string>& modules) {
  AdaptableModel model{.originals = originals, .components = {}};
  for (const std::string& name : modules) {
    model.components["transformer"].push_back({.name = name, .out = kWidth, .in = kWidth});
  }
  return model;
}

// The forms of a packed module, of a module with another name, and of one without a block.
TEST_F(AdapterFormsTest, NamesOfFlux2InEveryFormMeanTheSame) {
  const AdaptableModel model =
      ModelWith(OriginalNames::kFlux2,
                {"transformer_blocks.0.attn.add_q_proj", "transformer_blocks.0.attn.add_k_proj",
                 "transformer_blocks.0.attn.add_v_proj", "single_transformer_blocks.0.attn.to_qkv_mlp_proj",
                 "double_stream_modulation_img.linear", "norm_out.linear"});
  const auto served = [&](const std::string& name, int64_t rows) {
    return ServedOf(Write(Pair(name + ".lora_A.weight", name + ".lora_B.weight", name + ".alpha", rows)), nullptr,
                    model);
  };
  for (const auto& [original, parts] : {std::pair{"double_blocks.0.txt_attn.qkv", 3},
                                        {"single_blocks.0.linear1", 1},
                                        {"double_stream_modulation_img.lin", 1},
                                        {"final_layer.adaLN_modulation.1", 1}}) {
    const absl::StatusOr<Served> known = served(absl::StrCat("diffusion_model.", original), parts * kWidth);
    ASSERT_TRUE(known.ok()) << known.status();
    EXPECT_EQ(known->size(), static_cast<size_t>(parts));
    for (const auto& factors : *known) {
      EXPECT_EQ(std::get<4>(factors), std::string(original) == "final_layer.adaLN_modulation.1") << original;
    }
    const std::string underscored = absl::StrReplaceAll(original, {{".", "_"}});
    for (const std::string& name : {absl::StrCat("model.diffusion_model.", original), std::string(original),
                                    absl::StrCat("base_model.model.", original),
                                    absl::StrCat("lora_unet_", underscored), absl::StrCat("lycoris_", underscored)}) {
      ExpectSame(served(name, parts * kWidth), known, name);
    }
  }
  const std::string single = "transformer.single_transformer_blocks.0.attn.to_qkv_mlp_proj";
  ExpectSame(served(single, kWidth), served("diffusion_model.single_blocks.0.linear1", kWidth), single);
}

// The authors' names are diffusers'. Adapters of few steps have bare names with alpha.
TEST_F(AdapterFormsTest, NamesOfQwenImageInEveryFormMeanTheSame) {
  const std::string module = "transformer_blocks.0.img_mlp.net.0.proj";
  const AdaptableModel model = ModelWith(OriginalNames::kQwenImage, {module, "img_in", "norm_out.linear"});
  const absl::StatusOr<Served> known =
      ServedOf(Write(Pair("transformer." + module + ".lora_A.weight", "transformer." + module + ".lora_B.weight",
                          "transformer." + module + ".alpha")),
               nullptr, model);
  ASSERT_TRUE(known.ok()) << known.status();
  const std::string underscored = absl::StrReplaceAll(module, {{".", "_"}});
  for (const std::string& name :
       {module, "diffusion_model." + module, "base_model.model." + module, "lora_unet_" + underscored,
        "lora_transformer_" + underscored, "lycoris_" + underscored}) {
    ExpectSame(
        ServedOf(Write(Pair(name + ".lora_down.weight", name + ".lora_up.weight", name + ".alpha")), nullptr, model),
        known, name);
  }
  // Rows are in diffusers' order in every form.
  const absl::StatusOr<Served> norm = ServedOf(
      Write(Pair("diffusion_model.norm_out.linear.lora_A.weight", "diffusion_model.norm_out.linear.lora_B.weight")),
      nullptr, model);
  ASSERT_TRUE(norm.ok()) << norm.status();
  EXPECT_FALSE(std::get<4>(norm->front()));
  // PEFT's names without alpha have no scale.
  const std::string path =
      Write(Pair("base_model.model." + module + ".lora_A.weight", "base_model.model." + module + ".lora_B.weight"));
  EXPECT_EQ(FaultOf(ServedOf(path, nullptr, model).status()), AdapterFault::kMissingConfig);
}

TEST_F(AdapterFormsTest, AFileOfAnotherFamilyIsRefusedByItsName) {
  const AdaptableModel flux2 = ModelWith(OriginalNames::kFlux2, {"transformer_blocks.0.attn.to_q"}),
                       qwen = ModelWith(OriginalNames::kQwenImage, {"transformer_blocks.0.attn.to_q"});
  for (const auto& [name, model, family] : {std::tuple{"single_transformer_blocks.0.proj_mlp", &flux2, "FLUX.1,"},
                                            {"single_transformer_blocks.0.attn.to_qkv_mlp_proj", &qwen, "FLUX.2,"},
                                            {"double_blocks.0.img_attn.qkv", &qwen, "FLUX.1 or FLUX.2,"},
                                            {"transformer_blocks.0.img_mlp.net.2", &flux2, "Qwen-Image,"},
                                            {"context_refiner.0.attention.to_q", &flux2, "Z-Image,"}}) {
    const std::string file = absl::StrCat("transformer.", name);
    const absl::Status status =
        ServedOf(Write(Pair(file + ".lora_A.weight", file + ".lora_B.weight")), nullptr, *model).status();
    EXPECT_EQ(FaultOf(status), AdapterFault::kWrongFamily) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("was made for ", family)));
  }
}

// The modules of single files of Z-Image.
TEST(ZImageNamesTest, EveryListOfLayersHasTheAuthorsNames) {
  AdaptableModel model{.originals = OriginalNames::kZImage, .components = {}};
  const std::string lists[] = {"layers.1.", "noise_refiner.0.", "context_refiner.0."};
  for (const std::string& list : lists) {
    for (const char* name :
         {"attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0", "feed_forward.w2"}) {
      model.components["transformer"].push_back({.name = list + name, .out = kWidth, .in = kWidth});
    }
  }
  model.components["transformer"].push_back({.name = "all_x_embedder.2-1", .out = kWidth, .in = kWidth});
  const AdapterNames names(model);
  const auto modules = [&](const std::string& original) {
    std::vector<std::string> found;
    if (const NamedModules* const named = names.Original(original); named != nullptr) {
      for (const ProductSpec* module : named->modules) found.push_back(module->name);
    }
    return found;
  };
  for (const std::string& list : lists) {
    EXPECT_THAT(modules(list + "attention.qkv"),
                ElementsAre(list + "attention.to_q", list + "attention.to_k", list + "attention.to_v"));
    EXPECT_THAT(modules(list + "attention.out"), ElementsAre(list + "attention.to_out.0"));
    EXPECT_THAT(modules(list + "feed_forward.w2"), ElementsAre(list + "feed_forward.w2"));
  }
  EXPECT_THAT(modules("x_embedder"), ElementsAre("all_x_embedder.2-1"));
  EXPECT_THAT(modules("layers.0.attention.qkv"), ElementsAre());
}

TEST_F(AdapterFormsTest, TextEncodersHavePeftsNamesToo) {
  const std::string name = "text_encoder.text_model.encoder.layers.0.self_attn.q_proj";
  ExpectSame(ServedOf(Write(Pair(name + ".lora_A.default.weight", name + ".lora_B.default.weight"))),
             ServedOf(Write(Pair(name + ".lora_A.weight", name + ".lora_B.weight"))), name);
}

class PeftAlphaTest : public AdapterFormsTest {
 protected:
  static std::vector<Tensor> Factors() {
    return Pair(absl::StrCat("base_model.model.", kModule, ".lora_A.weight"),
                absl::StrCat("base_model.model.", kModule, ".lora_B.weight"));
  }
};

TEST_F(PeftAlphaTest, IsTakenFromTheHeaderWhereThereIsNoConfiguration) {
  folder_.Write("known/adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6})");
  Write(Factors(), {}, "known/adapter_model.safetensors");
  const absl::StatusOr<Served> known = ServedOf(folder_ / "known");
  for (const Header& header :
       {Header{{"lora_alpha", "6"}}, Header{{"lora_alpha", "6.0"}, {"r", "2"}}, Header{{"alpha", "6"}, {"rank", "2"}},
        Header{{"alpha", "6"}, {"lora_rank", "2"}}, Header{{"ss_network_alpha", "6"}, {"ss_network_dim", "2"}},
        Header{{"lora_adapter_metadata", R"({"transformer.r": 2, "transformer.lora_alpha": 6})"}},
        Header{{"lora_adapter_metadata", R"({"r": 2, "lora_alpha": 6, "peft_type": "LORA"})"}}}) {
    ExpectSame(ServedOf(Write(Factors(), header)), known, header.begin()->first);
  }
}

TEST_F(PeftAlphaTest, OfTheHeaderIsCheckedAsThatOfAConfiguration) {
  EXPECT_THAT(Refused(Write(Factors(), {{"lora_alpha", "6"}, {"r", "3"}}), AdapterFault::kMetadataDisagrees),
              AllOf(HasSubstr(kModule), HasSubstr("is 2"), HasSubstr("it is 3")));
  for (const char* alpha : {"NaN", "\"6\"", "six", ""}) {
    EXPECT_THAT(Refused(Write(Factors(), {{"lora_alpha", alpha}}), AdapterFault::kBadAlpha),
                HasSubstr("\"lora_alpha\""));
  }
  EXPECT_THAT(Refused(Write(Factors(), {{"alpha", "6"}, {"rank", "0"}}), AdapterFault::kBadMetadata),
              HasSubstr("\"rank\""));
  EXPECT_THAT(Refused(Write(Factors(), {{"format", "pt"}}), AdapterFault::kMissingConfig),
              HasSubstr("adapter_config.json"));
  // Files that diffusers writes have alpha only under lora_adapter_metadata.
  const std::vector<Tensor> diffusers = Pair(absl::StrCat("transformer.", kModule, ".lora_A.weight"),
                                             absl::StrCat("transformer.", kModule, ".lora_B.weight"));
  ExpectSame(ServedOf(Write(diffusers, {{"alpha", "6"}})), ServedOf(Write(diffusers)), "diffusers");
}

TEST_F(AdapterFormsTest, TwoAdaptersOfPeftInOneFileAreRefused) {
  const std::string name = absl::StrCat("transformer.", kModule), other = "transformer.transformer_blocks.0.attn.to_q";
  std::vector<Tensor> tensors = Pair(name + ".lora_A.a.weight", name + ".lora_B.a.weight");
  for (const std::string& second : {name, other}) {
    std::vector<Tensor> both = tensors;
    for (const Tensor& tensor : Pair(second + ".lora_A.b.weight", second + ".lora_B.b.weight")) both.push_back(tensor);
    EXPECT_THAT(Refused(Write(both), AdapterFault::kMixedFormats),
                AllOf(HasSubstr(".a.weight"), HasSubstr(".b.weight"), HasSubstr("two adapters")));
  }
  tensors.pop_back();
  EXPECT_THAT(Refused(Write(tensors), AdapterFault::kMissingPair),
              HasSubstr(absl::StrCat(name, ".lora_B.a.weight is missing")));
}

TEST_F(AdapterFormsTest, KindsThatAreNotPlainAreRefusedUnderPeftsNamesToo) {
  const std::string name = absl::StrCat("transformer.", kModule);
  for (const auto& [end, kind] : {std::pair{".lora_magnitude_vector.default.weight", "DoRA"},
                                  std::pair{".lora_B.default.bias", "LoRA with biases"}}) {
    std::vector<Tensor> tensors = Pair(name + ".lora_A.default.weight", name + ".lora_B.default.weight");
    tensors.push_back({name + end, {kWidth}, 1});
    EXPECT_THAT(Refused(Write(tensors), AdapterFault::kUnsupportedKind), HasSubstr(kind));
  }
}

TEST_F(AdapterFormsTest, EmbeddingsInAnAdapterAreLeftOutByName) {
  const std::string name = absl::StrCat("transformer.", kModule);
  const std::vector<Tensor> pair = Pair(name + ".lora_A.weight", name + ".lora_B.weight");
  const absl::StatusOr<Served> known = ServedOf(Write(pair));
  for (const std::string embedding :
       {"emb_params", "clip_l", "clip_g", "t5", "bundle_emb.sks.clip_l", "bundle_emb.sks.string_to_param.*", "<sks>",
        "string_to_param.*", "text_encoder.text_model.embeddings.token_embedding.weight",
        "text_encoder_3.shared.weight"}) {
    std::vector<Tensor> tensors = pair;
    tensors.push_back({embedding, {2, kWidth}, 7});
    std::vector<std::string> embeddings;
    ExpectSame(ServedOf(Write(tensors), &embeddings), known, embedding);
    EXPECT_THAT(embeddings, ElementsAre(embedding));
    const AdaptableModel model = Model();
    EXPECT_THAT(CheckAdapter(folder_ / "adapter.safetensors", "style", model)->embeddings, ElementsAre(embedding));
  }
  EXPECT_EQ(EmbeddingsWarning("style", {}), "");
  EXPECT_THAT(EmbeddingsWarning("style", {"clip_l", "t5"}),
              AllOf(HasSubstr("the adapter \"style\""), HasSubstr("clip_l, t5")));
  // A file that holds only embeddings is not an adapter.
  EXPECT_THAT(Refused(Write({{"emb_params", {2, kWidth}, 7}}), AdapterFault::kNotAnAdapter), HasSubstr("emb_params"));
}

TEST_F(AdapterFormsTest, AFolderOfDiffusersIsItsFile) {
  const std::string name = absl::StrCat("transformer.", kModule);
  const std::vector<Tensor> pair = Pair(name + ".lora_A.weight", name + ".lora_B.weight");
  Write(pair, {}, "style/pytorch_lora_weights.safetensors");
  ExpectSame(ServedOf(folder_ / "style"), ServedOf(Write(pair)), "folder");
  ExpectSame(ServedOf(folder_ / "style/"), ServedOf(Write(pair)), "folder");
  folder_.Write("none/adapter_config.json", "{}");
  EXPECT_THAT(Refused(folder_ / "none", AdapterFault::kNotAnAdapter),
              AllOf(HasSubstr("the folder none"), HasSubstr("adapter_model.safetensors"),
                    HasSubstr("pytorch_lora_weights.safetensors")));
}

}  // namespace
}  // namespace tessera::models
