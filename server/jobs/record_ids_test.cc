#include "server/jobs/record_ids.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

constexpr char kToken[] = "00112233445566778899aabbccddeeff";
const std::string kSecret(kRecordIdSecretBytes, 's');

TEST(RecordIdsTest, LeadBackToTheirRows) {
  const RecordIds ids(kSecret, 10);
  for (const uint64_t number : {uint64_t{1}, uint64_t{9}, uint64_t{10}, uint64_t{1} << 40, uint64_t{INT64_MAX}}) {
    EXPECT_EQ(*ids.JobNumber(ids.JobId(number, kToken)), number);
    EXPECT_EQ(*ids.ImageNumber(ids.ImageId(number, kToken)), number);
    EXPECT_EQ(*ids.PageNumber(ids.PageId(number)), number);
  }
}

TEST(RecordIdsTest, OfRowsFromBeforeTheSecretStayAsTheyWere) {
  const RecordIds ids(kSecret, 13);
  EXPECT_EQ(ids.JobId(12, kToken), "job-12-00112233445566778899aabbccddeeff");
  // SHA-256 of "image 12 of 00112233445566778899aabbccddeeff".
  EXPECT_EQ(ids.ImageId(12, kToken), "img-12-eafb5dd4ed6a14aa885a9cd160d23f64");
  EXPECT_EQ(ids.JobNumber("job-13-00112233445566778899aabbccddeeff").status().code(), absl::StatusCode::kNotFound);
}

TEST(RecordIdsTest, RevealNothingOfTheNumber) {
  const RecordIds ids(kSecret, 1), others(std::string(kRecordIdSecretBytes, 'o'), 1);
  std::set<std::string> masked;
  for (int i = 0; i < 1000; ++i) {
    const std::string token = absl::StrCat(absl::Hex(i, absl::kZeroPad16), "0123456789abcdef");
    masked.insert(ids.JobId(7, token).substr(4, 16));
    masked.insert(others.JobId(7, token).substr(4, 16));
    masked.insert(ids.ImageId(7, token).substr(4, 16));
  }
  EXPECT_EQ(masked.size(), 3000u);
  EXPECT_NE(ids.JobNumber(others.JobId(7, kToken)).value_or(0), 7u);
  // A caller who knows the job's token cannot derive the token of an image by trying.
  EXPECT_NE(ids.ImageId(7, kToken).substr(20), RecordIds(kSecret, 8).ImageId(7, kToken).substr(6));
  EXPECT_NE(ids.ImageId(7, kToken).substr(20), others.ImageId(7, kToken).substr(20));
}

TEST(RecordIdsTest, AreReadAndNothingElseIs) {
  const RecordIds ids(kSecret, 13);
  const std::string old = ids.JobId(12, kToken), hidden = ids.JobId(13, kToken);
  ASSERT_TRUE(ids.JobNumber(old).ok());
  ASSERT_TRUE(ids.JobNumber(hidden).ok());
  for (const std::string& bad :
       {std::string(), std::string("job-"), "x" + old, old + "0", old.substr(0, 20), "x" + hidden, hidden + "0",
        hidden.substr(0, 51), std::string("job-012-00112233445566778899aabbccddeeff"),
        std::string("job-99999999999999999999-00112233445566778899aabbccddeeff"),
        std::string("job--1-00112233445566778899aabbccddeeff"), std::string("job-12-00112233445566778899AABBCCDDEEFF"),
        std::string("job-12-../../../../../../../etc/passwd0"), "job-" + std::string(48, 'F'),
        "job-" + std::string(48, '/'), ids.ImageId(12, kToken), ids.ImageId(13, kToken), ids.PageId(13)}) {
    EXPECT_EQ(ids.JobNumber(bad).status().code(), absl::StatusCode::kNotFound) << bad;
  }
  std::string altered = ids.PageId(13);
  altered[20] = altered[20] == '0' ? '1' : '0';
  for (const std::string& bad :
       {altered, std::string("12"), std::string("page-12-00112233445566778899aabbccddeeff"), hidden}) {
    EXPECT_EQ(ids.PageNumber(bad).status().code(), absl::StatusCode::kNotFound) << bad;
  }
}

}  // namespace
}  // namespace tessera::server
