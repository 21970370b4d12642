#include "control/training/target_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::control {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string>& Modules() {
  static const std::vector<std::string> modules = {
      "x_embedder",
      "transformer_blocks.0.attn.to_q",
      "transformer_blocks.0.attn.to_out.0",
      "transformer_blocks.0.ff.net.0.proj",
      "transformer_blocks.11.attn.to_q",
      "single_transformer_blocks.0.attn.to_q",
  };
  return modules;
}

std::vector<std::string> Selected(const std::string& target) {
  std::vector<std::string> selected;
  for (const std::string& module : Modules()) {
    if (IsTarget(module, target)) selected.push_back(module);
  }
  return selected;
}

std::string ErrorOf(const std::string& target) {
  return std::string(CheckTargets(std::vector<std::string>{target}, Modules()).message());
}

TEST(TargetModulesTest, ANameIsTheEndOfModulesNames) {
  EXPECT_EQ(Selected("to_q").size(), 3u);
  EXPECT_EQ(Selected("attn.to_out.0"), (std::vector<std::string>{"transformer_blocks.0.attn.to_out.0"}));
  EXPECT_EQ(Selected("x_embedder").size(), 1u);
  EXPECT_TRUE(Selected("q").empty()) << "names end at points";
  EXPECT_TRUE(Selected("attn").empty());
  EXPECT_TRUE(Selected("").empty());
}

TEST(TargetModulesTest, AllLinearSelectsEveryModule) { EXPECT_EQ(Selected("all-linear"), Modules()); }

TEST(TargetModulesTest, APatternMatchesAWholeNameOrItsEnd) {
  EXPECT_EQ(Selected("transformer_blocks.*.attn.*"),
            (std::vector<std::string>{Modules()[1], Modules()[2], Modules()[4]}))
      << "the single blocks have another name, and * includes points";
  EXPECT_EQ(Selected("*transformer_blocks.*.to_q").size(), 3u);
  EXPECT_EQ(Selected("attn.to_*").size(), 4u);
  EXPECT_EQ(Selected("transformer_blocks.?.attn.to_q"), (std::vector<std::string>{Modules()[1]}));
  EXPECT_EQ(Selected("transformer_blocks.??.*"), (std::vector<std::string>{Modules()[4]}));
  EXPECT_EQ(Selected("*"), Modules());
  EXPECT_EQ(Selected("*.0"), (std::vector<std::string>{Modules()[2]}));
  EXPECT_TRUE(Selected("transformer_blocks.*.attn").empty());
  // Many stars take no more than the product of the lengths.
  EXPECT_TRUE(Selected(std::string(1000, '*') + "b*b*b*b*b*b*b*b*b*b*b*z").empty());
}

TEST(TargetModulesTest, ATargetOfNoModuleIsRefusedWithTheNearest) {
  EXPECT_EQ(ErrorOf("to_q"), "");
  EXPECT_EQ(ErrorOf("to_qq"),
            "network.target_modules has \"to_qq\", with which no module of the model ends; the nearest is \"to_q\"");
  EXPECT_THAT(ErrorOf("transformer_blocks.*.atn.*"),
              HasSubstr("which matches no module of the model; the nearest is \"transformer_blocks.*.attn.*\""));
  EXPECT_THAT(ErrorOf("transformer_block.*.attn.to_q"), HasSubstr("the nearest is \"transformer_blocks.*.attn.to_q\""));
  EXPECT_THAT(ErrorOf("all_linear"), HasSubstr("the nearest is \"all-linear\""));
  EXPECT_THAT(ErrorOf("q*r*s*t"), Not(HasSubstr("nearest")));
}

}  // namespace
}  // namespace tessera::control
