#include "base/fields/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/fields/binary_fields.h"
#include "base/fields/content_fields.h"
#include "base/fields/field_error.h"
#include "base/fields/json_fields.h"

namespace tessera::base {
namespace {

using ::testing::HasSubstr;

enum class Colour { kRed, kBlue };
constexpr auto NamesOf(Colour) { return std::array{"red", "blue"}; }

struct Part {
  std::string name;
  double scale = 1;

  bool operator==(const Part&) const = default;
};
constexpr auto FieldsOf(const Part*) {
  return std::tuple(Field("name", &Part::name, Text{.most_bytes = 4}, "Its name."),
                    Field("scale", &Part::scale, Number{-2, 2}, "Its factor.", 2));
}

struct Size {
  int32_t width = 0, height = 0;

  bool operator==(const Size&) const = default;
};
constexpr auto FieldsOf(const Size*) {
  return std::tuple(Field("width", &Size::width, Integer{0, 100}), Field("height", &Size::height, Integer{0, 100}));
}
absl::Status CheckRules(const Size& size) {
  return size.width >= size.height ? absl::OkStatus() : ErrorOfField("height", " is more than the width");
}

struct Whole {
  bool flag = false;
  uint64_t count = 0;
  double number = 0;
  std::optional<std::string> text;
  std::string path, bytes, content = std::string(64, '0');
  Colour colour = Colour::kRed;
  std::vector<int32_t> layers;
  std::vector<std::string> names;
  std::vector<Part> parts;
  std::optional<Part> part;
  Size size;

