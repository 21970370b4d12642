// `tessera batch` over fake workers: what it makes, how it goes on after every end, and what it says of what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/front/child_process.h"
#include "tests/support/fault_runs.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BatchTest : public ::testing::Test {
 protected:
  BatchTest() {
    for (const char* name : {"sockets", "tiny"}) fs::create_directories(folder_ / name);
    Write("tiny/model_index.json", "{}");
  }
  // Workers outlive a run that was killed by ten seconds; nobody waits for those of the last one.
  ~BatchTest() override {
    for (const pid_t worker : ProcessesWith(FAKE_WORKER, "XDG_RUNTIME_DIR", folder_ / "sockets")) {
      kill(worker, SIGTERM);
      EXPECT_TRUE(WaitUntilGone(worker)) << "a worker was left";
    }
  }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::unique_ptr<ChildProcess> Start(const std::string& input, const std::string& out,
                                      const std::vector<std::string>& more = {}) {
    ChildOptions child = {.arguments = {TESSERA_EXECUTABLE, "batch", folder_ / input, "--out", folder_ / out, "--model",
                                        folder_ / model_, "--quiet"},
                          .folder = folder_.path(),
                          .environment = {{"PATH", "/usr/bin:/bin"},
                                          {"TESSERA_FAKE_WORKER", script_},
                                          {"TESSERA_WORKER", FAKE_WORKER},
                                          {"XDG_RUNTIME_DIR", folder_ / "sockets"}},
                          .largest_file = largest_file_};
    child.arguments.insert(child.arguments.end(), more.begin(), more.end());
    return std::make_unique<ChildProcess>(child);
  }
  // Its exit code.
  int Run(const std::string& input, const std::string& out, const std::vector<std::string>& more = {}) {
    const std::unique_ptr<ChildProcess> process = Start(input, out, more);
    const int code = process->Wait();
    errors_ = process->errors();
    return code;
  }

  // Its files by name, without those that only going on needs.
  std::map<std::string, std::string> FilesOf(const std::string& out) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / out)) {
      const std::string name = entry.path().lexically_relative(folder_ / out);
      if (entry.is_regular_file() && name.substr(0, 4) != "run/") files[name] = Read(out + "/" + name);
    }
    return files;
  }
  std::vector<boost::json::object> Manifest(const std::string& out) const {
    std::vector<boost::json::object> lines;
    for (const absl::string_view line : absl::StrSplit(Read(out + "/manifest.jsonl"), '\n', absl::SkipEmpty())) {
      lines.push_back(boost::json::parse(std::string(line)).as_object());
    }
    return lines;
  }
  int64_t Journaled(const std::string& out) const {
    int64_t lines = 0;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_ / (out + "/run"), error)) {
      if (entry.path().extension() != ".jsonl") continue;
      const std::string text = Read(out + "/run/" + entry.path().filename().string());
      lines += std::ranges::count(text, '\n');
    }
    return lines;
  }

  // Items of three shapes, some with a seed of their own, some twice, two that fail.
  void WriteItems(int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) {
      if (i % 41 == 17) {
        absl::StrAppend(&text, R"({"prompt": "fail", "num_inference_steps": 4})", "\n");
      } else if (i % 7 == 3) {
        absl::StrAppend(&text, R"({"prompt": "pear", "size": "64x32", "n": 2, "seed": )", i, "}\n");
      } else {
        absl::StrAppend(&text, R"({"custom_id": "c)", i, R"(", "prompt": "apple )", i % 5,
                        R"(", "num_inference_steps": )", 2 + i % 3, "}\n");
      }
    }
    Write("items.jsonl", text);
  }

  TestFolder folder_;
  std::string model_ = "tiny";
  std::string script_ = "step-time=1 step2-of-fail=error";
  size_t largest_file_ = 0;  // that the run may write; 0: any
  std::string errors_;
};

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
  // Another run with its seed makes the same files.
  EXPECT_EQ(Run("prompts.txt", "again", {"--seed", "5", "--replicas", "2"}), 0) << errors_;
  EXPECT_EQ(FilesOf("again"), files);
  // And going on with one that is done makes nothing.
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

TEST_F(BatchTest, ShardsInOneFolderMakeWhatOneProcessMakes) {
  WriteItems(60);
  EXPECT_EQ(Run("items.jsonl", "whole", {"--seed", "1"}), 9) << errors_;
  std::vector<std::unique_ptr<ChildProcess>> shards;
  for (int i = 0; i < 4; ++i) {
    shards.push_back(Start("items.jsonl", "out", {"--seed", "1", "--shard", absl::StrCat(i, "/4")}));
  }
  WaitUntil("some items", [&] { return Journaled("out") > 4; });
  shards[1]->Signal(SIGKILL);
  for (const auto& shard : shards) shard->Wait();
  EXPECT_EQ(fs::exists(folder_ / "out/manifest.jsonl"), Journaled("out") == 60);
  Run("items.jsonl", "out", {"--shard", "1/4"});
  EXPECT_EQ(FilesOf("out"), FilesOf("whole"));
}

TEST_F(BatchTest, ADiskThatTakesNoMoreEndsTheRunAndLosesNothing) {
  WriteItems(120);
  EXPECT_EQ(Run("items.jsonl", "whole", {"--seed", "1"}), 9) << errors_;
  largest_file_ = 16384;  // which the journal outgrows
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
  EXPECT_THAT(errors_, HasSubstr("its input was another"));
}

}  // namespace
}  // namespace tessera
