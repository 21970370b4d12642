#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "models/keymaps/key_map.h"
#include "tests/support/planted_bug.h"

namespace tessera::models {
namespace {

TEST(PlantedKeyMapTest, LevelsThatAreNotReversedAreFoundUnderOtherNames) {
  const PlantedBug planted("key_map_levels_not_reversed");
  const base::Json config = *base::ParseJson(R"({"block_out_channels": [1, 2, 3, 4]})", "config");
  const KeyMap map = **KeyMapOf("AutoencoderKL", config, NameForm::kOriginal);
  const MappedKey key = *map.Map("decoder.up.3.block.0.conv1.weight");
  EXPECT_TRUE(absl::StartsWith(key.parameters.front(), "decoder.up_blocks.3."));  // 0 in the golden key maps
}

}  // namespace
}  // namespace tessera::models
