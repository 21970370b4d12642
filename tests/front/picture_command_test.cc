// Tests images that begin from pictures, on the command line with the real worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "control/pictures/fit_picture.h"
#include "control/pictures/made_up_frames.h"
#include "server/image/image_file.h"
#include "tests/front/child_process.h"
#include "tests/support/http_test_client.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

constexpr char kFlux[] = "tests/golden/pipelines/flux_dev";
constexpr char kPicture[] = "tests/golden-inputs/images/wide.png";
constexpr char kMask[] = "tests/golden-inputs/images/mask_hard.png";

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns the answer of a server to an upload.
boost::json::value Upload(int64_t port, const std::string& file) {
  const std::string body = absl::StrCat(
      "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.png\"\r\n\r\n", file, "\r\n--b--\r\n");
  const TestResponse response =
      HttpTestClient(static_cast<uint16_t>(port))
          .Call("POST", "/v1/files", body, {{"Content-Type", "multipart/form-data; boundary=b"}});
  return boost::json::parse(response.body);
}

class PictureCommandTest : public ::testing::Test {
 protected:
  struct Result {
    int exit_code = -1;
    std::string output, errors;
  };

  void SetUp() override { fs::create_directory(temporary()); }

  std::unique_ptr<ChildProcess> Start(std::vector<std::string> arguments) const {
    ChildOptions options;
    arguments.insert(arguments.begin(), TESSERA_EXECUTABLE);
    options.arguments = std::move(arguments);
    options.folder = fs::current_path();
    options.environment = {{"PATH", "/usr/bin:/bin"},
                           {"TESSERA_WORKER", TESSERA_WORKER_EXECUTABLE},
                           {"TMPDIR", temporary()},
                           {"TESSERA_CERTIFICATES", folder_ / "certificates"},
                           {"XDG_DATA_HOME", folder_ / "data"},
                           {"XDG_RUNTIME_DIR", folder_.path()}};
    return std::make_unique<ChildProcess>(options);
  }

  Result Run(std::vector<std::string> arguments) const {
    const std::unique_ptr<ChildProcess> child = Start(std::move(arguments));
    const int exit_code = child->Wait();
    return {.exit_code = exit_code, .output = child->output(), .errors = child->errors()};
  }

  // Returns a folder of FLUX.1 Fill, whose components other than the transformer are those of FLUX.1-dev.
  std::string FillModel() const {
    const fs::path fill = folder_ / "fill", root = fs::current_path();
    fs::create_directory(fill);
    for (const auto& part : fs::directory_iterator(root / "tests/golden-inputs/pipelines/flux_fill")) {
      fs::create_symlink(part.path(), fill / part.path().filename());
    }
    for (const auto& part : fs::directory_iterator(root / kFlux)) {
      if (!fs::exists(fill / part.path().filename())) fs::create_symlink(part.path(), fill / part.path().filename());
    }
    return fill;
  }

  Result Generate(const std::string& name, const std::vector<std::string>& more,
                  const std::string& model = kFlux) const {
    std::vector<std::string> arguments = {"generate",  "a cat",     "--model",       model,      "--seed=1",
                                          "--steps=4", "--size=64", "--certify=off", "--output", folder_ / name};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }

  server::DecodedImage Decoded(const std::string& name) const {
    absl::StatusOr<server::DecodedImage> image = server::DecodeImage(BytesOf(folder_ / name));
    EXPECT_TRUE(image.ok()) << image.status();
    return image.ok() ? *std::move(image) : server::DecodedImage();
  }

  // Writes a PNG.
  void Write(const std::string& name, const control::Frames& picture) const {
    std::ofstream(folder_ / name, std::ios::binary) << *server::EncodeImage(picture, server::ImageFormat::kPng, {});
  }

  static int LargestDifference(const control::Frames& a, const control::Frames& b) {
    EXPECT_TRUE(a.has_shape_of(b));
    int most = 0;
    for (size_t i = 0; i < std::min(a.bytes.size(), b.bytes.size()); ++i) {
      most = std::max(most, std::abs(int{a.bytes[i]} - int{b.bytes[i]}));
    }
    return most;
  }

  std::string temporary() const { return folder_ / "tmp"; }

