// Tests `tessera batch` with fake workers: its output, how it resumes after every kind of end, and its error messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/image/image_file.h"
#include "tests/front/batch_fixture.h"
#include "tests/support/fault_runs.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(BatchTest, MakesEveryItemAndSaysSo) {
  Write("prompts.txt", "red apple\n\ngreen pear\nred apple\n");
  EXPECT_EQ(Run("prompts.txt", "out", {"--seed", "5"}), 0) << errors_;
  const std::vector<boost::json::object> manifest = Manifest("out");
  ASSERT_EQ(manifest.size(), 3u);
  const auto files = FilesOf("out");
  EXPECT_EQ(files.size(), 4u);
  for (const boost::json::object& line : manifest) {
    const boost::json::object& image = line.at("images").at(0).as_object();
    EXPECT_EQ(line.at("status").as_string(), "done");
    EXPECT_EQ(files.at(std::string(image.at("file").as_string())).substr(1, 3), "PNG");
  }
  EXPECT_NE(files.at("images/000/000000.png"), files.at("images/000/000002.png")) << "duplicates have their own seeds";
  // Another run with the same seed writes the same files.
  EXPECT_EQ(Run("prompts.txt", "again", {"--seed", "5", "--replicas", "2"}), 0) << errors_;
  EXPECT_EQ(FilesOf("again"), files);
  // Resuming a finished run makes nothing.
  EXPECT_EQ(Run("prompts.txt", "out"), 0) << errors_;
  EXPECT_EQ(FilesOf("out"), files);
  EXPECT_EQ(Journaled("out"), 3);
}

TEST_F(BatchTest, AFailedItemIsRecordedAndTheRunGoesOn) {
  Write("items.jsonl",
        "{\"prompt\": \"a\"}\nno JSON\n{\"prompt\": \"fail\"}\n{\"prompt\": \"a\", \"size\": \"7x7\"}\n");
  EXPECT_EQ(Run("items.jsonl", "out"), 9);
  EXPECT_THAT(errors_, HasSubstr("line 2: the line is not JSON"));
  EXPECT_THAT(errors_, HasSubstr("line 3: step2 fails"));
  EXPECT_THAT(errors_, HasSubstr("line 4: size"));
  const std::vector<boost::json::object> manifest = Manifest("out");
  ASSERT_EQ(manifest.size(), 4u);
  EXPECT_EQ(manifest[0].at("status").as_string(), "done");
  for (int i = 1; i < 4; ++i) EXPECT_EQ(manifest[static_cast<size_t>(i)].at("status").as_string(), "failed") << i;
  EXPECT_EQ(Run("items.jsonl", "out"), 9) << "what has failed is not tried again";
  EXPECT_EQ(Journaled("out"), 4);
  script_ = "step-time=1";
  EXPECT_EQ(Run("items.jsonl", "out", {"--retry-failed"}), 9);
  EXPECT_EQ(Manifest("out")[2].at("status").as_string(), "done") << "it is no longer made to fail";
}

TEST_F(BatchTest, GoesOnAfterKillsAtAnyMomentAsIfThereHadBeenNone) {
  WriteItems(120);
  EXPECT_EQ(Run("items.jsonl", "undisturbed", {"--seed", "1"}), 9) << errors_;
  std::mt19937 random(1);
  for (int kills = FaultKills(10, 40); kills > 0; --kills) {
    const std::unique_ptr<ChildProcess> process = Start("items.jsonl", "out", {"--seed", "1"});
    const int64_t more = Journaled("out") + static_cast<int64_t>(random() % 12);
    WaitUntil("a moment to disturb", [&] { return Journaled("out") >= std::min<int64_t>(more, 120); });
    const std::vector<pid_t> workers = ProcessesWith(FAKE_WORKER, "XDG_RUNTIME_DIR", folder_ / "sockets");
    if (random() % 3 == 0 && !workers.empty()) kill(workers[random() % workers.size()], SIGKILL);
    process->Signal(SIGKILL);
    process->Wait();
  }
  EXPECT_EQ(Run("items.jsonl", "out"), 9) << errors_;
  EXPECT_EQ(FilesOf("out"), FilesOf("undisturbed"));
  EXPECT_EQ(Journaled("out"), 120) << "an item was made twice";
}