  bool operator==(const Whole&) const = default;
};
constexpr auto FieldsOf(const Whole*) {
  return std::tuple(Field("flag", &Whole::flag), Field("count", &Whole::count), Field("number", &Whole::number),
                    Field("text", &Whole::text), Field("path", &Whole::path, Text{.is_path = true}),
                    Field("bytes", &Whole::bytes, Bytes()), Field("content", &Whole::content, Content()),
                    Field("colour", &Whole::colour),
                    Field("layers", &Whole::layers, List<Integer>{.each = {0, 9}, .most = 3, .distinct = true}),
                    Field("names", &Whole::names), Field("parts", &Whole::parts), Field("part", &Whole::part),
                    Inline(&Whole::size));
}

Whole Full() {
  return {.flag = true,
          .count = 18446744073709551615u,
          .number = std::numeric_limits<double>::denorm_min(),
          .text = "",
          .path = "/a\xff",
          .bytes = std::string("\0x", 2),
          .content = std::string(64, 'a'),
          .colour = Colour::kBlue,
          .layers = {9, 3},
          .names = {"a", ""},
          .parts = {{.name = "b", .scale = -2}, {.name = "c"}},
          .part = Part{.name = "d"},
          .size = {.width = 3, .height = 2}};
}

std::string Problem(void (*change)(Whole&)) {
  Whole whole = Full();
  change(whole);
  return std::string(CheckFields(whole).message());
}

TEST(FieldsTest, AFieldThatIsNotValidIsNamedWithWhatIsValid) {
  EXPECT_EQ(Problem([](Whole&) {}), "");
  EXPECT_EQ(Problem([](Whole& w) { w.layers = {10}; }), "layers[0] is 10; valid values are 0 to 9, the nearest is 9");
  EXPECT_EQ(Problem([](Whole& w) { w.layers = {3, 4, 3}; }), "layers has 3 twice");
  EXPECT_EQ(Problem([](Whole& w) { w.layers = {1, 2, 3, 4}; }), "layers has 4 entries; valid values are at most 3");
  EXPECT_EQ(Problem([](Whole& w) { w.text = "\xff"; }),
            "text is not valid UTF-8: byte 0xff at offset 0; it must be UTF-8 text");
  EXPECT_EQ(Problem([](Whole& w) { w.path = std::string(1, '\0'); }),
            "path has a NUL byte at offset 0; it must be a path without NUL");
  for (const std::string& digest : {std::string(), std::string(63, 'a'), std::string(64, 'A'), std::string(64, 'g')}) {
    Whole whole = Full();
    whole.content = digest;
    EXPECT_EQ(CheckFields(whole).message(), "content is not 64 hexadecimal digits") << digest;
  }
  EXPECT_EQ(Problem([](Whole& w) { w.colour = static_cast<Colour>(2); }),
            "colour is unknown; valid values are red, blue");
  EXPECT_EQ(Problem([](Whole& w) { w.parts[1].scale = std::nan(""); }),
            "parts[1].scale is nan; it must be a number from -2 to 2");
  EXPECT_EQ(Problem([](Whole& w) { w.part->name = "12345"; }), "part.name has 5 bytes; valid values are at most 4");
  EXPECT_EQ(Problem([](Whole& w) { w.size.width = -1; }), "width is -1; valid values are 0 to 100, the nearest is 0");
}

TEST(FieldsTest, AnErrorIsAboutTheOutermostField) {
  Whole whole = Full();
  whole.parts[1].scale = 3;
  EXPECT_EQ(FieldOf(CheckFields(whole)), "parts");
}

TEST(FieldsTest, RulesBetweenFieldsAreChecked) {
  EXPECT_EQ(CheckFields(Size{.width = 1, .height = 2}), ErrorOfField("height", " is more than the width"));
}

TEST(FieldsTest, ANumberWithoutBoundsMayBeAnything) {
  EXPECT_EQ(Problem([](Whole& w) { w.number = std::nan(""); }), "");
  EXPECT_EQ(Problem([](Whole& w) { w.number = -INFINITY; }), "");
}

TEST(FieldsTest, UnsignedIntegersAreComparedAsSuch) {
  EXPECT_EQ(ProblemOfInteger(uint64_t{1} << 63, Integer{0, 5}),
            "is 9223372036854775808; valid values are 0 to 5, the nearest is 5");
  EXPECT_EQ(ProblemOfInteger(int64_t{-1}, Integer{}), "");
  EXPECT_EQ(ProblemOfInteger(uint64_t{0}, Integer{1, 5}), "is 0; valid values are 1 to 5, the nearest is 1");
}

TEST(FieldsTest, AFieldHasItsHelpAndFirstVersion) {
  const auto [name, scale] = Fields<Part>();
  EXPECT_STREQ(name.help, "Its name.");
  EXPECT_EQ(name.since, 1);
  EXPECT_EQ(scale.since, 2);
}

struct Layer {
  std::string mask;
  int32_t blend = 0;
};
constexpr auto FieldsOf(const Layer*) {
  return std::tuple(Field("mask", &Layer::mask, Content()), Field("blend", &Layer::blend));
}

// A request that names pictures in every way in which a struct may name contents.
struct Edit {
  std::string prompt, picture;
  std::optional<std::string> depth, style;
  std::vector<std::string> references;
  std::vector<Layer> layers;
  std::optional<Layer> last;
  Layer own;
};
constexpr auto FieldsOf(const Edit*) {
  return std::tuple(Field("prompt", &Edit::prompt), Field("picture", &Edit::picture, Content()),
                    Field("depth", &Edit::depth, Content()), Field("style", &Edit::style, Content()),
                    Field("references", &Edit::references, List<Content>{.each = {}, .most = 4}),
                    Field("layers", &Edit::layers), Field("last", &Edit::last), Inline(&Edit::own));
}

TEST(ContentFieldsTest, EveryContentThatAStructNamesIsFoundWithoutARegistration) {
  const auto digest = [](char digit) { return std::string(64, digit); };
  const Edit edit = {.prompt = digest('f'),
                     .picture = digest('0'),
                     .style = digest('1'),
                     .references = {digest('2'), digest('3')},
                     .layers = {{.mask = digest('4')}, {.mask = digest('5')}},
                     .last = Layer{.mask = digest('6')},
                     .own = {.mask = digest('7')}};
  ASSERT_TRUE(CheckFields(edit).ok()) << CheckFields(edit);
  std::string found;
  ForEachContent(edit, [&](const std::string& content) { found += content.front(); });
  EXPECT_EQ(found, "01234567");
  ForEachContent(Full(), [&](const std::string& content) { found += content.front(); });
  EXPECT_EQ(found, "01234567a");
}

TEST(ContentFieldsTest, AContentInAListIsCheckedByName) {
  EXPECT_EQ(CheckFields(Edit{.picture = std::string(64, '0'), .references = {"../x"}}).message(),
            "references[0] is not 64 hexadecimal digits");
}

TEST(BinaryFieldsTest, CarriesEveryKindToTheBit) {
  Whole heard;
  ASSERT_TRUE(DecodeFields(EncodeFields(Full()), heard).ok());
  EXPECT_EQ(heard, Full());
  ASSERT_TRUE(DecodeFields(EncodeFields(Whole()), heard).ok());
  EXPECT_EQ(heard, Whole());
}

TEST(BinaryFieldsTest, ATextThatIsNotUtf8IsRepaired) {
  Part heard;
  ASSERT_TRUE(DecodeFields(EncodeFields(Part{.name = "a\xff"}), heard).ok());
  EXPECT_EQ(heard.name, "a?");
}

TEST(BinaryFieldsTest, BytesThatEndEarlyOrLateAreRefused) {
  const std::string bytes = EncodeFields(Full());
  Whole heard;
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeFields(std::string_view(bytes).substr(0, size), heard).ok()) << size;
  }
  EXPECT_FALSE(DecodeFields(bytes + "x", heard).ok());
}

