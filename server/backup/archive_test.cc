// Tests of archives, most of them damaged or hostile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files/sha256.h"
#include "server/backup/archive_reader.h"
#include "server/backup/restore.h"
#include "server/backup/tar.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using Files = std::vector<std::pair<std::string, std::string>>;

std::string EntryOf(const std::string& name, const std::string& bytes) {
  return *TarHeader({.name = name, .bytes = bytes.size(), .modified_s = 1}) + bytes +
         std::string(TarPadding(bytes.size()), '\0');
}

BackupManifest ManifestOf(const Files& files) {
  BackupManifest manifest = {.program = "tessera 0"};
  for (const auto& [name, bytes] : files) {
    manifest.files[name] = {.bytes = bytes.size(), .sha256 = absl::BytesToHexString(base::Sha256Of(bytes))};
  }
  return manifest;
}

std::string End() { return std::string(2 * kTarBlock, '\0'); }

std::string ArchiveOf(const Files& files, const BackupManifest& manifest) {
  std::string archive;
  for (const auto& [name, bytes] : files) archive += EntryOf(name, bytes);
  return archive + EntryOf(kManifestName, ManifestText(manifest)) + End();
}

const Files& SomeFiles() {
  static const Files files = {{"images/01/1-1", "first"}, {"adapters/a.safetensors", std::string(1500, 'a')}};
  return files;
}

std::string SomeArchive() { return ArchiveOf(SomeFiles(), ManifestOf(SomeFiles())); }

// Changes the header of the first entry and corrects its checksum.
std::string WithHeader(std::string archive, const std::function<void(std::string&)>& change) {
  std::string block = archive.substr(0, kTarBlock);
  change(block);
  block.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char byte : block) sum += static_cast<unsigned char>(byte);
  char text[8];
  std::snprintf(text, sizeof(text), "%06o", sum);
  block.replace(148, 8, std::string(text, 7) + " ");
  return archive.replace(0, kTarBlock, block);
}

std::string WithKind(char kind) {
  return WithHeader(SomeArchive(), [&](std::string& block) { block[156] = kind; });
}

std::string WithName(const std::string& name) {
  const Files files = {{name, "bytes"}};
  return WithHeader(SomeArchive(), [&](std::string& block) {
    block.replace(0, 100, 100, '\0');
    block.replace(0, name.size(), name);
  });
}

absl::StatusOr<RestoreSummary> RestoreFrom(const std::string& archive, const RestoreOptions& options) {
  std::string_view rest = archive;
  return Restore(options, [&](size_t count) -> absl::StatusOr<std::string> {
    // Pieces are as short as those of a pipe may be.
    const std::string piece(rest.substr(0, std::min<size_t>(count, 700)));
    rest.remove_prefix(piece.size());
    return piece;
  });
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ArchiveTest, AWholeArchiveIsRestoredWithItsBytesForItsOwnerAlone) {
  const TestFolder folder;
  const auto summary = RestoreFrom(SomeArchive(), {.data_folder = folder / "data"});
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->manifest, ManifestOf(SomeFiles()));
  for (const auto& [name, bytes] : SomeFiles()) EXPECT_EQ(BytesOf(folder / ("data/" + name)), bytes);
  for (const auto& entry : fs::recursive_directory_iterator(folder / "data")) {
    EXPECT_EQ(static_cast<int>(entry.status().permissions()) & 077, 0) << entry.path();
  }
  EXPECT_TRUE(CheckNoRestore(folder / "data").ok());
}

struct Hostile {
  const char* name;
  std::function<std::string()> archive;
  const char* problem;
};

class HostileArchiveTest : public testing::TestWithParam<Hostile> {};

TEST_P(HostileArchiveTest, IsRefusedAndLeavesNothing) {
  const TestFolder folder;
  const auto summary = RestoreFrom(GetParam().archive(), {.data_folder = folder / "data"});
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr(GetParam().problem));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

BackupManifest Changed(BackupManifest manifest, const std::function<void(BackupManifest&)>& change) {
  change(manifest);
  return manifest;
}

