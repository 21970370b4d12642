// Tests of requests with pictures: POST /v1/images/edits, POST /v1/jobs and /v1/files. Pictures are decoded in the real
// confined process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "control/pictures/picture_input.h"
#include "server/api/job.h"
#include "tests/support/api_fixture.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr auto kStart = control::PictureInput::kStart;
constexpr auto kReference = control::PictureInput::kReference;

std::string Bytes(const std::string& name) {
  std::ifstream file("tests/pictures/edits/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string DataUrl(const std::string& name) {
  return absl::StrCat("data:image/png;base64,", absl::Base64Escape(Bytes(name)));
}

// A picture of 38 x 26 pixels.
std::string Picture(const std::string& name = "rgb.png") {
  return absl::StrCat(R"({"image_url":")", DataUrl(name), "\"}");
}

boost::json::object Parse(const std::string& text) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(text, error);
  EXPECT_FALSE(error) << text.substr(0, 500);
  return value.is_object() ? value.as_object() : boost::json::object();
}

std::string Text(const boost::json::value& value) { return std::string(value.as_string()); }

// The message and the field of an error.
std::string ErrorOf(const TestResponse& response) {
  const boost::json::object answer = Parse(response.body);
  if (!answer.contains("error")) return response.body.substr(0, 500);
  const boost::json::object& error = answer.at("error").as_object();
  return absl::StrCat(response.status, " ", error.at("param").is_null() ? "" : Text(error.at("param")), ": ",
                      Text(error.at("message")));
}

// The base64 of the first image.
std::string ImageOf(const TestResponse& response) {
  EXPECT_EQ(response.status, 200) << response.body.substr(0, 500);
  const boost::json::object answer = Parse(response.body);
  return answer.contains("data") ? Text(answer.at("data").at(0).at("b64_json")) : "";
}

// Parts of a form with the boundary b.
std::string Part(const std::string& name, const std::string& content, const std::string& more = "") {
  return absl::StrCat("--b\r\nContent-Disposition: form-data; name=\"", name, "\"", more, "\r\n\r\n", content, "\r\n");
}
std::string FilePart(const std::string& name, const std::string& file) {
  return Part(name, Bytes(file), "; filename=\"../a.png\"\r\nContent-Type: image/png");
}

// The number of files of pictures and handles.
size_t StoredFiles(TestImageService& service) {
  size_t count = 0;
  const std::string folder = service.data_folder() + "/contents";
  if (!std::filesystem::exists(folder)) return 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().filename() != "picture-secret") ++count;
  }
  return count;
}

ApiFixtureOptions Models(std::vector<TestModel> models, bool openai_names = true) {
  return {.service = {.models = std::move(models), .openai_names = openai_names}};
}

TestResponse Edit(ApiFixture& api, const std::string& fields) {
  return api.Call("POST", "/v1/images/edits", absl::StrCat(R"({"prompt":"a","seed":1,)", fields, "}"));
}

TEST(EditsTest, AModelThatEditsByInstructionIsUsedUnlessAnotherIsNamed) {
  ApiFixture api(
      Models({{.name = "text"}, {.name = "start", .pictures = kStart}, {.name = "edit", .pictures = kReference}}));
  for (const char* model : {"", R"("model":"gpt-image-1",)", R"("model":"default",)", R"("model":null,)"}) {
    const TestResponse response = Edit(api, absl::StrCat(model, R"("images":[)", Picture(), "]"));
    ASSERT_EQ(response.status, 200) << ErrorOf(response);
    const boost::json::object answer = Parse(response.body);
    EXPECT_EQ(Text(answer.at("model")), "edit") << model;
    EXPECT_THAT(answer.at("warnings").as_array(), SizeIs(0));
    // The proportions of the picture, about the area of the model's own size, in multiples of 16.
    EXPECT_EQ(Text(answer.at("size")), "64x48") << model;
  }
  const TestResponse named = Edit(api, absl::StrCat(R"("model":"start","size":"64x32","images":[)", Picture(), "]"));
  ASSERT_EQ(named.status, 200) << ErrorOf(named);
  const boost::json::object answer = Parse(named.body);
  EXPECT_EQ(Text(answer.at("size")), "64x32");
  EXPECT_THAT(Text(answer.at("warnings").at(0)), StartsWith("strength: it is not given, so it is 0.6"));
  EXPECT_THAT(ErrorOf(Edit(api, absl::StrCat(R"("model":"text","images":[)", Picture(), "]"))),
              StartsWith("400 images: images are given; this model makes images from text alone"));
}