  TestFolder folder_;
};

TEST_F(PictureCommandTest, BeginsFromAPictureAtItsStrengthAndIsReplayed) {
  const Result made = Generate("a.png", {"--image", kPicture, "--strength=0.5", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.errors;
  EXPECT_THAT(made.output, HasSubstr("\"step\":2,\"steps\":2"));
  ASSERT_EQ(Generate("whole.png", {"--image", kPicture, "--strength=1"}).exit_code, 0);
  ASSERT_EQ(Generate("text.png", {}).exit_code, 0);
  const control::Frames image = Decoded("a.png").image;
  EXPECT_GT(LargestDifference(image, Decoded("text.png").image), 16);
  EXPECT_GT(LargestDifference(image, Decoded("whole.png").image), 16);
  EXPECT_TRUE(fs::is_empty(temporary()));

  // The picture is named by a code that its digest does not give away.
  const std::string parameters = Decoded("a.png").parameters;
  EXPECT_THAT(parameters, HasSubstr("Denoising strength: 0.5"));
  const size_t at = parameters.find("Images: ");
  ASSERT_NE(at, std::string::npos) << parameters;
  EXPECT_THAT(parameters.substr(at + 8, 33), MatchesRegex("[0-9a-f]{32},"));

  const Result replayed = Run({"replay", folder_ / "a.png", "--model", kFlux, "--image", kPicture});
  EXPECT_THAT(replayed.output, HasSubstr("identical: every byte of the file")) << replayed.errors;
  EXPECT_THAT(replayed.errors, IsEmpty());
  const Result other = Run({"replay", folder_ / "a.png", "--model", kFlux, "--image", kMask});
  EXPECT_EQ(other.exit_code, 7);
  EXPECT_THAT(other.errors, HasSubstr("the pictures are not those of the image"));
  const Result none = Run({"replay", folder_ / "a.png", "--model", kFlux});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.errors, HasSubstr("the image was made from 1 picture of --image, and 0 are given"));
}

TEST_F(PictureCommandTest, AnotherUserCannotTestWhichPictureWasUsed) {
  ASSERT_EQ(Generate("a.png", {"--image", kPicture}).exit_code, 0);
  const std::string mine = Decoded("a.png").parameters;
  fs::remove_all(folder_ / "data");
  ASSERT_EQ(Generate("b.png", {"--image", kPicture}).exit_code, 0);
  const std::string theirs = Decoded("b.png").parameters;
  EXPECT_NE(mine, theirs);
  EXPECT_EQ(fs::status(folder_ / "data/tessera/picture-key").permissions(), fs::perms(0600));
}

TEST_F(PictureCommandTest, LayoutsMakeTheSameImageFromAPictureAndAMask) {
  ASSERT_EQ(Generate("serial.png", {"--image", kPicture, "--mask", kMask}).exit_code, 0);
  for (const char* layout : {"ring=2", "ulysses=2", "pipe=2"}) {
    ASSERT_EQ(Generate("b.png", {"--image", kPicture, "--mask", kMask, "--overwrite", "--layout", layout}).exit_code,
              0);
    EXPECT_LE(LargestDifference(Decoded("b.png").image, Decoded("serial.png").image), 1) << layout;
  }
}

TEST_F(PictureCommandTest, ATransparentMaskMeansWhatAWhiteOneMeans) {
  control::Frames white{.width = 64, .height = 64, .channels = 3},
      transparent{.width = 64, .height = 64, .channels = 4};
  for (int i = 0; i < 64 * 64; ++i) {
    const bool changes = i % 64 > 20 && i / 64 < 40;
    for (int channel = 0; channel < 3; ++channel) white.bytes.push_back(changes ? 255 : 0);
    for (int channel = 0; channel < 3; ++channel) transparent.bytes.push_back(77);
    transparent.bytes.push_back(changes ? 0 : 255);
  }
  Write("white.png", white);
  Write("transparent.png", transparent);
  ASSERT_EQ(Generate("a.png", {"--image", kPicture, "--mask", folder_ / "white.png"}).exit_code, 0);
  ASSERT_EQ(Generate("b.png", {"--image", kPicture, "--mask", folder_ / "transparent.png"}).exit_code, 0);
  ASSERT_EQ(Generate("c.png", {"--image", kPicture}).exit_code, 0);
  EXPECT_EQ(Decoded("a.png").image.bytes, Decoded("b.png").image.bytes);
  EXPECT_GT(LargestDifference(Decoded("a.png").image, Decoded("c.png").image), 16);
}

// The mask crosses the border between the rows of two ranks.
TEST_F(PictureCommandTest, PixelsOutsideTheFeatheredMaskAreThePicturesOnEveryLayout) {
  constexpr int kSide = 64, kRight = 28, kTop = 20, kBottom = 44, kReach = 12;
  const control::Frames picture = control::NoiseFrame(96, 80, 3);
  const control::Frames expected = *control::Resize(picture, kSide, kSide);
  control::Frames mask = control::FlatFrame(kSide, kSide, 3, 0);
  const auto is_within = [](int x, int y, int margin) {
    return x < kRight + margin && y >= kTop - margin && y < kBottom + margin;
  };
  const auto at = [](int x, int y) { return static_cast<size_t>(3 * (y * kSide + x)); };
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      if (is_within(x, y, 0)) std::fill_n(&mask.bytes[at(x, y)], 3, uint8_t{255});
    }
  }
  Write("picture.png", picture);
  Write("mask.png", mask);
  for (const std::string& model : {std::string(kFlux), FillModel()}) {
    for (const char* layout : {"ring=1", "ring=2", "pipe=2"}) {
      const Result made = Generate(
          "a.png",
          {"--image", folder_ / "picture.png", "--mask", folder_ / "mask.png", "--overwrite", "--layout", layout},
          model);
      ASSERT_EQ(made.exit_code, 0) << made.errors;
      const control::Frames image = Decoded("a.png").image;
      ASSERT_TRUE(image.has_shape_of(expected));
      int other_outside = 0, same_inside = 0, inside = 0;
      for (int y = 0; y < kSide; ++y) {
        for (int x = 0; x < kSide; ++x) {
          const bool same = std::equal(&image.bytes[at(x, y)], &image.bytes[at(x, y)] + 3, &expected.bytes[at(x, y)]);
          other_outside += !is_within(x, y, kReach) && !same;
          inside += is_within(x, y, -kReach + 6);
          same_inside += is_within(x, y, -kReach + 6) && same;
        }
      }
      EXPECT_EQ(other_outside, 0) << model << " " << layout;
      EXPECT_LT(same_inside, inside / 10) << model << " " << layout;
    }
  }
}

