// Tests models that are made of single files: which parts are found, where, and what is said about those that are not.
#include "models/weights/single_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "control/parameters/component_files.h"
#include "models/weights/model_folder.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kKlein = "tests/golden-newer/pipelines/flux2_klein/";

// The parts of FLUX.2 klein as ComfyUI keeps them, in a folder of this test alone, with an empty cache of the hub.
class SingleModelTest : public testing::Test {
 protected:
  SingleModelTest() {
    if (const char* set = std::getenv("HF_HUB_CACHE")) previous_ = set;
    setenv("HF_HUB_CACHE", (folder_ / "hub").c_str(), 1);
    Copy("transformer/diffusion_pytorch_model.safetensors", "diffusion_models/klein.safetensors");
  }
  ~SingleModelTest() override {
    if (previous_) {
      setenv("HF_HUB_CACHE", previous_->c_str(), 1);
    } else {
      unsetenv("HF_HUB_CACHE");
    }
  }

  void Copy(const std::string& from, const std::string& to) const {
    fs::create_directories(fs::path(folder_ / to).parent_path());
    fs::copy(kKlein + from, folder_ / to, fs::copy_options::recursive);
  }
  void CopyEncoders() const {
    Copy("text_encoder/model.safetensors", "text_encoders/qwen_3.safetensors");
    Copy("vae/diffusion_pytorch_model.safetensors", "vae/flux2-vae.safetensors");
  }
  std::string file() const { return folder_ / "diffusion_models/klein.safetensors"; }

  TestFolder folder_;

 private:
  std::optional<std::string> previous_;
};

std::string ErrorOf(const absl::Status& status) {
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST_F(SingleModelTest, PartsInTheNeighbouringFoldersAreFound) {
  CopyEncoders();
  Copy("tokenizer", "tokenizer");
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open(file());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->class_name(), "Flux2KleinPipeline");
  EXPECT_EQ(model->index().Find("is_distilled")->AsBool(), true);
  EXPECT_EQ(model->components().size(), 5u);
  EXPECT_TRUE(fs::equivalent(model->Source("vae").path, folder_ / "vae/flux2-vae.safetensors"));
  EXPECT_TRUE(fs::equivalent(*model->ComponentPath("tokenizer"), folder_ / "tokenizer"));
  EXPECT_EQ(model->Source("text_encoder").part->class_name, "Qwen3ForCausalLM");
  const ModelFolder whole = *ModelFolder::Open(kKlein);
  for (const char* component : {"transformer", "vae", "text_encoder"}) {
    const base::Json derived = model->Config(component)->json(), published = whole.Config(component)->json();
    for (const char* field : {"num_layers", "joint_attention_dim", "latent_channels", "num_hidden_layers"}) {
      const base::Json* expected = published.Find(field);
      if (expected == nullptr) continue;
      EXPECT_EQ(derived.Find(field)->AsInt(), expected->AsInt()) << field;
    }
  }
  EXPECT_EQ(model->Config("scheduler")->Bool("use_dynamic_shifting", false), true);
}

TEST_F(SingleModelTest, MissingPartsAreNamedWithTheirOptionAndTheCommandThatDownloadsOnlyThem) {
  CopyEncoders();
  const std::string error = ErrorOf(ModelFolder::Open(file()).status());
  EXPECT_THAT(error, AllOf(HasSubstr("tokenizer (Qwen2Tokenizer, --tokenizer)"), Not(HasSubstr("text_encoder")),
                           HasSubstr("tessera pull black-forest-labs/FLUX.2-klein-4B --only tokenizer")));
  fs::remove_all(folder_ / "text_encoders");
  EXPECT_THAT(
      ErrorOf(ModelFolder::Open(file()).status()),
      AllOf(HasSubstr("text_encoder (Qwen3ForCausalLM, --text-encoder)"), HasSubstr("--only text_encoder,tokenizer")));
}

TEST_F(SingleModelTest, PartsOfTheHubsCacheAreFound) {
  CopyEncoders();
  const std::string snapshot = "hub/models--black-forest-labs--FLUX.2-klein-4B/snapshots/0a1b/";
  Copy("tokenizer", snapshot + "tokenizer");
  EXPECT_FALSE(ModelFolder::Open(file()).ok()) << "no reference names the snapshot";
  folder_.Write("hub/models--black-forest-labs--FLUX.2-klein-4B/refs/main", "0a1b");
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open(file());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(fs::equivalent(*model->ComponentPath("tokenizer"), folder_ / (snapshot + "tokenizer")));
}

