#include "client/cli/models/model_location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/text/hub_name.h"
#include "tests/support/test_folder.h"

namespace tessera::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ModelLocationTest : public ::testing::Test {
 protected:
  ModelLocationTest() {
    AddModel("one");
    AddModel("two");
    unsetenv("TESSERA_MODEL");
    unsetenv("TESSERA_MODELS");
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
    setenv("HOME", (folder_ / "home").c_str(), 1);
  }

  void AddModel(const std::string& name) {
    std::filesystem::create_directories(folder_ / name);
    std::ofstream(folder_ / name + "/model_index.json") << "{}";
  }

  // Creates a model like a download by the hub's tools. `ref` is the content of refs/main; empty: there is no such
  // file.
  std::string AddCached(const std::string& folder, const std::string& commit, const std::string& ref) {
    AddModel(folder + "/snapshots/" + commit);
    if (!ref.empty()) folder_.Write(folder + "/refs/main", ref);
    return folder_ / folder + "/snapshots/" + commit;
  }

  std::string ErrorOf(const std::string& wanted) {
    const absl::StatusOr<std::string> found = FindModel(wanted, "");
    EXPECT_FALSE(found.ok()) << *found;
    return std::string(found.status().message());
  }

  TestFolder folder_;
};

TEST_F(ModelLocationTest, TakesAPathAsItIs) { EXPECT_EQ(*FindModel(folder_ / "one", ""), folder_ / "one"); }

TEST_F(ModelLocationTest, FindsAModelByNameInAFolderOfModelsOrAsOneOfTheFolders) {
  EXPECT_EQ(*FindModel("two", folder_.path()), folder_ / "two");
  EXPECT_EQ(*FindModel("two", folder_ / "one:" + folder_ / "two"), folder_ / "two");
}

TEST_F(ModelLocationTest, FindsModelsOfTheEnvironment) {
  setenv("TESSERA_MODELS", folder_.path().c_str(), 1);
  EXPECT_EQ(*FindModel("one", ""), folder_ / "one");
  setenv("TESSERA_MODEL", "two", 1);
  EXPECT_EQ(*FindModel("", ""), folder_ / "two");
}

TEST_F(ModelLocationTest, PrefersWhatIsAskedForToTheEnvironment) {
  setenv("TESSERA_MODEL", (folder_ / "two").c_str(), 1);
  EXPECT_EQ(*FindModel(folder_ / "one", ""), folder_ / "one");
}

TEST_F(ModelLocationTest, NamesTheKnownModelsWhenThereIsNoneOfThatName) {
  const absl::StatusOr<std::string> found = FindModel("tow", folder_.path());
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("did you mean 'two'?"));
}

TEST_F(ModelLocationTest, NamesAModelAfterTheLastPartOfItsPath) {
  EXPECT_EQ(ModelName("/models/emoji"), "emoji");
  EXPECT_EQ(ModelName("/models/emoji/"), "emoji");
  EXPECT_EQ(ModelName("/models/emoji/."), "emoji");
}

TEST_F(ModelLocationTest, FindsAModelOfTheHubsCacheByEitherSpellingOfItsName) {
  setenv("HF_HUB_CACHE", (folder_ / "cache").c_str(), 1);
  AddCached("cache/models--org--a-model.1", "0a1b", "");
  const std::string snapshot = AddCached("cache/models--org--a-model.1", "2c3d", "2c3d\n");
  EXPECT_EQ(*FindModel("org/a-model.1", ""), snapshot);
  EXPECT_EQ(*FindModel("models--org--a-model.1", ""), snapshot);
  EXPECT_EQ(*FindModel(folder_ / "cache/models--org--a-model.1", ""), snapshot);
  EXPECT_EQ(*FindModel(folder_ / "cache/models--org--a-model.1/", ""), snapshot);
  EXPECT_EQ(ModelName(snapshot), "org/a-model.1");
  const std::vector<KnownModel> known = KnownModels("");
  EXPECT_TRUE(std::any_of(known.begin(), known.end(),
                          [&](const KnownModel& m) { return m.name == "org/a-model.1" && m.path == snapshot; }));
}

TEST_F(ModelLocationTest, LooksForTheHubsCacheWhereTheHubsToolsPutIt) {
  const std::string home = AddCached("home/.cache/huggingface/hub/models--o--m", "1", "1");
  EXPECT_EQ(*FindModel("o/m", ""), home);
  const std::string xdg = AddCached("xdg/huggingface/hub/models--o--m", "2", "2");
  setenv("XDG_CACHE_HOME", (folder_ / "xdg").c_str(), 1);
  EXPECT_EQ(*FindModel("o/m", ""), xdg);
  const std::string hf_home = AddCached("hf/hub/models--o--m", "3", "3");
  setenv("HF_HOME", (folder_ / "hf").c_str(), 1);
  EXPECT_EQ(*FindModel("o/m", ""), hf_home);
  const std::string legacy = AddCached("legacy/models--o--m", "4", "4");
  setenv("HUGGINGFACE_HUB_CACHE", (folder_ / "legacy").c_str(), 1);
  EXPECT_EQ(*FindModel("o/m", ""), legacy);
  const std::string cache = AddCached("home/cache/models--o--m", "5", "5");
  setenv("HF_HUB_CACHE", "~/cache", 1);
  EXPECT_EQ(*FindModel("o/m", ""), cache);
}

