// Tests the folder of a batch run on a disk that loses power after any writing system call.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "client/cli/batch/run_folder.h"
#include "tests/batch/power_log.h"
#include "tests/support/fault_runs.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using client::RunEntry;
using client::RunFolder;

constexpr int64_t kItems = 10;
constexpr int64_t kDamaged = 2;  // another program damages its file

std::string DigestOf(const std::string& bytes) { return absl::BytesToHexString(base::Sha256Of(bytes)); }
std::string ItemDigest(int64_t item) { return DigestOf(absl::StrCat("item ", item)); }
bool Fails(int64_t item) { return item == 4; }

// An acknowledged item and the number of system calls made by then.
struct Ack {
  size_t calls = 0;
  int64_t item = 0;
};

absl::StatusOr<std::unique_ptr<RunFolder>> Open(const std::string& path) {
  return RunFolder::Open(path, {}, {.seed = 1, .model = "model"});
}

// Makes the items from `begin` to `end` that have not been made yet. Returns those that it has made.
absl::StatusOr<std::vector<int64_t>> Make(const std::string& path, int64_t begin, int64_t end,
                                          const PowerLog* log = nullptr, std::vector<Ack>* acks = nullptr) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RunFolder> folder, Open(path));
  std::vector<int64_t> made;
  for (int64_t item = begin; item < end; ++item) {
    ASSIGN_OR_RETURN(const RunEntry* known, folder->Find(item, ItemDigest(item)));
    if (known != nullptr) continue;
    RunEntry entry = {.index = item, .item_digest = ItemDigest(item), .seconds = 0.5};
    const int32_t images = item % 4 == 1 ? 2 : 1;
    for (int32_t image = 0; image < images && !Fails(item); ++image) {
      const std::string bytes(static_cast<size_t>(700 + 90 * item), static_cast<char>('a' + item + image));
      entry.images.push_back({.file = client::RunImageName(item, image, images, server::ImageFormat::kPng),
                              .width = 8,
                              .height = 8,
                              .bytes = bytes.size(),
                              .digest = DigestOf(bytes)});
      RETURN_IF_ERROR(folder->WriteImage(entry.images.back().file, bytes));
    }
    if (Fails(item)) entry.error = absl::InternalError("no such thing can be drawn");
    RETURN_IF_ERROR(folder->Append(entry));
    made.push_back(item);
    if (acks != nullptr) acks->push_back({.calls = log->calls(), .item = item});
  }
  if (end == kItems) RETURN_IF_ERROR(folder->WriteManifest(kItems).status());
  return made;
}

// Files by name, without those that are needed only to resume.
std::map<std::string, std::string> FilesOf(const std::string& path) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    const std::string name = entry.path().lexically_relative(path);
    std::ifstream file(entry.path(), std::ios::binary);
    if (entry.is_regular_file() && name.substr(0, 4) != "run/")
      files[name] = std::string(std::istreambuf_iterator(file), {});
  }
  return files;
}

class RunOnADiskThatLosesPower : public ::testing::TestWithParam<int> {
 protected:
  // Runs the first half of the items, then resumes and finishes the run.
  void SetUp() override {
    fs::create_directories(folder_ / "disk");
    root_ = fs::canonical(folder_ / "disk");
    log_ = std::make_unique<PowerLog>(root_);
    ASSERT_TRUE(Make(root_ + "/run", 0, 5, log_.get(), &acks_).ok());
    ASSERT_TRUE(Make(root_ + "/run", 5, kItems, log_.get(), &acks_).ok());
    undisturbed_ = FilesOf(root_ + "/run");
    finished_ = log_->calls();
    log_->Stop();
  }

  struct Tally {
    int64_t lost = 0;     // items that were acknowledged and made again
    int64_t spoilt = 0;   // folders that differ from the undisturbed one at the end
    int64_t refused = 0;  // folders from which the run could not be resumed
  };

  // Cuts the power after `calls` system calls and resumes the run.
  void CutAfter(size_t calls, bool lies, Tally& tally) {
    const std::string place = folder_ / "cut";
    fs::remove_all(place);
    log_->Restore(place, calls, static_cast<uint64_t>(GetParam()) * 1000 + calls, lies);
    const absl::StatusOr<std::vector<int64_t>> made = Make(place + "/run", 0, kItems);
    if (!made.ok()) {
      ++tally.refused;
      return;
    }
    for (const Ack& ack : acks_) {
      if (ack.calls <= calls && std::ranges::find(*made, ack.item) != made->end()) ++tally.lost;
    }
    if (FilesOf(place + "/run") != undisturbed_) ++tally.spoilt;
  }

