#include "client/model_location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "tests/test_folder.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class ModelLocationTest : public ::testing::Test {
 protected:
  ModelLocationTest() {
    AddModel("one");
    AddModel("two");
    unsetenv("TESSERA_MODEL");
    unsetenv("TESSERA_MODELS");
  }

  void AddModel(const std::string& name) {
    std::filesystem::create_directories(folder_ / name);
    std::ofstream(folder_ / name + "/model_index.json") << "{}";
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

}  // namespace
}  // namespace tessera
