#include "server/content/content_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/content_runs.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ContentStoreTest : public testing::Test {
 protected:
  void Open(ContentStoreOptions options = {}) {
    options.folder = folder_ / "keys";
    options.own_folder = folder_ / "own";
    options.own_suffix = ".safetensors";
    options.log = [this](const base::LogLine& line) { log_.push_back(line.text); };
    store_.reset();
    store_ = *ContentStore::Open(options);
  }

  absl::StatusOr<Content> PutBytes(const ContentOwner& owner, const std::string& bytes) {
    return Put(*store_, {owner, {bytes}});
  }
  absl::StatusOr<Content> Find(const ContentOwner& owner, const std::string& bytes) {
    return store_->Find(owner, DigestOf(bytes));
  }
  static std::string DigestOf(const std::string& bytes) { return absl::BytesToHexString(base::Sha256Of(bytes)); }
  static std::string TextOf(const absl::Status& status) { return std::string(status.message()); }
  static void MakeOld(const std::string& path) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(24));
  }

  const TestFolder folder_;
  const ContentOwner a_ = ContentOwner::Key("a"), b_ = ContentOwner::Key("b"), server_ = ContentOwner::Server();
  std::vector<std::string> log_;
  std::unique_ptr<ContentStore> store_;
};

TEST_F(ContentStoreTest, AContentIsFoundByItsDigestAlsoAfterARestart) {
  Open();
  const absl::StatusOr<Content> put = PutBytes(a_, "picture");
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->digest, DigestOf("picture"));
  EXPECT_EQ(put->bytes, 7u);
  EXPECT_TRUE(fs::path(put->path).is_absolute());
  EXPECT_EQ(BytesOfFile(put->path), "picture");
  EXPECT_EQ(fs::status(put->path).permissions(), fs::perms::owner_read);
  EXPECT_EQ(*Find(a_, "picture"), *put);
  Open();
  EXPECT_EQ(*Find(a_, "picture"), *put);
}

