// Checks that the tests of the content store on a disk that fails, and of expiry, find planted bugs.
#include <gtest/gtest.h>

#include "tests/support/content_runs.h"
#include "tests/support/planted_bug.h"

namespace tessera::server {
namespace {

bool NothingIsLostWhenThePowerIsCut() { return FirstLoss(DiskCallFault::kPowerCut).empty(); }

// The content is much older than its retention.
bool AContentThatAJobNeedsStays() {
  const TestFolder folder;
  const auto store =
      *ContentStore::Open({.folder = folder / "keys", .own_folder = folder / "own", .retention = -absl::Hours(1)});
  const PutContent& content = PutContents().front();
  if (!Put(*store, content).ok()) return false;
  store->RemoveUnused({content.digest()});
  return IsFound(*store, content);
}

struct ContentBug {
  const char* name;
  bool (*holds)();
};

class PlantedContentBugTest : public testing::TestWithParam<ContentBug> {};

TEST_P(PlantedContentBugTest, IsFound) {
  ASSERT_TRUE(GetParam().holds());
  const PlantedBug planted(GetParam().name);
  EXPECT_FALSE(GetParam().holds());
}

INSTANTIATE_TEST_SUITE_P(, PlantedContentBugTest,
                         testing::Values(ContentBug{"content_is_not_synced", NothingIsLostWhenThePowerIsCut},
                                         ContentBug{"needed_content_expires", AContentThatAJobNeedsStays}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::server