TEST_F(ModelLocationTest, TakesTheOnlySnapshotWhereNoRefNamesOneAndRefusesToChooseAmongSeveral) {
  setenv("HF_HUB_CACHE", (folder_ / "cache").c_str(), 1);
  const std::string snapshot = AddCached("cache/models--o--m", "1", "");
  EXPECT_EQ(*FindModel("o/m", ""), snapshot);
  AddCached("cache/models--o--m", "2", "");
  EXPECT_THAT(ErrorOf("o/m"), HasSubstr("2 snapshots of o/m"));
}

TEST_F(ModelLocationTest, GivesTheCommandThatDownloadsWhatTheCacheLacks) {
  EXPECT_THAT(ErrorOf("org/model"), HasSubstr("download it with: tessera pull org/model"));
  setenv("HF_HUB_CACHE", (folder_ / "cache").c_str(), 1);
  EXPECT_THAT(ErrorOf("org/model"), HasSubstr("download it with: tessera pull org/model"));
  folder_.Write("cache/models--org--model/refs/main", "0a1b");
  EXPECT_THAT(ErrorOf("org/model"), HasSubstr("without its snapshot; complete the download with: tessera pull org/m"));
  folder_.Write("cache/models--org--model/snapshots/0a1b/vae/config.json", "{}");
  EXPECT_THAT(ErrorOf("org/model"),
              HasSubstr("without its model_index.json; complete the download with: tessera pull"));
}

TEST_F(ModelLocationTest, SuggestsThePublishedModelsThatMayBeMeantAndWhetherTheyAreHere) {
  EXPECT_THAT(ErrorOf("flux"),
              HasSubstr(", download with: tessera pull black-forest-labs/FLUX.1-schnell, download with: "
                        "tessera pull black-forest-labs/FLUX.1-dev"));
  setenv("HF_HUB_CACHE", (folder_ / "cache").c_str(), 1);
  AddCached("cache/models--black-forest-labs--FLUX.1-dev", "1", "1");
  EXPECT_THAT(ErrorOf("flux"),
              HasSubstr("tessera pull black-forest-labs/FLUX.1-schnell, use --model black-forest-labs/FLUX.1-dev"));
}

TEST_F(ModelLocationTest, AnUnsupportedFamilyIsNamedAndNoDownloadOfItIsSuggested) {
  setenv("HF_HUB_CACHE", (folder_ / "cache").c_str(), 1);
  folder_.Write("cache/models--stabilityai--sdxl-turbo/refs/main", "0a1b");
  for (const char* name : {"stabilityai/stable-diffusion-xl-base-1.0", "stabilityai/sdxl-turbo", "sdxl"}) {
    EXPECT_THAT(ErrorOf(name), HasSubstr("it is a model of Stable Diffusion XL, which Tessera does not run")) << name;
    EXPECT_THAT(ErrorOf(name), Not(HasSubstr("pull"))) << name;
  }
}

TEST_F(ModelLocationTest, ANameOfTheHubLeadsNowhereOutOfTheCache) {
  setenv("HF_HUB_CACHE", (folder_ / "cache").c_str(), 1);
  std::filesystem::create_directories(folder_ / "cache/models--org--");
  AddModel("cache/models--x--y/elsewhere");
  AddModel("cache/models--org--/snapshots/1");
  for (const std::string name :
       {"../one", "org/..", "org/../../one", "models--..--one", "models--org--", "models--org--../../one", "org/a/b",
        "/one", "org/", "-org/model", "org/.model", "org/a..b", "org/a--b", "org/mo del", "org/m\n"}) {
    EXPECT_THAT(ErrorOf(name), Not(HasSubstr("tessera pull"))) << name;
    EXPECT_EQ(base::ReadHubName(name), std::nullopt) << name;
  }
  EXPECT_EQ(base::ReadHubName("o/" + std::string(97, 'a')), std::nullopt);
  // A refs/main that does not contain the name of a commit is rejected.
  for (const std::string& ref :
       std::vector<std::string>{"../elsewhere", "..", "/etc", "snapshots/1", "", std::string(65, 'a')}) {
    folder_.Write("cache/models--x--y/refs/main", ref);
    EXPECT_THAT(ErrorOf("x/y"), HasSubstr("without a refs/main that names a commit")) << ref;
  }
}

TEST_F(ModelLocationTest, NamesTheFolderOfModelsThatIsNotThere) {
  AddModel("three");
  EXPECT_EQ(MissingModelFolder(""), "");
  EXPECT_EQ(MissingModelFolder(folder_.path() + ":" + (folder_ / "three")), "");
  EXPECT_EQ(MissingModelFolder(folder_.path() + ":" + (folder_ / "four")), folder_ / "four");
  EXPECT_EQ(MissingModelFolder(folder_ / "one/model_index.json"), folder_ / "one/model_index.json");
}

}  // namespace
}  // namespace tessera::client