TEST_F(BatchTest, EightShardsInOneFolderOfWhichTwoAreKilledMakeWhatOneProcessMakes) {
  WriteItems(96);
  EXPECT_EQ(Run("items.jsonl", "whole", {"--seed", "1"}), 9) << errors_;
  const auto start = [&](int shard) {
    return Start("items.jsonl", "out", {"--seed", "1", "--shard", absl::StrCat(shard, "/8")});
  };
  AllowSteps(8);  // of each shard, so that none has made its twelve items when two are killed
  std::vector<std::unique_ptr<ChildProcess>> shards;
  for (int i = 0; i < 8; ++i) shards.push_back(start(i));
  for (const size_t killed : {1u, 6u}) {
    WaitUntil("some items of it",
              [&] { return !Read(absl::StrCat("out/run/journal-", killed, "-of-8.jsonl")).empty(); });
    shards[killed]->Signal(SIGKILL);
    shards[killed]->Wait();
  }
  AllowSteps(10'000);
  for (const auto& shard : shards) shard->Wait();
  EXPECT_LT(Journaled("out"), 96);
  EXPECT_FALSE(fs::exists(folder_ / "out/manifest.jsonl"));
  for (const size_t killed : {1u, 6u}) start(static_cast<int>(killed))->Wait();
  EXPECT_EQ(FilesOf("out"), FilesOf("whole"));
  EXPECT_EQ(Journaled("out"), 96);
}

TEST_F(BatchTest, ADiskThatTakesNoMoreEndsTheRunAndLosesNothing) {
  WriteItems(120);
  EXPECT_EQ(Run("items.jsonl", "whole", {"--seed", "1"}), 9) << errors_;
  largest_file_ = 16384;  // the journal outgrows this
  EXPECT_EQ(Run("items.jsonl", "out", {"--seed", "1"}), 5);
  EXPECT_THAT(errors_, HasSubstr("the journal of the run cannot be written"));
  EXPECT_GT(Journaled("out"), 0);
  EXPECT_LT(Journaled("out"), 120);
  largest_file_ = 0;
  EXPECT_EQ(Run("items.jsonl", "out"), 9) << errors_;
  EXPECT_EQ(FilesOf("out"), FilesOf("whole"));
  EXPECT_EQ(Journaled("out"), 120);
}

TEST_F(BatchTest, SaysWhatIsWrongBeforeItBegins) {
  Write("prompts.txt", "apple\n");
  Write("other.txt", "pear\n");
  Write("empty.txt", "\n");
  fs::create_directories(folder_ / "full");
  Write("full/file", "mine");
  EXPECT_EQ(Run("absent.txt", "out"), 2);
  EXPECT_THAT(errors_, HasSubstr("cannot be read"));
  EXPECT_EQ(Run("empty.txt", "out"), 2);
  EXPECT_THAT(errors_, HasSubstr("holds no items"));
  EXPECT_EQ(Run("prompts.txt", "out", {"--shard", "4/4"}), 2);
  EXPECT_THAT(errors_, HasSubstr("valid values are 0/4 to 3/4"));
  EXPECT_EQ(Run("prompts.txt", "out", {"--certify", "maybe"}), 2);
  EXPECT_THAT(errors_, HasSubstr("valid values are auto, require and off"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_EQ(Run("prompts.txt", "full"), 2);
  EXPECT_THAT(errors_, HasSubstr("holds other files"));
  model_ = "absent";
  EXPECT_EQ(Run("prompts.txt", "out"), 3);
  model_ = "tiny";
  EXPECT_EQ(Run("prompts.txt", "out", {"--seed", "1"}), 0) << errors_;
  EXPECT_EQ(Run("prompts.txt", "out", {"--seed", "2"}), 2);
  EXPECT_THAT(errors_, HasSubstr("has the seed 1, not 2"));
  EXPECT_EQ(Run("other.txt", "out"), 2);
  EXPECT_THAT(errors_, HasSubstr("whose input was another"));
}

TEST_F(BatchTest, OutlivesItsTerminalUnderNohup) {
  WriteItems(120);
  const auto hang_up = [&](const std::string& out) {
    AllowSteps(12);
    std::unique_ptr<ChildProcess> process = Start("items.jsonl", out, {"--seed", "1"});
    WaitUntil("some items", [&] { return Journaled(out) > 2; });
    process->Signal(SIGHUP);
    return process;
  };
  EXPECT_EQ(hang_up("ended")->Wait(), 130);
  launcher_ = {"/usr/bin/nohup"};
  const std::unique_ptr<ChildProcess> outlives = hang_up("out");
  AllowSteps(10'000);
  EXPECT_EQ(outlives->Wait(), 9);
  EXPECT_EQ(Manifest("out").size(), 120u);
}

TEST_F(BatchTest, StartsNothingWhereAllHasBeenMade) {
  WriteItems(20);
  EXPECT_EQ(Run("items.jsonl", "out", {"--seed", "1"}), 9) << errors_;
  const auto files = FilesOf("out");
  worker_ = "/nowhere/worker";
  EXPECT_EQ(Run("items.jsonl", "out"), 9) << errors_;
  EXPECT_EQ(FilesOf("out"), files);
  EXPECT_EQ(Run("items.jsonl", "elsewhere"), 6) << "or there was a worker";
}

TEST_F(BatchTest, VerifyNamesWhatIsNotWhatWasWrittenAndItIsMadeAgain) {
  WriteItems(20);
  EXPECT_EQ(Run("items.jsonl", "out", {"--seed", "1"}), 9) << errors_;
  const auto files = FilesOf("out");
  worker_ = "/nowhere/worker";  // verification needs no worker
  EXPECT_EQ(Run("items.jsonl", "out", {"--verify"}), 9) << "one has failed";
  EXPECT_EQ(FilesOf("out"), files);

  fs::remove(folder_ / "out/images/000/000001.png");
  fs::resize_file(folder_ / "out/images/000/000003-1.png", 20);
  std::string other = Read("out/images/000/000005.png");
  other[other.size() / 2] ^= 1;
  Write("out/images/000/000005.png", other);
  fs::remove(folder_ / "out/images/000/000006.png");
  fs::create_symlink("000007.png", folder_ / "out/images/000/000006.png");
  EXPECT_EQ(Run("items.jsonl", "out", {"--verify"}), 9);
  EXPECT_THAT(errors_, AllOf(HasSubstr("line 2: images/000/000001.png is missing"),
                             HasSubstr("line 4: images/000/000003-1.png has 20 bytes, not "),
                             HasSubstr("line 6: images/000/000005.png has changed"),
                             HasSubstr("line 7: images/000/000006.png is not a file"), Not(HasSubstr("000007"))));
  EXPECT_THAT(errors_,
              HasSubstr("17 of 21 images are unchanged, 1 items failed; run the same command without --verify"));
  EXPECT_FALSE(fs::exists(folder_ / "out/manifest.jsonl"));
  EXPECT_EQ(Journaled("out"), 24);
  worker_ = FAKE_WORKER;
  EXPECT_EQ(Run("items.jsonl", "out"), 9) << errors_;
  EXPECT_EQ(FilesOf("out"), files);
  EXPECT_EQ(Journaled("out"), 28) << "only the four were made again";
  EXPECT_EQ(Run("items.jsonl", "nothing", {"--verify"}), 2);
  EXPECT_THAT(errors_, HasSubstr("holds no run"));
  EXPECT_FALSE(fs::exists(folder_ / "nothing"));
}

TEST_F(BatchTest, AJournalThatNamesOtherFilesIsNotBelieved) {
  Write("prompts.txt", "apple\npear\n");
  Write("secret", "mine");
  EXPECT_EQ(Run("prompts.txt", "out", {"--seed", "1"}), 0) << errors_;
  const auto files = FilesOf("out");
  std::string journal = Read("out/run/journal-0-of-1.jsonl");
  const size_t name = journal.find("images/000/000001.png");
  ASSERT_NE(name, std::string::npos);
  Write("out/run/journal-0-of-1.jsonl", journal.replace(name, 21, "../secret.png"));
  EXPECT_EQ(Run("prompts.txt", "out"), 0) << errors_;
  EXPECT_EQ(Journaled("out"), 3) << "the item was made again";
  EXPECT_EQ(FilesOf("out"), files);
  EXPECT_EQ(Read("secret"), "mine");
}

TEST_F(BatchTest, DrawsAContactSheetInTheOrderOfTheItems) {
  Write("items.jsonl", "{\"prompt\": \"a\", \"size\": \"64x32\"}\nno JSON\n{\"prompt\": \"b\", \"n\": 2}\n");
  EXPECT_EQ(Run("items.jsonl", "out", {"--seed", "1", "--sheet", folder_ / "new/sheet.png"}), 9) << errors_;
  const absl::StatusOr<server::DecodedImage> sheet = server::DecodeImage(Read("new/sheet.png"));
  ASSERT_TRUE(sheet.ok()) << sheet.status();
  EXPECT_EQ(sheet->image.width, 4 * 128);
  EXPECT_EQ(sheet->image.height, 128);
  // An image that is not enlarged keeps its pixels; this compares its center.
  const absl::StatusOr<server::DecodedImage> first = server::DecodeImage(Read("out/images/000/000000.png"));
  ASSERT_TRUE(first.ok()) << first.status();
  const auto pixel = [](const control::Frames& image, int x, int y) {
    const auto at = image.bytes.begin() + 3 * (y * image.width + x);
    return std::vector<int>(at, at + 3);
  };
  EXPECT_EQ(pixel(sheet->image, 62, 62), pixel(first->image, 32, 16));
  EXPECT_EQ(pixel(sheet->image, 128 + 62, 62), (std::vector<int>{96, 24, 24})) << "a failed item";
  // The sheet can be drawn for a finished run, but not for one whose images are missing.
  EXPECT_EQ(Run("items.jsonl", "out", {"--sheet", folder_ / "again.png"}), 9) << errors_;
  EXPECT_EQ(Read("again.png"), Read("new/sheet.png"));
  fs::remove(folder_ / "out/images/000/000000.png");
  EXPECT_EQ(Run("items.jsonl", "out", {"--sheet", folder_ / "third.png"}), 5);
  EXPECT_THAT(errors_,
              HasSubstr("images/000/000000.png\" was changed after the run wrote it; run the command with --verify"));
  EXPECT_FALSE(fs::exists(folder_ / "third.png"));
  EXPECT_EQ(Run("items.jsonl", "out", {"--sheet", "sheet.gif"}), 2);
}

TEST_F(BatchTest, SaysBeforeItBeginsThatTheDiskMayBeTooSmall) {
  std::string text = "{\"prompt\": \"apple\"}\n";
  // The size exceeds the model's limit, which the estimate does not check. It counts 10 GB of pixels per line.
  const uint64_t lines = fs::space(folder_.path()).available / 10'000'000'000 + 1;
  for (uint64_t i = 0; i < lines; ++i)
    absl::StrAppend(&text, R"({"prompt": "a", "n": 10, "size": "32768x32768"})", "\n");
  Write("items.jsonl", text);
  EXPECT_EQ(Run("items.jsonl", "out", {"--seed", "1"}), 9);
  EXPECT_THAT(
      errors_,
      AllOf(HasSubstr(absl::StrCat(lines + 1, " items to make, about ")),
            HasSubstr(" free: a full disk ends the run; free space and run the same command again to continue")));
  EXPECT_EQ(Run("items.jsonl", "out", {"--retry-failed"}), 9);
  EXPECT_THAT(errors_, Not(HasSubstr("a full disk"))) << "images of this run are small";
}

TEST_F(BatchTest, RefusesByNameWhatABatchCannotDo) {
  Write("items.jsonl",
        "{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"deadline_ms\": 5}\n{\"prompt\": \"a\", \"priority\": 2}\n"
        "{\"prompt\": \"a\", \"partial_images\": 1}\n{\"prompt\": \"a\", \"priority\": 0}\n");
  EXPECT_EQ(Run("items.jsonl", "out"), 9);
  EXPECT_THAT(errors_,
              AllOf(HasSubstr("3 of 5 items cannot be made and will fail, the first: line 2: deadline_ms is 5"),
                    HasSubstr("line 3: priority is 2; a batch makes its items in the order of the input"),
                    HasSubstr("line 4: partial_images is ")));
  EXPECT_EQ(Manifest("out")[4].at("status").as_string(), "done");
}

TEST_F(BatchTest, ProvesALayoutOnceForAllRuns) {
  Write("prompts.txt", "apple\n");
  EXPECT_EQ(Run("prompts.txt", "first", {"--layout", "cfg=2", "--certify", "require"}), 3);
  EXPECT_THAT(errors_, HasSubstr("there is no certificate"));
  EXPECT_EQ(Journaled("first"), 0) << "that is no failure of an item";
  EXPECT_EQ(Run("prompts.txt", "first", {"--layout", "cfg=2"}), 0) << errors_;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "certificates"), fs::directory_iterator()), 1);
  EXPECT_EQ(Run("prompts.txt", "second", {"--layout", "cfg=2", "--certify", "require"}), 0) << errors_;
}

TEST_F(BatchTest, ARunGoesOnOnlyWithTheFilesAndTheDtypeThatItBeganWith) {
  Write("prompts.txt", "apple\n");
  folder_.Write("tiny/transformer/model.safetensors", "weights");
  EXPECT_EQ(Run("prompts.txt", "out"), 0) << errors_;
  EXPECT_EQ(Run("prompts.txt", "out", {"--dtype", "bf16"}), 2);
  EXPECT_THAT(errors_, HasSubstr("is made in fp32, not bf16"));
  folder_.Write("tiny/transformer/model.safetensors", "WEIGHTS");
  EXPECT_EQ(Run("prompts.txt", "out"), 2);
  EXPECT_THAT(errors_, HasSubstr("is of another model tiny, whose files have the digest "));
  folder_.Write("tiny/transformer/model.safetensors", "weights");
  // A copy of a model is the same model, regardless of its place and time. A different folder of the same name is not.
  fs::create_directories(folder_ / "elsewhere");
  fs::copy(folder_ / "tiny", folder_ / "elsewhere/tiny", fs::copy_options::recursive);
  model_ = "elsewhere/tiny";
  EXPECT_EQ(Run("prompts.txt", "out"), 0) << errors_;
  folder_.Write("elsewhere/tiny/transformer/config.json", "{}");
  EXPECT_EQ(Run("prompts.txt", "out"), 2);
  EXPECT_EQ(Run("prompts.txt", "out", {"--verify"}), 0) << errors_;
}

TEST_F(BatchTest, ARunIsOfOneModelAndOfAWholeInput) {
  Write("prompts.txt", "apple\npear\n");
  EXPECT_EQ(Run("prompts.txt", "out"), 0) << errors_;
  fs::create_directories(folder_ / "other");
  Write("other/model_index.json", "{}");
  model_ = "other";
  EXPECT_EQ(Run("prompts.txt", "out"), 2);
  EXPECT_THAT(errors_, HasSubstr("is of the model tiny, not other"));
  model_ = "tiny";
  Write("prompts.txt", "apple\n");
  EXPECT_EQ(Run("prompts.txt", "out"), 2);
  EXPECT_THAT(errors_, HasSubstr("has made item 1, and the input has 1 items"));
  Write("prompts.txt", "apple\npear\nplum\n");
  EXPECT_EQ(Run("prompts.txt", "out"), 0) << errors_;
  EXPECT_EQ(Manifest("out").size(), 3u);
}

// Text encoders that do not stay in memory are read once for many prompts.
TEST_F(BatchTest, EncodesThePromptsOfManyItemsTogether) {
  std::string text;
  for (int i = 0; i < 60; ++i) absl::StrAppend(&text, "apple ", i, "\n");
  Write("prompts.txt", text);
  script_ = absl::StrCat("step-time=1 encoders=", folder_ / "encoders");
  EXPECT_EQ(Run("prompts.txt", "out", {"--seed", "5", "--text-encoders", "unload"}), 0) << errors_;
  const auto reads = [&] {
    const std::string lines = Read("encoders");
    fs::remove(folder_ / "encoders");
    return std::ranges::count(lines, '\n');
  };
  const auto together = reads();
  // Once for the group's trial step, once for the first item, once for the items queued by then, and a few times for
  // the rest.
  EXPECT_LE(together, 9);
  EXPECT_GE(together, 3);
  // Without a cache, prompts cannot be encoded ahead.
  EXPECT_EQ(Run("prompts.txt", "alone", {"--seed", "5", "--text-encoders", "unload", "--prompt-cache", "0"}), 0);
  EXPECT_EQ(reads(), 1 + 60);
  EXPECT_TRUE(FilesOf("out") == FilesOf("alone"));
}

}  // namespace
}  // namespace tessera
