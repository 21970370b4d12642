#include "runtime/training/checkpoints/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/test_folder.h"
#include "tests/support/training_state.h"

namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::set<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

class EveryTopologyTest : public testing::TestWithParam<Topology> {};

TEST_P(EveryTopologyTest, WhatItWritesEveryOtherReadsBitForBit) {
  TestFolder folder;
  ASSERT_TRUE(WriteOn(GetParam(), folder.path()).ok());
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("checkpoint-100"));
  for (const Topology& reader : Topologies()) {
    EXPECT_THAT(ProblemsOn(reader, folder / "checkpoint-100"), IsEmpty()) << "read on " << reader.name;
  }
}

TEST_P(EveryTopologyTest, EveryElementIsWrittenOnce) {
  TestFolder folder;
  ASSERT_TRUE(WriteOn(GetParam(), folder.path()).ok());
  uint64_t expected = 0, written = 0;
  for (const Kind& kind : Kinds()) {
    for (const models::ParamSpec& spec : SomeParameters()) expected += WholeTensor(kind, spec, 1).nbytes();
  }
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const std::string name = RankFileName(rank, GetParam().ranks);
    const auto file = models::SafetensorsFile::Open(folder / ("checkpoint-100/" + name), name);
    ASSERT_TRUE(file.ok()) << file.status();
    for (const models::StoredTensor& tensor : file->tensors()) written += tensor.bytes();
    // Replicas share the work.
    EXPECT_GT(file->tensors().size(), 0u);
  }
  EXPECT_EQ(written, expected);
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, EveryTopologyTest, testing::ValuesIn(Topologies()), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

TEST(CheckpointTest, AFolderOfNumbersInFullCoordinatesCanBeReadByAnyone) {
  TestFolder folder;
  parallel::SingleRank alone;
  const at::Tensor rows = at::arange(6, at::kFloat).view({3, 2});
  const std::vector<Piece> pieces = {{"w", {3, 2}, {{0, 0}, {2, 2}}, rows.slice(0, 0, 2)},
                                     {"w", {3, 2}, {{2, 0}, {1, 2}}, rows.slice(0, 2, 3)}};
  ASSERT_TRUE(WriteCheckpoint(folder.path(), kSomeState, pieces, alone).ok());
  EXPECT_THAT(NamesIn(folder / "checkpoint-100"),
              ElementsAre("SHA256SUMS", "checkpoint.json", "rank-00000-of-00001.safetensors"));
  const auto file = models::SafetensorsFile::Open(folder / "checkpoint-100/rank-00000-of-00001.safetensors", "file");
  ASSERT_TRUE(file.ok()) << file.status();
  const models::StoredTensor* tensor = file->Find("w[2:3, 0:2]");
  ASSERT_NE(tensor, nullptr);
  float values[2];
  ASSERT_TRUE(file->Read(*tensor, 0, std::as_writable_bytes(std::span(values))).ok());
  EXPECT_THAT(values, ElementsAre(4, 5));
}

