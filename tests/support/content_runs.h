// Runs of a content store on a disk that fails, shared by its tests and by the tests with planted bugs.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "server/content/content_store.h"
#include "tests/support/disk_calls.h"
#include "tests/support/test_folder.h"

namespace tessera {

// What a run puts: two files of one key, of which the second is put twice, and a folder of the server's own.
struct PutContent {
  server::ContentOwner owner;
  std::vector<std::string> files;  // several: kContentParts

  std::string digest() const {
    std::string all;
    for (const std::string& file : files) all += file;
    return absl::BytesToHexString(base::Sha256Of(all));
  }
};

inline const std::vector<PutContent>& PutContents() {
  using server::ContentOwner;
  static const std::vector<PutContent> contents = {
      {ContentOwner::Key("a"), {std::string(200'000, 'x')}},
      {ContentOwner::Key("a"), {"second"}},
      {ContentOwner::Key("a"), {"second"}},
      {ContentOwner::Server(), {std::string(100'000, 't'), "{}"}},
  };
  return contents;
}

inline std::unique_ptr<server::ContentStore> OpenContents(const std::string& folder) {
  return *server::ContentStore::Open({.folder = folder + "/keys", .own_folder = folder + "/own"});
}

inline absl::StatusOr<server::Content> Put(server::ContentStore& store, const PutContent& content) {
  absl::StatusOr<server::ContentWriter> writer = store.Begin(content.owner, 1 << 30);
  if (!writer.ok()) return writer.status();
  for (size_t i = 0; i < content.files.size(); ++i) {
    if (content.files.size() > 1) {
      if (absl::Status begun = writer->BeginPart(server::kContentParts[i]); !begun.ok()) return begun;
    }
    if (absl::Status written = writer->Append(content.files[i]); !written.ok()) return written;
  }
  return writer->Commit();
}

inline std::string BytesOfFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whether the content is found with the bytes with which it was put.
inline bool IsFound(server::ContentStore& store, const PutContent& content) {
  const absl::StatusOr<server::Content> found = store.Find(content.owner, content.digest());
  if (!found.ok()) return false;
  const absl::StatusOr<std::vector<std::string>> files = server::FilesOfContent(found->path);
  if (!files.ok() || files->size() != content.files.size()) return false;
  for (size_t i = 0; i < files->size(); ++i) {
    if (BytesOfFile((*files)[i]) != content.files[i]) return false;
  }
  return true;
}

inline int LeftOvers(const std::string& folder) {
  int left = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    left += absl::StartsWith(entry.path().filename().string(), ".incoming") ? 1 : 0;
  }
  return left;
}

// Puts the contents in a process that ends with this fault at this call of the disk. Returns how many puts were
// answered, and whether the fault was reached.
struct FaultyPuts {
  size_t answered = 0;
  bool reached = false;
};
inline FaultyPuts PutInProcess(const std::string& folder, DiskCallFault fault, int64_t call, uint64_t seed) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    BreakDisk(folder, fault, call, seed);
    const auto store = OpenContents(folder);
    for (const PutContent& content : PutContents()) {
      if (!Put(*store, content).ok() || write(ends[1], "p", 1) != 1) _exit(1);
    }
    _exit(0);
  }
  close(ends[1]);
  FaultyPuts puts;
  for (char answer; read(ends[0], &answer, 1) == 1;) ++puts.answered;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  puts.reached = WIFSIGNALED(status);
  EXPECT_TRUE(puts.reached || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  return puts;
}

// Ends the process at every call of the disk in turn. Returns the first after which a content that was answered for is
// lost, a found content has other bytes, or something is left over; empty if there is none.
inline std::string FirstLoss(DiskCallFault fault) {
  constexpr int64_t kMostCalls = 200;
  const uint64_t seeds = fault == DiskCallFault::kPowerCut ? 2 : 1;
  for (int64_t call = 0; call < kMostCalls; ++call) {
    bool reached = false;
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      const TestFolder folder;
      const FaultyPuts puts = PutInProcess(folder.path(), fault, call, seed);
      reached = reached || puts.reached;
      const std::string at = absl::StrCat(" at call ", call, " with seed ", seed);
      const auto store = OpenContents(folder.path());
      for (size_t i = 0; i < PutContents().size(); ++i) {
        const PutContent& content = PutContents()[i];
        if (i < puts.answered && !IsFound(*store, content)) return absl::StrCat("lost content ", i, at);
        if (store->Find(content.owner, content.digest()).ok() && !IsFound(*store, content)) return "torn" + at;
        if (!Put(*store, content).ok() || !IsFound(*store, content)) return "not put again" + at;
      }
      if (LeftOvers(folder.path()) > 0) return "a left-over" + at;
    }
    if (!reached) return call > 15 ? "" : absl::StrCat("only ", call, " calls of the disk");
  }
  return "the puts do not end";
}

}  // namespace tessera
