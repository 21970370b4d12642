#include "client/cli/batch/batch_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "server/api/field_checks.h"

namespace tessera::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<BatchItem> ItemsOf(const std::string& text, std::optional<BatchFormat> format = std::nullopt) {
  std::istringstream input(text);
  BatchReader reader(input, format);
  std::vector<BatchItem> items;
  while (true) {
    absl::StatusOr<std::optional<BatchItem>> item = reader.Next();
    EXPECT_TRUE(item.ok()) << item.status();
    if (!item.ok() || !item->has_value()) return items;
    items.push_back(**std::move(item));
  }
}

absl::Status ErrorOfHeader(const std::string& text) {
  std::istringstream input(text);
  return BatchReader(input, BatchFormat::kCsv).Next().status();
}

TEST(BatchInputTest, DetectsTheFormatByTheNameOrTheFirstByte) {
  EXPECT_EQ(BatchFormatOf("a/B.JSONL"), BatchFormat::kJsonl);
  EXPECT_EQ(BatchFormatOf("a.ndjson"), BatchFormat::kJsonl);
  EXPECT_EQ(BatchFormatOf("a.csv"), BatchFormat::kCsv);
  EXPECT_EQ(BatchFormatOf("a.txt"), BatchFormat::kText);
  EXPECT_EQ(BatchFormatOf("-"), std::nullopt);
  EXPECT_EQ(ItemsOf("\n  {\"prompt\": \"a\"}\n")[0].request->prompt, "a");
  EXPECT_EQ(ItemsOf("a {b}\n")[0].request->prompt, "a {b}");
}

TEST(BatchInputTest, EveryLineOfTextIsAPrompt) {
  const std::vector<BatchItem> items = ItemsOf("\xEF\xBB\xBFred apple\r\n\r\n  green pear  \nred apple");
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].request->prompt, "red apple");
  EXPECT_EQ(items[1].request->prompt, "green pear");
  EXPECT_EQ(items[1].index, 1);
  EXPECT_EQ(items[1].line, 3);
  EXPECT_EQ(items[0].digest, items[2].digest);
  EXPECT_NE(items[0].digest, items[1].digest);
  EXPECT_EQ(items[0].digest.size(), 64u);
}

