#include "runtime/training/checkpoints/checkpoint_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace tessera::runtime {
namespace {

using models::StoredType;
using testing::HasSubstr;

CheckpointIndex Held(const std::string& tensor, std::vector<int64_t> shape, std::vector<Box> boxes,
                     StoredType type = StoredType::kF32) {
  CheckpointIndex index{.step = 5, .ranks = 1, .state = "{}"};
  CheckpointTensor& held = index.tensors[tensor];
  held = {.type = type, .shape = std::move(shape)};
  for (Box& box : boxes) held.boxes.push_back({.box = std::move(box), .rank = 0});
  return index;
}

TEST(BoxTest, BoxesMeetInWhatBothHold) {
  const Box a{{0, 2}, {4, 6}}, b{{3, 0}, {5, 4}};
  EXPECT_EQ(Intersect(a, b), (Box{{3, 2}, {1, 2}}));
  EXPECT_EQ(Intersect(a, (Box{{4, 2}, {1, 1}})), std::nullopt);
  EXPECT_EQ(Intersect(Box{}, Box{}), Box{});
  EXPECT_EQ(BoxText(a), "[0:4, 2:8]");
  EXPECT_EQ(Box{}.Elements(), 1);
  EXPECT_TRUE(LiesWithin(a, {4, 8}));
  EXPECT_FALSE(LiesWithin(a, {4, 7}));
  EXPECT_FALSE(LiesWithin(a, {4}));
  EXPECT_FALSE(LiesWithin(Box{{INT64_MAX}, {1}}, {4}));
}

TEST(CheckpointIndexTest, TheTextReadsBackAsTheSameIndex) {
  CheckpointIndex index = Held("a", {4, 2}, {{{0, 0}, {2, 2}}, {{2, 0}, {2, 2}}});
  index.ranks = 2;
  index.tensors["a"].boxes[1].rank = 1;
  index.tensors["scalar"] = {.type = StoredType::kF64, .shape = {}, .boxes = {{.box = {}, .rank = 1}}};
  index.tensors["empty"] = {.type = StoredType::kBF16, .shape = {0, 3}, .boxes = {}};
  index.state = R"({"steps":12345678901234567,"x":[0.1,-0.0,1e+300,true,null,"…"]})";
  const auto read = ParseIndex(IndexJson(index), "index");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, index);
  EXPECT_TRUE(CheckCoverage(*read).ok());
}

TEST(CheckpointIndexTest, AShapeThatCannotBeCountedIsRefused) {
  const std::string begin = R"({"format":"tessera-checkpoint","version":1,"step":5,"ranks":1,"state":{},"tensors":)";
  const auto error = [&](const std::string& tensor) {
    return std::string(ParseIndex(begin + "{\"a\":" + tensor + "}}", "index").status().message());
  };
  EXPECT_THAT(error(R"({"dtype":"U8","shape":[8589934592,8589934592],"boxes":[]})"),
              HasSubstr("has more bytes than 63 bits count"));
  EXPECT_THAT(error(R"({"dtype":"F64","shape":[2305843009213693952],"boxes":[]})"), HasSubstr("63 bits"));
  EXPECT_THAT(error(R"({"dtype":"U8","shape":[1],"boxes":[],"more":1})"), HasSubstr("unknown field \"more\""));
  EXPECT_EQ(error(R"({"dtype":"U8","shape":[0,2305843009213693952],"boxes":[]})"), "");
}

TEST(CheckpointIndexTest, OfReplicasOneWritesAndTheBytesAreDealtOut) {
  // Four ranks hold two whole tensors of the same size: each is written once, by different ranks.
  std::vector<CheckpointIndex> held;
  for (int rank = 0; rank < 4; ++rank) {
    held.push_back(Held("a", {8}, {{{0}, {8}}}));
    held.back().tensors["b"] = held.back().tensors["a"];
  }
  const auto merged = MergeIndexes(held);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->tensors.at("a").boxes, (std::vector<StoredBox>{{{{0}, {8}}, 0}}));
  EXPECT_EQ(merged->tensors.at("b").boxes, (std::vector<StoredBox>{{{{0}, {8}}, 1}}));
  EXPECT_EQ(merged->ranks, 4);
}

TEST(CheckpointIndexTest, WhatNoRankOrTwoHoldIsRefusedByName) {
  const auto error = [](const std::vector<CheckpointIndex>& held) {
    return std::string(MergeIndexes(held).status().message());
  };
  EXPECT_THAT(error({Held("w", {4}, {{{0}, {2}}}), Held("w", {4}, {{{3}, {1}}})}),
              HasSubstr("tensor \"w\" of shape [4]: the ranks hold 3 of its 4 elements"));
  EXPECT_THAT(error({Held("w", {4}, {{{0}, {3}}}), Held("w", {4}, {{{2}, {2}}})}),
              HasSubstr("the boxes [0:3] of rank 0 and [2:4] of rank 1 overlap without being equal"));
  EXPECT_THAT(error({Held("w", {4}, {{{0}, {4}}}), Held("w", {2}, {{{0}, {2}}})}),
              HasSubstr("tensor \"w\" is F32 [4] on rank 0 and F32 [2] on rank 1"));
  EXPECT_THAT(error({Held("w", {4}, {{{0}, {4}}}), Held("w", {4}, {{{0}, {4}}}, StoredType::kF64)}),
              HasSubstr("F32 [4] on rank 0 and F64 [4] on rank 1"));
  CheckpointIndex ahead = Held("w", {4}, {{{0}, {4}}});
  ahead.step = 6;
  EXPECT_THAT(error({Held("w", {4}, {{{0}, {4}}}), ahead}), HasSubstr("rank 0 is at step 5"));
  ahead.step = 5;
  ahead.state = R"({"cursor":1})";
  EXPECT_THAT(error({Held("w", {4}, {{{0}, {4}}}), ahead}), HasSubstr("rank 1 at step 5 with the state"));
}

TEST(CheckpointIndexTest, TextsThatAreNoIndexAreRefused) {
  const std::string good = IndexJson(Held("w", {4}, {{{0}, {4}}}));
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return std::string(ParseIndex(text, "index").status().message());
  };
  EXPECT_THAT(error("\"version\":1", "\"version\":2"), HasSubstr("version 2; this program reads"));
  EXPECT_THAT(error("\"extent\":[4]", "\"extent\":[5]"), HasSubstr("outside the shape [4]"));
  EXPECT_THAT(error("\"extent\":[4]", "\"extent\":[0]"), HasSubstr("extent"));
  EXPECT_THAT(error("\"offset\":[0]", "\"offset\":[0,0]"), HasSubstr("outside the shape [4]"));
  EXPECT_THAT(error("\"rank\":0", "\"rank\":1"), HasSubstr("rank"));
  EXPECT_THAT(error("\"state\":{}", "\"state\":[]"), HasSubstr("must be objects"));
  EXPECT_THAT(error("\"F32\"", "\"F33\""), HasSubstr("unknown dtype \"F33\""));
  EXPECT_THAT(error("\"step\":5", "\"step\":5,\"more\":1"), HasSubstr("unknown field \"more\""));
  EXPECT_THAT(error("}}}", "}}"), HasSubstr("index"));
}

}  // namespace
}  // namespace tessera::runtime
