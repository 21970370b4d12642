#include "models/weights/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "control/model/component_role.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

constexpr char kGitLfsPointer[] =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

std::string ErrorOf(const std::string& path) {
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open(path);
  EXPECT_FALSE(model.ok()) << path;
  return std::string(model.status().message());
}

std::string IndexError(const std::string& text) {
  const absl::Status status = ParseModelIndex(text, "model_index.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(std::string(status.message()), HasSubstr("model_index.json"));
  return std::string(status.message());
}

// A small complete model: a transformer with one tensor and a scheduler.
void WriteModel(const TestFolder& folder) {
  folder.Write("model_index.json", R"({"_class_name": "PixArtSigmaPipeline", "transformer": ["diffusers", "T"],)"
                                   R"( "scheduler": ["diffusers", "S"]})");
  folder.Write("transformer/config.json", R"({"num_layers": 2})");
  folder.Write("transformer/diffusion_pytorch_model.safetensors", OneTensor("a"));
  folder.Write("scheduler/scheduler_config.json", R"({"num_train_timesteps": 1000})");
}

std::string DigestOf(const TestFolder& folder) {
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open(folder.path());
  EXPECT_TRUE(model.ok()) << model.status();
  const absl::StatusOr<std::string> digest = model->Digest();
  EXPECT_TRUE(digest.ok()) << digest.status();
  return digest.value_or("");
}

TEST(ModelFolderTest, AGoldenPipelineListsItsComponents) {
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open("tests/golden/pipelines/pixart_sigma");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->class_name(), "PixArtSigmaPipeline");
  EXPECT_THAT(model->components(),
              ElementsAre(Key("scheduler"), Key("text_encoder"), Key("tokenizer"), Key("transformer"), Key("vae")));
  EXPECT_EQ(model->components().at("text_encoder").library, "transformers");
  EXPECT_EQ(model->components().at("text_encoder").class_name, "T5EncoderModel");
  EXPECT_EQ(model->ComponentPath("vae").value(), "tests/golden/pipelines/pixart_sigma/vae");
}

TEST(ModelFolderTest, AComponentOfAnotherFolderIsReadThere) {
  const TestFolder whole, other;
  WriteModel(whole);
  other.Write("model_index.json", R"({"_class_name": "PixArtSigmaPipeline", "transformer": ["diffusers", "T"],)"
                                  R"( "scheduler": ["diffusers", "S"]})");
  other.Write("scheduler/scheduler_config.json", R"({"num_train_timesteps": 1000})");
  const std::string transformer = whole.path() + "/transformer";
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open(other.path(), {{"transformer", transformer}});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->ComponentPath("transformer").value(), transformer);
  EXPECT_EQ(model->ComponentPath("scheduler").value(), other.path() + "/scheduler");
  EXPECT_EQ(model->Config("transformer")->RequiredInt("num_layers"), 2);
  EXPECT_TRUE(model->Weights("transformer").ok());
  EXPECT_EQ(model->Digest().value(), DigestOf(whole));
}

TEST(ModelFolderTest, AComponentOfAnotherFolderPrecedesTheModelsOne) {
  const TestFolder folder, other;
  WriteModel(folder);
  other.Write("config.json", R"({"num_layers": 3})");
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open(folder.path(), {{"transformer", other.path()}});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->Config("transformer")->RequiredInt("num_layers"), 3);
}

TEST(ModelFolderTest, AComponentOfAnotherFolderMustBeListedAndExist) {
  const TestFolder folder;
  WriteModel(folder);
  const absl::Status unlisted = ModelFolder::Open(folder.path(), {{"vae", folder.path()}}).status();
  EXPECT_EQ(unlisted.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unlisted.message()), HasSubstr("no component \"vae\""));
  const absl::Status missing = ModelFolder::Open(folder.path(), {{"transformer", folder.path() + "/none"}}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no folder for component transformer"));
}