TEST(BatchInputTest, ALineOfJsonHasTheFieldsOfARequest) {
  const std::vector<BatchItem> items = ItemsOf(
      R"({"prompt": "a", "size": "64x32", "seed": 18446744073709551615, "num_inference_steps": 3, "skip_layers": [1, 2]})"
      "\n"
      R"({"custom_id": "x-1", "prompt": "b", "guidance_scale": 4.5})");
  ASSERT_EQ(items.size(), 2u);
  ASSERT_TRUE(items[0].request.ok()) << items[0].request.status();
  EXPECT_EQ(items[0].request->size, "64x32");
  EXPECT_EQ(items[0].request->seed, UINT64_MAX);
  EXPECT_EQ(items[0].request->steps, 3);
  EXPECT_EQ(items[0].request->skip_layers, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(items[0].custom_id, "");
  ASSERT_TRUE(items[1].request.ok()) << items[1].request.status();
  EXPECT_EQ(items[1].custom_id, "x-1");
  EXPECT_EQ(items[1].request->guidance_scale, 4.5);
}

TEST(BatchInputTest, ALineOfABatchOfOpenAiHoldsItsRequestInABody) {
  const std::vector<BatchItem> items = ItemsOf(
      R"({"custom_id": "1", "method": "POST", "url": "/v1/images/generations", "body": {"model": "m", "prompt": "a", "n": 2}})");
  ASSERT_EQ(items.size(), 1u);
  ASSERT_TRUE(items[0].request.ok()) << items[0].request.status();
  EXPECT_EQ(items[0].custom_id, "1");
  EXPECT_EQ(items[0].request->model, "m");
  EXPECT_EQ(items[0].request->count, 2);
}

TEST(BatchInputTest, PicturesAreNamedByPathsRelativeToTheInput) {
  std::istringstream input(
      R"({"prompt": "a", "image": "a.png", "mask": "/m.png", "strength": 5E-1})"
      "\n"
      R"({"custom_id": "1", "url": "/v1/jobs", "body": {"prompt": "b", "image": ["b.png", "c/d.png"]}})"
      "\n"
      R"({"prompt": "c"})");
  BatchReader reader(input, BatchFormat::kJsonl, "folder");
  const BatchItem first = **reader.Next(), second = **reader.Next(), third = **reader.Next();
  ASSERT_TRUE(first.request.ok() && second.request.ok()) << first.request.status() << second.request.status();
  EXPECT_THAT(first.pictures.images, ElementsAre("folder/a.png"));
  EXPECT_EQ(first.pictures.mask, "/m.png");
  EXPECT_EQ(first.pictures.strength, "5E-1");
  EXPECT_EQ(second.request->prompt, "b");
  EXPECT_THAT(second.pictures.images, ElementsAre("folder/b.png", "folder/c/d.png"));
  EXPECT_FALSE(third.pictures.given());

  const std::vector<BatchItem> rows = ItemsOf(
      "prompt,image,mask,strength\na,b.png,c.png,0.25\nb,\"[\"\"1\"\", \"\"2\"\"]\",,\nc,12,,\n", BatchFormat::kCsv);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_THAT(rows[0].pictures.images, ElementsAre("b.png"));
  EXPECT_EQ(rows[0].pictures.mask, "c.png");
  EXPECT_EQ(rows[0].pictures.strength, "2.5E-1");
  EXPECT_THAT(rows[1].pictures.images, ElementsAre("1", "2"));
  EXPECT_THAT(rows[2].pictures.images, ElementsAre("12"));
}

TEST(BatchInputTest, AnItemThatIsWrongSaysWhyAndTheNextOneIsRead) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"prompt\": \"a\"", "the line is not JSON: "},
      {"[1]", "the line is not a JSON object"},
      {R"({"prompt": "a", "sed": 1})", "did you mean 'seed'"},
      {R"({"prompt": "a", "seed": "x"})", "seed is"},
      {R"({"size": "64x64"})", "prompt is missing"},
      {R"({"prompt": "a", "prompt": "b"})", "is given twice"},
      {R"({"prompt": "a", "stream": true})", "stream is true; a batch does not stream"},
      {R"({"custom_id": 1, "prompt": "a"})", "custom_id must be a text"},
      {R"({"custom_id": "", "prompt": "a"})", "custom_id has 0 bytes"},
      {R"({"custom_id": "seen", "prompt": "a"})", "custom_id 'seen' is the id of line 1 already"},
      {R"({"method": "GET", "url": "/v1/jobs", "body": {"prompt": "a"}})", "valid values are POST"},
      {R"({"url": "/v1/chat/completions", "body": {"prompt": "a"}})",
       "valid values are /v1/images/generations, /v1/jobs"},
      {R"({"body": {"prompt": "a"}, "priority": 1})", "'priority' is unknown"},
      {R"({"body": "a"})", "body must be an object"},
      {"{\"prompt\": \"\xFF\"}", "is not valid UTF-8"},
      {R"({"prompt": "a", "image": "a.png", "image": "b.png"})", "duplicate key \"image\""},
      {R"({"prompt": "a", "image": 1})", "image is '1'; it must be the path of a file"},
      {R"({"prompt": "a", "image": []})", "image names 0 files; valid values are 1 to 16"},
      {R"({"prompt": "a", "image": ["a", "http://host/b"]})", "it must be the path of a file, relative to the input's"},
      {R"({"prompt": "a", "image": "a\u0000"})", "it must be the path of a file, relative to the input's"},
      {R"({"prompt": "a", "image": "a", "mask": ["b"]})", "mask is"},
      {R"({"prompt": "a", "image": "a", "strength": "b"})", "; it must be a number"},
  };
  for (const auto& [line, error] : cases) {
    const std::vector<BatchItem> items =
        ItemsOf(absl::StrCat(R"({"custom_id": "seen", "prompt": "a"})", "\n", line, "\n", R"({"prompt": "b"})"),
                BatchFormat::kJsonl);
    ASSERT_EQ(items.size(), 3u) << line;
    EXPECT_THAT(std::string(items[1].request.status().message()), HasSubstr(error)) << line;
    EXPECT_EQ(items[1].line, 2);
    EXPECT_TRUE(items[2].request.ok()) << line;
  }
}

