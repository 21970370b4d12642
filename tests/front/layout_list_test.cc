// Tests `tessera layouts` with a worker that needs no model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/front/command_line_fixture.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LayoutListTest : public CommandLineTest {
 protected:
  boost::json::object List(std::vector<std::string> more) {
    more.insert(more.begin(), {"layouts", "--json"});
    const Result result = Run(more, "load=die");
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    const std::vector<boost::json::object> events = Events(result.output);
    EXPECT_EQ(events.size(), 1u);
    return events.empty() ? boost::json::object() : events[0];
  }

  // Returns null if the layout is not listed.
  static boost::json::value Layout(const boost::json::object& list, const std::string& text) {
    for (const boost::json::value& layout : list.at("layouts").as_array()) {
      if (layout.at("layout") == text.c_str()) return layout;
    }
    return nullptr;
  }

  boost::json::value Layout(const std::vector<std::string>& more, const std::string& text) {
    return Layout(List(more), text);
  }
};

TEST_F(LayoutListTest, EveryLayoutIsValidOrHasTheReason) {
  const boost::json::object list = List({"--ranks", "3"});
  EXPECT_EQ(list.at("layouts").as_array().size(), 5u);  // one per axis
  for (const char* valid : {"ring=3", "pipe=3"}) {
    EXPECT_EQ(Layout(list, valid).at("legal"), true) << valid;
    EXPECT_TRUE(Layout(list, valid).at("reason").is_null()) << valid;
  }
  for (const auto& [invalid, reason] :
       {std::pair("cfg=3", "two branches"), {"ulysses=3", "the 4 heads"}, {"tensor=3", "the model's 4 heads"}}) {
    const boost::json::value layout = Layout(list, invalid);
    EXPECT_EQ(layout.at("legal"), false) << invalid;
    EXPECT_THAT(std::string(layout.at("reason").as_string()), HasSubstr(reason));
    EXPECT_EQ(layout.at("certified"), false) << invalid;
    EXPECT_TRUE(layout.at("sent_bytes_most").is_null()) << invalid;
  }
}

TEST_F(LayoutListTest, OneRankSendsNothingAndNeedsNoCertificate) {
  const boost::json::object list = List({"--ranks", "1"});
  ASSERT_EQ(list.at("layouts").as_array().size(), 1u);
  const boost::json::value serial = Layout(list, "serial");
  EXPECT_EQ(serial.at("certified"), true);
  EXPECT_EQ(serial.at("certificate"), "not needed");
  EXPECT_EQ(serial.at("sent_bytes_most"), 0);
  EXPECT_EQ(serial.at("weight_bytes_first_rank"), 12 * 4);
  EXPECT_TRUE(serial.at("weight_bytes_other_ranks").is_null());
}

TEST_F(LayoutListTest, ACertificateIsForOneLayoutDtypeAndVerdict) {
  ASSERT_EQ(Run({"verify", "--layout", "ring=2"}).exit_code, 0);
  ASSERT_EQ(Run({"verify", "--layout", "cfg=2"}, "layout-drift=3").exit_code, 7);
  const boost::json::object list = List({"--ranks", "2"});
  EXPECT_EQ(Layout(list, "ring=2").at("certified"), true);
  EXPECT_EQ(Layout(list, "ring=2").at("certificate"), "passed");
  EXPECT_EQ(Layout(list, "cfg=2").at("certified"), false);
  EXPECT_EQ(Layout(list, "cfg=2").at("certificate"), "failed");
  EXPECT_EQ(Layout(list, "ulysses=2").at("certificate"), "none");
  EXPECT_EQ(Layout({"--ranks", "2", "--dtype", "fp64"}, "ring=2").at("certificate"), "none");
}

TEST_F(LayoutListTest, ACertificateThatWasAlteredCertifiesNothing) {
  ASSERT_EQ(Run({"verify", "--layout", "ring=2"}).exit_code, 0);
  for (const auto& file : std::filesystem::directory_iterator(WorkFolder() + "/../certificates")) {
    std::ofstream(file.path(), std::ios::app) << " x";
  }
  const boost::json::value layout = Layout({"--ranks", "2"}, "ring=2");
  EXPECT_EQ(layout.at("certified"), false);
  EXPECT_EQ(layout.at("certificate"), "unreadable");
}

// The fake model has 10 cross-attention blocks of width 32 with 16 output features, one row per step, and 8x8 tokens of
// 8 pixels. Each of two ring ranks passes on the keys and values of 32 tokens, and sends its 32 result tokens: in fp32
// 10 * 2 * 32 * 32 * 4 and 32 * 16 * 4 bytes.
TEST_F(LayoutListTest, ReportsWhatARankSendsInAStep) {
  const boost::json::object list = List({"--ranks", "2"});
  EXPECT_EQ(list.at("image_tokens"), 64);
  EXPECT_EQ(list.at("rows"), 1);
  const boost::json::value layout = Layout(list, "ring=2");
  EXPECT_EQ(layout.at("sent_bytes_least"), 81920 + 2048);
  EXPECT_EQ(layout.at("sent_bytes_most"), 81920 + 2048);
  EXPECT_EQ(layout.at("sent_bytes_by_group").at("ring"), 81920);
  EXPECT_EQ(layout.at("sent_bytes_by_group").at("sequence"), 2048);
  EXPECT_EQ(layout.at("sent_bytes_by_group").at("ulysses"), 0);
}

TEST_F(LayoutListTest, ASizeAndADtypeChangeWhatIsSent) {
  EXPECT_EQ(Layout({"--ranks", "2", "--size", "128x64"}, "ring=2").at("sent_bytes_most"), 2 * (81920 + 2048));
  EXPECT_EQ(Layout({"--ranks", "2", "--dtype", "bf16"}, "ring=2").at("sent_bytes_most"), (81920 + 2048) / 2);
}

TEST_F(LayoutListTest, TheTableHasValidLayoutsFirst) {
  const Result result = Run({"layouts", "--ranks", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const size_t apart = result.output.find("not valid for this model");
  ASSERT_NE(apart, std::string::npos);
  EXPECT_THAT(result.output.substr(0, apart), AllOf(HasSubstr("ring=3"), HasSubstr("KiB"), Not(HasSubstr("cfg=3"))));
  EXPECT_THAT(result.output.substr(apart), AllOf(HasSubstr("cfg=3"), HasSubstr("which does not divide")));
}

TEST_F(LayoutListTest, RefusesIllegalNumbersAndSizes) {
  EXPECT_EQ(Run({"layouts"}).exit_code, 2);
  for (const auto& [option, value, message] : {std::tuple("--ranks", "0", "ranks is 0; valid values are 1 to 8"),
                                               {"--ranks", "9", "the nearest is 8"},
                                               {"--ranks", "two", "two"},
                                               {"--size", "100", "the nearest are 96 and 104"},
                                               {"--size", "64x4096", "height is 4096"},
                                               {"--dtype", "fp33", "fp33"}}) {
    std::vector<std::string> arguments = {"layouts", option, value};
    if (std::string(option) != "--ranks") arguments.insert(arguments.end(), {"--ranks", "2"});
    const Result result = Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << value;
    EXPECT_THAT(result.errors, HasSubstr(message));
  }
}

TEST_F(LayoutListTest, AnUnknownModelIsSaidToBeOne) {
  EXPECT_EQ(Run({"layouts", "--ranks", "2", "--model", "nobody"}).exit_code, 3);
}

}  // namespace
}  // namespace tessera
