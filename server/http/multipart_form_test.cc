#include "server/http/multipart_form.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/api/field_checks.h"
#include "server/http/image_edit_form.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr FormField kFields[] = {{.name = "text"}, {.name = "file", .is_file = true, .most = 2, .most_bytes = 1 << 20}};

// A body with the boundary b, where a line feed stands for a line break.
std::string Lines(absl::string_view text) { return absl::StrReplaceAll(text, {{"\n", "\r\n"}}); }

std::string Part(absl::string_view name, absl::string_view content, absl::string_view more = "") {
  return absl::StrCat("--b\r\nContent-Disposition: form-data; name=\"", name, "\"", more, "\r\n\r\n", content, "\r\n");
}

absl::Status ErrorOf(absl::string_view body, const FormLimits& limits = {}) {
  return ReadForm(body, "b", kFields, limits).status();
}

// The header Content-Type and the body that a client sent.
struct SentForm {
  std::string content_type, body;
};

SentForm ReadSent(const std::string& client) {
  std::ifstream file(absl::StrCat("tests/fuzz/multipart_form/", client, ".form"), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t line = std::min(text.find('\n'), text.size() - 1);
  return {.content_type = text.substr(0, line), .body = text.substr(line + 1)};
}

// Name and content of every part; only the size of a picture's.
std::vector<std::pair<std::string, std::string>> PartsOf(const std::string& client) {
  const SentForm sent = ReadSent(client);
  const absl::StatusOr<std::string> boundary = FormBoundary(sent.content_type);
  EXPECT_TRUE(boundary.ok()) << boundary.status();
  if (!boundary.ok()) return {};
  const auto parts = ReadForm(sent.body, *boundary, ImageEditFields());
  EXPECT_TRUE(parts.ok()) << parts.status();
  std::vector<std::pair<std::string, std::string>> result;
  if (!parts.ok()) return result;
  for (const FormPart& part : *parts) {
    const bool is_picture =
        absl::StartsWith(part.content, "\x89PNG\r\n\x1a\n") && absl::EndsWith(part.content, "IEND\xae\x42\x60\x82");
    result.emplace_back(part.field->name,
                        is_picture ? absl::StrCat("PNG of ", part.content.size()) : std::string(part.content));
  }
  return result;
}

TEST(MultipartFormTest, FormsOfPythonsClientsAreRead) {
  EXPECT_THAT(PartsOf("requests"), ElementsAre(Pair("prompt", "red äpple"), Pair("n", "2"), Pair("image", "PNG of 70"),
                                               Pair("mask", "PNG of 70")));
  EXPECT_THAT(PartsOf("httpx"), ElementsAre(Pair("prompt", "red äpple"), Pair("size", "64x64"),
                                            Pair("image[]", "PNG of 70"), Pair("image[]", "PNG of 70")));
  EXPECT_THAT(PartsOf("aiohttp"), ElementsAre(Pair("prompt", "red äpple"), Pair("n", "1"), Pair("image", "PNG of 70")));
}

TEST(MultipartFormTest, FormsOfOpenAisClientAreRead) {
  EXPECT_THAT(PartsOf("openai"),
              ElementsAre(Pair("prompt", "red äpple"), Pair("background", "auto"), Pair("input_fidelity", "high"),
                          Pair("n", "2"), Pair("output_format", "png"), Pair("quality", "low"),
                          Pair("size", "1024x1024"), Pair("user", "u"), Pair("image[]", "PNG of 70"),
                          Pair("image[]", "PNG of 70"), Pair("mask", "PNG of 70")));
  EXPECT_THAT(PartsOf("openai_one"), ElementsAre(Pair("prompt", "red apple"), Pair("image", "PNG of 70")));
}

TEST(MultipartFormTest, FormsOfCurlAndNodeAreRead) {
  EXPECT_THAT(PartsOf("curl"), ElementsAre(Pair("prompt", "red apple\r\n--not the boundary"),
                                           Pair("image", "PNG of 70"), Pair("n", "1")));
  EXPECT_THAT(PartsOf("node"), ElementsAre(Pair("prompt", "red äpple\r\n\"quoted\""), Pair("stream", "true"),
                                           Pair("image[]", "PNG of 70"), Pair("mask", "x")));
}

TEST(MultipartFormTest, EveryCutOffFormIsRefused) {
  const SentForm sent = ReadSent("openai");
  const std::string boundary = *FormBoundary(sent.content_type);
  ASSERT_THAT(sent.body, SizeIs(::testing::Gt(1000u)));
  // Without its last line break, which is no part of it, a form is whole.
  for (size_t size = 0; size < sent.body.size() - 2; ++size) {
    EXPECT_FALSE(ReadForm(absl::string_view(sent.body).substr(0, size), boundary, ImageEditFields()).ok()) << size;
  }
  EXPECT_TRUE(ReadForm(absl::string_view(sent.body).substr(0, sent.body.size() - 2), boundary, ImageEditFields()).ok());
}

TEST(MultipartFormTest, AContentMayHaveAllBytesAndBeEmpty) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  const std::string content = absl::StrCat(bytes, "\r\n--\r\n-b\r\n--a\n--b\r--b", bytes);
  const std::string body = absl::StrCat(Part("file", content), Part("text", ""), "--b--");
  const auto parts = ReadForm(body, "b", kFields);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_THAT(*parts, SizeIs(2));
  EXPECT_EQ((*parts)[0].content, content);
  EXPECT_EQ((*parts)[1].content, "");
  // The line break before a boundary belongs to it, and may also end the headers.
  const std::string short_body = Lines("\n--b \t\nContent-Disposition: form-data; name=text\n\n--b-- \n");
  const auto short_parts = ReadForm(short_body, "b", kFields);
  ASSERT_TRUE(short_parts.ok()) << short_parts.status();
  EXPECT_EQ(short_parts->at(0).content, "");
  EXPECT_THAT(*ReadForm("--b--\r\n", "b", kFields), IsEmpty());
}