TEST_F(PictureCommandTest, VerifiesALayoutWithPictures) {
  const auto verify = [this](const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(), {"verify", "--model", model, "--layout", "ring=2", "--steps=4", "--json", "--quiet"});
    return Run(more);
  };
  const Result given = verify(kFlux, {"--image", kPicture, "--mask", kMask, "--strength=0.75"});
  EXPECT_EQ(given.exit_code, 0) << given.errors;
  EXPECT_THAT(given.output,
              AllOf(HasSubstr("\"certificate\":null"), HasSubstr("\"pictures\":1"), HasSubstr("\"passed\":true")));
  const Result refused = verify(kFlux, {"--mask", kMask});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("mask is given without an image"));
  // A model that needs pictures gets made-up ones.
  const Result fill = verify(FillModel(), {});
  EXPECT_EQ(fill.exit_code, 0) << fill.errors;
  EXPECT_THAT(fill.output, AllOf(HasSubstr("\"certificate\":\"/"), HasSubstr("\"passed\":true")));
  EXPECT_TRUE(fs::is_empty(temporary()));
}

TEST_F(PictureCommandTest, GroupsOfWorkersServeAModelThatNeedsPictures) {
  fs::copy_file(kPicture, folder_ / "a.png");
  fs::copy_file(kMask, folder_ / "m.png");
  std::ofstream(folder_ / "items.jsonl")
      << R"({"prompt": "a cat", "num_inference_steps": 2, "size": "64x64", "image": "a.png", "mask": "m.png"})"
      << "\n"
      << R"({"prompt": "a cat", "num_inference_steps": 2, "size": "64x64"})"
      << "\n";
  const Result batch =
      Run({"batch", folder_ / "items.jsonl", "--out", folder_ / "out", "--model", FillModel(), "--quiet"});
  EXPECT_EQ(batch.exit_code, 9);
  EXPECT_EQ(Decoded("out/images/000/000000.png").image.width, 64);
  EXPECT_THAT(batch.errors, HasSubstr("line 2: images are missing"));
  EXPECT_TRUE(fs::is_empty(temporary()));
}

