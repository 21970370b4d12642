#include "server/http/image_edit_form.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "control/parameters/picture_use.h"
#include "server/api/field_checks.h"
#include "server/api/request_limits.h"

namespace tessera::server {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The request that a client sent, from the corpus of the fuzz targets.
HttpRequest ReadSent(const std::string& client) {
  std::ifstream file(absl::StrCat("tests/fuzz/multipart_form/", client, ".form"), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t line = std::min(text.find('\n'), text.size() - 1);
  return {.headers = {{"Content-Type", text.substr(0, line)}}, .body = text.substr(line + 1)};
}

std::string Part(absl::string_view name, absl::string_view content) {
  return absl::StrCat("--b\r\nContent-Disposition: form-data; name=\"", name, "\"\r\n\r\n", content, "\r\n");
}
std::string File(absl::string_view name, absl::string_view content) {
  return absl::StrCat("--b\r\nContent-Disposition: form-data; name=\"", name,
                      "\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\n", content, "\r\n");
}
HttpRequest Form(absl::string_view parts) {
  return {.headers = {{"Content-Type", "multipart/form-data; boundary=b"}}, .body = absl::StrCat(parts, "--b--\r\n")};
}
// A form with what every form needs and these parts.
HttpRequest FormWith(absl::string_view parts) {
  return Form(absl::StrCat(File("image", "PNG"), Part("prompt", "red apple"), parts));
}

void ExpectPng(absl::string_view picture) {
  EXPECT_TRUE(absl::StartsWith(picture, "\x89PNG\r\n\x1a\n") && absl::EndsWith(picture, "IEND\xae\x42\x60\x82"));
}

class OpenAiFormTest : public ::testing::TestWithParam<std::string> {};

TEST_P(OpenAiFormTest, OfOnePictureIsRead) {
  const HttpRequest request = ReadSent(GetParam() + "_one");
  const auto edit = ReadImageEditForm(request);
  ASSERT_TRUE(edit.ok()) << edit.status();
  EXPECT_EQ(edit->body.request.prompt, "red apple");
  EXPECT_FALSE(edit->body.stream);
  ASSERT_THAT(edit->images, SizeIs(1));
  ExpectPng(edit->images[0]);
  EXPECT_THAT(edit->mask, IsEmpty());
}

TEST_P(OpenAiFormTest, OfSeveralPicturesAMaskAndFieldsOfThisServerIsRead) {
  const HttpRequest request = ReadSent(GetParam() + "_mask");
  const auto edit = ReadImageEditForm(request);
  ASSERT_TRUE(edit.ok()) << edit.status();
  ASSERT_THAT(edit->images, SizeIs(2));
  for (const absl::string_view image : edit->images) ExpectPng(image);
  ExpectPng(edit->mask);
  EXPECT_EQ(edit->body.response_format, ResponseFormat::kBase64);
  const ImageRequest& read = edit->body.request;
  EXPECT_EQ(read.prompt, "red äpple");
  EXPECT_EQ(read.model, "gpt-image-1");
  EXPECT_EQ(read.count, 2);
  EXPECT_EQ(read.size, "auto");
  EXPECT_EQ(read.quality, "low");
  EXPECT_EQ(read.background, "opaque");
  EXPECT_EQ(read.output_format, "webp");
  EXPECT_EQ(read.output_compression, 80);
  EXPECT_EQ(read.user, "u");
  EXPECT_EQ(read.moderation, "low");
  EXPECT_EQ(read.seed, 7u);
  EXPECT_EQ(read.steps, 3);
  EXPECT_EQ(read.guidance_scale, 3.5);
  // openai 1.109 leaves empty texts out.
  EXPECT_EQ(read.negative_prompt.has_value(), GetParam() != "openai_1");
  EXPECT_EQ(read.sampler, "euler");
  EXPECT_EQ(read.clean_caption, true);
}

TEST_P(OpenAiFormTest, OfAStreamIsRead) {
  const HttpRequest request = ReadSent(GetParam() + "_stream");
  const auto edit = ReadImageEditForm(request);
  ASSERT_TRUE(edit.ok()) << edit.status();
  EXPECT_TRUE(edit->body.stream);
  EXPECT_EQ(edit->body.request.partial_images, 2);
  EXPECT_THAT(edit->images, SizeIs(2));
}

INSTANTIATE_TEST_SUITE_P(Versions, OpenAiFormTest, ::testing::Values("openai_1", "openai_3"),
                         [](const auto& test) { return test.param; });

TEST(ImageEditFormTest, FormsOfOtherClientsAreRead) {
  for (const std::string client : {"curl", "node", "aiohttp", "httpx", "requests", "openai"}) {
    const HttpRequest request = ReadSent(client);
    const auto edit = ReadImageEditForm(request);
    ASSERT_TRUE(edit.ok()) << client << edit.status();
    EXPECT_THAT(edit->body.request.prompt, StartsWith("red ")) << client;
    for (const absl::string_view image : edit->images) ExpectPng(image);
  }
}

TEST(ImageEditFormTest, EveryFieldOfAnEditIsOneOfAForm) {
  std::vector<std::string> names;
  for (const FormField& field : ImageEditFields()) names.emplace_back(field.name);
  for (const std::string& field : GenerationFields(BodyKind::kEdit)) {
    if (field == "images") continue;
    EXPECT_THAT(names, Contains(field));
  }
  std::sort(names.begin(), names.end());
  EXPECT_TRUE(std::adjacent_find(names.begin(), names.end()) == names.end());
  EXPECT_THAT(names, Contains("image"));
  EXPECT_THAT(names, Contains("mask"));
}

TEST(ImageEditFormTest, ValuesAreReadStrictly) {
  struct Row {
    std::string name, text;
    const char* error;  // null: it is valid
  };
  for (const Row& row : std::vector<Row>{
           {"n", "2", nullptr},
           {"n", "2.0", nullptr},
           {"n", "", "n is ''; it must be a whole number"},
           {"n", " 2", "it must be a whole number"},
           {"n", "+2", "it must be a whole number"},
           {"n", "02", "it must be a whole number"},
           {"n", "0x2", "it must be a whole number"},
           {"n", "two", "n is 'two'; it must be a whole number"},
           {"n", "2,\"seed\":1", "it must be a whole number"},
           {"n", "2.5", "n is 2.5; it must be a whole number"},
           {"n", "99999999999999999999", "it must be a whole number"},
           {"seed", "18446744073709551615", nullptr},
           {"seed", "-1", nullptr},
           {"seed", "-2", "the nearest is -1"},
           {"guidance_scale", "3.5", nullptr},
           {"guidance_scale", "4", nullptr},
           {"guidance_scale", "1e400", "it must be a number"},
           {"guidance_scale", "inf", "it must be a number"},
           {"guidance_scale", "nan", "it must be a number"},
           {"guidance_scale", ".5", "it must be a number"},
           {"stream", "true", nullptr},
           {"stream", "false", nullptr},
           {"stream", "True", "stream is 'True'; it must be true or false"},
           {"stream", "1", "it must be true or false"},
           {"clean_caption", "yes", "it must be true or false"},
           {"skip_layers", "[7, 8]", nullptr},
           {"skip_layers", "7", "skip_layers is '7'; it must be a list in JSON"},
           {"skip_layers", "[7],\"seed\":[1]", "it must be a list in JSON"},
           {"skip_layers", "[7.5]", "not a whole number"},
           {"loras", R"([{"name":"style","scale":0.5}])", nullptr},
           {"loras", R"([{"name":"style","size":0.5}])", "loras: field 'size' is unknown"},
           {"response_format", "url", nullptr},
           {"response_format", "png", "valid values are"},
           {"input_fidelity", "high", nullptr},
           {"strength", "0.5", nullptr},
           {"strength", "half", "it must be a number"},
           {"partial_images", "1", "partial_images is given without"},
       }) {
    const auto edit = ReadImageEditForm(FormWith(Part(row.name, row.text)));
    EXPECT_EQ(edit.ok(), row.error == nullptr) << row.name << "=" << row.text << edit.status();
    if (edit.ok() || row.error == nullptr) continue;
    EXPECT_EQ(ErrorField(edit.status()), row.name) << row.text;
    EXPECT_THAT(std::string(edit.status().message()), HasSubstr(row.error));
  }
}

TEST(ImageEditFormTest, ErrorsNameTheFieldAsOpenAiDoes) {
  std::string many;
  for (size_t i = 0; i < control::kMaxPictures; ++i) many += File(i % 2 == 0 ? "image" : "image[]", "PNG");
  EXPECT_THAT(ReadImageEditForm(Form(many + Part("prompt", "a")))->images, SizeIs(16));
  const std::string prompt = Part("prompt", "a"), image = File("image", "PNG");
  struct Row {
    std::string parts, field, message;
  };
  for (const Row& row : std::vector<Row>{
           {prompt, "image", "image is missing; it must be 1 to 16 pictures"},
           {image, "prompt", "prompt is missing"},
           {prompt + File("image", ""), "image", "is an empty file"},
           {prompt + File("image[]", ""), "image", "is an empty file"},
           {prompt + image + File("mask", ""), "mask", "is an empty file"},
           {prompt + image + File("mask", "x") + File("mask", "x"), "mask", "mask is given twice"},
           {many + image + prompt, "image", "image is given more than 16 times"},
           {prompt + many + many + many, "image", "image is given more than 16 times"},
           {image + prompt + prompt, "prompt", "prompt is given twice"},
           {image + prompt + Part("promt", "a"), "promt", "did you mean 'prompt'?"},
           {image + prompt + Part("images", "a"), "images", "did you mean 'image'?"},
           {image + prompt + Part("steps", "4"), "steps", "did you mean 'num_inference_steps'?"},
           {image + prompt + Part("frame_count", "4"), "frame_count", "this server makes still pictures"},
           {image + prompt + Part("width", "64"), "width", "did you mean 'size'?"},
           {image + File("prompt", "a"), "prompt", "is a file; it must be a text"},
       }) {
    const auto edit = ReadImageEditForm(Form(row.parts));
    EXPECT_EQ(edit.status().code(), absl::StatusCode::kInvalidArgument) << row.message;
    EXPECT_EQ(ErrorField(edit.status()), row.field) << edit.status();
    EXPECT_THAT(std::string(edit.status().message()), HasSubstr(row.message));
  }
}

TEST(ImageEditFormTest, APictureMayHaveFiftyMillionBytes) {
  const std::string most(kMaxPictureBytes, 'x');
  EXPECT_TRUE(ReadImageEditForm(Form(Part("prompt", "a") + File("image[]", most))).ok());
  for (const char* field : {"image[]", "mask"}) {
    const auto edit = ReadImageEditForm(FormWith(File(field, most + "x")));
    EXPECT_EQ(ErrorField(edit.status()), field == std::string("mask") ? "mask" : "image") << edit.status();
    EXPECT_THAT(std::string(edit.status().message()), HasSubstr("valid values are at most 50000000"));
  }
}

TEST(ImageEditFormTest, ABodyThatIsNoFormIsRefused) {
  HttpRequest request = FormWith("");
  request.headers[0].value = "application/json";
  EXPECT_THAT(std::string(ReadImageEditForm(request).status().message()), HasSubstr("must be multipart/form-data"));
  request.headers.clear();
  EXPECT_EQ(ReadImageEditForm(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = FormWith("");
  request.body.resize(request.body.size() / 2);
  EXPECT_THAT(std::string(ReadImageEditForm(request).status().message()), HasSubstr("malformed"));
}

}  // namespace
}  // namespace tessera::server
