// Tests of the certificate's subject: the files that a worker computes with.
#include <gtest/gtest.h>

#include <string>

#include "server/verification/verification.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

class SubjectTest : public ::testing::Test {
 protected:
  SubjectTest() {
    worker_ = folder_.Write("tessera-worker", "program");
    folder_.Write("libtessera_cuda.so", "plug-in");
  }

  CertificateSubject On(const std::string& device) const {
    const absl::StatusOr<CertificateSubject> subject =
        SubjectOf({.model = {.digest = "m", .libraries = "LibTorch 2"},
                   .load = {.device = device},
                   .layout = *parallel::ParseLayout("cfg=2"),
                   .identity = {.device = "H200", .driver = "580", .cudnn = "9", .nccl = "2", .communicator = "nccl"}},
                  worker_);
    EXPECT_TRUE(subject.ok()) << subject.status();
    return subject.value_or(CertificateSubject());
  }

  TestFolder folder_;
  std::string worker_;
};

TEST_F(SubjectTest, NamesWhatTheDevicesComputeWith) {
  const CertificateSubject subject = On("cuda:0,cuda:1");
  EXPECT_EQ(subject.device, "cuda");
  EXPECT_EQ(subject.libraries, "LibTorch 2");
  EXPECT_EQ(subject.gpu, "H200");
  EXPECT_EQ(subject.driver, "580");
  EXPECT_EQ(subject.cudnn, "9");
  EXPECT_EQ(subject.nccl, "2");
  EXPECT_EQ(subject.communicator, "nccl");
  EXPECT_EQ(subject.build.size(), 64u);
  EXPECT_EQ(subject.plugin.size(), 64u);
  EXPECT_NE(subject.build, subject.plugin);
}

TEST_F(SubjectTest, IsAnotherWithAnotherProgramOrPlugin) {
  const CertificateSubject before = On("cuda");
  folder_.Write("libtessera_cuda.so", "another");
  const CertificateSubject plugged = On("cuda");
  EXPECT_NE(plugged.plugin, before.plugin);
  EXPECT_EQ(plugged.build, before.build);
  folder_.Write("tessera-worker", "another");
  EXPECT_NE(On("cuda").build, before.build);
}

TEST_F(SubjectTest, OnTheCpuThePluginIsOfNoConsequence) { EXPECT_EQ(On("cpu").plugin, ""); }

}  // namespace
}  // namespace tessera::server