TEST_F(ContentStoreTest, AKeyFindsWhatItHasPutItselfAlone) {
  Open();
  ASSERT_TRUE(PutBytes(a_, "picture").ok());
  EXPECT_EQ(Find(b_, "picture").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Find(server_, "picture").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Find(ContentOwner::Key(""), "picture").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(PutBytes(b_, "picture").ok());
  EXPECT_NE(Find(a_, "picture")->path, Find(b_, "picture")->path);
  fs::remove(Find(a_, "picture")->path);
  EXPECT_TRUE(Find(b_, "picture").ok());
}

TEST_F(ContentStoreTest, TheSameBytesAreOneContent) {
  Open();
  const absl::StatusOr<Content> first = PutBytes(a_, "picture");
  const uint64_t stored = store_->stored_bytes();
  EXPECT_EQ(*PutBytes(a_, "picture"), *first);
  EXPECT_EQ(store_->stored_bytes(), stored);
  EXPECT_EQ(LeftOvers(folder_.path()), 0);
}

TEST_F(ContentStoreTest, ManyPutsOfTheSameBytesAtOnceAreOneContent) {
  Open();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this] {
      for (const PutContent& content : PutContents()) EXPECT_TRUE(Put(*store_, content).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const PutContent& content : PutContents()) EXPECT_TRUE(IsFound(*store_, content));
  EXPECT_EQ(store_->stored_bytes(), 200'000 + ContentStore::kLeastBytes);
  EXPECT_EQ(LeftOvers(folder_.path()), 0);
}

TEST_F(ContentStoreTest, WhatIsNoDigestNamesNothing) {
  Open();
  ASSERT_TRUE(PutBytes(a_, "picture").ok());
  const std::string digest = DigestOf("picture");
  for (const std::string& name :
       {std::string(), std::string(".."), "../" + a_.folder() + "/" + digest, digest.substr(1), digest + "/",
        std::string(64, 'A'), std::string(63, 'a') + '\0', "./" + digest.substr(2)}) {
    EXPECT_EQ(store_->Find(a_, name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST_F(ContentStoreTest, AContentHasAtMostTheBytesThatWereDeclared) {
  Open();
  {
    ContentWriter writer = *store_->Begin(a_, 7);
    EXPECT_TRUE(writer.Append("pict").ok());
    const absl::Status refused = writer.Append("ures");
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(TextOf(refused), HasSubstr("more than 7 bytes"));
    EXPECT_EQ(writer.Commit().status(), refused) << "a part of it is no content";
  }
  EXPECT_EQ(LeftOvers(folder_.path()), 0);
  EXPECT_EQ(store_->stored_bytes(), 0u);
}

TEST_F(ContentStoreTest, WhatKeysStoreIsBoundedByName) {
  const uint64_t unit = ContentStore::kLeastBytes;
  Open({.most_bytes_of_key = 2 * unit, .most_bytes = 3 * unit});
  EXPECT_TRUE(PutBytes(server_, std::string(8 * unit, 's')).ok()) << "the server's own do not count";
  ASSERT_TRUE(PutBytes(a_, "1").ok());
  ASSERT_TRUE(PutBytes(a_, "2").ok());
  const absl::Status of_key = PutBytes(a_, "3").status();
  EXPECT_EQ(of_key.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(TextOf(of_key), "the stored contents of this API key would have 12288 bytes; at most 8192 are valid");
  EXPECT_TRUE(PutBytes(a_, "2").ok()) << "it is stored already";
  ASSERT_TRUE(PutBytes(b_, "1").ok());
  const absl::Status of_all = PutBytes(b_, "2").status();
  EXPECT_EQ(TextOf(of_all), "the stored contents of all API keys would have 16384 bytes; at most 12288 are valid");
  Open({.most_bytes_of_key = 2 * unit, .most_bytes = 3 * unit});
  EXPECT_FALSE(PutBytes(a_, "3").ok()) << "a restart forgets nothing";
  MakeOld(Find(a_, "1")->path);
  store_->RemoveUnused({});
  EXPECT_TRUE(PutBytes(a_, "3").ok());
}

TEST_F(ContentStoreTest, WhatKeysArePuttingIsBounded) {
  Open({.most_bytes_of_key = 100'000});
  ContentWriter first = *store_->Begin(a_, 1 << 20);
  {
    ContentWriter second = *store_->Begin(a_, 1 << 20);
    EXPECT_TRUE(first.Append(std::string(60'000, 'x')).ok());
    EXPECT_EQ(second.Append(std::string(60'000, 'y')).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(second.Append("").code() == absl::StatusCode::kResourceExhausted) << "it stays refused";
  }
  EXPECT_TRUE(first.Append(std::string(40'000, 'x')).ok());
  EXPECT_TRUE(first.Commit().ok());
}

TEST_F(ContentStoreTest, AContentExpiresUnlessAJobNeedsItOrItWasUsed) {
  Open();
  for (const char* bytes : {"needed", "used", "unused"}) MakeOld(PutBytes(a_, bytes)->path);
  ASSERT_TRUE(PutBytes(a_, "new").ok());
  MakeOld(PutBytes(server_, "adapter")->path);
  ASSERT_TRUE(Find(a_, "used").ok());
  fs::create_directories(folder_ / "own/notes");
  MakeOld(folder_ / "own/notes");
  store_->RemoveUnused({DigestOf("needed")});
  for (const char* bytes : {"needed", "used", "new"}) EXPECT_TRUE(Find(a_, bytes).ok()) << bytes;
  EXPECT_EQ(Find(a_, "unused").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Find(server_, "adapter").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(fs::exists(folder_ / "own/notes")) << "it is no content";
}

TEST_F(ContentStoreTest, BytesThatChangedWhileTheServerWasDownAreNotUsed) {
  Open();
  const std::string path = PutBytes(a_, "picture")->path;
  fs::remove(path);
  std::ofstream(path) << "PICTURE";
  Open();
  const absl::Status damaged = Find(a_, "picture").status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(TextOf(damaged), testing::Not(HasSubstr(folder_.path())));
  EXPECT_THAT(log_, ElementsAre(HasSubstr("content " + DigestOf("picture") + " was damaged on the disk")));
  EXPECT_EQ(Find(a_, "picture").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->stored_bytes(), 0u);
  EXPECT_TRUE(PutBytes(a_, "picture").ok());
  EXPECT_TRUE(Find(a_, "picture").ok());
}

TEST_F(ContentStoreTest, AFileThatIsCutShortWhileTheServerRunsIsNotUsed) {
  Open();
  fs::resize_file(PutBytes(a_, "picture")->path, 3);
  EXPECT_EQ(Find(a_, "picture").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ContentStoreTest, WhatAKilledPutLeftIsRemovedAtTheStart) {
  folder_.Write("own/.incoming-1", "x");
  folder_.Write("keys/" + a_.folder() + "/.incoming-2/adapter_model.safetensors", "x");
  Open();
  EXPECT_EQ(LeftOvers(folder_.path()), 0);
}

TEST_F(ContentStoreTest, InSharedFoldersOnlyOldLeftOversOfOthersAreRemoved) {
  const std::string old = folder_.Write("own/.incoming-old", "x");
  folder_.Write("own/.incoming-new", "x");
  MakeOld(old);
  Open({.is_shared = true});
  EXPECT_EQ(LeftOvers(folder_.path()), 2);
  ContentWriter writer = *store_->Begin(server_, 100);
  ASSERT_TRUE(writer.Append("x").ok());
  MakeOld(writer.path());
  store_->RemoveUnused({});
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(folder_ / "own/.incoming-new"));
  EXPECT_TRUE(writer.Commit().ok()) << "a put that lasts long is none";
}

TEST_F(ContentStoreTest, AFolderHasTheDigestOfItsFilesTogetherAndTheyAreChecked) {
  Open();
  const absl::StatusOr<Content> put = Put(*store_, {server_, {"tensors", "{}"}});
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->digest, DigestOf("tensors{}"));
  EXPECT_EQ(put->bytes, 9u);
  EXPECT_EQ(BytesOfFile(put->path + "/adapter_model.safetensors"), "tensors");
  EXPECT_EQ(BytesOfFile(put->path + "/adapter_config.json"), "{}");
  Open();
  EXPECT_EQ(*Find(server_, "tensors{}"), *put);
  std::ofstream(put->path + "/more") << "x";
  Open();
  EXPECT_EQ(Find(server_, "tensors{}").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ContentStoreTest, AFolderHasExactlyTheFilesOfAContent) {
  Open();
  for (const std::vector<std::string>& parts : std::vector<std::vector<std::string>>{
           {"../x"}, {"adapter_config.json"}, {"adapter_model.safetensors", "adapter_model.safetensors"}}) {
    ContentWriter writer = *store_->Begin(server_, 100);
    absl::Status status;
    for (const std::string& part : parts) status = writer.BeginPart(part);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << parts.back();
  }
  ContentWriter writer = *store_->Begin(server_, 100);
  EXPECT_TRUE(writer.BeginPart(kContentParts[0]).ok());
  EXPECT_EQ(writer.Commit().status().code(), absl::StatusCode::kInvalidArgument) << "it has no configuration";
}

TEST_F(ContentStoreTest, AContentMayHaveNoBytes) {
  Open();
  EXPECT_EQ(PutBytes(a_, "")->bytes, 0u);
  EXPECT_TRUE(Find(a_, "").ok());
}

TEST(ContentDiskTest, NoAcknowledgedContentIsLostWhenTheProcessIsKilledAtAnyCallOfTheDisk) {
  EXPECT_EQ(FirstLoss(DiskCallFault::kKill), "");
}

TEST(ContentDiskTest, NoAcknowledgedContentIsLostOrTornWhenThePowerIsCutAtAnyCallOfTheDisk) {
  EXPECT_EQ(FirstLoss(DiskCallFault::kPowerCut), "");
}

// Returns the errors of the puts of all contents, of which this call of the disk fails. Checks that nothing else does.
std::vector<absl::StatusCode> CodesOfPuts(DiskCallFault fault, int64_t call, bool& reached) {
  const TestFolder folder;
  const auto store = OpenContents(folder.path());
  BreakDisk(folder.path(), fault, call);
  std::vector<absl::StatusCode> codes;
  std::vector<bool> answered;
  for (const PutContent& content : PutContents()) {
    const absl::Status status = Put(*store, content).status();
    answered.push_back(status.ok());
    if (!status.ok()) codes.push_back(status.code());
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr(folder.path())));
  }
  reached = RestoreDisk();
  EXPECT_EQ(LeftOvers(folder.path()), 0);
  for (size_t i = 0; i < PutContents().size(); ++i) {
    if (answered[i]) {
      EXPECT_TRUE(IsFound(*store, PutContents()[i])) << "call " << call;
    }
    EXPECT_TRUE(Put(*store, PutContents()[i]).ok()) << "call " << call;
  }
  return codes;
}

TEST(ContentDiskTest, AnErrorOfTheDiskFailsThePutThatMetItAndLeavesNothing) {
  int64_t call = 0;
  for (bool reached = true; reached; ++call) {
    const std::vector<absl::StatusCode> codes = CodesOfPuts(DiskCallFault::kError, call, reached);
    if (reached) {
      EXPECT_THAT(codes, ElementsAre(absl::StatusCode::kUnavailable)) << "call " << call;
    } else {
      EXPECT_THAT(codes, IsEmpty());
    }
  }
  EXPECT_GT(call, 15);
}

TEST(ContentDiskTest, AFullDiskIsSaidSoAndLeavesNothing) {
  bool reached = true;
  for (int64_t call = 0; reached; ++call) {
    for (const absl::StatusCode code : CodesOfPuts(DiskCallFault::kFull, call, reached)) {
      EXPECT_EQ(code, absl::StatusCode::kResourceExhausted) << "call " << call;
    }
  }
}

}  // namespace
}  // namespace tessera::server
