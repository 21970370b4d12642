#include "runtime/engine/loaded_adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/families/families.h"

namespace tessera::runtime {
namespace {

class LoadedAdaptersTest : public testing::Test {
 protected:
  static models::AdaptableModel PixArt() {
    const auto folder = models::ModelFolder::Open("tests/golden/pipelines/pixart_sigma");
    const auto family = (*models::FindFamily(folder->class_name()))->load(*folder, {});
    return (*family)->adaptable();
  }
  static control::AdapterUse Use(const std::string& name, double scale = 1) {
    const std::string file = "tests/golden-inputs/adapters/" + name;
    return {.name = name, .scale = scale, .digest = models::AdapterDigest(file).value_or(""), .file = file};
  }

  const control::AdapterUse first_ = Use("pixart_sigma_metadata.safetensors"), second_ = Use("pixart_sigma_folder");
};

TEST_F(LoadedAdaptersTest, ReadsAFileOnceWhileThereIsRoom) {
  LoadedAdapters adapters(PixArt(), {});
  for (int i = 0; i < 3; ++i) {
    const std::vector<control::AdapterUse> uses = {first_, second_};
    const absl::StatusOr<models::SharedAdapters> sum = adapters.Sum(uses);
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_NE((*sum)->Of("transformer"), nullptr);
  }
  EXPECT_EQ(adapters.reads(), 2);
}

TEST_F(LoadedAdaptersTest, ForgetsTheLeastRecentlyUsedAndAJobKeepsItsOwn) {
  LoadedAdapters adapters(PixArt(), {}, /*max_bytes=*/1);
  const absl::StatusOr<models::SharedAdapters> held = adapters.Sum({&first_, 1});
  ASSERT_TRUE(held.ok()) << held.status();
  const int64_t of_first = adapters.bytes();
  ASSERT_TRUE(adapters.Sum({&second_, 1}).ok());
  EXPECT_NE(adapters.bytes(), of_first);
  ASSERT_TRUE(adapters.Sum({&first_, 1}).ok());
  EXPECT_EQ(adapters.bytes(), of_first);
  EXPECT_EQ(adapters.reads(), 3);
  EXPECT_FALSE((*held)->Of("transformer")->empty());
}

TEST_F(LoadedAdaptersTest, SumsOfTheSameFilesAndScalesHaveOneKeyAndOthersNot) {
  LoadedAdapters adapters(PixArt(), {});
  const auto key = [&](double scale) {
    const control::AdapterUse use = Use("pixart_sigma_metadata.safetensors", scale);
    const absl::StatusOr<models::SharedAdapters> sum = adapters.Sum({&use, 1});
    return *sum == nullptr ? "" : (*sum)->key;
  };
  EXPECT_EQ(key(0.5), key(0.5));
  EXPECT_NE(key(0.5), key(0.25));
  EXPECT_EQ(key(0), "");
}

}  // namespace
}  // namespace tessera::runtime