TEST(BinaryFieldsTest, ALengthBeyondTheEndTakesNoMemory) {
  std::string bytes = EncodeFields(Part{.name = "ab"});
  std::memset(bytes.data(), 0xff, sizeof(uint64_t));
  Part heard;
  EXPECT_FALSE(DecodeFields(bytes, heard).ok());
}

TEST(BinaryFieldsTest, NoDamagedByteIsFatal) {
  const std::string bytes = EncodeFields(Full());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const char value : {'\0', '\1', '\x7f', '\xff'}) {
      std::string damaged = bytes;
      damaged[at] = value;
      Whole heard;
      const absl::Status status = DecodeFields(damaged, heard);
      if (status.ok()) {
        EXPECT_TRUE(CheckFields(heard).ok());
      }
    }
  }
}

TEST(BinaryFieldsTest, AValueThatIsNotValidIsRefusedByName) {
  Part heard;
  EXPECT_THAT(std::string(DecodeFields(EncodeFields(Part{.scale = 3}), heard).message()), HasSubstr("scale is 3"));
}

TEST(BinaryFieldsTest, TheTextOfAStructSaysNamesAndKindsOfAllFields) {
  EXPECT_EQ(FieldsText<Whole>(),
            "{flag:u8 count:u64 number:number text:text? path:text bytes:text content:text colour:<red|blue|> "
            "layers:i32* names:text* parts:{name:text scale:number }* part:{name:text scale:number }? width:i32 "
            "height:i32 }");
}

TEST(JsonFieldsTest, WritesEveryFieldInOrder) {
  EXPECT_EQ(JsonOfFields(Part{.name = "b", .scale = 0.5}), R"({"name": "b", "scale": 0.5})");
  EXPECT_EQ(JsonOfFields(std::vector<Size>{{.width = 3, .height = 2}}), R"([{"width": 3, "height": 2}])");
}

TEST(JsonFieldsTest, EscapesQuotesBackslashesAndControlCharacters) {
  EXPECT_EQ(JsonFieldText("a\"\\\n\x7f\xc3\xa4"), "\"a\\\"\\\\\\u000a\\u007f\xc3\xa4\"");
}

}  // namespace
}  // namespace tessera::base