TEST(ModelFolderTest, ComponentsHaveTheRoleThatTheirNameSays) {
  const ModelIndex index = *ParseModelIndex(
      R"({"_class_name": "P", "scheduler": ["d", "S"], "text_encoder": ["t", "T"], "text_encoder_4": ["t", "T"],)"
      R"( "tokenizer": ["t", "T"], "transformer": ["d", "T"], "vae": ["d", "A"]})",
      "model_index.json");
  std::map<std::string, control::ComponentRole> roles;
  for (const auto& [name, component] : index.components) roles[name] = component.role;
  EXPECT_THAT(roles, ElementsAre(Pair("scheduler", control::ComponentRole::kOther),
                                 Pair("text_encoder", control::ComponentRole::kTextEncoder),
                                 Pair("text_encoder_4", control::ComponentRole::kTextEncoder),
                                 Pair("tokenizer", control::ComponentRole::kOther),
                                 Pair("transformer", control::ComponentRole::kTransformer),
                                 Pair("vae", control::ComponentRole::kAutoencoder)));
}

TEST(ModelFolderTest, EveryGoldenPipelineOpensWithConfigsAndDigest) {
  size_t models = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/pipelines")) {
    const absl::StatusOr<ModelFolder> model = ModelFolder::Open(entry.path());
    ASSERT_TRUE(model.ok()) << model.status();
    for (const auto& [component, unused] : model->components()) {
      EXPECT_TRUE(model->Config(component).ok()) << component << ": " << model->Config(component).status();
    }
    EXPECT_TRUE(model->Weights("transformer").ok());
    EXPECT_EQ(model->Digest().value().size(), 64u);
    ++models;
  }
  EXPECT_EQ(models, 9u);
}

TEST(ModelFolderTest, EachKindOfComponentHasItsConfigFile) {
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open("tests/golden/pipelines/pixart_sigma");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->Config("transformer")->name(), "transformer/config.json");
  EXPECT_EQ(model->Config("scheduler")->name(), "scheduler/scheduler_config.json");
  EXPECT_EQ(model->Config("tokenizer")->name(), "tokenizer/tokenizer_config.json");
  EXPECT_EQ(model->Config("transformer")->Int("num_layers", 0), 2);
}

TEST(ModelFolderTest, AbsentComponentsAndOptionsAreNoComponents) {
  const absl::StatusOr<ModelIndex> index = ParseModelIndex(
      R"({"_class_name": "P", "_list": ["a", "b"], "vae": ["diffusers", "V"], "safety_checker": [null, null],)"
      R"( "requires_safety_checker": false, "id2label": {"0": "tench"}, "note": "text", "n": null, "pair": [1, 2]})",
      "model_index.json");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(index->components, ElementsAre(Key("vae")));
  EXPECT_EQ(index->json.Find("requires_safety_checker")->AsBool(), false);
}

TEST(ModelFolderTest, AComponentThatIsHalfNullIsRefused) {
  EXPECT_THAT(IndexError(R"({"_class_name": "P", "vae": [null, "V"]})"), HasSubstr("\"vae\""));
  EXPECT_THAT(IndexError(R"({"_class_name": "P", "vae": ["diffusers", null]})"), HasSubstr("[null, null]"));
}

TEST(ModelFolderTest, AComponentOutsideTheFolderIsRefused) {
  for (const std::string name : {"../vae", "/etc", "..", ".", "", "a/b", "a\\u0000b"}) {
    EXPECT_THAT(IndexError(R"({"_class_name": "P", ")" + name + R"(": ["diffusers", "V"]})"),
                HasSubstr("plain name of a folder"))
        << name;
  }
}

TEST(ModelFolderTest, AnIndexWithoutClassIsRefused) {
  EXPECT_THAT(IndexError("{}"), HasSubstr("\"_class_name\" is missing"));
  EXPECT_THAT(IndexError(R"({"_class_name": ""})"), HasSubstr("\"_class_name\""));
  EXPECT_THAT(IndexError(R"({"_class_name": ["P"]})"), HasSubstr("a text"));
  EXPECT_THAT(IndexError("[]"), HasSubstr("JSON object"));
}