  TestFolder folder_;
  std::string root_;
  std::unique_ptr<PowerLog> log_;
  std::vector<Ack> acks_;
  std::map<std::string, std::string> undisturbed_;
  size_t finished_ = 0;
};

INSTANTIATE_TEST_SUITE_P(, RunOnADiskThatLosesPower, ::testing::ValuesIn(FaultSeeds()), kSeedName);

TEST_P(RunOnADiskThatLosesPower, AtAnyCallLosesNoItemAndEndsAsIfItHadNot) {
  ASSERT_EQ(acks_.size(), static_cast<size_t>(kItems));
  ASSERT_GT(finished_, 80u);
  for (size_t calls = 0; calls <= finished_; ++calls) {
    Tally tally;
    ASSERT_NO_FATAL_FAILURE(CutAfter(calls, false, tally));
    EXPECT_EQ(tally.refused, 0) << "after call " << calls;
    EXPECT_EQ(tally.lost, 0) << "after call " << calls;
    EXPECT_EQ(tally.spoilt, 0) << "after call " << calls;
    if (HasFailure()) return;
  }
  std::cout << finished_ + 1 << " power cuts" << std::endl;
}

// The negative control: the test must notice a disk that does not sync.
TEST_P(RunOnADiskThatLosesPower, AndLiesAboutSyncsIsNoticed) {
  Tally tally;
  for (size_t calls = 0; calls <= finished_; calls += 5) CutAfter(calls, true, tally);
  EXPECT_GT(tally.lost + tally.refused, 0);
}

TEST_P(RunOnADiskThatLosesPower, WhileItIsVerifiedForgetsNothingThatIsSound) {
  const std::string file = root_ + "/run/" + client::RunImageName(kDamaged, 0, 1, server::ImageFormat::kPng);
  PowerLog log(root_);
  // Everything written before is durable, including the damaged file.
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    using Kind = PowerLog::Kind;
    std::ifstream in(entry.path(), std::ios::binary);
    log.Note(entry.is_directory() ? Kind::kMakeFolder : Kind::kMakeFile, entry.path());
    if (!entry.is_directory()) {
      const bool is_spoilt = entry.path() == file;
      log.Note(Kind::kWrite, entry.path(), 0, is_spoilt ? "spoilt" : std::string(std::istreambuf_iterator(in), {}));
      log.Note(Kind::kSyncFile, entry.path());
    }
    log.Note(Kind::kSyncFolder, entry.path().parent_path());
  }
  const size_t before = log.calls();
  std::ofstream(file, std::ios::binary) << "spoilt";
  {
    const auto folder = Open(root_ + "/run");
    ASSERT_TRUE(folder.ok()) << folder.status();
    for (const auto& [index, entry] : (*folder)->entries()) {
      const auto damage = (*folder)->DamageOf(entry);
      ASSERT_TRUE(damage.ok()) << damage.status();
      EXPECT_EQ(damage->size(), index == kDamaged ? 1u : 0u) << index;
      if (!damage->empty()) {
        ASSERT_TRUE((*folder)->Forget({entry}).ok());
      }
    }
  }
  const size_t verified = log.calls();
  ASSERT_TRUE(Make(root_ + "/run", 0, kItems).ok());
  const size_t after = log.calls();
  log.Stop();
  EXPECT_EQ(FilesOf(root_ + "/run"), undisturbed_);
  for (size_t calls = before; calls <= after; ++calls) {
    const std::string place = folder_ / "cut";
    fs::remove_all(place);
    log.Restore(place, calls, static_cast<uint64_t>(GetParam()) * 1000 + calls);
    const auto made = Make(place + "/run", 0, kItems);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_LE(made->size(), 1u) << "after call " << calls;
    // Before that, the damage has not been reported.
    if (calls >= verified) {
      EXPECT_EQ(FilesOf(place + "/run"), undisturbed_) << "after call " << calls;
    }
  }
}

}  // namespace
}  // namespace tessera
