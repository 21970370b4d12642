// Tests layouts on the command line: how they are chosen, verified, refused and abandoned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "server/image/image_file.h"
#include "server/metadata/parameters_text.h"
#include "tests/front/command_line_fixture.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class LayoutCommandTest : public CommandLineTest {
 protected:
  Result Generate(std::vector<std::string> more, const std::string& script = "") {
    more.insert(more.begin(), {"generate", "x", "--seed=1", "--overwrite", "-o", "x.png"});
    return Run(more, script);
  }

  std::vector<std::filesystem::path> Certificates() const {
    std::vector<std::filesystem::path> files;
    const std::filesystem::path folder = WorkFolder() + "/../certificates";
    if (!std::filesystem::exists(folder)) return files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
    return files;
  }
};

TEST_F(LayoutCommandTest, EveryLayoutMakesTheSamePictureAndIsNamedInIt) {
  ASSERT_EQ(Generate({}).exit_code, 0);
  const server::DecodedImage serial = ReadImage("x.png");
  EXPECT_THAT(serial.parameters, HasSubstr("Layout: serial, Instruction set: baseline,"));
  for (const char* layout : {"cfg=2", "ring=3", "cfg=2,ulysses=2"}) {
    const Result result = Generate({"--layout", layout, "--certify", "off"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    const server::DecodedImage image = ReadImage("x.png");
    EXPECT_EQ(image.image.bytes, serial.image.bytes) << layout;
    const absl::StatusOr<server::ImageParameters> parameters = server::ParseParameters(image.parameters);
    ASSERT_TRUE(parameters.ok()) << parameters.status();
    EXPECT_EQ(parameters->layout, layout);
  }
}

TEST_F(LayoutCommandTest, ANumberOfRanksChoosesALayout) {
  const Result result = Generate({"--ranks", "4", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  for (const boost::json::object& event : Events(result.output)) {
    if (event.at("event") != "loaded") continue;
    EXPECT_EQ(event.at("layout"), "ulysses=4");
    EXPECT_EQ(event.at("certified"), true);
    EXPECT_EQ(event.at("weight_bytes"), 4 * 48);
  }
}

TEST_F(LayoutCommandTest, WhatIsNoLayoutIsRefusedBeforeAWorkerStarts) {
  for (const auto& [layout, text] : {std::pair("cgf=2", "cgf"),
                                     {"cfg=0", "cfg"},
                                     {"ulysses=9", "ulysses"},
                                     {"auto", "--ranks"},
                                     {"cfg=2,cfg=2", "cfg"},
                                     {"ring=two", "ring"}}) {
    const Result result = Generate({"--layout", layout}, "exit=1");
    EXPECT_EQ(result.exit_code, 2) << layout;
    EXPECT_THAT(result.errors, AllOf(HasSubstr(text), Not(HasSubstr("exit code")))) << layout;
  }
  EXPECT_THAT(Generate({"--ranks", "0"}, "exit=1").errors, HasSubstr("ranks is 0; valid values are 1 to 8"));
  EXPECT_THAT(Generate({"--ranks", "99999999999"}, "exit=1").errors, HasSubstr("valid values are 1 to 8"));
}

TEST_F(LayoutCommandTest, WhatTheModelCannotDoIsRefusedBeforeItsWeightsAreRead) {
  const Result result = Generate({"--layout", "ulysses=3"}, "load=die");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("ring=3"));
}

TEST_F(LayoutCommandTest, AutoVerifiesALayoutOnce) {
  const Result first = Generate({"--layout", "cfg=2"});
  ASSERT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_THAT(first.errors, HasSubstr("has no certificate yet: verifying it"));
  ASSERT_EQ(Certificates().size(), 1u);
  const Result second = Generate({"--layout", "cfg=2"});
  EXPECT_THAT(second.errors, Not(HasSubstr("verifying")));
}

TEST_F(LayoutCommandTest, AutoRefusesALayoutThatFailsAndDoesNotTryAgain) {
  for (int i = 0; i < 2; ++i) {
    const Result result = Generate({"--layout", "cfg=2"}, "layout-drift=3");
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.errors, AllOf(HasSubstr("layout cfg=2 is not certified"), HasSubstr("it did not pass"),
                                     HasSubstr("after step 3 of")));
    EXPECT_EQ(result.errors.find("verifying") == std::string::npos, i == 1);
    EXPECT_THAT(Files(), IsEmpty());
  }
}

TEST_F(LayoutCommandTest, RequireRefusesWhatIsNotCertified) {
  const Result refused = Generate({"--layout", "cfg=2", "--certify", "require"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors, AllOf(HasSubstr("there is no certificate"), HasSubstr("tessera verify")));
  ASSERT_EQ(Run({"verify", "--layout", "cfg=2"}).exit_code, 0);
  EXPECT_EQ(Generate({"--layout", "cfg=2", "--certify", "require"}).exit_code, 0);
}

TEST_F(LayoutCommandTest, OffSaysSoInItsAnswer) {
  const Result result = Generate({"--layout", "cfg=2", "--certify", "off", "--json"});
  ASSERT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("\"certified\":false"));
  EXPECT_THAT(Generate({"--layout", "cfg=2", "--certify", "off"}).errors, HasSubstr("layout cfg=2 is not certified"));
  EXPECT_EQ(Generate({"--layout", "cfg=2", "--certify", "never"}).exit_code, 2);
}

TEST_F(LayoutCommandTest, ACertificateIsForWhatTheDevicesComputeWith) {
  const std::vector<std::string> on_gpus = {"--layout", "cfg=2", "--device", "cuda", "--certify", "require"};
  ASSERT_EQ(Run({"verify", "--layout", "cfg=2", "--device", "cuda"}, "identity=gpu,driver,cudnn,nccl,host").exit_code,
            0);
  EXPECT_EQ(Generate(on_gpus, "identity=gpu,driver,cudnn,nccl,host").exit_code, 0);
  for (const char* other : {"gpu2,driver,cudnn,nccl,host", "gpu,driver2,cudnn,nccl,host", "gpu,driver,cudnn2,nccl,host",
                            "gpu,driver,cudnn,nccl2,host", "gpu,driver,cudnn,nccl,host2"}) {
    const Result result = Generate(on_gpus, absl::StrCat("identity=", other));
    EXPECT_EQ(result.exit_code, 2) << other;
    EXPECT_THAT(result.errors, HasSubstr("there is no certificate"));
  }
}

TEST_F(LayoutCommandTest, AnAlteredCertificateIsNone) {
  ASSERT_EQ(Run({"verify", "--layout", "cfg=2"}, "layout-drift=3").exit_code, 7);
  ASSERT_EQ(Certificates().size(), 1u);
  std::stringstream text;
  text << std::ifstream(Certificates()[0]).rdbuf();
  std::string altered = text.str();
  const size_t at = altered.find("\"passed\":false");
  ASSERT_NE(at, std::string::npos);
  altered.replace(at, 14, "\"passed\":true");
  std::ofstream(Certificates()[0]) << altered;
  const Result result = Generate({"--layout", "cfg=2", "--certify", "require"}, "layout-drift=3");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("was altered"));
}

TEST_F(LayoutCommandTest, VerifyReportsTheWorstErrorAndWhereItIs) {
  const Result passed = Run({"verify", "--layout", "cfg=2", "--json"});
  ASSERT_EQ(passed.exit_code, 0) << passed.errors;
  const boost::json::object verdict = Events(passed.output).back();
  EXPECT_EQ(verdict.at("event"), "verify");
  EXPECT_EQ(verdict.at("layout"), "cfg=2");
  EXPECT_EQ(verdict.at("passed"), true);
  EXPECT_EQ(verdict.at("worst_relative_error").to_number<double>(), 0);
  EXPECT_TRUE(std::filesystem::exists(std::string(verdict.at("certificate").as_string())));

  const Result failed = Run({"verify", "--layout", "cfg=2"}, "layout-drift=4");
  EXPECT_EQ(failed.exit_code, 7);
  EXPECT_THAT(failed.output, AllOf(HasSubstr("FAILED"), HasSubstr("at step 4")));
}

TEST_F(LayoutCommandTest, WhereOneRankHasNoRoomItsBlocksAreStreamed) {
  const Result result = Run({"verify", "--layout", "cfg=2", "--json"}, "no-room loads=loads");
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  // First fp64 and fp32 on one rank, then both ranks of the layout.
  EXPECT_EQ(Read("loads"), "load streamed\nload streamed\nload\nload\n");
  EXPECT_THAT(result.output, HasSubstr("its blocks are read from their files"));
}

TEST_F(LayoutCommandTest, RanksThatDisagreeDoNotPass) {
  const Result result = Run({"verify", "--layout", "cfg=2"}, "rank1:drift=2");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.output, HasSubstr("FAILED"));
}

TEST_F(LayoutCommandTest, AJobThatTheGuardStopsIsMadeByOneRankAndTheCertificateIsGone) {
  ASSERT_EQ(Generate({}).exit_code, 0);
  const std::string serial = Read("x.png");
  ASSERT_EQ(Run({"verify", "--layout", "cfg=2"}).exit_code, 0);
  const Result result = Generate({"--layout", "cfg=2"}, "rank1:drift=3");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("layout cfg=2 is abandoned"), HasSubstr("after step 3 the latents of rank 1")));
  EXPECT_EQ(Read("x.png"), serial);
  EXPECT_THAT(Certificates(), IsEmpty());
}

}  // namespace
}  // namespace tessera