TEST(BatchInputTest, AnItemOfAMegabyteIsRefusedWithItsLine) {
  const std::string longest(BatchReader::kMaxItemBytes, 'a');
  const std::vector<BatchItem> items = ItemsOf(absl::StrCat(longest, "\n", longest, "a\nb"), BatchFormat::kText);
  ASSERT_EQ(items.size(), 3u);
  EXPECT_TRUE(items[0].request.ok());
  EXPECT_THAT(std::string(items[1].request.status().message()), HasSubstr("more than 1048576 bytes"));
  EXPECT_EQ(items[1].line, 2);
  EXPECT_EQ(items[2].request->prompt, "b");
}

TEST(BatchInputTest, TheFirstRowOfCsvNamesTheFields) {
  const std::vector<BatchItem> items = ItemsOf(
      "prompt,Seed,size,custom_id,negative_prompt\r\n"
      "\"an apple, \"\"red\"\",\non a table\",7,64x64,a,123\n"
      "pear,,,b,\n",
      BatchFormat::kCsv);
  ASSERT_EQ(items.size(), 2u);
  ASSERT_TRUE(items[0].request.ok()) << items[0].request.status();
  EXPECT_EQ(items[0].request->prompt, "an apple, \"red\",\non a table");
  EXPECT_EQ(items[0].request->seed, 7u);
  EXPECT_EQ(items[0].request->negative_prompt, "123") << "a text that looks like a number";
  EXPECT_EQ(items[0].custom_id, "a");
  EXPECT_EQ(items[0].line, 2);
  ASSERT_TRUE(items[1].request.ok()) << items[1].request.status();
  EXPECT_EQ(items[1].request->seed, std::nullopt);
  EXPECT_EQ(items[1].request->negative_prompt, std::nullopt);
  EXPECT_EQ(items[1].line, 4);
}

TEST(BatchInputTest, ARowOfCsvThatIsWrongSaysWhy) {
  const std::pair<const char*, const char*> cases[] = {
      {"a,1,2", "the row has 3 values, and the first row names 2"},
      {"a\"b,1", "a quotation mark"},
      {"\"a\"b,1", "a quotation mark"},
      {"\"a,1", "a quotation mark"},
      {"a,many", "seed is"},
      {",1", "prompt"},
  };
  for (const auto& [row, error] : cases) {
    const std::vector<BatchItem> items = ItemsOf(absl::StrCat("prompt,seed\n", row), BatchFormat::kCsv);
    ASSERT_EQ(items.size(), 1u) << row;
    const absl::Status status = items[0].request.status();
    if (std::string(row) == ",1") {  // rejected later, when the request is validated
      EXPECT_TRUE(items[0].request.ok()) << status;
      continue;
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr(error)) << row;
  }
}

TEST(BatchInputTest, AnUnbalancedQuoteIsTheErrorOfItsRowAlone) {
  for (const char* row : {"\"a,1", "a\",1", "a\"b,1", "\"a\"b,1", "a,1\"", "a,\"1", "\"\"\"a,1"}) {
    for (const char* next : {"b,2", "\"b\",2", "\"b\",\"2\""}) {
      const std::vector<BatchItem> items =
          ItemsOf(absl::StrCat("prompt,seed\n\"first,\n1\",1\n", row, "\n", next, "\nc,3\n\nd,4"), BatchFormat::kCsv);
      ASSERT_EQ(items.size(), 5u) << row << "\n" << next;
      EXPECT_TRUE(items[0].request.ok()) << items[0].request.status();
      EXPECT_THAT(std::string(items[1].request.status().message()), HasSubstr("a quotation mark")) << row;
      EXPECT_EQ(items[1].line, 4);
      for (const size_t i : {2, 3, 4}) ASSERT_TRUE(items[i].request.ok()) << row << "\n" << items[i].request.status();
      EXPECT_EQ(items[2].request->prompt, "b");
      EXPECT_EQ(items[2].line, 5);
      EXPECT_EQ(items[4].request->prompt, "d");
      EXPECT_EQ(items[4].line, 8);
    }
  }
}