TEST_F(PictureCommandTest, ABatchMakesTheImagesThatSingleCommandsMake) {
  fs::create_directory(folder_ / "in");
  fs::copy_file(kPicture, folder_ / "in/a.png");
  fs::copy_file(kMask, folder_ / "in/m.png");
  constexpr char kItem[] = R"({"prompt": "a cat", "seed": 1, "strength": 0.5, "image": "a.png")";
  std::ofstream(folder_ / "in/items.jsonl")
      << kItem << R"(, "num_inference_steps": 4, "size": "64x64", "mask": "m.png"})"
      << "\n"
      << kItem << R"(, "num_inference_steps": 2})"
      << "\n"
      << kItem << R"(, "image": "none.png"})"
      << "\n"
      << R"({"prompt": "a cat", "image": "none.png"})"
      << "\n"
      << R"({"prompt": "a cat", "image": ["a.png", "a.png"]})"
      << "\n";
  const Result batch =
      Run({"batch", folder_ / "in/items.jsonl", "--out", folder_ / "out", "--model", kFlux, "--quiet"});
  EXPECT_EQ(batch.exit_code, 9) << batch.errors;
  EXPECT_THAT(batch.errors, HasSubstr("duplicate key \"image\""));
  EXPECT_THAT(batch.errors, HasSubstr("line 4: image names"));
  EXPECT_THAT(batch.errors, HasSubstr("line 5: images are 2; this model takes one"));
  ASSERT_EQ(Generate("masked.png", {"--image", kPicture, "--mask", kMask, "--strength=0.5"}).exit_code, 0);
  const std::string masked = BytesOf(folder_ / "out/images/000/000000.png");
  EXPECT_EQ(masked, BytesOf(folder_ / "masked.png"));
  EXPECT_THAT(Decoded("out/images/000/000000.png").parameters, HasSubstr("Images: "));
  const Result replayed =
      Run({"replay", folder_ / "out/images/000/000000.png", "--model", kFlux, "--image", kPicture, "--mask", kMask});
  EXPECT_THAT(replayed.output, HasSubstr("identical: every byte of the file")) << replayed.errors;
  EXPECT_THAT(replayed.errors, IsEmpty());
  const control::Frames wide = Decoded("out/images/000/000001.png").image;
  EXPECT_GT(wide.width, wide.height) << "without a size, an image has the proportions of its picture";
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "out/run")) {
    EXPECT_NE(entry.path().extension(), ".png") << "a picture was left";
  }
  EXPECT_TRUE(fs::is_empty(temporary()));
}

