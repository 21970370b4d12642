// Tests real models on the command line: what the commands report about them, and which options they accept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "server/image/image_file.h"
#include "tests/front/child_process.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ModelsOnTheCommandLineTest : public ::testing::Test {
 protected:
  struct Result {
    int exit_code = -1;
    std::string output, errors;
  };

  Result Run(std::vector<std::string> arguments) const {
    ChildOptions options;
    arguments.insert(arguments.begin(), TESSERA_EXECUTABLE);
    options.arguments = std::move(arguments);
    options.folder = fs::current_path();
    options.environment = {{"PATH", "/usr/bin:/bin"},
                           {"TESSERA_WORKER", TESSERA_WORKER_EXECUTABLE},
                           {"TESSERA_CERTIFICATES", folder_ / "certificates"},
                           {"XDG_RUNTIME_DIR", folder_.path()}};
    ChildProcess child(options);
    const int exit_code = child.Wait();
    return {.exit_code = exit_code, .output = child.output(), .errors = child.errors()};
  }

  boost::json::value Inspect(const std::string& model) const {
    const Result result = Run({"inspect", model, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result.exit_code == 0 ? boost::json::parse(result.output) : nullptr;
  }

  // Generates an image with two steps. `more` are further options.
  Result Generate(const std::string& model, const std::vector<std::string>& more, const std::string& name) const {
    std::vector<std::string> arguments = {"generate",  "a cat",     "--model",  model,         "--seed=1",
                                          "--steps=2", "--size=64", "--output", folder_ / name};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }

  server::DecodedImage Picture(const std::string& name) const {
    absl::StatusOr<server::DecodedImage> image = server::DecodeImage(Read(folder_ / name));
    EXPECT_TRUE(image.ok()) << image.status();
    return image.ok() ? *std::move(image) : server::DecodedImage();
  }

  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  // Copies a golden pipeline so that it can be changed.
  std::string Copy(const std::string& pipeline) const {
    fs::copy("tests/golden/pipelines/" + pipeline, folder_ / pipeline, fs::copy_options::recursive);
    return folder_ / pipeline;
  }

  const TestFolder folder_;
};

TEST_F(ModelsOnTheCommandLineTest, ADistilledModelHasItsOwnDefaults) {
  const boost::json::value model = Inspect("tests/golden/pipelines/flux_schnell");
  EXPECT_EQ(model.at("default_steps"), 4);
  EXPECT_EQ(model.at("default_guidance").to_number<double>(), 0);
  EXPECT_EQ(model.at("default_max_sequence_length"), 256);
  EXPECT_THAT(Run({"inspect", "tests/golden/pipelines/flux_schnell"}).output, HasSubstr("guidance    none"));
  EXPECT_EQ(Inspect("tests/golden/pipelines/flux_dev").at("default_steps"), 28);
  for (const auto& [name, base] :
       std::map<std::string, std::string>{{"golden/pipelines/flux_schnell", "FLUX.1-dev"},
                                          {"golden/pipelines/flux_dev", ""},
                                          {"golden/pipelines/sd35", ""},
                                          {"golden-newer/pipelines/z_image_turbo", "Z-Image"},
                                          {"golden-newer/pipelines/z_image_base", ""},
                                          {"golden-newer/pipelines/flux2_klein", "FLUX.2 klein base"},
                                          {"golden-newer/pipelines/flux2_klein_base", ""},
                                          {"golden-newer/pipelines/qwen_image", ""}}) {
    EXPECT_EQ(std::string(Inspect("tests/" + name).at("base_model").as_string()), base) << name;
  }
}

TEST_F(ModelsOnTheCommandLineTest, GuidanceOfAModelThatTakesNoneIsSaidAndNotRecorded) {
  const std::string model = "tests/golden/pipelines/flux_schnell";
  const Result guided = Generate(model, {"--guidance", "7"}, "guided.png"), plain = Generate(model, {}, "plain.png");
  EXPECT_THAT(guided.errors, HasSubstr("warning: guidance 7 is not used: this model takes no guidance scale"));
  EXPECT_THAT(plain.errors, Not(HasSubstr("not used")));
  EXPECT_EQ(Picture("guided.png").image.bytes, Picture("plain.png").image.bytes);
  EXPECT_THAT(Picture("guided.png").parameters, AllOf(HasSubstr("Steps: 2"), Not(HasSubstr("CFG scale"))));
  const Result again = Run({"replay", folder_ / "guided.png", "--model", model});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_THAT(again.errors, Not(HasSubstr("not used")));
}

TEST_F(ModelsOnTheCommandLineTest, BenchMeasuresAModelOfClasses) {
  const Result result = Run({"bench", "--model", "tests/golden/pipelines/dit", "--steps=1", "--repeat=1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_GT(boost::json::parse(result.output).at("images_per_minute").to_number<double>(), 0);
}

TEST_F(ModelsOnTheCommandLineTest, AThirdPromptNeedsAThirdTextEncoder) {
  const std::string model = Copy("sd3");
  const std::string index = Read(model + "/model_index.json");
  const std::regex third("\"(text_encoder_3|tokenizer_3)\": \\[[^\\]]*\\]");
  folder_.Write("sd3/model_index.json", std::regex_replace(index, third, "\"$1\": [null, null]"));
  const Result result = Generate(model, {"--prompt-3", "a dog"}, "a.png");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("prompt 3 is 'a dog'; this model does not read it"));
  const Result plain = Generate(model, {}, "a.png");
  EXPECT_EQ(plain.exit_code, 0) << plain.errors;
}

TEST_F(ModelsOnTheCommandLineTest, StableDiffusion3WithoutT5IsAnotherModelWithThePicturesOfAFolderWithoutIt) {
  const std::string whole = "tests/golden/pipelines/sd3", model = Copy("sd3");
  const std::string index = Read(model + "/model_index.json");
  const std::regex third("\"(text_encoder_3|tokenizer_3)\": \\[[^\\]]*\\]");
  folder_.Write("sd3/model_index.json", std::regex_replace(index, third, "\"$1\": [null, null]"));
  const std::vector<std::string> layout = {"--layout=cfg=2", "--without-t5", "--certify=off"};
  for (const Result& result : {Generate(whole, {}, "with.png"), Generate(whole, {"--without-t5"}, "without.png"),
                               Generate(model, {}, "folder.png"), Generate(whole, layout, "layout.png")}) {
    ASSERT_EQ(result.exit_code, 0) << result.errors;
  }
  const server::DecodedImage without = Picture("without.png");
  EXPECT_EQ(without.image.bytes, Picture("folder.png").image.bytes);
  EXPECT_EQ(without.image.bytes, Picture("layout.png").image.bytes);
  EXPECT_NE(without.image.bytes, Picture("with.png").image.bytes);
  const auto hash = [](const std::string& parameters) {
    std::smatch found;
    return std::regex_search(parameters, found, std::regex("Model hash: ([0-9a-f]+)")) ? found[1].str() : "";
  };
  EXPECT_NE(hash(without.parameters), hash(Picture("with.png").parameters));
  const Result again = Run({"replay", folder_ / "without.png", "--model", whole, "--without-t5"});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(again.errors, "");
}

TEST_F(ModelsOnTheCommandLineTest, AFileOfStableDiffusion3WithBothClipsRunsWithoutT5) {
  const std::string whole = "tests/golden-files/checkpoints/sd3_small/checkpoint_incl_clips_t5.safetensors";
  const std::string clips = folder_.Write(
      "sd3_medium_incl_clips.safetensors",
      std::regex_replace(Read(whole), std::regex("text_encoders\\.t5xxl"), "text_encoders_t5xxl"));  // of no component
  const std::string tokenizers = "--tokenizer=tests/golden/pipelines/sd3";
  EXPECT_THAT(Generate(clips, {tokenizers}, "a.png").errors,
              HasSubstr("text_encoder_3 (T5EncoderModel, --text-encoder or --without-t5)"));
  EXPECT_THAT(Run({"inspect", clips}).output,
              HasSubstr("missing: a T5EncoderModel, see --text-encoder or --without-t5"));
  for (const Result& result : {Generate(clips, {tokenizers, "--without-t5"}, "clips.png"),
                               Generate(whole, {tokenizers, "--without-t5"}, "without.png")}) {
    ASSERT_EQ(result.exit_code, 0) << result.errors;
  }
  EXPECT_EQ(Picture("clips.png").image.bytes, Picture("without.png").image.bytes);
}

TEST_F(ModelsOnTheCommandLineTest, TheRestOfALargerModelInAFileIsNamedAndChangesNothing) {
  const std::string model = Copy("pixart_sigma");
  std::string file;
  for (const fs::directory_entry& entry : fs::directory_iterator(model + "/text_encoder")) {
    if (entry.path().extension() == ".safetensors") file = entry.path();
  }
  ASSERT_FALSE(file.empty());
  // A complete T5 file also contains a decoder and a head.
  std::string bytes = Read(file);
  size_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  std::string header = bytes.substr(8, length), data = bytes.substr(8 + length);
  header.erase(header.rfind('}'));
  for (const char* name : {"decoder.block.0.layer.0.layer_norm.weight", "lm_head.weight"}) {
    header += ",\"" + std::string(name) + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" +
              std::to_string(data.size()) + "," + std::to_string(data.size() + 4) + "]}";
    data += std::string(4, '\0');
  }
  std::ofstream(file, std::ios::binary) << SafetensorsBytes(header + "}", data);

  const std::vector<std::string> options = {"--no-binning"};
  const Result full = Generate(model, options, "full.png");
  EXPECT_EQ(full.exit_code, 0) << full.errors;
  EXPECT_THAT(full.errors,
              HasSubstr("warning: text_encoder: 2 tensors of its files belong to none of its parameters and "
                        "are not used: decoder.block.0.layer.0.layer_norm.weight, lm_head.weight"));
  const Result plain = Generate("tests/golden/pipelines/pixart_sigma", options, "plain.png");
  EXPECT_THAT(plain.errors, Not(HasSubstr("warning")));
  EXPECT_EQ(Picture("full.png").image.bytes, Picture("plain.png").image.bytes);
}

TEST_F(ModelsOnTheCommandLineTest, ANameOfTheHubFindsTheModelInItsCache) {
  fs::create_directories(folder_ / ".cache/huggingface/hub/models--org--tiny/snapshots");
  fs::create_directory_symlink(fs::current_path() / "tests/golden/pipelines/dit",
                               folder_ / ".cache/huggingface/hub/models--org--tiny/snapshots/0a1b");
  ChildOptions options;
  options.arguments = {TESSERA_EXECUTABLE, "generate",  "1",  "--model",
                       "org/tiny",         "--steps=1", "-o", folder_ / "a.png"};
  options.folder = fs::current_path();
  options.environment = {{"PATH", "/usr/bin:/bin"},
                         {"HOME", folder_.path()},
                         {"TESSERA_WORKER", TESSERA_WORKER_EXECUTABLE},
                         {"XDG_RUNTIME_DIR", folder_.path()}};
  ChildProcess generate(options);
  EXPECT_EQ(generate.Wait(), 0) << generate.errors();
  EXPECT_THAT(Picture("a.png").parameters, HasSubstr("Model: org/tiny"));
  options.arguments = {TESSERA_EXECUTABLE, "replay", folder_ / "a.png"};
  ChildProcess replay(options);
  EXPECT_EQ(replay.Wait(), 0) << replay.errors();
}

constexpr char kFlux[] = "tests/golden/pipelines/flux_dev";

TEST_F(ModelsOnTheCommandLineTest, ProductsInFp8AreRecordedAndReplayed) {
  ASSERT_EQ(Generate(kFlux, {"--weights=fp8"}, "plain.png").exit_code, 0);
  const Result result = Generate(kFlux, {"--weights=fp8", "--products=fp8"}, "fp8.png");
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(Picture("fp8.png").parameters,
              AllOf(HasSubstr("Weight storage: fp8, Products: fp8"), Not(HasSubstr("drift"))));
  EXPECT_THAT(Picture("plain.png").parameters, Not(HasSubstr("Products")));
  EXPECT_NE(Picture("fp8.png").image.bytes, Picture("plain.png").image.bytes);
  const Result again = Run({"replay", folder_ / "fp8.png", "--model", kFlux, "--json"});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_THAT(again.output, HasSubstr("\"identical\":true"));
}

TEST_F(ModelsOnTheCommandLineTest, VerifyReportsTheDriftOfProductsInFp8AndThePictureNamesIt) {
  const std::vector<std::string> fp8 = {"--weights=fp8", "--products=fp8"};
  const Result result =
      Run({"verify", "--model", kFlux, fp8[0], fp8[1], "--layout=serial", "--steps=3", "--json", "--quiet"});
  ASSERT_EQ(result.exit_code, 0) << result.errors << result.output;
  // The verdict is the last line.
  const std::string lines = result.output.substr(0, result.output.find_last_not_of('\n') + 1);
  const boost::json::value verdict = boost::json::parse(lines.substr(lines.rfind('\n') + 1));
  EXPECT_EQ(verdict.at("products"), "fp8");
  double largest = 0;
  for (const boost::json::value& canary : verdict.at("canaries").as_array()) {
    for (const char* drift : {"products_drift", "storage_drift"}) {
      EXPECT_GT(canary.at(drift).to_number<double>(), 1e-6) << drift;
      EXPECT_LT(canary.at(drift).to_number<double>(), 0.5) << drift;
    }
    largest = std::max(largest, canary.at("products_drift").to_number<double>());
  }

  // Absent: 0.
  const auto drift_of = [this](const std::string& name) {
    constexpr std::string_view kField = "Products drift: ";
    const std::string parameters = Picture(name).parameters;
    const size_t at = parameters.find(kField);
    return at == std::string::npos ? 0 : std::stod(parameters.substr(at + kField.size()));
  };
  ASSERT_EQ(Generate(kFlux, fp8, "one.png").exit_code, 0);
  EXPECT_DOUBLE_EQ(drift_of("one.png"), largest);
  // The certificate is that of one rank.
  ASSERT_EQ(Generate(kFlux, {fp8[0], fp8[1], "--layout=ulysses=2", "--certify=off"}, "two.png").exit_code, 0);
  EXPECT_EQ(drift_of("two.png"), 0);
  const Result again = Run({"replay", folder_ / "one.png", "--model", kFlux, "--json"});
  EXPECT_THAT(again.output, HasSubstr("\"same_bytes\":true")) << again.errors;
}

TEST_F(ModelsOnTheCommandLineTest, ProductsInFp8AreRefusedWhereTheyAreImpossible) {
  const Result plain = Generate(kFlux, {"--products=fp8"}, "a.png");
  EXPECT_NE(plain.exit_code, 0);
  EXPECT_THAT(plain.errors, HasSubstr("use --weights fp8 --products fp8"));
  const Result divided =
      Generate(kFlux, {"--weights=fp8", "--products=fp8", "--layout=tensor=2", "--certify=off"}, "a.png");
  EXPECT_NE(divided.exit_code, 0);
  EXPECT_THAT(divided.errors, HasSubstr("scales are of whole rows, which tensor=2 divides"));
}

}  // namespace
}  // namespace tessera