TEST(ModelFolderTest, AnUnlistedComponentIsRefusedWithThoseThereAre) {
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open("tests/golden/pipelines/dit");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE(model->HasComponent("text_encoder"));
  for (const absl::Status& status : {model->ComponentPath("text_encoder").status(),
                                     model->Config("text_encoder").status(), model->Weights("text_encoder").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("\"text_encoder\""), HasSubstr("scheduler, transformer, vae")));
  }
}

TEST(ModelFolderTest, AMissingPathIsNamedAsTheUserWroteIt) {
  EXPECT_EQ(ErrorOf("no/such/model"), "there is no model at \"no/such/model\"");
  EXPECT_THAT(ErrorOf(""), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf(std::string("a\0b", 3)), HasSubstr("NUL"));
}

TEST(ModelFolderTest, ALongPathIsShownWhole) {
  const std::string path = "no/" + std::string(200, 'x');
  EXPECT_THAT(ErrorOf(path), HasSubstr("\"" + path + "\""));
}

TEST(ModelFolderTest, AFileThatIsNoModelIsRefused) {
  const TestFolder folder;
  EXPECT_THAT(ErrorOf(folder.Write("photo.jpg", "x")), HasSubstr("is not a folder"));
}

TEST(ModelFolderTest, ASingleFileThatIsNoModelIsCalledByWhatItIs) {
  const TestFolder folder;
  const std::string lora = OneTensor("transformer.blocks.0.attn.to_q.lora_A.weight");
  const struct {
    std::string name, bytes, what;
  } kCases[] = {
      {"a.safetensors", "x", "begins with 8 bytes of length"},
      {"b.ckpt", "PK\x03\x04", "PyTorch pickle, which can run code"},
      {"c.safetensors", lora, "is a LoRA"},
      {"d.gguf", "GGUF\3", "the file may have been cut short"},
      {"e.safetensors", OneTensor("strange"), "holds no part of a model"},
  };
  for (const auto& [name, bytes, what] : kCases) {
    EXPECT_THAT(ErrorOf(folder.Write(name, bytes)), HasSubstr(what)) << name;
  }
  EXPECT_THAT(ErrorOf(folder.Write("g.safetensors", kGitLfsPointer)),
              AllOf(HasSubstr("git-lfs pointer"), HasSubstr("git lfs pull"), Not(HasSubstr("convert"))));
}

TEST(ModelFolderTest, AFolderOfSingleFilesIsRecognised) {
  const TestFolder folder;
  folder.Write("sd3.safetensors", OneTensor("joint_blocks.0.x"));
  EXPECT_THAT(ErrorOf(folder.path()), AllOf(HasSubstr("no model_index.json, but 1 file with weights"),
                                            HasSubstr("--model " + (folder / "sd3.safetensors"))));
}

TEST(ModelFolderTest, QuantizedWeightsOfAMethodThatIsNotReadAreRefused) {
  const TestFolder folder;
  WriteModel(folder);
  folder.Write("transformer/config.json", R"({"quantization_config": {"quant_method": "torchao"}})");
  EXPECT_THAT(ErrorOf(folder.path()), AllOf(HasSubstr("transformer has quantized weights"), HasSubstr("torchao")));
}

TEST(ModelFolderTest, AFileThatGitLeftInPlaceOfALargeOneIsRecognisedWhereverItLies) {
  for (const std::string file :
       {"model_index.json", "transformer/config.json", "transformer/diffusion_pytorch_model.safetensors"}) {
    const TestFolder folder;
    WriteModel(folder);
    folder.Write(file, kGitLfsPointer);
    const absl::StatusOr<ModelFolder> model = ModelFolder::Open(folder.path());
    absl::Status status = model.status();
    if (model.ok()) status.Update(model->Config("transformer").status());
    if (model.ok()) status.Update(model->Weights("transformer").status());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << file;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(file + " is a git-lfs pointer"), HasSubstr("git lfs pull")));
  }
}