TEST_F(PictureCommandTest, AServerMakesTheImagesThatThisMachineMakes) {
  const std::string config = absl::StrCat(
      "listen:\n  http: {address: 127.0.0.1, port: 0}\n  grpc: {address: 127.0.0.1, port: 0}\n  admin: off\n",
      "limits: {picture_storage_bytes_per_key: 22000000, uploaded_file_time: 2h}\n",
      "certify: off\ndata_folder: ", folder_ / "served", "\ngroups:\n  - {model: ", fs::current_path().string(), "/",
      kFlux, "}\n");
  const std::unique_ptr<ChildProcess> server = Start({"serve", "--config", folder_.Write("tessera.yaml", config)});
  ASSERT_TRUE(server->WaitForOutput("}\n")) << server->errors();
  const int64_t port = boost::json::parse(server->output()).at("http").as_int64();
  const std::string url = absl::StrCat("http://127.0.0.1:", port);
  // A white mask without transparency, of the picture's size.
  control::Frames mask = control::FlatFrame(96, 80, 3, 0);
  std::fill(mask.bytes.begin(), mask.bytes.begin() + 40 * 96 * 3, uint8_t{255});
  Write("picture.png", control::NoiseFrame(96, 80, 3));
  Write("mask.png", mask);
  const std::vector<std::string> pictures = {"--image", folder_ / "picture.png", "--mask", folder_ / "mask.png",
                                             "--strength=0.5"};
  ASSERT_EQ(Generate("local.png", pictures).exit_code, 0);
  const std::vector<uint8_t> expected = Decoded("local.png").image.bytes;
  std::vector<std::string> arguments = {"generate", "a cat", "--seed=1", "--steps=4",           "--size=64",
                                        "--server", url,     "--output", folder_ / "remote.png"};
  arguments.insert(arguments.end(), pictures.begin(), pictures.end());
  const Result remote = Run(arguments);
  ASSERT_EQ(remote.exit_code, 0) << remote.errors << server->errors();
  EXPECT_EQ(Decoded("remote.png").image.bytes, expected);
  std::ofstream(folder_ / "items.jsonl")
      << R"({"prompt": "a cat", "seed": 1, "num_inference_steps": 4, "size": "64x64", "image": "picture.png", )"
      << R"("mask": "mask.png", "strength": 0.5})"
      << "\n";
  const Result batch = Run({"batch", folder_ / "items.jsonl", "--out", folder_ / "out", "--server", url, "--quiet"});
  ASSERT_EQ(batch.exit_code, 0) << batch.errors;
  EXPECT_EQ(Decoded("out/images/000/000000.png").image.bytes, expected);
  Write("large.png", control::NoiseFrame(2640, 2560, 3));
  EXPECT_GT(fs::file_size(folder_ / "large.png"), 20'000'000u);
  arguments = {"generate",      "a cat",
               "--steps=4",     "--size=64",
               "--output",      folder_ / "large_result.png",
               "--image",       folder_ / "large.png",
               "--server",      url,
               "--strength=0.5"};
  const Result large = Run(arguments);
  EXPECT_EQ(large.exit_code, 0) << large.errors << server->errors();
  EXPECT_EQ(Decoded("large_result.png").image.width, 64);
  const boost::json::value file = Upload(port, BytesOf(kPicture));
  EXPECT_EQ(file.at("expires_at").as_int64() - file.at("created_at").as_int64(), 2 * 60 * 60);
  Write("large.png", control::NoiseFrame(1024, 768, 3));
  EXPECT_EQ(Upload(port, BytesOf(folder_ / "large.png")).at("error").at("code").as_string(), "picture_storage_full");
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(), 0) << server->errors();
}

TEST_F(PictureCommandTest, SaysWhatIsWrongAndLeavesNothing) {
  std::ofstream(folder_ / "text.png") << "no picture";
  std::ofstream(folder_ / "cut.png", std::ios::binary) << BytesOf(kPicture).substr(0, 900);
  const struct {
    std::vector<std::string> options;
    const char* model;
    const char* message;
  } cases[] = {
      {{"--image", kPicture}, "tests/golden/pipelines/pixart_sigma", "this model makes images from text alone"},
      {{"--image", kPicture}, "tests/golden/pipelines/dit", "this model makes images from text alone"},
      {{"--mask", kMask}, kFlux, "mask is given without an image"},
      {{"--strength=0.5"}, kFlux, "strength is given without an image"},
      {{"--image", kPicture, "--strength=0"}, kFlux, "strength is 0; valid values are above 0, up to 1"},
      {{"--image", kPicture, "--strength=1.5"}, kFlux, "strength is 1.5; it must be a number from 0 to 1"},
      {{"--image", kPicture, "--image", kPicture}, kFlux, "images are 2; this model takes one"},
      {{"--image", folder_ / "none.png"}, kFlux, "--image: "},
      {{"--image", folder_ / "text.png"}, kFlux, "--image: "},
      {{"--image", folder_ / "cut.png"}, kFlux, "--image: "},
      {{"--image", kPicture, "--mask", folder_ / "cut.png"}, kFlux, "--mask: "},
  };
  for (const auto& [options, model, message] : cases) {
    const Result result = Generate("a.png", options, model);
    EXPECT_EQ(result.exit_code, 2) << message << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(message));
    EXPECT_FALSE(fs::exists(folder_ / "a.png"));
    EXPECT_TRUE(fs::is_empty(temporary())) << message;
  }
}

}  // namespace
}  // namespace tessera