std::string WithManifest(const std::function<void(BackupManifest&)>& change) {
  return ArchiveOf(SomeFiles(), Changed(ManifestOf(SomeFiles()), change));
}

std::string WithManifestText(const std::string& text) {
  std::string archive;
  for (const auto& [name, bytes] : SomeFiles()) archive += EntryOf(name, bytes);
  return archive + EntryOf(kManifestName, text) + End();
}

// A manifest with this first line and a valid last one.
std::string Signed(const std::string& head) {
  return absl::StrCat(head, "\nend ", absl::BytesToHexString(base::Sha256Of(head + "\n")), "\n");
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileArchiveTest,
    testing::Values(
        Hostile{"Empty", [] { return std::string(); }, "truncated"},
        Hostile{"NoArchive", [] { return std::string(4096, 'x'); }, "not a tar archive"},
        Hostile{"NoManifest", [] { return EntryOf("images/01/1-1", "x") + End(); }, "has no manifest"},
        Hostile{"TruncatedInAHeader", [] { return SomeArchive().substr(0, 300); }, "truncated"},
        Hostile{"TruncatedInAFile", [] { return SomeArchive().substr(0, 2000); }, "truncated"},
        Hostile{"TruncatedInTheManifest", [] { return SomeArchive().substr(0, SomeArchive().size() - 1300); },
                "truncated"},
        Hostile{"TruncatedAtTheEnd", [] { return SomeArchive().substr(0, SomeArchive().size() - 1); }, "truncated"},
        Hostile{"SomethingAfterTheEnd", [] { return SomeArchive() + "x"; }, "something follows"},
        Hostile{"ParentFolder", [] { return WithName("images/../../x"); }, "no part of a backup"},
        Hostile{"AbsoluteName", [] { return WithName("/etc/passwd"); }, "no part of a backup"},
        Hostile{"EmptyName", [] { return WithName(""); }, "no part of a backup"},
        Hostile{"CurrentFolder", [] { return WithName("images/./x"); }, "no part of a backup"},
        Hostile{"DoubleSlash", [] { return WithName("images//x"); }, "no part of a backup"},
        Hostile{"OtherFolder", [] { return WithName("workers/x"); }, "no part of a backup"},
        Hostile{"OtherFile", [] { return WithName("jobs.sqlite-wal"); }, "no part of a backup"},
        Hostile{"HiddenFile", [] { return WithName("images/.x"); }, "no part of a backup"},
        Hostile{"ControlCharacter", [] { return WithName("images/a\nb"); }, "no part of a backup"},
        Hostile{"HardLink", [] { return WithKind('1'); }, "not a regular file"},
        Hostile{"SymbolicLink", [] { return WithKind('2'); }, "not a regular file"},
        Hostile{"CharacterDevice", [] { return WithKind('3'); }, "not a regular file"},
        Hostile{"BlockDevice", [] { return WithKind('4'); }, "not a regular file"},
        Hostile{"Folder", [] { return WithKind('5'); }, "not a regular file"},
        Hostile{"Pipe", [] { return WithKind('6'); }, "not a regular file"},
        Hostile{"ExtendedHeader", [] { return WithKind('x'); }, "not a regular file"},
        Hostile{"LongName", [] { return WithKind('L'); }, "not a regular file"},
        Hostile{"WrongChecksum",
                [] {
                  std::string archive = SomeArchive();
                  archive[0] = 'j';
                  return archive;
                },
                "header is invalid"},
        Hostile{
            "NegativeSize",
            [] { return WithHeader(SomeArchive(), [](std::string& block) { block.replace(124, 12, 12, '\xff'); }); },
            "no valid size"},
        Hostile{"HugeSize",
                [] {
                  return WithHeader(SomeArchive(), [](std::string& block) {
                    block.replace(124, 12, "\x80\x7f" + std::string(10, '\xff'));
                  });
                },
                "no valid size"},
        Hostile{
            "SizeBeyondTheEnd",
            [] { return WithHeader(SomeArchive(), [](std::string& block) { block.replace(124, 11, "00077777777"); }); },
            "truncated"},
        Hostile{"TwoEntriesOfOneName", [] { return EntryOf("images/01/1-1", "first") + SomeArchive(); },
                "has two entries"},
        Hostile{"AFileUnderAFile",
                [] {
                  const Files files = {{"images/a", "file"}, {"images/a/b", "below it"}};
                  return ArchiveOf(files, ManifestOf(files));
                },
                "cannot make"},
        Hostile{"AnUnlistedFile", [] { return EntryOf("images/01/9-1", "more") + SomeArchive(); }, "does not list"},
        Hostile{"ALackingFile",
                [] {
                  return WithManifest(
                      [](BackupManifest& manifest) { manifest.files["images/x"].sha256 = std::string(64, '0'); });
                },
                "it lacks"},
        Hostile{"OtherBytes",
                [] {
                  return absl::StrReplaceAll(SomeArchive(), {{"first", "First"}});
                },
                "differs from its digest"},
        Hostile{"ChangedManifest",
                [] {
                  return absl::StrReplaceAll(SomeArchive(), {{"tessera 0", "tessera 1"}});
                },
                "manifest is invalid"},
        Hostile{"ManifestWithABadName",
                [] {
                  return WithManifest(
                      [](BackupManifest& manifest) { manifest.files["../x"] = {.sha256 = std::string(64, '0')}; });
                },
                "no part of a backup"},
        Hostile{"ManifestThatIsNoJson", [] { return WithManifestText(Signed("{")); }, "manifest is invalid"},
        Hostile{"ManifestWithoutFields", [] { return WithManifestText(Signed("{\"format\":1}")); },
                "manifest is invalid"},
        Hostile{"LaterFormat", [] { return WithManifestText(Signed("{\"format\":2}")); }, "the backup has format 2"},
        Hostile{"JobsThatAreNotThere",
                [] { return WithManifest([](BackupManifest& manifest) { manifest.schema = 7; }); },
                "does not describe its job store"},
        Hostile{"NewerSchema",
                [] {
                  const Files files = {{"jobs.sqlite", "x"}};
                  return ArchiveOf(files, Changed(ManifestOf(files), [](BackupManifest& m) { m.schema = 99; }));
                },
                "schema version 99, written by tessera 0; this program knows versions up to 8"},
        Hostile{"JobsThatAreNoDatabase",
                [] {
                  const Files files = {{"jobs.sqlite", std::string(8192, 'x')}};
                  return ArchiveOf(files, Changed(ManifestOf(files), [](BackupManifest& m) { m.schema = 7; }));
                },
                "database is damaged"}),
    [](const testing::TestParamInfo<Hostile>& info) { return std::string(info.param.name); });