TEST(ModelFolderTest, ALinkOfTheHubsCacheToNowhereIsRecognisedWithTheCommandThatCompletesTheDownload) {
  for (const std::string file :
       {"model_index.json", "transformer/config.json", "transformer/diffusion_pytorch_model.safetensors"}) {
    const TestFolder cache;
    const std::string snapshot = "models--org--a.model/snapshots/0a1b/";
    cache.Write(snapshot + "model_index.json", R"({"_class_name": "P", "transformer": ["diffusers", "T"]})");
    cache.Write(snapshot + "transformer/config.json", "{}");
    cache.Write(snapshot + "transformer/diffusion_pytorch_model.safetensors", OneTensor("a"));
    std::filesystem::remove(cache / snapshot + file);
    std::filesystem::create_symlink("../../blobs/gone", cache / snapshot + file);
    const absl::StatusOr<ModelFolder> model = ModelFolder::Open(cache / snapshot);
    absl::Status status = model.status();
    if (model.ok()) status.Update(model->Config("transformer").status());
    if (model.ok()) status.Update(model->Weights("transformer").status());
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << file;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(file + ": it is a link to a missing file"), HasSubstr("tessera pull org/a.model")));
  }
  const TestFolder cache;
  cache.Write("models--org--a.model/snapshots/0a1b/model_index.json",
              R"({"_class_name": "FluxPipeline", "vae": ["d", "V"]})");
  EXPECT_THAT(ErrorOf(cache / "models--org--a.model/snapshots/0a1b"),
              AllOf(HasSubstr("component vae"), HasSubstr("tessera pull org/a.model")));
}

TEST(ModelFolderTest, AnUnsupportedFamilyIsNamedAndNothingIsDownloadedOrConvertedForIt) {
  const TestFolder folder;
  folder.Write("models--org--xl/snapshots/0a1b/model_index.json",
               R"({"_class_name": "StableDiffusionXLPipeline", "vae": ["d", "V"]})");
  const std::string unet = folder.Write("unet.safetensors", OneTensor("model.diffusion_model.input_blocks.0.0.weight"));
  const std::string named = folder.Write("sd_xl_base_1.0.ckpt", "x");
  for (const auto& [path, family] :
       {std::pair(folder / "models--org--xl/snapshots/0a1b", "Stable Diffusion XL"),
        std::pair(unet, "Stable Diffusion 1 and 2"), std::pair(named, "Stable Diffusion XL")}) {
    const std::string error = ErrorOf(path);
    EXPECT_THAT(error, HasSubstr(absl::StrCat("a model of ", family, ", which Tessera does not run"))) << path;
    EXPECT_THAT(error, AllOf(Not(HasSubstr("pull")), Not(HasSubstr("convert")))) << path;
  }
}

TEST(ModelFolderTest, AFileOfAModelPointsToTheModel) {
  const TestFolder folder;
  WriteModel(folder);
  folder.Write("whole_model.safetensors", OneTensor("a"));
  for (const std::string file : {"transformer/diffusion_pytorch_model.safetensors", "whole_model.safetensors"}) {
    EXPECT_THAT(ErrorOf(folder / file), HasSubstr("the model is the folder \"" + folder.path() + "\""));
  }
}

TEST(ModelFolderTest, AComponentOfAModelIsRecognised) {
  const TestFolder folder;
  WriteModel(folder);
  EXPECT_THAT(ErrorOf(folder / "transformer"), HasSubstr("one component"));
}

TEST(ModelFolderTest, ADownloadCachesOuterFolderIsRecognised) {
  const TestFolder folder;
  folder.Write("snapshots/0a1b/model_index.json", "{}");
  EXPECT_THAT(ErrorOf(folder.path()), HasSubstr("snapshots"));
}

