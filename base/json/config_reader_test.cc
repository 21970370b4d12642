#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/json/json.h"

namespace tessera::base {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ConfigReader Read(const std::string& text) {
  absl::StatusOr<ConfigReader> config = ConfigReader::FromText(text, "vae/config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return *std::move(config);
}

std::string ErrorsOf(const ConfigReader& config) {
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(ConfigReaderTest, AGoldenConfigIsReadWithoutErrors) {
  absl::StatusOr<ConfigReader> config =
      ConfigReader::FromFile("tests/golden/pipelines/pixart_sigma/transformer/config.json", "transformer/config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->String("norm_type", ""), "ada_norm_single");
  EXPECT_EQ(config->Int("patch_size", 1), 2);
  EXPECT_EQ(config->Number("norm_eps", 1), 1e-6);
  EXPECT_TRUE(config->status().ok()) << config->status();
}

TEST(ConfigReaderTest, ASchedulerConfigWithInfinityIsRead) {
  absl::StatusOr<ConfigReader> config = ConfigReader::FromFile(
      "tests/golden/pipelines/pixart_sigma/scheduler/scheduler_config.json", "scheduler/scheduler_config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->Number("lambda_min_clipped", 0), -ConfigReader::kInfinity);
  EXPECT_TRUE(config->status().ok()) << config->status();
}

TEST(ConfigReaderTest, NullAndAbsentFieldsHaveTheDefault) {
  ConfigReader config = Read(R"({"a": null})");
  EXPECT_EQ(config.Int("a", 5), 5);
  EXPECT_EQ(config.Number("a", 0.5), 0.5);
  EXPECT_TRUE(config.Bool("a", true));
  EXPECT_EQ(config.String("b", "x"), "x");
  EXPECT_EQ(config.Choice("b", "x", {"x", "y"}), "x");
  EXPECT_THAT(config.Ints("b", {1, 2}), ElementsAre(1, 2));
  EXPECT_THAT(config.Numbers("b", {1.5}), ElementsAre(1.5));
  EXPECT_THAT(config.Strings("a", {"s"}), ElementsAre("s"));
  EXPECT_TRUE(config.status().ok());
}

TEST(ConfigReaderTest, PresentFieldsWinOverTheDefault) {
  ConfigReader config =
      Read(R"({"i": 3, "n": 2, "f": 0.25, "b": false, "s": "t", "is": [8, 16], "ns": [1, 0.5], "ss": ["p"], "e": []})");
  EXPECT_EQ(config.Int("i", 0), 3);
  EXPECT_EQ(config.Number("n", 0), 2.0);
  EXPECT_EQ(config.Number("f", 0), 0.25);
  EXPECT_FALSE(config.Bool("b", true));
  EXPECT_EQ(config.String("s", ""), "t");
  EXPECT_EQ(config.Choice("s", "u", {"t", "u"}), "t");
  EXPECT_THAT(config.Ints("is", {}), ElementsAre(8, 16));
  EXPECT_THAT(config.Numbers("ns", {}), ElementsAre(1, 0.5));
  EXPECT_THAT(config.Strings("ss", {}), ElementsAre("p"));
  EXPECT_THAT(config.Ints("e", {1}), IsEmpty());
  EXPECT_TRUE(config.status().ok()) << config.status();
}

TEST(ConfigReaderTest, HasIsTrueForPresentAndNotNull) {
  ConfigReader config = Read(R"({"a": null, "b": 0})");
  EXPECT_FALSE(config.Has("a"));
  EXPECT_TRUE(config.Has("b"));
  EXPECT_FALSE(config.Has("c"));
  EXPECT_THAT(config.UnknownFields(), ElementsAre("a", "b"));
}

TEST(ConfigReaderTest, AWrongTypeNamesFileFieldValueAndValidValuesAndGivesTheDefault) {
  ConfigReader config = Read(R"({"patch_size": "two"})");
  EXPECT_EQ(config.Int("patch_size", 2), 2);
  EXPECT_THAT(ErrorsOf(config), AllOf(HasSubstr("vae/config.json"), HasSubstr("\"patch_size\""), HasSubstr("\"two\""),
                                      HasSubstr("whole number")));
}

TEST(ConfigReaderTest, EveryAccessRefusesAWrongType) {
  const auto error = [](const std::string& value, auto access) {
    ConfigReader config = Read("{\"f\": " + value + "}");
    access(config);
    return ErrorsOf(config);
  };
  EXPECT_THAT(error("1", [](ConfigReader& c) { EXPECT_TRUE(c.Bool("f", true)); }), HasSubstr("true or false"));
  EXPECT_THAT(error("2.0", [](ConfigReader& c) { EXPECT_EQ(c.Int("f", 9), 9); }),
              HasSubstr("is 2.0; it must be a whole number"));
  EXPECT_THAT(error("true", [](ConfigReader& c) { EXPECT_EQ(c.Number("f", 9), 9); }), HasSubstr("a number"));
  EXPECT_THAT(error("NaN", [](ConfigReader& c) { EXPECT_EQ(c.Number("f", 9), 9); }), HasSubstr("is NaN"));
  EXPECT_THAT(error("1", [](ConfigReader& c) { EXPECT_EQ(c.String("f", "d"), "d"); }), HasSubstr("a text"));
  EXPECT_THAT(error("3", [](ConfigReader& c) { EXPECT_THAT(c.Ints("f", {4}), ElementsAre(4)); }), HasSubstr("a list"));
  EXPECT_THAT(error("[1, \"x\"]", [](ConfigReader& c) { EXPECT_THAT(c.Ints("f", {4}), ElementsAre(4)); }),
              HasSubstr("value 1 is \"x\""));
  EXPECT_THAT(error("[1, null]", [](ConfigReader& c) { EXPECT_THAT(c.Numbers("f", {4}), ElementsAre(4)); }),
              HasSubstr("a list of numbers"));
  EXPECT_THAT(error("{}", [](ConfigReader& c) { EXPECT_THAT(c.Numbers("f", {4}), ElementsAre(4)); }),
              HasSubstr("a list of numbers"));
  EXPECT_THAT(error("\"x\"", [](ConfigReader& c) { EXPECT_THAT(c.Strings("f", {"d"}), ElementsAre("d")); }),
              HasSubstr("a list of texts"));
  EXPECT_THAT(error("[\"a\", 2]", [](ConfigReader& c) { EXPECT_THAT(c.Strings("f", {"d"}), ElementsAre("d")); }),
              HasSubstr("value 1 is 2"));
}

TEST(ConfigReaderTest, BoundsAreInclusiveAndNamed) {
  ConfigReader config = Read(R"({"a": 0, "b": 65, "c": 1, "d": 64, "e": 1.5, "f": [4, 0]})");
  EXPECT_EQ(config.Int("c", 9, 1, 64), 1);
  EXPECT_EQ(config.Int("d", 9, 1, 64), 64);
  EXPECT_TRUE(config.status().ok());
  EXPECT_EQ(config.Int("a", 9, 1, 64), 9);
  EXPECT_EQ(config.Int("b", 9, 1, 64), 9);
  EXPECT_EQ(config.Number("e", 0.5, 0, 1), 0.5);
  EXPECT_THAT(config.Ints("f", {}, 1), IsEmpty());
  EXPECT_THAT(ErrorsOf(config),
              AllOf(HasSubstr("\"a\" is 0; it must be a whole number from 1 to 64"), HasSubstr("\"b\" is 65"),
                    HasSubstr("\"e\" is 1.5; it must be a number from 0 to 1"), HasSubstr("value 1 is 0"),
                    HasSubstr("at least 1")));
}

TEST(ConfigReaderTest, AnInfinityOutsideTheBoundsIsRefused) {
  ConfigReader config = Read(R"({"a": Infinity})");
  EXPECT_EQ(config.Number("a", 1, 0, 10), 1);
  EXPECT_THAT(ErrorsOf(config), HasSubstr("is Infinity"));
}

TEST(ConfigReaderTest, AnInvalidChoiceListsTheValidOnes) {
  ConfigReader config = Read(R"({"act_fn": "tanh"})");
  EXPECT_EQ(config.Choice("act_fn", "silu", {"silu", "gelu"}), "silu");
  EXPECT_THAT(ErrorsOf(config), AllOf(HasSubstr("\"tanh\""), HasSubstr("\"silu\", \"gelu\"")));
}

TEST(ConfigReaderTest, ARequiredFieldThatIsMissingOrNullIsAnError) {
  ConfigReader config = Read(R"({"b": null})");
  EXPECT_EQ(config.RequiredInt("a"), 0);
  EXPECT_EQ(config.RequiredString("b"), "");
  EXPECT_EQ(config.RequiredNumber("c"), 0);
  EXPECT_FALSE(config.RequiredBool("d"));
  EXPECT_THAT(config.RequiredInts("e"), IsEmpty());
  EXPECT_THAT(ErrorsOf(config), AllOf(HasSubstr("\"a\" is missing"), HasSubstr("\"b\" is null"), HasSubstr("\"c\""),
                                      HasSubstr("\"d\""), HasSubstr("\"e\"")));
}

TEST(ConfigReaderTest, RequiredFieldsThatArePresentAreRead) {
  ConfigReader config = Read(R"({"a": 7, "b": "x", "c": 0.5, "d": true, "e": [1]})");
  EXPECT_EQ(config.RequiredInt("a", 1, 7), 7);
  EXPECT_EQ(config.RequiredString("b"), "x");
  EXPECT_EQ(config.RequiredNumber("c"), 0.5);
  EXPECT_TRUE(config.RequiredBool("d"));
  EXPECT_THAT(config.RequiredInts("e"), ElementsAre(1));
  EXPECT_TRUE(config.status().ok()) << config.status();
}

TEST(ConfigReaderTest, TheCallersOwnErrorsNameFieldAndValue) {
  ConfigReader config = Read(R"({"num_layers": 3})");
  config.AddError("num_layers", "it must be even");
  EXPECT_EQ(ErrorsOf(config), "vae/config.json: field \"num_layers\" is 3; it must be even");
}

TEST(ConfigReaderTest, FieldsThatAreNotReadAreUnknown) {
  ConfigReader config = Read(R"({"_class_name": "X", "z": 1, "read": 2, "ignored": 3, "a": null})");
  config.Int("read", 0);
  config.Ignore({"ignored", "not there"});
  EXPECT_THAT(config.UnknownFields(), ElementsAre("z", "a"));
}

TEST(ConfigReaderTest, ATextThatIsNoObjectIsRefused) {
  const absl::StatusOr<ConfigReader> config = ConfigReader::FromText("[1, 2]", "vae/config.json");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(config.status().message()), AllOf(HasSubstr("vae/config.json"), HasSubstr("a list of 2")));
}

TEST(ConfigReaderTest, AMissingFileIsNamedByItsDisplayName) {
  const absl::StatusOr<ConfigReader> config = ConfigReader::FromFile("/nonexistent/config.json", "vae/config.json");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()), AllOf(HasSubstr("vae/config.json"), Not(HasSubstr("nonexist"))));
}

}  // namespace
}  // namespace tessera::base