TEST(CheckpointTest, WhatDoesNotFitTheRunIsRefusedByName) {
  TestFolder folder;
  parallel::SingleRank alone;
  const at::Tensor w = at::ones({3, 2});
  ASSERT_TRUE(
      WriteCheckpoint(folder.path(), kSomeState, std::vector<Piece>{{"w", {3, 2}, WholeBox({3, 2}), w}}, alone).ok());
  const auto error = [&](const std::vector<Piece>& pieces) {
    const auto state = ReadCheckpoint(folder / "checkpoint-100", pieces, alone);
    EXPECT_EQ(state.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(state.status().message());
  };
  EXPECT_THAT(error({{"w", {3, 2}, WholeBox({3, 2}), w}, {"exp_avg.w", {3, 2}, WholeBox({3, 2}), w}}),
              HasSubstr("lacks tensor \"exp_avg.w\""));
  EXPECT_THAT(error({{"w", {6}, WholeBox({6}), w.view(-1)}}), HasSubstr("\"w\" is F32 [3, 2]; this run has F32 [6]"));
  EXPECT_THAT(error({{"w", {3, 2}, WholeBox({3, 2}), w.to(at::kDouble)}}), HasSubstr("this run has F64 [3, 2]"));
  EXPECT_THAT(error({}), HasSubstr("this run has no place for its tensors \"w\""));
  EXPECT_THAT(error({{"w", {3, 2}, {{2, 0}, {2, 2}}, w}}), HasSubstr("[2:4, 0:2] is outside the shape [3, 2]"));
  EXPECT_TRUE(ReadCheckpoint(folder / "checkpoint-100", {}, alone, {.partial = true}).ok());
  EXPECT_EQ(ReadCheckpoint(folder / "checkpoint-7", {}, alone).status().code(), absl::StatusCode::kNotFound);
}

TEST(CheckpointTest, AStateThatIsNoJsonObjectIsRefusedAndNothingIsLeft) {
  TestFolder folder;
  parallel::SingleRank alone;
  EXPECT_FALSE(WriteCheckpoint(folder.path(), {.step = 1, .json = "{"}, {}, alone).ok());
  EXPECT_FALSE(WriteCheckpoint(folder.path(), {.step = 1, .json = "[]"}, {}, alone).ok());
  EXPECT_THAT(NamesIn(folder.path()), IsEmpty());
}

TEST(CheckpointTest, RanksThatDisagreeAllGetTheSameErrorAndNothingIsLeft) {
  TestFolder folder;
  std::vector<std::string> errors(2);
  RunRanks(2, [&](ThreadRank& rank) {
    const at::Tensor w = at::ones({3 + rank.rank()});
    const std::vector<Piece> pieces = {{"w", w.sizes().vec(), WholeBox(w.sizes().vec()), w}};
    errors[rank.rank()] = std::string(WriteCheckpoint(folder.path(), kSomeState, pieces, rank.world()).message());
  });
  EXPECT_THAT(errors[0], HasSubstr("tensor \"w\" is F32 [3] on rank 0 and F32 [4] on rank 1"));
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_THAT(NamesIn(folder.path()), IsEmpty());
}

TEST(CheckpointTest, TheCheckpointOfAStepReplacesAnOlderOne) {
  TestFolder folder;
  const Topology& two = Topologies()[1];
  ASSERT_TRUE(WriteOn(Topologies()[0], folder.path(), kSomeState, 1).ok());
  ASSERT_TRUE(WriteOn(two, folder.path(), kSomeState, 2).ok());
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("checkpoint-100"));
  EXPECT_THAT(ProblemsOn(two, folder / "checkpoint-100", kSomeState, 2), IsEmpty());
}

TEST(CheckpointTest, AWriterRemovesWhatKilledOnesLeft) {
  TestFolder folder;
  folder.Write(".checkpoint-4.partial/x", "half a checkpoint");
  folder.Write(".checkpoint-1.removed/x", "half removed");
  ASSERT_TRUE(WriteOn(Topologies()[1], folder.path()).ok());
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("checkpoint-100"));
}

TEST(CheckpointTest, TheLastOnesAreKept) {
  TestFolder folder;
  for (const int64_t step : {1, 2, 10, 9}) {
    ASSERT_TRUE(WriteOn(Topologies()[0], folder.path(), {.step = step, .json = "{}"}).ok());
  }
  folder.Write("checkpoint-03/x", "not a name that a run gives");
  folder.Write(".checkpoint-4.partial/x", "a leftover");
  folder.Write("log.jsonl", "");
  ASSERT_TRUE(KeepLast(folder.path(), 2).ok());
  ASSERT_TRUE(RemoveLeftovers(folder.path()).ok());
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("checkpoint-03", "checkpoint-10", "checkpoint-9", "log.jsonl"));
  EXPECT_EQ(LatestWhole(folder.path())->step, 10);
}

TEST(CheckpointTest, AWholeOneIsNotGivenUpForOneThatHasLostItsEnd) {
  TestFolder folder;
  for (const int64_t step : {1, 2, 3}) {
    ASSERT_TRUE(WriteOn(Topologies()[0], folder.path(), {.step = step, .json = "{}"}).ok());
  }
  fs::resize_file(folder / "checkpoint-3/rank-00000-of-00001.safetensors", 1000);
  ASSERT_TRUE(KeepLast(folder.path(), 1).ok());
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("checkpoint-2", "checkpoint-3"));
  EXPECT_EQ(LatestWhole(folder.path())->step, 2);
}

TEST(CheckpointTest, AfterARollbackTheOtherBranchIsMovedAsideAndTheNewCheckpointIsKept) {
  TestFolder folder;
  const auto write = [&](int64_t step) {
    ASSERT_TRUE(WriteOn(Topologies()[0], folder.path(), {.step = step, .json = "{}"}).ok());
  };
  for (const int64_t step : {6, 8, 10}) write(step);
  for (const char* name :
       {"adapter-10.safetensors", "adapter-10.kohya.safetensors", "adapter-10.comfyui.safetensors", "adapter-10/x",
        "model-8/x", "adapter-6.safetensors", "adapter-010.safetensors", "adapter-10.txt", "log.jsonl"}) {
    folder.Write(name, "");
  }
  const absl::StatusOr<SetAside> aside = SetAsideAfter(folder.path(), 6);
  ASSERT_TRUE(aside.ok()) << aside.status();
  EXPECT_EQ(aside->folder, "branch-1");
  EXPECT_THAT(aside->names, ElementsAre("checkpoint-10", "adapter-10.safetensors", "adapter-10.kohya.safetensors",
                                        "adapter-10.comfyui.safetensors", "adapter-10", "model-8", "checkpoint-8"));
  EXPECT_THAT(NamesIn(folder / "branch-1"), testing::UnorderedElementsAreArray(aside->names));
  write(7);
  ASSERT_TRUE(KeepLast(folder.path(), 2).ok());
  EXPECT_EQ(LatestWhole(folder.path())->step, 7);
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("adapter-010.safetensors", "adapter-10.txt", "adapter-6.safetensors",
                                                  "branch-1", "checkpoint-6", "checkpoint-7", "log.jsonl"));
  EXPECT_THAT(SetAsideAfter(folder.path(), 7)->names, IsEmpty());
  EXPECT_EQ(SetAsideAfter(folder.path(), 6)->folder, "branch-2");
}

