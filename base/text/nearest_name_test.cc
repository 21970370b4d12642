#include "base/text/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera::base {
namespace {

TEST(NearestNameTest, AmongFewNamesTheNearestFollowsTheList) {
  const std::vector<std::string> names = {"lora", "full"};
  EXPECT_EQ(ProblemOfName("lora", names), "");
  EXPECT_EQ(ProblemOfName("lroa", names), " 'lroa' is unknown; valid values are lora, full; did you mean 'lora'?");
  EXPECT_EQ(ProblemOfName("x", names), " 'x' is unknown; valid values are lora, full");
}

TEST(NearestNameTest, AmongManyNamesTheNearestComesBeforeTheList) {
  std::vector<std::string> names;
  for (int i = 0; i < 37; ++i) names.push_back(absl::StrCat("field_", i));
  const std::string problem = ProblemOfName("feild_7", names);
  EXPECT_EQ(problem.substr(0, problem.find("field_0")),
            " 'feild_7' is unknown; did you mean 'field_7'? valid values are ");
}

}  // namespace
}  // namespace tessera::base