TEST_F(SingleModelTest, GivenPartsPrecedeThoseBesideIt) {
  CopyEncoders();
  Copy("vae/diffusion_pytorch_model.safetensors", "other/autoencoder.safetensors");
  Copy("text_encoder", "encoders/qwen");
  const control::ComponentFiles files = {.text_encoders = {folder_ / "encoders/qwen"},
                                         .autoencoder = folder_ / "other/autoencoder.safetensors",
                                         .tokenizer = std::string(kKlein) + "tokenizer"};
  const absl::StatusOr<ModelFolder> model = ModelFolder::OpenWith(file(), files);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->Source("vae").path, files.autoencoder);
  EXPECT_EQ(model->Source("text_encoder").path, files.text_encoders[0]);
  EXPECT_FALSE(model->Source("text_encoder").config.has_value()) << "the folder has a configuration";
  EXPECT_EQ(model->Source("tokenizer").path, files.tokenizer);
}

TEST_F(SingleModelTest, AGivenPartOfAFolderIsReadInItsPlaceWithTheFoldersConfiguration) {
  CopyEncoders();
  const std::string vae = folder_ / "vae/flux2-vae.safetensors";
  const absl::StatusOr<ModelFolder> model = ModelFolder::OpenWith(kKlein, {.autoencoder = vae});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->Source("vae").path, vae);
  EXPECT_EQ(model->Config("vae")->json().Find("sample_size")->AsInt(), 64);
  EXPECT_EQ(*model->ComponentPath("text_encoder"), std::string(kKlein) + "/text_encoder");
}

TEST_F(SingleModelTest, AGivenPartThatFitsNothingIsRefused) {
  CopyEncoders();
  const std::string vae = folder_ / "vae/flux2-vae.safetensors", qwen = folder_ / "text_encoders/qwen_3.safetensors";
  EXPECT_THAT(ErrorOf(ModelFolder::OpenWith(file(), {.text_encoders = {vae}}).status()),
              AllOf(HasSubstr("is no text encoder of this model"), HasSubstr("Qwen3ForCausalLM")));
  EXPECT_THAT(ErrorOf(ModelFolder::OpenWith(file(), {.text_encoders = {qwen, qwen}}).status()),
              HasSubstr("another file is given for the same"));
  EXPECT_THAT(ErrorOf(ModelFolder::OpenWith(file(), {.autoencoder = qwen}).status()),
              HasSubstr("use it as what it is"));
  EXPECT_THAT(ErrorOf(ModelFolder::OpenWith(file(), {.tokenizer = folder_ / "vae"}).status()),
              HasSubstr("holds no tokenizer"));
}

TEST_F(SingleModelTest, SeveralFilesBesideItThatFitAreNamed) {
  CopyEncoders();
  Copy("vae/diffusion_pytorch_model.safetensors", "vae/second.safetensors");
  EXPECT_THAT(ErrorOf(ModelFolder::Open(file()).status()),
              AllOf(HasSubstr("2 files beside"), HasSubstr("second.safetensors"), HasSubstr("--vae ")));
}

TEST_F(SingleModelTest, AFileBesideItOfAnotherWidthIsNotTaken) {
  CopyEncoders();
  fs::remove(folder_ / "text_encoders/qwen_3.safetensors");
  fs::copy("tests/golden-newer/pipelines/z_image_turbo/text_encoder/model.safetensors",
           folder_ / "text_encoders/qwen_3_4b.safetensors");
  EXPECT_THAT(ErrorOf(ModelFolder::Open(file()).status()), HasSubstr("text_encoder (Qwen3ForCausalLM"));
}

TEST_F(SingleModelTest, AVariantThatTheWeightsDoNotTellIsToldByTheFilesName) {
  const auto open = [&](const std::string& name) {
    const std::string path = folder_ / ("diffusion_models/" + name);
    fs::rename(file(), path);
    const absl::StatusOr<SingleModel> model = AssembleModel(path, {});
    fs::rename(path, file());
    return model;
  };
  EXPECT_EQ(open("flux-2-klein-4b.safetensors")->base, "black-forest-labs/FLUX.2-klein-4B");
  EXPECT_EQ(open("flux-2-klein-base-4b-fp8.safetensors")->base, "black-forest-labs/FLUX.2-klein-base-4B");
  EXPECT_THAT(ErrorOf(open("model.safetensors").status()), AllOf(HasSubstr("its base model"), HasSubstr("with: mv ")));
}

TEST_F(SingleModelTest, AFileWithoutATransformerIsNoModel) {
  CopyEncoders();
  EXPECT_THAT(ErrorOf(ModelFolder::Open(folder_ / "vae/flux2-vae.safetensors").status()),
              AllOf(HasSubstr("no transformer"), HasSubstr("--vae ")));
  EXPECT_THAT(ErrorOf(ModelFolder::Open(folder_ / "text_encoders/qwen_3.safetensors").status()),
              AllOf(HasSubstr("is a language model"), HasSubstr("--text-encoder ")));
}

}  // namespace
}  // namespace tessera::models
