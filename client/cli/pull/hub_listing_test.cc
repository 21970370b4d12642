#include "client/cli/pull/hub_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace tessera::client {
namespace {

using ::testing::HasSubstr;

const std::string kSha1(40, 'a'), kSha256(64, 'b');

std::string RepositoryWith(const std::string& siblings, const std::string& more = "") {
  return absl::StrCat(R"({"sha": ")", kSha1, "\"", more, R"(, "siblings": [)", siblings, "]}");
}

std::string Sibling(const std::string& path) {
  return absl::StrCat(R"({"rfilename": ")", path, R"(", "size": 3, "blobId": ")", kSha1, "\"}");
}

TEST(HubListingTest, ReadsFilesDigestsLicenceAndGate) {
  const auto listing = ParseRepository(RepositoryWith(
      absl::StrCat(Sibling("a.json"), R"(, {"rfilename": "vae/b", "size": 133, "blobId": ")", kSha1,
                   R"(", "lfs": {"sha256": ")", kSha256, R"(", "size": 9000000000, "pointerSize": 133}})"),
      R"(, "gated": "auto", "tags": ["license:mit"], "cardData": {"license": "other", "license_name": "own"})"));
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_EQ(listing->commit, kSha1);
  EXPECT_EQ(listing->licence, "own");
  EXPECT_TRUE(listing->gated);
  ASSERT_EQ(listing->files.size(), 2u);
  EXPECT_EQ(listing->files[0].git_sha1, kSha1);
  EXPECT_EQ(listing->files[1].sha256, kSha256);
  EXPECT_EQ(listing->files[1].git_sha1, "");
  EXPECT_EQ(listing->files[1].size, 9000000000u);
  EXPECT_EQ(ParseRepository(RepositoryWith("", R"(, "tags": ["x", "license:mit"])"))->licence, "mit");
  EXPECT_FALSE(ParseRepository(RepositoryWith("", R"(, "gated": false)"))->gated);
}

TEST(HubListingTest, RefusesNamesThatLeadElsewhere) {
  for (const char* path : {"../a", "a/../../b", "/etc/passwd", "a//b", "a/./b", ".", "", "a/", "a\\\\b", "a\\u0000b",
                           "a\\nb", "..", "a/..", "\\u007f"}) {
    const auto listing = ParseRepository(RepositoryWith(Sibling(path)));
    ASSERT_FALSE(listing.ok()) << path;
    EXPECT_THAT(std::string(listing.status().message()), HasSubstr("no relative path of plain names")) << path;
    EXPECT_FALSE(
        ParseTree(absl::StrCat(R"([{"type": "file", "size": 1, "oid": ")", kSha1, R"(", "path": ")", path, "\"}]"))
            .ok())
        << path;
  }
  EXPECT_FALSE(ParseRepository(RepositoryWith(Sibling(std::string(201, 'a')))).ok());
  EXPECT_TRUE(ParseRepository(RepositoryWith(Sibling("vae/..a..b.json"))).ok());
  EXPECT_FALSE(ParseRepository(RepositoryWith(Sibling("a") + ", " + Sibling("a"))).ok());
}

TEST(HubListingTest, RefusesLinksAndMalformedDigestsAndSizes) {
  EXPECT_FALSE(ParseTree(absl::StrCat(R"([{"type": "symlink", "path": "a", "size": 1, "oid": ")", kSha1, "\"}]")).ok());
  EXPECT_TRUE(ParseTree(R"([{"type": "directory", "path": "../a"}])").ok()) << "folders are not used";
  for (const char* fields :
       {R"("size": -1, "blobId": "@")", R"("size": 1.5, "blobId": "@")", R"("size": 1e30, "blobId": "@")",
        R"("size": 1, "blobId": "../../../a")", R"("size": 1)", R"("size": 1, "blobId": "@", "lfs": {"size": 1})"}) {
    std::string text = absl::StrCat(R"({"rfilename": "a", )", fields, "}");
    if (const size_t at = text.find('@'); at != text.npos) text.replace(at, 1, kSha1);
    EXPECT_FALSE(ParseRepository(RepositoryWith(text)).ok()) << text;
  }
  EXPECT_FALSE(ParseRepository(R"({"sha": "../../x", "siblings": []})").ok());
  EXPECT_FALSE(ParseRepository("[]").ok());
}

TEST(HubListingTest, ChecksRevisions) {
  for (const char* valid : {"main", "refs/pr/1", "v1.0", "0123abc"}) EXPECT_TRUE(CheckRevision(valid).ok()) << valid;
  for (const char* invalid : {"", "..", "../main", "/main", "a//b", "a\nb", "a/"})
    EXPECT_FALSE(CheckRevision(invalid).ok()) << invalid;
}

}  // namespace
}  // namespace tessera::client