TEST(ModelFolderTest, AFolderWithoutIndexIsRefused) {
  const TestFolder folder;
  EXPECT_THAT(ErrorOf(folder.path()), HasSubstr("no model_index.json"));
}

TEST(ModelFolderTest, ACorruptIndexIsRefusedWithItsPlace) {
  const TestFolder folder;
  folder.Write("model_index.json", "{\n  \"_class_name\": \"P\n}");
  EXPECT_THAT(ErrorOf(folder.path()), AllOf(HasSubstr("model_index.json: line 2"), Not(HasSubstr(folder.path()))));
}

TEST(ModelFolderTest, AllMissingComponentFoldersAreNamed) {
  const TestFolder folder;
  folder.Write("model_index.json",
               R"({"_class_name": "P", "vae": ["diffusers", "V"], "tokenizer": ["transformers", "T"]})");
  EXPECT_THAT(ErrorOf(folder.path()), HasSubstr("components tokenizer, vae"));
}

TEST(ModelFolderTest, ADownloadCacheOfLinksIsRead) {
  const TestFolder cache;
  cache.Write("blobs/index", R"({"_class_name": "P", "transformer": ["diffusers", "T"]})");
  cache.Write("blobs/config", R"({"num_layers": 5})");
  cache.Write("blobs/weights", OneTensor("a"));
  const std::filesystem::path snapshot = cache / "snapshots/0a1b";
  std::filesystem::create_directories(snapshot / "transformer");
  std::filesystem::create_symlink("../../blobs/index", snapshot / "model_index.json");
  std::filesystem::create_symlink("../../../blobs/config", snapshot / "transformer/config.json");
  std::filesystem::create_symlink("../../../blobs/weights", snapshot / "transformer/model.safetensors");
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open(snapshot.string());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->Config("transformer")->Int("num_layers", 0), 5);
  EXPECT_EQ(model->Weights("transformer")->tensors().size(), 1u);
}

TEST(ModelFolderTest, TheDigestIsThatOfTheContentsAndNotOfThePath) {
  const TestFolder first, second;
  WriteModel(first);
  WriteModel(second);
  EXPECT_EQ(DigestOf(first), DigestOf(second));
}

TEST(ModelFolderTest, TheDigestChangesWithIndexConfigsAndWeightHeaders) {
  const TestFolder folder;
  WriteModel(folder);
  const std::string original = DigestOf(folder);
  folder.Write("transformer/config.json", R"({"num_layers": 3})");
  EXPECT_NE(DigestOf(folder), original);
  WriteModel(folder);
  folder.Write("scheduler/scheduler_config.json", "{}");
  EXPECT_NE(DigestOf(folder), original);
  WriteModel(folder);
  folder.Write("transformer/diffusion_pytorch_model.safetensors", OneTensor("b"));
  EXPECT_NE(DigestOf(folder), original);
  WriteModel(folder);
  folder.Write("model_index.json", R"({"_class_name": "P", "transformer": ["diffusers", "T"]})");
  EXPECT_NE(DigestOf(folder), original);
  WriteModel(folder);
  EXPECT_EQ(DigestOf(folder), original);
}

TEST(ModelFolderTest, TheDigestChangesWithTheFilesOfAProcessorOfPictures) {
  for (const char* const file : {"processor/preprocessor_config.json", "processor/processor_config.json"}) {
    const TestFolder folder;
    WriteModel(folder);
    folder.Write("model_index.json", R"({"_class_name": "P", "transformer": ["diffusers", "T"],)"
                                     R"( "processor": ["transformers", "Q"]})");
    folder.Write(file, R"({"max_pixels": 12544})");
    const std::string original = DigestOf(folder);
    folder.Write(file, R"({"max_pixels": 12545})");
    EXPECT_NE(DigestOf(folder), original) << file;
  }
}

}  // namespace
}  // namespace tessera::models
