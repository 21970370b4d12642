#include "parallel/attention/stale_store.h"

#include <gtest/gtest.h>

namespace tessera::parallel {
namespace {

// Two patches of three image tokens and two text tokens, one head of one channel.
class StaleStoreTest : public testing::Test {
 protected:
  const TokenLayout tokens_ = *TokenLayout::Create({.image = 6, .text = 2, .patches = 2, .text_work = 0});

  // Returns the keys that are read after a pass with these keys, in this order; values are their negatives.
  static std::vector<double> Read(StaleStore& store, PatchRange pass, const std::vector<double>& keys,
                                  TokenRows order = TokenRows::kImageThenText, int layer = 0) {
    const at::Tensor k = at::tensor(keys, at::kDouble).reshape({1, -1, 1, 1});
    store.BeginPass(pass);
    const Qkv read = store.Renew(layer, {.q = k, .k = k, .v = -k, .queries = order, .keys = order});
    EXPECT_TRUE(at::equal(read.v, -read.k));
    const at::Tensor flat = read.k.flatten().contiguous();
    return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
  }
};

TEST_F(StaleStoreTest, RowsOfOtherPatchesAreThoseOfTheStepBefore) {
  StaleStore store;
  store.Begin(0, tokens_, 0);
  EXPECT_EQ(Read(store, {0, 2}, {1, 2, 3, 4, 5, 6, 70, 80}), (std::vector<double>{70, 80, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Read(store, {0, 1}, {11, 12, 13, 71, 81}), (std::vector<double>{71, 81, 11, 12, 13, 4, 5, 6}));
  EXPECT_EQ(Read(store, {1, 2}, {14, 15, 16}), (std::vector<double>{71, 81, 11, 12, 13, 14, 15, 16}));
}

TEST_F(StaleStoreTest, AttentionOverTheImageAloneKeepsNoTextRows) {
  StaleStore store;
  store.Begin(0, tokens_, 0);
  Read(store, {0, 2}, {1, 2, 3, 4, 5, 6}, TokenRows::kImage, 1);
  EXPECT_EQ(Read(store, {1, 2}, {14, 15, 16}, TokenRows::kImage, 1), (std::vector<double>{1, 2, 3, 14, 15, 16}));
}

TEST_F(StaleStoreTest, RowsOfAnotherEpochAreNeverRead) {
  StaleStore store;
  store.Begin(0, tokens_, 0);
  Read(store, {0, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  store.Begin(1, tokens_, 0);
  EXPECT_THROW(Read(store, {0, 1}, {1, 2, 3, 7, 8}), c10::Error);
  EXPECT_EQ(Read(store, {0, 2}, {1, 2, 3, 4, 5, 6, 7, 8}).size(), 8u);
  EXPECT_THROW(store.Begin(1, tokens_, 0), c10::Error);
}

TEST_F(StaleStoreTest, APatchThatWasNeverSeenIsNotRead) {
  StaleStore store;
  store.Begin(0, tokens_, 0);
  EXPECT_THROW(Read(store, {0, 1}, {1, 2, 3, 7, 8}), c10::Error);
}

TEST_F(StaleStoreTest, KeysThatAreNotThoseOfThePassAreRefused) {
  StaleStore store;
  store.Begin(0, tokens_, 0);
  EXPECT_THROW(Read(store, {0, 2}, {1, 2, 3}), c10::Error);
}

}  // namespace
}  // namespace tessera::parallel