TEST(MultipartFormTest, ALargeContentOfAlmostBoundariesIsRead) {
  const std::string boundary(70, 'a');
  std::string content;
  while (content.size() < (size_t{8} << 20)) absl::StrAppend(&content, "\r\n--", boundary.substr(1), "b\r");
  const std::string begin = absl::StrCat("--", boundary, "\r\nContent-Disposition: form-data; name=mask\r\n\r\n");
  const std::string body = absl::StrCat(begin, content, "\r\n--", boundary, "--\r\n");
  const auto parts = ReadForm(body, boundary, ImageEditFields());
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_THAT(*parts, SizeIs(1));
  EXPECT_TRUE((*parts)[0].content == content);
}

TEST(MultipartFormTest, HeadersAreReadAsClientsWriteThem) {
  const std::string body = Lines(
      "--b\nCONTENT-TYPE: Image/PNG; charset=binary\nX-Other: 1\ncontent-transfer-encoding: binary\n"
      "content-disposition:form-data;filename=\"C:\\a\\\";name=file; name=\\\"\";name=\"file\" ; "
      "filename*=UTF-8''%2e%2e%2f\n\nx\n--b--\n");
  const auto parts = ReadForm(body, "b", kFields);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_STREQ((*parts)[0].field->name, "file");
  EXPECT_EQ((*parts)[0].media_type, "image/png");
  EXPECT_EQ((*parts)[0].content, "x");
}

TEST(MultipartFormTest, MalformedFramingIsRefusedWithThePlace) {
  const std::string head = "--b\nContent-Disposition: form-data; name=\"text\"\n\nx";
  for (const auto& [body, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "does not begin with its boundary"},
           {"x\n" + head + "\n--b--", "does not begin with its boundary"},
           {"\n\n" + head + "\n--b--", "does not begin with its boundary"},
           {"--B\n", "does not begin with its boundary"},
           {"--bc\n", "byte 3: a line that begins with the boundary goes on"},
           {head + "\n--bc\n--b--", "byte 58: a line that begins with the boundary goes on"},
           {head + "\n--b", "goes on"},
           {head + "\n--b-", "goes on"},
           {head + "\n--b--x", "text after its last part"},
           {head + "\n--b--\nx", "text after its last part"},
           {head + "\n--b--\n\n", "text after its last part"},
           {head, "cut off before its boundary"},
           {head + "--b--", "cut off before its boundary"},
           {"--b\nContent-Disposition: form-data; name=\"text\"", "a header is cut off"},
           {"--b\n\nx\n--b--", "no header Content-Disposition"},
           {"--b\nContent-Disposition: attachment; name=text\n\nx\n--b--", "no header Content-Disposition"},
           {"--b\nContent-Disposition: form-data\n\nx\n--b--", "has no name"},
           {"--b\nContent-Disposition: form-data; name*=utf-8''text\n\nx\n--b--", "has no name"},
           {"--b\nContent-Disposition: form-data; name=text; name=file\n\nx\n--b--", "is malformed"},
           {"--b\nContent-Disposition: form-data; name=\"text\n\nx\n--b--", "is malformed"},
           {"--b\nContent-Disposition: form-data; name=\n\nx\n--b--", "is malformed"},
           {"--b\nContent-Disposition: form-data name=text\n\nx\n--b--", "is malformed"},
           {"--b\nContent-Disposition: form-data; name=text\nContent-Disposition: form-data; name=file\n\nx\n--b--",
            "two headers content-disposition"},
           {"--b\nContent-Disposition: form-data;\n name=text\n\nx\n--b--", "no header of the form"},
           {"--b\nContent-Disposition : form-data; name=text\n\nx\n--b--", "no header of the form"},
           {"--b\nContent-Disposition: form-data; name=\"te\rxt\"\n\nx\n--b--", "no header of the form"},
           {std::string("--b\nContent-Disposition: form-data; name=\"te\0xt\"\n\nx\n--b--", 55),
            "no header of the form"},
           {"--b\nContent-Transfer-Encoding: base64\nContent-Disposition: form-data; name=text\n\neA==\n--b--",
            "Content-Transfer-Encoding"}}) {
    const absl::Status status = ErrorOf(Lines(body));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << body;
  }
  // A bare line feed ends no line.
  EXPECT_FALSE(ErrorOf(head + "\n--b--\n").ok());
}

