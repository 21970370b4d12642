#include "server/adapters/served_adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "base/files/sha256.h"
#include "control/parameters/adapter_use.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string DigestOf(const std::string& bytes) { return absl::BytesToHexString(base::Sha256Of(bytes)); }

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ServedAdaptersTest : public testing::Test {
 protected:
  ServedAdaptersTest() { std::filesystem::create_directories(folder_ / "adapters"); }

  std::string Put(const std::string& name, const std::string& bytes) {
    return folder_.Write("adapters/" + name + ".safetensors", bytes);
  }

  std::unique_ptr<ServedAdapters> Open(absl::Duration retention = absl::Hours(1)) {
    const auto log = [this](const base::LogLine& line) { log_.push_back(line.text); };
    contents_ = *ContentStore::Open(
        {.own_folder = folder_ / "kept", .own_suffix = ".safetensors", .own_retention = retention, .log = log});
    auto adapters = ServedAdapters::Open({.folder = folder_ / "adapters", .check = check_, .log = log}, *contents_);
    EXPECT_TRUE(adapters.ok()) << adapters.status();
    (*adapters)->Scan(models_);
    return *std::move(adapters);
  }

  void RemoveUnused(const ServedAdapters& adapters, std::set<std::string> needed) {
    needed.merge(adapters.Digests());
    contents_->RemoveUnused(needed);
  }

  static std::vector<std::string> Names(const ServedAdapters& adapters, const std::string& model) {
    std::vector<std::string> names;
    for (const ServedAdapter& adapter : adapters.Of(model)) names.push_back(adapter.name);
    return names;
  }

  size_t Kept() const {
    return std::distance(std::filesystem::directory_iterator(folder_ / "kept"), std::filesystem::directory_iterator());
  }

  const TestFolder folder_;
  const std::vector<std::string> models_ = {"first", "second"};
  const std::string style_ = OneTensor("style"), other_ = OneTensor("other");
  decltype(ServedAdaptersOptions::check) check_;
  std::unique_ptr<ContentStore> contents_;
  std::vector<std::string> log_;
};

TEST_F(ServedAdaptersTest, AFileBelongsToTheModelOfItsFolderAndElseToTheFirst) {
  Put("style", style_);
  Put("second/grain", other_);
  Put("third/lost", other_);
  const auto adapters = Open();
  EXPECT_THAT(Names(*adapters, "first"), ElementsAre("style"));
  EXPECT_THAT(Names(*adapters, "second"), ElementsAre("grain"));
  EXPECT_THAT(Names(*adapters, "third"), IsEmpty());
  EXPECT_EQ(adapters->Of("first")[0].digest, DigestOf(style_));
  EXPECT_EQ(adapters->Of("first")[0].bytes, style_.size());
}

TEST_F(ServedAdaptersTest, AFolderOfDiffusersIsServedByItsNameAsItsFile) {
  folder_.Write("adapters/style/pytorch_lora_weights.safetensors", style_);
  const auto adapters = Open();
  ASSERT_THAT(Names(*adapters, "first"), ElementsAre("style"));
  EXPECT_EQ(adapters->Of("first")[0].digest, DigestOf(style_));
  EXPECT_EQ(BytesOf(folder_ / ("kept/" + DigestOf(style_) + ".safetensors")), style_);
}

// A training run leaves an adapter in both forms.
TEST_F(ServedAdaptersTest, OfAFileAndAFolderOfOneNameTheFileIsServed) {
  Put("adapter-8", style_);
  folder_.Write("adapters/adapter-8/adapter_model.safetensors", style_);
  folder_.Write("adapters/adapter-8/adapter_config.json", "{}");
  const auto adapters = Open();
  ASSERT_THAT(Names(*adapters, "first"), ElementsAre("adapter-8"));
  EXPECT_EQ(adapters->Of("first")[0].digest, DigestOf(style_));
  EXPECT_THAT(log_, ElementsAre(HasSubstr("'adapter-8' is left out: another adapter has this name")));
  const auto loaded = adapters->Load("adapter-8", models_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->adapter.digest, DigestOf(style_));
}

TEST_F(ServedAdaptersTest, EmbeddingsThatAreLeftOutAreLogged) {
  Put("style", style_);
  check_ = [](const std::string&, const std::string&, const std::string&) {
    return models::AdapterOrigin{.embeddings = {"clip_l"}};
  };
  const auto adapters = Open();
  EXPECT_THAT(Names(*adapters, "first"), ElementsAre("style"));
  EXPECT_THAT(log_, ElementsAre(HasSubstr("embeddings, which are not used: clip_l")));
}

