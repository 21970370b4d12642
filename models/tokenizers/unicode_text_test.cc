#include "models/tokenizers/unicode_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unicode/normalizer2.h>
#include <unicode/unistr.h>

#include <random>

namespace tessera::models {
namespace {

using testing::ElementsAre;

std::u32string Codes(const std::vector<TracedChar>& text) {
  std::u32string codes;
  for (const TracedChar& c : text) codes.push_back(c.code);
  return codes;
}

std::vector<size_t> Origins(const std::vector<TracedChar>& text) {
  std::vector<size_t> origins;
  for (const TracedChar& c : text) origins.push_back(c.origin);
  return origins;
}

std::vector<TracedChar> Traced(const std::u32string& codes) {
  std::vector<TracedChar> text;
  for (size_t i = 0; i < codes.size(); ++i) text.push_back({codes[i], i});
  return text;
}

// Normalizes a whole text with ICU.
std::u32string ByIcu(const icu::Normalizer2* normalizer, const std::u32string& codes) {
  const auto text =
      icu::UnicodeString::fromUTF32(reinterpret_cast<const UChar32*>(codes.data()), static_cast<int32_t>(codes.size()));
  UErrorCode error = U_ZERO_ERROR;
  const icu::UnicodeString normalized = normalizer->normalize(text, error);
  EXPECT_TRUE(U_SUCCESS(error));
  std::u32string result(normalized.countChar32(), U'\0');
  normalized.toUTF32(reinterpret_cast<UChar32*>(result.data()), static_cast<int32_t>(result.size()), error);
  return result;
}

void ExpectNormalizedAsByIcu(const std::u32string& codes) {
  UErrorCode error = U_ZERO_ERROR;
  const std::vector<TracedChar> decomposed = Decompose(Traced(codes));
  EXPECT_EQ(Codes(decomposed), ByIcu(icu::Normalizer2::getNFDInstance(error), codes));
  EXPECT_EQ(Codes(Compose(decomposed)), ByIcu(icu::Normalizer2::getNFCInstance(error), codes));
}

TEST(UnicodeText, NormalizesEveryCharacterAsIcuDoes) {
  for (char32_t code = 1; code <= 0x10FFFF; ++code) {
    if (code < 0xD800 || code > 0xDFFF) ExpectNormalizedAsByIcu({code});
    if (HasFailure()) FAIL() << "U+" << std::hex << static_cast<uint32_t>(code);
  }
}

TEST(UnicodeText, NormalizesMixedTextAsIcuDoes) {
  const std::u32string alphabet =
      U"ae o\u00E9\u00C5\u212B\u1E9B\u0301\u0323\u0307\u0345\u0344\u0F71\u0F73\u0F75\u1100\u1161\u11A8\uAC00\uAC01"
      U"\u09C7\u09BE\u0CC6\u0CC2\u0CD5\u302E\u3099\u304B\u0958\u2ADC\U0001D15E\U0001D165\U0001D16E\u1026\u1025\u102E";
  std::mt19937 random(7);
  for (int i = 0; i < 50000; ++i) {
    std::u32string text;
    for (size_t length = 1 + random() % 12; text.size() < length;) text.push_back(alphabet[random() % alphabet.size()]);
    ExpectNormalizedAsByIcu(text);
    if (HasFailure()) FAIL() << "text " << i;
  }
}

TEST(UnicodeText, CompatibilityDecompositionsAreThoseOfTheReference) {
  const auto decompose = [](const std::u32string& text) {
    return Codes(Decompose(Traced(text), Decomposition::kCompatibility));
  };
  EXPECT_EQ(decompose(U"\uFB01 \u2460\u00BD"), U"fi 11\u20442");
  EXPECT_EQ(decompose(U"\u32FE\u32FF"), U"\u30F2\u32FF");  // the second character was added in Unicode 12.1
}

TEST(UnicodeText, MarksThatAreNewerThanTheReferencesTableKeepTheirPlace) {
  EXPECT_EQ(Codes(Decompose(Traced(U"a\u0301\u0323"))), U"a\u0323\u0301");
  EXPECT_EQ(Codes(Decompose(Traced(U"a\u0301\u1ABF"))), U"a\u0301\u1ABF");  // added in Unicode 13
}

TEST(UnicodeText, AComposedCharacterStemsFromItsFirstPart) {
  const std::vector<TracedChar> text = Compose(Decompose(TraceText("ae\u0301x", 10)));
  EXPECT_EQ(Codes(text), U"a\u00E9x");
  EXPECT_THAT(Origins(text), ElementsAre(10, 11, 14));
}

TEST(UnicodeText, ThePartsOfACharacterStemFromIt) {
  EXPECT_THAT(Origins(Decompose(TraceText("\u1E69a", 0))), ElementsAre(0, 0, 0, 3));
}

TEST(UnicodeText, LowerCaseDoesNotDependOnTheNeighbours) {
  const std::vector<TracedChar> text = LowerCase(TraceText("\u03A3\u0130\u1E9E", 0));
  EXPECT_EQ(Codes(text), U"\u03C3i\u0307\u00DF");
  EXPECT_THAT(Origins(text), ElementsAre(0, 2, 2, 4));
}

}  // namespace
}  // namespace tessera::models
