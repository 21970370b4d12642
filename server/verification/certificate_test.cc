#include "server/verification/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_replace.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

Certificate Example() {
  return {.subject = {.model_digest = "abc",
                      .layout = "cfg=2",
                      .device = "cpu",
                      .dtype = "fp32",
                      .storage = "fp8",
                      .products = "fp8",
                      .build = "b1",
                      .plugin = "p1",
                      .libraries = "LibTorch 2",
                      .gpu = "H200",
                      .driver = "580",
                      .cudnn = "91900",
                      .nccl = "2.28.9",
                      .communicator = "host"},
          .canaries = {{.width = 64,
                        .height = 64,
                        .steps = 4,
                        .sampler = "ddpm",
                        .worst_relative_error = 1e-7,
                        .bound = 1e-5,
                        .worst_step = 3,
                        .psnr = 91.5},
                       {.width = 72,
                        .height = 56,
                        .steps = 4,
                        .sampler = "dpm++",
                        .worst_relative_error = 9e-6,
                        .bound = 1e-5,
                        .worst_step = 4,
                        .products_drift = 0.02,
                        .products_psnr = 41.5}}};
}

class CertificateTest : public ::testing::Test {
 protected:
  TestFolder folder_;
};

TEST_F(CertificateTest, NamesTheLargestDriftOfItsProducts) {
  Certificate certificate = Example();
  EXPECT_EQ(certificate.products_drift(), 0.02);
  certificate.canaries[0].products_drift = 0.03;
  EXPECT_EQ(certificate.products_drift(), 0.03);
  certificate.canaries[1].products_drift = NAN;
  EXPECT_EQ(certificate.products_drift(), std::nullopt);
  for (Canary& canary : certificate.canaries) canary.products_drift.reset();
  EXPECT_EQ(certificate.products_drift(), std::nullopt);
}

TEST_F(CertificateTest, IsFoundAgainAsItWasKept) {
  const CertificateFolder folder(folder_ / "new/folder");
  ASSERT_EQ(folder.Keep(Example()), absl::OkStatus());
  const absl::StatusOr<Certificate> found = folder.Find(Example().subject);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(CertificateText(*found), CertificateText(Example()));
  EXPECT_TRUE(found->passed());
  EXPECT_EQ(found->worst().worst_relative_error, 9e-6);
}

// Boost's parser reads some numbers as their neighbours.
TEST_F(CertificateTest, IsFoundAgainWithAnyNumbers) {
  const CertificateFolder folder(folder_.path());
  Certificate certificate = Example();
  for (int i = 1; i <= 200; ++i) {
    certificate.canaries[0].products_drift = 1 / (i + 1e-7 * i * i);
    certificate.canaries[0].storage_psnr = std::sqrt(1000 + i);
    ASSERT_EQ(folder.Keep(certificate), absl::OkStatus());
    const absl::StatusOr<Certificate> found = folder.Find(certificate.subject);
    ASSERT_TRUE(found.ok()) << found.status() << " " << i;
    EXPECT_DOUBLE_EQ(*found->canaries[0].products_drift, *certificate.canaries[0].products_drift);
    const boost::json::object shown = CertificateJson(certificate);
    EXPECT_EQ(shown.at("canaries").at(0).at("products_drift").as_double(), *certificate.canaries[0].products_drift);
    EXPECT_EQ(boost::json::serialize(shown) + "\n", CertificateText(certificate));
  }
}

TEST_F(CertificateTest, IsForItsSubjectAlone) {
  const CertificateFolder folder(folder_.path());
  ASSERT_EQ(folder.Keep(Example()), absl::OkStatus());
  for (std::string CertificateSubject::*part :
       {&CertificateSubject::model_digest, &CertificateSubject::layout, &CertificateSubject::device,
        &CertificateSubject::dtype, &CertificateSubject::storage, &CertificateSubject::products,
        &CertificateSubject::build, &CertificateSubject::plugin, &CertificateSubject::libraries,
        &CertificateSubject::gpu, &CertificateSubject::driver, &CertificateSubject::cudnn, &CertificateSubject::nccl,
        &CertificateSubject::communicator}) {
    CertificateSubject other = Example().subject;
    other.*part += 'x';
    EXPECT_EQ(folder.Find(other).status().code(), absl::StatusCode::kNotFound);
    // Giving its file the other subject's name does not make it that subject's certificate.
    std::filesystem::copy_file(folder.FileOf(Example().subject), folder.FileOf(other));
    EXPECT_THAT(std::string(folder.Find(other).status().message()), HasSubstr("belongs to another model"));
  }
}

TEST_F(CertificateTest, ShowsThatItWasAltered) {
  const CertificateFolder folder(folder_.path());
  const std::string text = CertificateText(Example());
  for (const auto& [from, to] : {std::pair("1E-7", "1E-9"),
                                 {"\"passed\":true", "\"passed\":false"},
                                 {"\"cfg=2\"", "\"cfg=1\""},
                                 {"\"width\":64", "\"width\":65"},
                                 {"\"lossless\"", " \"lossless\""},
                                 {"}\n", "}\n\n"},
                                 {"\"checksum\":\"", "\"checksum\":\"0"},
                                 {"dpm++", "dpm--"}}) {
    const std::string altered = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(altered, text) << from;
    EXPECT_THAT(std::string(ParseCertificate(altered).status().message()), HasSubstr("was altered")) << from;
  }
}

TEST_F(CertificateTest, WhatIsNoneIsRefused) {
  for (const char* text : {"", "{}", "[]", "null", "{\"version\":3}", "{\"version\":3,\"canaries\":7}", "\xFF"}) {
    EXPECT_THAT(std::string(ParseCertificate(text).status().message()), HasSubstr("not a certificate")) << text;
  }
  EXPECT_THAT(std::string(ParseCertificate(std::string(1 << 20, '[')).status().message()), HasSubstr("not a cert"));
  EXPECT_THAT(std::string(ParseCertificate("{\"version\":1}").status().message()), HasSubstr("another version"));
}

TEST_F(CertificateTest, AnErrorThatIsNoNumberDoesNotPass) {
  Certificate certificate = Example();
  certificate.canaries[0].worst_relative_error = NAN;
  EXPECT_FALSE(certificate.passed());
  EXPECT_EQ(&certificate.worst(), &certificate.canaries[0]);
  const absl::StatusOr<Certificate> again = ParseCertificate(CertificateText(certificate));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->passed());
}

TEST_F(CertificateTest, IsGoneOnceItIsRevoked) {
  const CertificateFolder folder(folder_.path());
  ASSERT_EQ(folder.Keep(Example()), absl::OkStatus());
  EXPECT_EQ(folder.Revoke(Example().subject), absl::OkStatus());
  EXPECT_EQ(folder.Find(Example().subject).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(folder.Revoke(Example().subject), absl::OkStatus());
}

}  // namespace
}  // namespace tessera::server