TEST(MultipartFormTest, AFieldIsKnownAndGivenAsOftenAndAsLargeAsItMayBe) {
  for (const auto& [body, field, message] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {Part("txet", "x"), "txet", "did you mean 'text'?"},
           {Part("", "x"), "", "unknown"},
           {Part("text", "x") + Part("text", "x"), "text", "is given twice"},
           {Part("file", "x") + Part("file", "") + Part("file", "x"), "file", "more than 2 times"},
           {Part("text", std::string(4097, 'x')), "text", "has 4097 bytes; valid values are at most 4096"},
           {Part("text", "x", "; filename=\"../../etc/passwd\""), "text", "is a file; it must be a text"},
           {Part("text", "x", "; filename*=utf-8''x"), "text", "is a file; it must be a text"},
           {Part("text", "\xff"), "text", "no text in UTF-8 at byte 0"},
           {Part("text", "x", "\r\nContent-Type: text/plain; charset=latin1"), "text", "charset 'latin1'"}}) {
    const absl::Status status = ErrorOf(body + "--b--");
    EXPECT_EQ(ErrorField(status), field) << body;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << body;
  }
  EXPECT_TRUE(ErrorOf(Part("text", std::string(4096, 'x')) + "--b--").ok());
  // A long or unprintable name is shown in part.
  for (const std::string& name : {std::string(3000, 'x'), std::string("\xff\xfe")}) {
    const absl::Status status = ErrorOf(Part(name, "x") + "--b--");
    EXPECT_LT(status.message().size(), 400u);
    EXPECT_THAT(std::string(status.message()), HasSubstr("unknown"));
  }
}

TEST(MultipartFormTest, TheLimitsOfAFormHold) {
  const std::string two = Part("text", "x") + Part("file", "x");
  EXPECT_TRUE(ErrorOf(two + "--b--", {.parts = 2}).ok());
  EXPECT_THAT(std::string(ErrorOf(two + Part("file", "x") + "--b--", {.parts = 2}).message()),
              HasSubstr("more than 2 parts"));
  EXPECT_THAT(std::string(ErrorOf(two + "--b--", {.total_bytes = 20}).message()), HasSubstr("at most 20"));
  const std::string headers = Part("text", "x", absl::StrCat("\r\nX-A: ", std::string(200, 'x')));
  EXPECT_TRUE(ErrorOf(headers + "--b--", {.header_bytes = 300}).ok());
  EXPECT_THAT(std::string(ErrorOf(headers + "--b--", {.header_bytes = 200}).message()),
              HasSubstr("more than 200 bytes of headers"));
  std::string many = "--b\r\n";
  while (many.size() < 300) many += "A: b\r\n";
  EXPECT_THAT(std::string(ErrorOf(many, {.header_bytes = 200}).message()), HasSubstr("of headers"));
}

TEST(MultipartFormTest, OnlyABoundaryOfTheStandardIsOne) {
  EXPECT_EQ(*FormBoundary("multipart/form-data; boundary=abc"), "abc");
  EXPECT_EQ(*FormBoundary("Multipart/Form-Data ; charset=utf-8;Boundary=\"a b:c\";"), "a b:c");
  EXPECT_EQ(*FormBoundary("multipart/form-data; boundary=----=_Part_1"), "----=_Part_1");
  EXPECT_EQ(FormBoundary(absl::StrCat("multipart/form-data; boundary=", std::string(70, 'x')))->size(), 70u);
  for (const std::string& type :
       {std::string(""), std::string("multipart/form-data"), std::string("multipart/form-data; boundary="),
        std::string("multipart/form-data; boundary=\"\""), std::string("multipart/form-data; boundary=\"a \""),
        std::string("multipart/form-data; boundary=\"a"), std::string("multipart/form-data; boundary=a; boundary=b"),
        std::string("multipart/form-data; boundary=a\r\nb"), std::string("multipart/form-data; boundary=\"a\\\"b\""),
        std::string("multipart/form-data; boundary=a{b}"), std::string("multipart/mixed; boundary=a"),
        std::string("application/json"), absl::StrCat("multipart/form-data; boundary=", std::string(71, 'x'))}) {
    EXPECT_EQ(FormBoundary(type).status().code(), absl::StatusCode::kInvalidArgument) << type;
  }
}

}  // namespace
}  // namespace tessera::server