TEST(ArchiveTest, EveryTruncationIsRefused) {
  const std::string archive = SomeArchive();
  const TestFolder folder;
  for (size_t bytes = 0; bytes < archive.size(); bytes += 331) {
    const auto summary = RestoreFrom(archive.substr(0, bytes), {.data_folder = folder / "data"});
    EXPECT_TRUE(absl::IsInvalidArgument(summary.status())) << bytes << ": " << summary.status();
    EXPECT_TRUE(fs::is_empty(folder.path())) << bytes;
  }
}

TEST(ArchiveTest, LongNamesAndLargeSizesAreReadBack) {
  const std::string name =
      absl::StrCat("contents/", std::string(64, 'a'), "/", std::string(64, 'b'), "/adapter_model.safetensors");
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{077777777777}, uint64_t{1} << 33, uint64_t{1} << 50}) {
    const TarEntry entry = {.name = name, .bytes = bytes, .modified_s = 1'700'000'000};
    const auto header = TarHeader(entry);
    ASSERT_TRUE(header.ok()) << header.status();
    const auto parsed = ParseTarHeader(*header);
    ASSERT_TRUE(parsed.ok() && parsed->has_value()) << parsed.status();
    EXPECT_EQ((*parsed)->name, name);
    EXPECT_EQ((*parsed)->bytes, bytes);
    EXPECT_EQ((*parsed)->modified_s, entry.modified_s);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(TarHeader({.name = std::string(101, 'a')}).status()));
}

}  // namespace
}  // namespace tessera::server