TEST(EditsTest, ModelsSayWhichPicturesTheyTake) {
  ApiFixture api(
      Models({{.name = "text"}, {.name = "start", .pictures = kStart}, {.name = "edit", .pictures = kReference}}));
  const boost::json::object answer = Parse(api.Call("GET", "/v1/models").body);
  std::vector<std::string> taken;
  for (const boost::json::value& model : answer.at("data").as_array()) {
    taken.push_back(
        boost::json::serialize(boost::json::array({model.at("id"), model.at("picture_input"), model.at("takes_mask"),
                                                   model.at("default_strength").to_number<double>()})));
  }
  EXPECT_THAT(taken, testing::ElementsAre(R"(["text","none",false,1E0])", R"(["start","start",true,6E-1])",
                                          R"(["edit","reference",false,1E0])"));
}

TEST(EditsTest, WithoutSuchAModelTheErrorSaysWhatToAdd) {
  const std::string fields = absl::StrCat(R"("images":[)", Picture(), "]");
  ApiFixture start(Models({{.name = "text"}, {.name = "start", .pictures = kStart}}));
  EXPECT_THAT(ErrorOf(Edit(start, fields)),
              AllOf(StartsWith("400 model: "), HasSubstr("'start'"), HasSubstr("Kontext")));
  ApiFixture text(Models({{.name = "text"}}));
  EXPECT_THAT(ErrorOf(Edit(text, fields)),
              AllOf(StartsWith("400 model: "), HasSubstr("Kontext"), Not(HasSubstr("'text'"))));
  ApiFixture own_names(Models({{.name = "edit", .pictures = kReference}}, /*openai_names=*/false));
  EXPECT_THAT(ErrorOf(Edit(own_names, R"("model":"gpt-image-1",)" + fields)), StartsWith("404 model: "));
  EXPECT_EQ(StoredFiles(text.service()), 0u);
}

TEST(EditsTest, APictureMayBeGivenInEveryForm) {
  ApiFixture api(Models({{.name = "edit", .pictures = kReference}}));
  const std::string base64 = absl::Base64Escape(Bytes("rgb.png"));
  const std::string expected = ImageOf(Edit(api, absl::StrCat(R"("images":[)", Picture(), "]")));
  for (const std::string& form : {absl::StrCat(R"("images":)", Picture()), absl::StrCat(R"("image":")", base64, "\""),
                                  absl::StrCat(R"("image":[")", DataUrl("rgb.png"), "\"]"),
                                  absl::StrCat(R"("images":[{"data":")", base64, "\"}]")}) {
    EXPECT_EQ(ImageOf(Edit(api, form)), expected) << form.substr(0, 40);
  }
  EXPECT_NE(ImageOf(Edit(api, absl::StrCat(R"("images":[)", Picture("grey.png"), "]"))), expected);
}

