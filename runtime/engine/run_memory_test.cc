#include "runtime/engine/run_memory.h"

#include <gtest/gtest.h>

namespace tessera::runtime {
namespace {

// FLUX.1-dev, according to its configuration.
models::FamilyDescription Flux() {
  models::FamilyDescription flux{.default_height = 1024,
                                 .default_width = 1024,
                                 .default_guidance_scale = 3.5,
                                 .blocks = 57,
                                 .token_side = 16,
                                 .text_tokens = 512,
                                 .options = {"true_cfg_scale"}};
  flux.exchange.width = 3072;
  return flux;
}

parallel::Mesh MeshOf(const parallel::MeshShape& sizes, int ranks) { return *parallel::Mesh::Create(sizes, ranks); }

// 4096 tokens of the image and 512 of the text, 16 widths each; six widths of modulation for 64 steps in 57 blocks.
constexpr int64_t kActivations = int64_t{4608} * 16 * 3072, kModulations = int64_t{57} * 6 * 64 * 3072;
constexpr int64_t kDecoded = int64_t{1024} * 1024 * 384;

TEST(RunMemoryTest, IsTheDecodersOrThatOfAStep) {
  models::FamilyDescription model = Flux();
  EXPECT_EQ(RunBytes(model, control::Dtype::kBf16, MeshOf({}, 1)), 2 * kDecoded);
  // With a second row of guidance a step takes more.
  model.options.clear();
  EXPECT_EQ(RunBytes(model, control::Dtype::kFp32, MeshOf({}, 1)), 4 * 2 * (kActivations + kModulations));
  EXPECT_EQ(RunBytes(model, control::Dtype::kFp32, MeshOf({.cfg = 2}, 2)), 4 * (kActivations + kModulations));
}

TEST(RunMemoryTest, RanksShareIt) {
  models::FamilyDescription model = Flux();
  EXPECT_EQ(RunBytes(model, control::Dtype::kBf16, MeshOf({.ulysses = 2}, 2)), kDecoded);
  model.options.clear();
  for (const parallel::MeshShape& shape : {parallel::MeshShape{.ulysses = 2}, parallel::MeshShape{.tensor = 2}}) {
    EXPECT_EQ(RunBytes(model, control::Dtype::kBf16, MeshOf(shape, 2)), 2 * 2 * (kActivations / 2 + kModulations));
  }
}

}  // namespace
}  // namespace tessera::runtime
