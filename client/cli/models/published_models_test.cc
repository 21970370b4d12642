#include "client/cli/models/published_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/hub_name.h"
#include "control/model/pipelines.h"

namespace tessera::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Like(const std::string& text) {
  std::vector<std::string> names;
  for (const PublishedModel* model : PublishedModelsLike(text)) names.push_back(model->name);
  return names;
}

TEST(PublishedModelsTest, EveryModelCanBeRunAndEveryPipelineHasOne) {
  std::set<std::string> pipelines;
  for (const PublishedModel& model : PublishedModels()) {
    EXPECT_EQ(base::ReadHubName(model.name), model.name);
    EXPECT_EQ(control::PipelineProblem(model.pipeline), "") << model.name;
    EXPECT_EQ(control::RepositoryProblem(model.name), "") << model.name;
    pipelines.insert(model.pipeline);
  }
  EXPECT_EQ(pipelines.size(), std::size(control::kPipelineClasses));
}

TEST(PublishedModelsTest, SuggestsWhatAShortNameMayMean) {
  EXPECT_THAT(Like("flux"), ElementsAre("black-forest-labs/FLUX.2-klein-4B", "black-forest-labs/FLUX.2-klein-base-4B",
                                        "black-forest-labs/FLUX.1-schnell", "black-forest-labs/FLUX.1-dev"));
  EXPECT_THAT(Like("flux-schnell"), ElementsAre("black-forest-labs/FLUX.1-schnell"));
  EXPECT_THAT(Like("sd3.5-medium"), ElementsAre("stabilityai/stable-diffusion-3.5-medium"));
  EXPECT_THAT(Like("stabilityai/stable-diffusion-3-medium"),
              ElementsAre("stabilityai/stable-diffusion-3-medium-diffusers"));
  EXPECT_THAT(Like("xyzzy"), IsEmpty());
  EXPECT_THAT(Like(""), IsEmpty());
}

TEST(PublishedModelsTest, SaysWhetherALicenceAllowsCommercialUse) {
  EXPECT_EQ(CommercialUseOf("apache-2.0"), "yes");
  EXPECT_EQ(CommercialUseOf("flux-1-dev-non-commercial-license"), "no");
  EXPECT_EQ(CommercialUseOf("cc-by-nc-4.0"), "no");
  EXPECT_EQ(CommercialUseOf("stabilityai-ai-community"), "read it");
  EXPECT_EQ(CommercialUseOf(""), "read it");
}

TEST(PublishedModelsTest, TheTableOfTheReadmeIsMadeFromTheModels) {
  const char* path = "README.md";
  const std::string begin =
      "<!-- Made from client/cli/models/published_models.cc: TESSERA_UPDATE_DOCUMENTS=1 cli_test. -->\n";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t start = text.find(begin), end = text.find("\n\n", start);
  ASSERT_NE(start, std::string::npos);
  // Without spaces, because the README is at most 100 columns wide.
  std::string table = "|model on the hub|GB|licence|commercial use|login|\n|---|---|---|---|---|\n";
  for (const PublishedModel& model : PublishedModels()) {
    absl::StrAppend(&table, "|`", model.name, "`|", absl::StrFormat("%.1f", model.gigabytes), "|", model.licence, "|",
                    CommercialUseOf(model.licence), "|", model.needs_login ? "yes" : "no", "|\n");
  }
  const std::string made = text.substr(0, start) + begin + table + text.substr(end + 1);
  if (std::getenv("TESSERA_UPDATE_DOCUMENTS") != nullptr) std::ofstream(path) << made;
  EXPECT_TRUE(made == text) << "set TESSERA_UPDATE_DOCUMENTS=1 and run this test again";
}

TEST(PublishedModelsTest, OtherFamiliesAreNamed) {
  EXPECT_THAT(control::PipelineProblem("StableDiffusionXLPipeline"),
              HasSubstr("a model of Stable Diffusion XL, which Tessera does not run; it runs DiT, FLUX.2 klein"));
  EXPECT_THAT(control::PipelineProblem("StableDiffusionPipeline"), HasSubstr("Stable Diffusion 1 and 2"));
  EXPECT_THAT(control::PipelineProblem("New\nPipeline"), HasSubstr("the pipeline New?Pipeline"));
  EXPECT_THAT(control::RepositoryProblem("stabilityai/stable-diffusion-xl-base-1.0"), HasSubstr("Stable Diffusion XL"));
  EXPECT_THAT(control::RepositoryProblem("/models/sd_xl_base_1.0.safetensors"), HasSubstr("Stable Diffusion XL"));
  EXPECT_EQ(control::RepositoryProblem("org/model"), "");
}

}  // namespace
}  // namespace tessera::client