// A run with checkpoints 1 and 2 of two ranks, of which the second is then damaged.
class DamagedCheckpointTest : public testing::Test {
 protected:
  DamagedCheckpointTest() {
    for (const int64_t step : {1, 2}) {
      EXPECT_TRUE(WriteOn(two_, folder_.path(), {.step = step, .json = "{}"}).ok());
    }
    for (const std::string& name : NamesIn(folder_ / "checkpoint-2")) {
      std::ifstream in(folder_ / ("checkpoint-2/" + name), std::ios::binary);
      files_[name] = {std::istreambuf_iterator<char>(in), {}};
    }
  }

  void ExpectFallsBack(const std::string& what, const std::string& file) {
    const auto found = LatestWhole(folder_.path());
    ASSERT_TRUE(found.ok()) << what << ": " << found.status();
    EXPECT_EQ(found->step, 1) << what;
    ASSERT_EQ(found->passed_over.size(), 1u) << what;
    EXPECT_THAT(found->passed_over[0], testing::StartsWith("checkpoint-2 is not complete: ")) << what;
    EXPECT_THAT(found->passed_over[0], HasSubstr(file)) << what;
    const std::vector<std::string> problems = ProblemsOn(Topologies()[0], folder_ / "checkpoint-2", {2, "{}"});
    ASSERT_EQ(problems.size(), 1u) << what;
    EXPECT_THAT(problems[0], HasSubstr(file)) << what;
  }

  const Topology& two_ = Topologies()[2];
  TestFolder folder_;
  std::map<std::string, std::string> files_;
};

TEST_F(DamagedCheckpointTest, AFileThatIsCutShortAnywhereFallsBackToThePreviousOne) {
  ASSERT_EQ(files_.size(), 4u);
  for (const auto& [name, bytes] : files_) {
    for (const size_t length :
         {size_t{0}, size_t{5}, size_t{8}, size_t{60}, bytes.size() / 3, bytes.size() - 8, bytes.size() - 1}) {
      folder_.Write("checkpoint-2/" + name, bytes.substr(0, length));
      // A truncated list of digests no longer names a file; the error then names that file.
      ExpectFallsBack(absl::StrCat(name, " cut to ", length), name == "SHA256SUMS" ? "checkpoint-2" : name);
    }
    folder_.Write("checkpoint-2/" + name, bytes);
  }
  EXPECT_EQ(LatestWhole(folder_.path())->step, 2);
}

TEST_F(DamagedCheckpointTest, AByteThatHasChangedFallsBackToThePreviousOne) {
  for (const auto& [name, bytes] : files_) {
    const size_t stride = std::max<size_t>(1, bytes.size() / 12);
    for (size_t at = 0; at < bytes.size(); at += stride) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      folder_.Write("checkpoint-2/" + name, damaged);
      ExpectFallsBack(absl::StrCat(name, " changed at ", at), name == "SHA256SUMS" ? "checkpoint-2" : name);
    }
    folder_.Write("checkpoint-2/" + name, bytes);
  }
}

TEST_F(DamagedCheckpointTest, AMissingFileFallsBackToThePreviousOne) {
  for (const auto& [name, bytes] : files_) {
    fs::remove(folder_ / ("checkpoint-2/" + name));
    ExpectFallsBack(name + " removed", name);
    folder_.Write("checkpoint-2/" + name, bytes);
  }
}

TEST_F(DamagedCheckpointTest, WithoutAWholeOneTheErrorSaysOfEachWhy) {
  for (const char* step : {"1", "2"}) fs::remove(folder_ / (std::string("checkpoint-") + step + "/checkpoint.json"));
  const absl::Status status = LatestWhole(folder_.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("checkpoint-2 is not complete"));
  EXPECT_THAT(status.message(), HasSubstr("checkpoint-1 is not complete"));
  EXPECT_EQ(LatestWhole(folder_ / "nothing").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tessera::runtime
