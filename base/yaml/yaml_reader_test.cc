#include "base/yaml/yaml_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/yaml/yaml_document.h"

namespace tessera::base {
namespace {

using ::testing::ElementsAre;

struct Item {
  std::string name;
  std::vector<int64_t> sizes;
};

struct Settings {
  std::vector<double> betas = {0.9, 0.999};
  std::vector<Item> items;
};

absl::Status Read(const std::string& text, Settings& settings) {
  const absl::StatusOr<YAML::Node> document = ReadYamlDocument(text);
  if (!document.ok()) return document.status();
  YamlMapping mapping(*document, "");
  mapping("betas", settings.betas, {0, 1});
  mapping.Each("items", settings.items, [](YamlMapping& item, Item& value) {
    item("name", value.name);
    item("sizes", value.sizes, {1, 64});
  });
  return mapping.Finish();
}

std::string ErrorOf(const std::string& text) {
  Settings settings;
  return std::string(Read(text, settings).message());
}

TEST(YamlReaderTest, ListsOfNumbersAndOfMappingsAreReadAndWhatIsAbsentStays) {
  Settings settings;
  const absl::Status status = Read("items: [{name: a, sizes: [4, 8]}, {sizes: 16}]", settings);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(settings.betas, ElementsAre(0.9, 0.999));
  ASSERT_EQ(settings.items.size(), 2u);
  EXPECT_EQ(settings.items[0].name, "a");
  EXPECT_THAT(settings.items[0].sizes, ElementsAre(4, 8));
  EXPECT_THAT(settings.items[1].sizes, ElementsAre(16));
}

TEST(YamlReaderTest, AnErrorInAListNamesTheItemTheKeyTheValueAndTheLine) {
  EXPECT_EQ(ErrorOf("items:\n- {name: a}\n- {name: b,\n   sizes: 65}\n"),
            "items[1].sizes is 65; valid values are 1 to 64, the nearest is 64 (line 4)");
  EXPECT_EQ(ErrorOf("items: [{nane: a}]"),
            "key of items[0] 'nane' is unknown; valid values are name, sizes; did you mean 'name'? (line 1)");
  EXPECT_EQ(ErrorOf("items: [3]"), "items[0] is not a mapping of keys to values (line 1)");
  EXPECT_EQ(ErrorOf("items: 3"), "items is not a list of mappings (line 1)");
  EXPECT_EQ(ErrorOf("betas: [0.5, 1.5]"), "betas is '1.5'; it must be a number from 0 to 1, the nearest is 1 (line 1)");
  EXPECT_EQ(ErrorOf("betas: nan"), "betas is 'nan'; it must be a number from 0 to 1 (line 1)");
  EXPECT_EQ(ErrorOf("betas: [[1]]"), "betas has an entry that is not a number (line 1)");
}

}  // namespace
}  // namespace tessera::base
