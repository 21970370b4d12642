// Tests models that are made of single files: which parts are found, where, and what is said about those that are not.
#include "models/weights/single_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "absl/strings/str_replace.h"
#include "base/files/file.h"
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

// A file of Stable Diffusion 3 with its autoencoder and its three text encoders.
constexpr const char* kSd3 = "tests/golden-files/checkpoints/sd3_small/checkpoint_incl_clips_t5.safetensors";

TEST_F(SingleModelTest, StableDiffusion3WithoutT5LacksNeitherT5NorItsTokenizer) {
  const std::string bytes = base::ReadWholeFile(kSd3, kSd3, 1 << 24).value();
  const std::string file = folder_.Write(
      "sd3_medium_incl_clips.safetensors",
      absl::StrReplaceAll(bytes, {{"text_encoders.t5xxl.", "text_encoders_t5xxl."}}));  // names of no component
  const std::string tokenizers = "tests/golden/pipelines/sd3";
  const std::string error = ErrorOf(ModelFolder::OpenWith(file, {.tokenizer = tokenizers + "/tokenizer"}).status());
  EXPECT_THAT(error, AllOf(HasSubstr("text_encoder_3 (T5EncoderModel, --text-encoder or --without-t5)"),
                           HasSubstr("tokenizer_3 (T5TokenizerFast, --tokenizer or --without-t5)"),
                           Not(HasSubstr("text_encoder_2"))));
  const control::ComponentFiles without = {.tokenizer = tokenizers, .without_t5 = true};
  const absl::StatusOr<ModelFolder> model = ModelFolder::OpenWith(file, without);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE(model->HasComponent("text_encoder_3"));
  EXPECT_FALSE(model->HasComponent("tokenizer_3"));
  EXPECT_TRUE(model->HasComponent("text_encoder_2"));

  // T5 is not read where it is present, and the digests differ.
  const absl::StatusOr<ModelFolder> with = ModelFolder::OpenWith(kSd3, {.tokenizer = tokenizers});
  const absl::StatusOr<ModelFolder> left_out = ModelFolder::OpenWith(kSd3, without);
  ASSERT_TRUE(with.ok() && left_out.ok()) << with.status() << left_out.status();
  EXPECT_TRUE(with->HasComponent("text_encoder_3"));
  EXPECT_FALSE(left_out->HasComponent("text_encoder_3"));
  EXPECT_NE(*with->Digest(), *left_out->Digest());
}

TEST_F(SingleModelTest, AFolderOfStableDiffusion3CanBeReadWithoutT5) {
  fs::copy("tests/golden/pipelines/sd3", folder_ / "sd3", fs::copy_options::recursive);
  const std::string folder = folder_ / "sd3";
  const std::string whole = *ModelFolder::Open(folder)->Digest();
  fs::remove_all(folder + "/text_encoder_3");
  EXPECT_THAT(ErrorOf(ModelFolder::Open(folder).status()),
              AllOf(HasSubstr("no folder for component text_encoder_3"), HasSubstr("without it with: --without-t5")));
  const absl::StatusOr<ModelFolder> without = ModelFolder::OpenWith(folder, {.without_t5 = true});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->components().size(), 7u);
  EXPECT_NE(*without->Digest(), whole);
  fs::remove_all(folder + "/text_encoder_2");
  EXPECT_THAT(ErrorOf(ModelFolder::Open(folder).status()), Not(HasSubstr("--without-t5"))) << "CLIP-G is needed";
}

TEST_F(SingleModelTest, OnlyStableDiffusion3RunsWithoutT5) {
  CopyEncoders();
  for (const std::string& model : {file(), std::string(kKlein), std::string("tests/golden/pipelines/flux_dev")}) {
    const absl::Status status = ModelFolder::OpenWith(model, {.without_t5 = true}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << model << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("as only Stable Diffusion 3 can; leave out --without-t5"));
  }
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