TEST_F(ServedAdaptersTest, AFolderOfPeftIsServedByItsNameAndKeptWhole) {
  folder_.Write("adapters/style/adapter_model.safetensors", style_);
  folder_.Write("adapters/style/adapter_config.json", "{}");
  folder_.Write("adapters/second/grain/adapter_model.safetensors", other_);
  auto adapters = Open(absl::ZeroDuration());
  EXPECT_THAT(Names(*adapters, "first"), ElementsAre("style"));
  EXPECT_THAT(Names(*adapters, "second"), ElementsAre("grain"));
  std::vector<control::AdapterUse> accepted = {{.name = "style", .digest = adapters->Of("first")[0].digest}};
  EXPECT_EQ(accepted[0].digest, DigestOf(style_ + "{}"));
  std::filesystem::remove_all(folder_ / "adapters/style");
  adapters = Open(absl::ZeroDuration());
  ASSERT_TRUE(adapters->Locate(accepted).ok());
  EXPECT_EQ(BytesOf(accepted[0].file + "/adapter_config.json"), "{}");
  RemoveUnused(*adapters, {});
  EXPECT_EQ(adapters->Locate(accepted).code(), absl::StatusCode::kDataLoss);
}

TEST_F(ServedAdaptersTest, WhatIsNoAdapterIsLeftOutByNameAndTheOthersAreServed) {
  Put("style", style_);
  Put("broken", style_.substr(0, style_.size() - 1));
  Put("a name with blanks", style_);
  Put("second/style", other_);
  folder_.Write("adapters/README.md", "no adapter");
  const auto adapters = Open();
  EXPECT_THAT(Names(*adapters, "first"), ElementsAre("style"));
  EXPECT_THAT(Names(*adapters, "second"), IsEmpty());
  EXPECT_THAT(log_, testing::UnorderedElementsAre(HasSubstr("'broken' is left out"),
                                                  HasSubstr("'a name with blanks' is left out: valid names have"),
                                                  HasSubstr("'style' is left out: another adapter has this name")));
}

TEST_F(ServedAdaptersTest, AnAcceptedJobGetsTheBytesOfThenWhateverBecomesOfTheFile) {
  const std::string path = Put("style", style_);
  auto adapters = Open();
  std::vector<control::AdapterUse> accepted = {{.name = "style", .digest = adapters->Of("first")[0].digest}};

  // The file is replaced in place and loaded again, then removed, unloaded and forgotten by a restart.
  std::ofstream(path, std::ios::binary | std::ios::trunc) << other_;
  ASSERT_TRUE(adapters->Load("style", models_).ok());
  EXPECT_EQ(adapters->Of("first")[0].digest, DigestOf(other_));
  ASSERT_TRUE(adapters->Locate(accepted).ok());
  EXPECT_EQ(BytesOf(accepted[0].file), style_);
  EXPECT_TRUE(std::filesystem::path(accepted[0].file).is_absolute());
  std::filesystem::remove(path);
  ASSERT_TRUE(adapters->Unload("style").ok());
  adapters = Open();
  EXPECT_THAT(Names(*adapters, "first"), IsEmpty());
  accepted[0].file.clear();
  ASSERT_TRUE(adapters->Locate(accepted).ok());
  EXPECT_EQ(BytesOf(accepted[0].file), style_);
}

TEST_F(ServedAdaptersTest, BytesThatAreGoneOrDamagedAreANamedFailure) {
  Put("style", style_);
  auto adapters = Open();
  std::vector<control::AdapterUse> accepted = {{.name = "style", .digest = DigestOf(style_)}};
  ASSERT_TRUE(adapters->Locate(accepted).ok());
  const std::string kept = accepted[0].file;
  std::filesystem::remove(kept);
  const absl::Status gone = adapters->Locate(accepted);
  EXPECT_EQ(gone.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(gone.message()), HasSubstr("adapter 'style' that the job was accepted with"));

  // A crash of the machine may leave other bytes under the name; the next start detects them and copies the file again.
  std::filesystem::remove(folder_ / "adapters/style.safetensors");
  folder_.Write("kept/" + DigestOf(style_) + ".safetensors", other_);
  adapters = Open();
  EXPECT_EQ(adapters->Locate(accepted).code(), absl::StatusCode::kDataLoss);
  Put("style", style_);
  adapters = Open();
  ASSERT_TRUE(adapters->Locate(accepted).ok());
  EXPECT_EQ(BytesOf(kept), style_);
}