TEST(EditsTest, BadPicturesAreRefusedAndLeaveNothing) {
  ApiFixture api(Models({{.name = "edit", .pictures = kReference}, {.name = "start", .pictures = kStart}}));
  const std::string base64 = absl::Base64Escape(Bytes("rgb.png").substr(0, 60));
  const std::pair<std::string, std::string> bad[] = {
      {R"("images":[])", "400 image: image is missing"},
      {R"("n":1)", "400 image: image is missing"},
      {R"("image":"aGVsbG8=")", "400 image: image: "},
      {R"("image":"###")", "400 image: image is no valid base64"},
      {R"("image":5)", "400 image: image is a whole number; it must be pictures"},
      {absl::StrCat(R"("image":")", base64, "\""), "400 image: image: "},
      {R"("images":[{}])", "400 images: images: it has 0 of data, image_url and file_id"},
      {absl::StrCat(R"("images":[{"data":")", base64, R"(","file_id":"file-1"}])"),
       "400 images: images: it has 2 of data, image_url and file_id"},
      {R"("images":[{"path":"/etc/passwd"}])", "400 images: images: field 'path' is unknown"},
      {R"("images":[{"file_id":"file-0123456789abcdef0123456789abcdef"}])",
       "400 images: images names no uploaded file"},
      {R"("images":[{"file_id":"../../secret"}])", "400 images: images names no uploaded file"},
      {R"("images":[{"image_url":"http://example.org/a.png"}])", "400 images: images is a URL"},
      {R"("images":[{"image_url":"file:///etc/passwd"}])", "400 images: images is a URL"},
      {R"("images":[{"image_url":"data:image/png,abc"}])", "400 images: images is a data URL without ';base64,'"},
      {absl::StrCat(R"("images":[)", Picture(), ",", Picture(), "]"), "400 images: images are 2; this model takes one"},
      {absl::StrCat(R"("images":[)", Picture(), R"(],"mask":)", Picture("rgba.png")), "400 mask: mask is given"},
      {absl::StrCat(R"("model":"start","images":[)", Picture(), R"(],"mask":)", Picture()),
       "400 mask: mask has no alpha channel"},
      {absl::StrCat(R"("images":[)", Picture(), R"(],"background":"transparent")"), "400 background: "},
      {absl::StrCat(R"("images":[)", Picture(), R"(],"input_fidelity":"most")"), "400 input_fidelity: "},
      {absl::StrCat(R"("images":[)", Picture(), R"(],"strength":0.5)"), "400 strength: "},
      {absl::StrCat(R"("model":"start","images":[)", Picture(), R"(],"strength":0)"), "400 strength: "},
      {absl::StrCat(R"("images":[)", Picture(), R"(],"image":")", base64, "\""),
       "400 image: image and images are given"},
      {absl::StrCat(R"("images":[)", Picture(), R"(],"pictures":1)"), "400 pictures: "}};
  for (const auto& [fields, error] : bad) {
    const TestResponse response = Edit(api, fields);
    EXPECT_THAT(ErrorOf(response), StartsWith(error)) << fields.substr(0, 80);
    EXPECT_THAT(response.body, Not(HasSubstr("/tmp"))) << fields.substr(0, 80);
  }
  const TestResponse mask = Edit(api, absl::StrCat(R"("model":"start","images":[)", Picture("orientation_6.png"),
                                                   R"(],"mask":)", Picture("rgba.png")));
  EXPECT_THAT(ErrorOf(mask), StartsWith("400 mask: mask has 38x26 pixels and the image has "));
  EXPECT_THAT(
      ErrorOf(api.Call("POST", "/v1/images/generations", absl::StrCat(R"({"prompt":"a","images":[)", Picture(), "]}"))),
      StartsWith("400 images: images is unknown: POST /v1/images/edits makes images from pictures"));
}

TEST(EditsTest, AMaskIsTheTransparencyOfItsPicture) {
  ApiFixture api(Models({{.name = "start", .pictures = kStart}}));
  const auto edit = [&](const std::string& mask) {
    return ImageOf(Edit(api, absl::StrCat(R"("model":"start","images":[)", Picture(), R"(],"mask":)", Picture(mask))));
  };
  const std::string made = edit("rgba.png");
  EXPECT_EQ(edit("rgba.png"), made);
  EXPECT_NE(edit("palette_transparent.png"), made);
}

// A form of OpenAI's clients with the fields of Edit, and these parts.
TestResponse SendForm(ApiFixture& api, const std::string& parts) {
  const std::string body = absl::StrCat(Part("prompt", "a"), Part("seed", "1"), parts, "--b--\r\n");
  return api.Call("POST", "/v1/images/edits", body, {{"Content-Type", "multipart/form-data; boundary=b"}});
}

TEST(EditsTest, AFormIsReadAsItsFieldsInJson) {
  ApiFixture api(Models({{.name = "edit", .pictures = kReference}, {.name = "start", .pictures = kStart}}));
  const std::string image = FilePart("image", "rgb.png");
  const std::string expected = ImageOf(Edit(api, absl::StrCat(R"("images":[)", Picture(), "]")));
  EXPECT_EQ(ImageOf(SendForm(api, image)), expected);
  EXPECT_EQ(ImageOf(SendForm(api, FilePart("image[]", "rgb.png") + Part("input_fidelity", "high"))), expected);
  EXPECT_EQ(ImageOf(SendForm(api, absl::StrCat(Part("model", "start"), Part("strength", "0.5"), image,
                                               FilePart("mask", "rgba.png")))),
            ImageOf(Edit(api, absl::StrCat(R"("model":"start","strength":0.5,"images":[)", Picture(), R"(],"mask":)",
                                           Picture("rgba.png")))));
  const TestResponse stream = SendForm(api, image + Part("stream", "true") + Part("partial_images", "1"));
  EXPECT_THAT(stream.body, HasSubstr("event: image_edit.completed"));
  for (const auto& [parts, error] : std::vector<std::pair<std::string, std::string>>{
           {"", "400 image: image is missing"},
           {Part("image", "no picture"), "400 image: image: "},
           {image + image, "400 image: "},
           {image + Part("mask", "no picture"), "400 mask: mask"},
           {image + Part("input_fidelity", "most"), "400 input_fidelity: "},
           {image + Part("background", "transparent"), "400 background: "},
           {image + Part("n", "many"), "400 n: n is 'many'; it must be a whole number"},
           {image + Part("images", "x"), "400 images: images: field 'images' is unknown"}}) {
    EXPECT_THAT(ErrorOf(SendForm(api, parts)), StartsWith(error)) << parts.substr(0, 80);
  }
}

TEST(EditsTest, WhatOpenAisClientsSendIsAnswered) {
  ApiFixture api(Models({{.name = "edit", .pictures = kReference}}));
  for (const char* client : {"openai_1", "openai_3"}) {
    std::ifstream file(absl::StrCat("tests/fuzz/multipart_form/", client, "_one.form"), std::ios::binary);
    std::string content_type;
    ASSERT_TRUE(std::getline(file, content_type)) << client;
    std::string body{std::istreambuf_iterator<char>(file), {}};
    // What was recorded has a picture of one pixel, which a model that looks at pictures refuses.
    constexpr char kEnd[] = "IEND\xae\x42\x60\x82";
    const size_t begin = body.find("\x89PNG"), end = body.find(kEnd);
    ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << client;
    body.replace(begin, end + sizeof(kEnd) - 1 - begin, Bytes("rgb.png"));
    EXPECT_NE(ImageOf(api.Call("POST", "/v1/images/edits", body, {{"Content-Type", content_type}})), "") << client;
  }
}

TEST(EditsTest, ALargeFormIsRead) {
  ApiFixture api(Models({{.name = "edit", .pictures = kReference}}));
  // What follows a picture in its file is not read.
  const std::string large = Part("image", Bytes("rgb.png") + std::string(8 << 20, 'x'));
  EXPECT_EQ(ImageOf(SendForm(api, large)), ImageOf(SendForm(api, FilePart("image", "rgb.png"))));
  EXPECT_GT(api.server().counts().bodies.most_held, size_t{8} << 20);
}

TEST(EditsTest, AStreamHasTheEventsOfEdits) {
  ApiFixture api(Models({{.name = "edit", .pictures = kReference}}));
  const TestResponse response =
      Edit(api, absl::StrCat(R"("stream":true,"partial_images":1,"images":[)", Picture("animated.png"), "]"));
  EXPECT_EQ(response.status, 200);
  // A superseded partial image may be missing; its event does not begin with image_generation either.
  EXPECT_THAT(response.body, AllOf(HasSubstr("event: image_edit.completed\ndata: {\"type\":\"image_edit.completed\""),
                                   Not(HasSubstr("image_generation"))));
}

TEST(EditsTest, AnIdempotencyKeyIsOfOnePicture) {
  ApiFixture api(Models({{.name = "edit", .pictures = kReference}}));
  const std::vector<HttpHeader> key = {{"Idempotency-Key", "k"}};
  const auto submit = [&](const std::string& picture) {
    return api.Call("POST", "/v1/jobs", absl::StrCat(R"({"prompt":"a","images":[)", Picture(picture), "]}"), key);
  };
  const TestResponse first = submit("rgb.png"), again = submit("rgb.png"), other = submit("grey.png");
  ASSERT_EQ(first.status, 202) << ErrorOf(first);
  EXPECT_EQ(Text(Parse(first.body).at("id")), Text(Parse(again.body).at("id")));
  EXPECT_EQ(other.status, 409);
  EXPECT_TRUE(api.service().WaitForState(Text(Parse(first.body).at("id")), JobState::kDone));
}

TEST(FilesTest, AFileIsUsedByItsKeyUntilItIsDeleted) {
  ApiFixture api(Models({{.name = "edit", .pictures = kReference}}));
  const std::string form =
      absl::StrCat("--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nvision\r\n--b\r\n",
                   "Content-Disposition: form-data; name=\"file\"; filename=\"../a.png\"\r\n",
                   "Content-Type: image/png\r\n\r\n", Bytes("rgb.png"), "\r\n--b--\r\n");
  const std::vector<HttpHeader> type = {{"Content-Type", "multipart/form-data; boundary=b"}};
  const TestResponse uploaded = api.Call("POST", "/v1/files", form, type);
  ASSERT_EQ(uploaded.status, 200) << ErrorOf(uploaded);
  const boost::json::object file = Parse(uploaded.body);
  const std::string id = Text(file.at("id"));
  EXPECT_THAT(id, StartsWith("file-"));
  EXPECT_EQ(Text(file.at("size")), "38x26");
  EXPECT_EQ(file.at("bytes").to_number<uint64_t>(), Bytes("rgb.png").size());
  EXPECT_THAT(uploaded.body, Not(HasSubstr("a.png")));
  EXPECT_EQ(Parse(api.Call("GET", "/v1/files/" + id).body), file);
  EXPECT_EQ(Parse(api.Call("GET", "/v1/files").body).at("data").as_array(), (boost::json::array{file}));

  const std::string by_id = ImageOf(Edit(api, absl::StrCat(R"("images":[{"file_id":")", id, "\"}]")));
  EXPECT_EQ(by_id, ImageOf(Edit(api, absl::StrCat(R"("images":[)", Picture(), "]"))));

  EXPECT_EQ(api.Call("DELETE", "/v1/files/" + id).status, 200);
  EXPECT_EQ(api.Call("DELETE", "/v1/files/" + id).status, 404);
  EXPECT_EQ(api.Call("GET", "/v1/files/" + id).status, 404);
  EXPECT_THAT(ErrorOf(Edit(api, absl::StrCat(R"("images":[{"file_id":")", id, "\"}]"))), StartsWith("400 images: "));
  EXPECT_THAT(ErrorOf(api.Call("POST", "/v1/files", form.substr(0, form.size() - 20), type)), StartsWith("400 "));
  EXPECT_EQ(api.Call("POST", "/v1/files", "{}").status, 415);
}