TEST(BatchInputTest, AQuoteThatIsNotClosedWithinAMegabyteIsTheErrorOfItsRowAlone) {
  std::string text = "prompt\n\"a\n";
  for (int row = 0; row < 3; ++row) absl::StrAppend(&text, std::string(BatchReader::kMaxItemBytes / 2, 'b'), "\n");
  const std::vector<BatchItem> items = ItemsOf(text, BatchFormat::kCsv);
  ASSERT_EQ(items.size(), 4u);
  EXPECT_THAT(std::string(items[0].request.status().message()), HasSubstr("a quotation mark"));
  for (const size_t i : {1, 2, 3}) EXPECT_TRUE(items[i].request.ok()) << items[i].request.status();
  EXPECT_EQ(items[3].line, 5);
}

TEST(BatchInputTest, AMemberThatIsThereTwiceIsRefusedWhereverItIs) {
  for (const char* line : {
           R"({"prompt": "a", "prompt": "b"})",
           R"({"custom_id": "1", "prompt": "a", "prompt": "b"})",
           R"({"custom_id": "1", "custom_id": "2", "prompt": "a"})",
           R"({"custom_id": "1", "body": {"prompt": "a", "prompt": "b"}})",
           R"({"body": {"prompt": "a"}, "body": {"prompt": "b"}})",
           R"({"prompt": "a", "\u0070rompt": "b"})",
       }) {
    const std::vector<BatchItem> items = ItemsOf(line, BatchFormat::kJsonl);
    ASSERT_EQ(items.size(), 1u);
    EXPECT_THAT(std::string(items[0].request.status().message()),
                ::testing::AnyOf(HasSubstr("is given twice"), HasSubstr("duplicate key")))
        << line;
  }
}

TEST(BatchInputTest, AJsonArrayEndsTheReadingAndAPromptInBracketsDoesNot) {
  const auto error_of = [](const std::string& text, std::optional<BatchFormat> format) {
    std::istringstream input(text);
    return std::string(BatchReader(input, format).Next().status().message());
  };
  for (const char* text : {R"([{"prompt": "a"}])", "\n[\n{\"prompt\": \"a\"}\n]", "[ ]", "[  {\"prompt\": 1},"}) {
    EXPECT_THAT(error_of(text, std::nullopt), HasSubstr("JSON array")) << text;
    EXPECT_THAT(error_of(text, BatchFormat::kJsonl), HasSubstr("JSON array")) << text;
  }
  EXPECT_THAT(error_of(R"(["a", "b"])", BatchFormat::kJsonl), HasSubstr("JSON array"));
  EXPECT_EQ(ItemsOf("[oil] a pear")[0].request->prompt, "[oil] a pear");
  EXPECT_EQ(ItemsOf("[", BatchFormat::kText)[0].request->prompt, "[");
}

TEST(BatchInputTest, Utf16IsNamed) {
  using std::string_literals::operator""s;
  for (const std::string& text : {"\xFF\xFEp\0"s, "\xFE\xFF\0p"s, "p\0r\0"s, "\0p\0r"s}) {
    for (const BatchFormat format : {BatchFormat::kCsv, BatchFormat::kJsonl, BatchFormat::kText}) {
      std::istringstream input(text);
      EXPECT_THAT(std::string(BatchReader(input, format).Next().status().message()), HasSubstr("UTF-16"));
    }
  }
}

TEST(BatchInputTest, AHeaderOfCsvThatIsNoneEndsTheReading) {
  EXPECT_THAT(std::string(ErrorOfHeader("a red apple\nx").message()), HasSubstr("the column 'a red apple' is unknown"));
  EXPECT_THAT(std::string(ErrorOfHeader("prompt,\"seed\nx,1").message()), HasSubstr("line 1: a quotation mark"));
  EXPECT_THAT(std::string(ErrorOfHeader("prompt,sede\nx").message()), HasSubstr("did you mean 'seed'"));
  EXPECT_THAT(std::string(ErrorOfHeader("seed,size\n1,2").message()), HasSubstr("no column \"prompt\""));
  EXPECT_THAT(std::string(ErrorOfHeader("prompt,prompt\n1,2").message()), HasSubstr("prompt is given twice"));
}

}  // namespace
}  // namespace tessera::client