TEST_F(ServedAdaptersTest, OnlyUnusedFilesAreRemoved) {
  Put("style", style_);
  Put("grain", other_);
  const std::string third = OneTensor("third");
  Put("third", third);
  const auto adapters = Open(absl::ZeroDuration());
  folder_.Write("kept/.incoming-of-a-killed-server", "x");
  ASSERT_TRUE(adapters->Unload("grain").ok());
  ASSERT_TRUE(adapters->Unload("third").ok());
  EXPECT_EQ(Kept(), 4u);
  RemoveUnused(*adapters, {DigestOf(other_)});
  EXPECT_EQ(Kept(), 2u);
  std::vector<control::AdapterUse> needed = {{.name = "grain", .digest = DigestOf(other_)}};
  EXPECT_TRUE(adapters->Locate(needed).ok());
  std::vector<control::AdapterUse> unneeded = {{.name = "third", .digest = DigestOf(third)}};
  EXPECT_EQ(adapters->Locate(unneeded).code(), absl::StatusCode::kDataLoss);
}

TEST_F(ServedAdaptersTest, WhatWasJustUnloadedStaysForRequestsThatAreOnTheirWay) {
  Put("style", style_);
  const auto adapters = Open(absl::Hours(1));
  ASSERT_TRUE(adapters->Unload("style").ok());
  RemoveUnused(*adapters, {});
  EXPECT_EQ(Kept(), 1u);
}

TEST_F(ServedAdaptersTest, WhatDoesNotFitItsModelIsNeitherServedNorKept) {
  check_ = [this](const std::string& model, const std::string& path,
                  const std::string& name) -> absl::StatusOr<models::AdapterOrigin> {
    if (model == "first" && BytesOf(path) == other_) return absl::InvalidArgumentError(name + ": another family");
    return models::AdapterOrigin{.step = 7};
  };
  const std::string path = Put("style", style_);
  Put("grain", other_);
  Put("second/fog", other_);
  const auto adapters = Open();
  EXPECT_THAT(Names(*adapters, "first"), ElementsAre("style"));
  EXPECT_THAT(Names(*adapters, "second"), ElementsAre("fog")) << "the same bytes fit another model";
  EXPECT_EQ(adapters->Of("first")[0].step, 7);
  EXPECT_THAT(log_, ElementsAre(HasSubstr("adapter 'grain': another family")));
  std::ofstream(path, std::ios::binary | std::ios::trunc) << other_;
  EXPECT_EQ(adapters->Load("style", models_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(adapters->Of("first")[0].digest, DigestOf(style_));
  EXPECT_EQ(Kept(), 2u);
}

TEST_F(ServedAdaptersTest, AFailedLoadLeavesTheOneOfBefore) {
  const std::string path = Put("style", style_);
  const auto adapters = Open();
  std::ofstream(path, std::ios::binary | std::ios::trunc) << "no adapter";
  const absl::Status refused = adapters->Load("style", models_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("adapter 'style' is not an adapter file"));
  EXPECT_EQ(adapters->Of("first")[0].digest, DigestOf(style_));
}

TEST_F(ServedAdaptersTest, AnUnknownNameIsAnsweredWithTheNearestAndAPathIsNone) {
  Put("style", style_);
  const auto adapters = Open();
  const absl::Status unknown = adapters->Load("stile", models_).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("did you mean 'style'?"));
  EXPECT_THAT(std::string(adapters->Unload("stile").message()), HasSubstr("did you mean 'style'?"));
  for (const char* path : {"../kept/x", "/etc/passwd", "second/style", ".", ""}) {
    EXPECT_EQ(adapters->Load(path, models_).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
  Put("second/style", other_);
  EXPECT_THAT(std::string(adapters->Load("style", models_).status().message()), HasSubstr("twice, for two models"));
}

TEST_F(ServedAdaptersTest, WithoutAFolderThereAreNone) {
  const auto contents = *ContentStore::Open({.own_folder = folder_ / "kept"});
  EXPECT_EQ(ServedAdapters::Open({.folder = folder_ / "none"}, *contents).status().code(), absl::StatusCode::kNotFound);
  const auto adapters = ServedAdapters::Open({.folder = ""}, *contents);
  ASSERT_TRUE(adapters.ok());
  (*adapters)->Scan(models_);
  EXPECT_EQ((*adapters)->Load("style", models_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "kept"));
}

}  // namespace
}  // namespace tessera::server