TEST(FilesTest, AnotherKeyHasNoneOfIt) {
  const TestFolder folder;
  std::string lines;
  std::vector<HttpHeader> authorization;
  for (const char* name : {"first", "second"}) {
    const absl::StatusOr<NewKey> key = NewApiKey(name);
    ASSERT_TRUE(key.ok());
    absl::StrAppend(&lines, key->line, "\n");
    authorization.push_back({"Authorization", "Bearer " + key->secret});
  }
  folder.Write("keys", lines);
  absl::StatusOr<std::unique_ptr<ApiKeys>> keys = ApiKeys::Load(folder / "keys", [](const absl::Status&) {});
  ASSERT_TRUE(keys.ok()) << keys.status();
  ApiFixture api({.service = {.models = {{.name = "edit", .pictures = kReference}}}, .keys = *std::move(keys)});
  const std::string form =
      absl::StrCat("--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n", Bytes("rgb.png"), "\r\n--b--\r\n");
  const HttpHeader type = {"Content-Type", "multipart/form-data; boundary=b"};
  const TestResponse uploaded = api.Call("POST", "/v1/files", form, {type, authorization[0]});
  ASSERT_EQ(uploaded.status, 200) << ErrorOf(uploaded);
  const std::string id = Text(Parse(uploaded.body).at("id"));
  EXPECT_EQ(api.Call("GET", "/v1/files/" + id, "", {authorization[0]}).status, 200);
  EXPECT_EQ(api.Call("GET", "/v1/files/" + id, "", {authorization[1]}).status, 404);
  EXPECT_EQ(api.Call("DELETE", "/v1/files/" + id, "", {authorization[1]}).status, 404);
  EXPECT_THAT(Parse(api.Call("GET", "/v1/files", "", {authorization[1]}).body).at("data").as_array(), SizeIs(0));
  const std::string body = absl::StrCat(R"({"prompt":"a","model":"edit","images":[{"file_id":")", id, "\"}]}");
  EXPECT_EQ(api.Call("POST", "/v1/images/edits", body, {authorization[0]}).status, 200);
  EXPECT_THAT(ErrorOf(api.Call("POST", "/v1/images/edits", body, {authorization[1]})), StartsWith("400 images: "));
  EXPECT_EQ(api.Call("POST", "/v1/files", form, {type}).status, 401);
}

}  // namespace
}  // namespace tessera::server
