#include "client/cli/pull/file_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tessera::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

HubListing Listing(const std::vector<std::string>& paths) {
  HubListing listing;
  for (const std::string& path : paths) listing.files.push_back({.path = path, .size = 10});
  return listing;
}

std::vector<std::string> Selected(const std::vector<std::string>& paths, const std::vector<std::string>& components) {
  const auto selection = SelectFiles(Listing(paths), {.class_name = "P", .components = components});
  EXPECT_TRUE(selection.ok()) << selection.status();
  std::vector<std::string> names;
  for (const HubFile& file : selection->files) names.push_back(file.path);
  return names;
}

TEST(FileSelectionTest, TakesTheWeightsOfFluxOnceWithTheLicenceAndWithoutTheFileAtTheRoot) {
  EXPECT_THAT(Selected({".gitattributes", "LICENSE.md", "README.md", "ae.safetensors", "dev_grid.jpg",
                        "flux1-dev.safetensors", "model_index.json", "scheduler/scheduler_config.json",
                        "text_encoder/config.json", "text_encoder/model.safetensors", "text_encoder/pytorch_model.bin",
                        "tokenizer/merges.txt", "tokenizer/vocab.json", "transformer/config.json",
                        "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
                        "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
                        "transformer/diffusion_pytorch_model.safetensors.index.json", "unused/config.json"},
                       {"scheduler", "text_encoder", "tokenizer", "transformer"}),
              UnorderedElementsAre("LICENSE.md", "README.md", "model_index.json", "scheduler/scheduler_config.json",
                                   "text_encoder/config.json", "text_encoder/model.safetensors", "tokenizer/merges.txt",
                                   "tokenizer/vocab.json", "transformer/config.json",
                                   "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
                                   "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
                                   "transformer/diffusion_pytorch_model.safetensors.index.json"));
}

TEST(FileSelectionTest, TakesOnlyTheNamedComponentsAndNoIndexOfAModelThatIsNotWhole) {
  const HubListing listing = Listing({"LICENSE.md", "model_index.json", "tokenizer_2/spiece.model", "vae/config.json",
                                      "vae/diffusion_pytorch_model.safetensors"});
  const PipelineIndex index = {.class_name = "P", .components = {"tokenizer_2", "vae"}};
  const auto selection = SelectFiles(listing, index, {"tokenizer_2"});
  ASSERT_TRUE(selection.ok()) << selection.status();
  std::vector<std::string> names;
  for (const HubFile& file : selection->files) names.push_back(file.path);
  EXPECT_THAT(names, UnorderedElementsAre("LICENSE.md", "tokenizer_2/spiece.model"));
  const absl::Status unknown = SelectFiles(listing, index, {"tokenizer_3"}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()),
              HasSubstr("\"tokenizer_3\"; the model's components are tokenizer_2, vae"));
}

TEST(FileSelectionTest, TakesAVariantOnlyWhereThereIsNothingElse) {
  EXPECT_THAT(
      Selected({"vae/diffusion_pytorch_model.fp16.safetensors", "vae/diffusion_pytorch_model.safetensors"}, {"vae"}),
      ElementsAre("vae/diffusion_pytorch_model.safetensors"));
  EXPECT_THAT(Selected({"te/model.fp16-00001-of-00002.safetensors", "te/model.fp16-00002-of-00002.safetensors",
                        "te/model-00001-of-00001.safetensors", "te/model.safetensors.index.fp16.json",
                        "te/model.safetensors.index.json"},
                       {"te"}),
              UnorderedElementsAre("te/model-00001-of-00001.safetensors", "te/model.safetensors.index.json"));
  EXPECT_THAT(Selected({"te/model.fp16-00001-of-00001.safetensors", "te/model.safetensors.index.fp16.json",
                        "te/pytorch_model.bin", "te/flax_model.msgpack", "te/model.onnx"},
                       {"te"}),
              UnorderedElementsAre("te/model.fp16-00001-of-00001.safetensors", "te/model.safetensors.index.fp16.json"));
}

TEST(FileSelectionTest, TakesTheSingleFileAndNotItsShards) {
  EXPECT_THAT(
      Selected({"te/model-00001-of-00001.safetensors", "te/model.safetensors", "te/model.safetensors.index.json"},
               {"te"}),
      ElementsAre("te/model.safetensors"));
}

TEST(FileSelectionTest, SaysWhichWeightsMustBeConverted) {
  const auto selection = SelectFiles(Listing({"transformer/config.json", "transformer/diffusion_pytorch_model.bin"}),
                                     {.class_name = "P", .components = {"transformer"}});
  ASSERT_TRUE(selection.ok()) << selection.status();
  EXPECT_EQ(selection->files.size(), 2u);
  EXPECT_THAT(selection->foreign, ElementsAre("transformer"));
}

TEST(FileSelectionTest, NamesTheComponentThatIsMissing) {
  const auto selection =
      SelectFiles(Listing({"vae/config.json"}), {.class_name = "P", .components = {"vae", "transformer"}});
  EXPECT_THAT(std::string(selection.status().message()), HasSubstr("no folder transformer"));
}

TEST(FileSelectionTest, ReadsTheComponentsOfAnIndexAndRefusesAFolderElsewhere) {
  const auto index = ParsePipelineIndex(
      R"({"_class_name": "FluxPipeline", "_x": ["a", "b"], "vae": ["d", "V"], "safety_checker": [null, null], "n": 3})");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->class_name, "FluxPipeline");
  EXPECT_THAT(index->components, ElementsAre("vae"));
  EXPECT_FALSE(ParsePipelineIndex(R"({"_class_name": "P", "../vae": ["d", "V"]})").ok());
  EXPECT_FALSE(ParsePipelineIndex("{}").ok());
}

}  // namespace
}  // namespace tessera::client
