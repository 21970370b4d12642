#include "server/metadata/parameters_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tessera::server {
namespace {

using std::string_literals::operator""s;
using testing::HasSubstr;
using testing::Not;

ImageParameters Typical() {
  return {.prompt = "a red apple",
          .negative_prompt = "blurry",
          .steps = 20,
          .sampler = "dpmsolver++",
          .guidance_scale = 4.5,
          .seed = 1,
          .width = 512,
          .height = 256,
          .model = "emoji",
          .model_digest = "0123456789",
          .noise = "tessera",
          .dtype = "fp32",
          .device = "cpu",
          .layout = "cfg=2,ulysses=2",
          .instruction_set = "avx2",
          .clean_caption = true,
          .resolution_binning = false,
          .max_sequence_length = 120,
          .version = "tessera 0.1.0"};
}

void ExpectRoundTrip(const ImageParameters& parameters) {
  const auto text = FormatParameters(parameters);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto parsed = ParseParameters(*text);
  ASSERT_TRUE(parsed.ok()) << parsed.status() << "\n" << *text;
  EXPECT_EQ(*parsed, parameters) << *text;
}

TEST(ParametersTextTest, TextHasTheFormThatImageBrowsersRead) {
  EXPECT_EQ(FormatParameters(Typical()).value(),
            "a red apple\n"
            "Negative prompt: blurry\n"
            "Steps: 20, Sampler: dpmsolver++, CFG scale: 4.5, Seed: 1, Size: 512x256, Model: emoji, "
            "Model hash: 0123456789, Noise: tessera, Dtype: fp32, Device: cpu, Layout: \"cfg=2,ulysses=2\", "
            "Instruction set: avx2, Clean caption: true, Resolution binning: false, Max sequence length: 120, Version: "
            "tessera 0.1.0");
}

TEST(ParametersTextTest, TheDriftOfProductsStandsAfterThem) {
  ImageParameters parameters = Typical();
  parameters.products = "fp8";
  parameters.products_drift = 0.03125;
  ExpectRoundTrip(parameters);
  EXPECT_THAT(FormatParameters(parameters).value(), HasSubstr(", Products: fp8, Products drift: 0.03125, Layout: "));
  parameters.products_drift.reset();
  ExpectRoundTrip(parameters);
  EXPECT_THAT(FormatParameters(parameters).value(), Not(HasSubstr("drift")));
  EXPECT_THAT(std::string(ParseParameters("cat\nSteps: 4, Seed: 9, Size: 8x8, Products drift: inf").status().message()),
              HasSubstr("a finite number"));
}

TEST(ParametersTextTest, AdaptersStandWithTheirScalesAndDigests) {
  ImageParameters parameters = Typical();
  const std::string a(64, 'a'), b(64, 'b');
  parameters.adapters = {{.name = "style", .scale = -0.75, .digest = a}, {.name = "grain-2", .scale = 1, .digest = b}};
  ExpectRoundTrip(parameters);
  EXPECT_THAT(FormatParameters(parameters).value(),
              HasSubstr(", Loras: \"style:-0.75:" + a + " grain-2:1:" + b + "\", Version: "));
  parameters.adapters[1].scale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(FormatParameters(parameters).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ParametersTextTest, AdaptersThatNoImageCanHaveAreRefused) {
  const std::string digest(64, 'a');
  for (const std::string& loras : {"style"s, "style:1"s, "style:x:" + digest, "style:1:abc"s, "../style:1:" + digest,
                                   "style:1:" + digest + "  ", "style:1:" + digest + " style:1:" + digest}) {
    const auto parsed = ParseParameters("cat\nSteps: 4, Seed: 9, Size: 8x8, Loras: \"" + loras + "\"");
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("valid values are NAME:SCALE:DIGEST")) << loras;
  }
}

TEST(ParametersTextTest, AbsentFieldsLeaveNoTrace) {
  const ImageParameters bare = {.prompt = "cat", .steps = 4, .guidance_scale = 7, .seed = 9, .width = 8, .height = 8};
  EXPECT_EQ(FormatParameters(bare).value(), "cat\nSteps: 4, CFG scale: 7, Seed: 9, Size: 8x8");
  ImageParameters unguided = bare;
  unguided.guidance_scale.reset();
  EXPECT_EQ(FormatParameters(unguided).value(), "cat\nSteps: 4, Seed: 9, Size: 8x8");
  EXPECT_EQ(ParseParameters("cat\nSteps: 4, Seed: 9, Size: 8x8").value(), unguided);
}

TEST(ParametersTextTest, NegativePromptThatIsEmptyDiffersFromNone) {
  ImageParameters parameters = Typical();
  parameters.negative_prompt = "";
  EXPECT_EQ(FormatParameters(parameters).value().substr(0, 29), "a red apple\nNegative prompt: ");
  ExpectRoundTrip(parameters);
  parameters.negative_prompt = std::nullopt;
  EXPECT_THAT(FormatParameters(parameters).value(), Not(HasSubstr("egative")));
  ExpectRoundTrip(parameters);
}

control::PromptOptions EveryOption() {
  return {.prompt_2 = "a green, \"sour\" apple",
          .prompt_3 = "three",
          .negative_prompt_2 = "leaf",
          .negative_prompt_3 = "stem",
          .true_cfg_scale = 4,
          .guidance_rescale = 0.7,
          .cfg_normalization = 1.5,
          .cfg_truncation = 0.75,
          .clip_skip = 1,
          .skip_layers = {.layers = {9, 7, 8}, .scale = 3, .start = 0.125, .stop = 0.5},
          .original_size = {.height = 768, .width = 1024, .crop_top = 10, .crop_left = 0}};
}

TEST(ParametersTextTest, EveryOptionHasAReadableKey) {
  ImageParameters parameters = Typical();
  parameters.options = EveryOption();
  EXPECT_THAT(FormatParameters(parameters).value(),
              HasSubstr("Max sequence length: 120, Prompt 2: \"a green, \\\"sour\\\" apple\", Prompt 3: three, "
                        "Negative prompt 2: leaf, Negative prompt 3: stem, True CFG scale: 4, Guidance rescale: 0.7, "
                        "Clip skip: 1, CFG normalization: 1.5, CFG truncation: 0.75, Skip layers: 9 7 8, Skip layer "
                        "scale: 3, Skip layer start: 0.125, "
                        "Skip layer stop: 0.5, Original size: 1024x768, Crop top left: 10 0, Version"));
}

TEST(ParametersTextTest, EveryOptionRoundTripsAloneAndWithTheOthers) {
  ImageParameters parameters = Typical();
  parameters.options = EveryOption();
  ExpectRoundTrip(parameters);
  const control::PromptOptions all = EveryOption();
  using Change = void (*)(const control::PromptOptions& from, control::PromptOptions& to);
  for (const Change change : std::initializer_list<Change>{
           [](const control::PromptOptions&from, control::PromptOptions&to) { to.prompt_2 = from.prompt_2; },
           [](const control::PromptOptions&from, control::PromptOptions&to) { to.prompt_3 = from.prompt_3; },
           [](const control::PromptOptions&from, control::PromptOptions&to) {
             to.negative_prompt_2 = from.negative_prompt_2;
           },
           [](const control::PromptOptions&from, control::PromptOptions&to) {
             to.negative_prompt_3 = from.negative_prompt_3;
           },
           [](const control::PromptOptions&from, control::PromptOptions&to) {
             to.true_cfg_scale = from.true_cfg_scale;
           },
           [](const control::PromptOptions&from, control::PromptOptions&to) {
             to.guidance_rescale = from.guidance_rescale;
           },
           [](const control::PromptOptions&from, control::PromptOptions&to) {
             to.cfg_normalization = from.cfg_normalization;
           },
           [](const control::PromptOptions&from, control::PromptOptions&to) {
             to.cfg_truncation = from.cfg_truncation;
           },
           [](const control::PromptOptions&from, control::PromptOptions&to) { to.clip_skip = from.clip_skip; },
           [](const control::PromptOptions&from, control::PromptOptions&to) {
             to.skip_layers.layers = from.skip_layers.layers;
           },
           [](const control::PromptOptions&from, control::PromptOptions&to) { to.skip_layers = from.skip_layers; },
           [](const control::PromptOptions&from, control::PromptOptions&to) { to.original_size = from.original_size; },
           [](const control::PromptOptions&, control::PromptOptions&to) { to.original_size.crop_left = 3; },
       }) {
    parameters.options = {};
    change(all, parameters.options);
    ExpectRoundTrip(parameters);
  }
}

TEST(ParametersTextTest, PlacementsRoundTrip) {
  ImageParameters parameters = Typical();
  parameters.text_encoders = "cpu";
  parameters.autoencoder = "unload";
  EXPECT_THAT(FormatParameters(parameters).value(), HasSubstr("Device: cpu, Text encoders: cpu, VAE: unload, "));
  ExpectRoundTrip(parameters);
}

TEST(ParametersTextTest, OnlyTenDigitsOfTheDigestAreWritten) {
  ImageParameters parameters = Typical();
  parameters.model_digest = "0123456789abcdef";
  EXPECT_THAT(FormatParameters(parameters).value(), HasSubstr("Model hash: 0123456789, "));
}

TEST(ParametersTextTest, OrdinaryPromptsOfSeveralLinesNeedNoExactField) {
  ImageParameters parameters = Typical();
  parameters.prompt = "first line,\n\nthird: \"line\"";
  parameters.negative_prompt = "one\ntwo";
  EXPECT_THAT(FormatParameters(parameters).value(), Not(HasSubstr("Exact")));
  ExpectRoundTrip(parameters);
}

TEST(ParametersTextTest, PromptThatLooksLikeTheFormatIsCarriedExactly) {
  ImageParameters parameters = Typical();
  parameters.prompt = "cat\nNegative prompt: dog";
  parameters.negative_prompt = std::nullopt;
  EXPECT_EQ(FormatParameters(parameters).value().substr(0, 27), "cat\nNegative prompt: dog\nSt");
  EXPECT_THAT(FormatParameters(parameters).value(),
              HasSubstr(R"(, Exact prompt: "cat\nNegative prompt: dog", Has negative prompt: false, Version)"));
  ExpectRoundTrip(parameters);
  parameters.negative_prompt = "";
  EXPECT_THAT(FormatParameters(parameters).value(), HasSubstr(R"(dog", Exact negative prompt: , Version)"));
  ExpectRoundTrip(parameters);
}

TEST(ParametersTextTest, ValuesWithSeparatorsAreJsonStrings) {
  ImageParameters parameters = Typical();
  parameters.model = "my, \"best\": model";
  parameters.extra = {{"Lora hashes", "a: 1, b: 2"}, {"Empty", ""}, {"Path", "C\\dir"}, {"Padded", " x "}};
  const std::string text = FormatParameters(parameters).value();
  EXPECT_THAT(text, HasSubstr(R"(Model: "my, \"best\": model", )"));
  EXPECT_THAT(text, HasSubstr(R"(Lora hashes: "a: 1, b: 2", )"));
  EXPECT_THAT(text, HasSubstr(R"(Path: C\dir, )"));
  ExpectRoundTrip(parameters);
}

TEST(ParametersTextTest, NulIsABlankInThePlainLineAndExactBelow) {
  ImageParameters parameters = Typical();
  parameters.prompt = "a\0b"s;
  const std::string text = FormatParameters(parameters).value();
  EXPECT_EQ(text.substr(0, 4), "a b\n");
  EXPECT_EQ(text.find('\0'), std::string::npos);
  ExpectRoundTrip(parameters);
}

TEST(ParametersTextTest, NumbersAreShortestAndExact) {
  ImageParameters parameters = Typical();
  for (const double scale : {0.0, 4.5, 0.1, 1.0 / 3.0, -2.5, 1e300, std::numeric_limits<double>::denorm_min()}) {
    parameters.guidance_scale = scale;
    ExpectRoundTrip(parameters);
  }
  parameters.guidance_scale = 0.1;
  EXPECT_THAT(FormatParameters(parameters).value(), HasSubstr("CFG scale: 0.1, "));
  for (const uint64_t seed : {uint64_t{0}, std::numeric_limits<uint64_t>::max()}) {
    parameters.seed = seed;
    ExpectRoundTrip(parameters);
  }
}

// Prompts are sequences of the pieces that have a meaning in the format, so that any misreading shows.
TEST(ParametersTextTest, AnySequenceOfNastyPiecesRoundTrips) {
  const std::vector<std::string> pieces = {"\n",
                                           "\r",
                                           "\t",
                                           " ",
                                           "\0"s,
                                           ",",
                                           ":",
                                           "\"",
                                           "\\",
                                           "\\\"",
                                           "\\n",
                                           "{",
                                           "\u00A0",
                                           "\u2028",
                                           "\u4E2D",
                                           "\U0001F34E",
                                           "\xFF",
                                           "\xC3",
                                           "\x01",
                                           "\x7F",
                                           "Negative prompt:",
                                           "negative prompt:",
                                           "Negative prompt",
                                           "Steps: 20, Sampler: x",
                                           "Steps: 1, CFG scale: 1, Seed: 1, Size: 1x1",
                                           "Exact prompt: \"x\"",
                                           "Version: x",
                                           "apple",
                                           "null",
                                           "\\u0000"};
  std::mt19937 random(20240611);
  const auto nasty = [&] {
    std::string text;
    for (size_t count = random() % 7; count > 0; --count) text += pieces[random() % pieces.size()];
    return text;
  };
  for (int i = 0; i < 20000 && !HasFailure(); ++i) {
    ImageParameters parameters = Typical();
    parameters.prompt = nasty();
    parameters.negative_prompt = random() % 4 == 0 ? std::nullopt : std::optional(nasty());
    parameters.options.prompt_2 = nasty();
    parameters.model = nasty();
    parameters.seed = random();
    parameters.extra["Note"] = nasty();
    ExpectRoundTrip(parameters);
  }
}

TEST(ParametersTextTest, AnyFiniteGuidanceScaleRoundTrips) {
  std::mt19937_64 random(7);
  ImageParameters parameters = Typical();
  for (int i = 0; i < 5000 && !HasFailure(); ++i) {
    parameters.guidance_scale = std::bit_cast<double>(random());
    if (std::isfinite(*parameters.guidance_scale)) ExpectRoundTrip(parameters);
  }
}

TEST(ParametersTextTest, TextOfAnotherProgramIsRead) {
  const auto parsed = ParseParameters(
      "masterpiece, (apple:1.2)\non a table\nNegative prompt: blurry,\nugly\n"
      "Steps: 28, Sampler: DPM++ 2M Karras, CFG scale: 7, Seed: 3076531450, Size: 640x512, Model hash: 6ce0161689, "
      "Model: v1-5, Hires upscaler: None, Lora hashes: \"add_detail: 7c6bad76eb54, x: 1\", Version: v1.6.0");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, (ImageParameters{
                         .prompt = "masterpiece, (apple:1.2)\non a table",
                         .negative_prompt = "blurry,\nugly",
                         .steps = 28,
                         .sampler = "DPM++ 2M Karras",
                         .guidance_scale = 7,
                         .seed = 3076531450,
                         .width = 640,
                         .height = 512,
                         .model = "v1-5",
                         .model_digest = "6ce0161689",
                         .version = "v1.6.0",
                         .extra = {{"Hires upscaler", "None"}, {"Lora hashes", "add_detail: 7c6bad76eb54, x: 1"}}}));
}

TEST(ParametersTextTest, MissingRepeatedAndMalformedPairsAreNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "Steps is missing"},
      {"just a prompt", "last line"},
      {"cat\nSteps: 1, CFG scale: 1, Size: 1x1", "Seed is missing"},
      {"cat\nSteps: 1, Steps: 2, CFG scale: 1, Seed: 1, Size: 1x1", "Steps is given twice"},
      {"cat\nSteps: many, CFG scale: 1, Seed: 1, Size: 1x1", "Steps is \"many\""},
      {"cat\nSteps: 1, CFG scale: nan, Seed: 1, Size: 1x1", "CFG scale"},
      {"cat\nSteps: 1, CFG scale: 1, Seed: -1, Size: 1x1", "Seed is \"-1\""},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 18446744073709551616, Size: 1x1", "Seed is"},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 512", "WIDTHxHEIGHT"},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 5x", "WIDTHxHEIGHT"},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, Model: \"open", "Model is"},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, Model: \"a\" b", "comma"},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, Clean caption: maybe", "true or false"},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, Max sequence length: x", "Max sequence length"},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, True CFG scale: inf", "True CFG scale is \"inf\""},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, Clip skip: 1.5", "Clip skip is \"1.5\""},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, Skip layers: 7  8", "Skip layers is \"7  8\""},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, Skip layers: \"7,8\"", "Skip layers is \"7,8\""},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, Original size: 5", "WIDTHxHEIGHT"},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, Crop top left: 1 2 3", "Crop top left is \"1 2 3\""},
      {"cat\nSteps: 1, CFG scale: 1, Seed: 1, Size: 1x1, Has negative prompt: no", "true or false"},
  };
  for (const auto& [text, message] : cases) {
    const auto parsed = ParseParameters(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(parsed.status().message(), HasSubstr(message)) << text;
  }
}

TEST(ParametersTextTest, NumbersThatAreNotFiniteAreRefused) {
  for (const double wrong : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (int i = 0; i < 8; ++i) {
      ImageParameters parameters = Typical();
      control::SkipLayerGuidance& skip_layers = parameters.options.skip_layers;
      double* const numbers[] = {&parameters.guidance_scale.emplace(),
                                 &parameters.options.true_cfg_scale,
                                 &parameters.options.guidance_rescale,
                                 &parameters.options.cfg_normalization,
                                 &parameters.options.cfg_truncation,
                                 &skip_layers.scale,
                                 &skip_layers.start,
                                 &skip_layers.stop};
      *numbers[i] = wrong;
      EXPECT_FALSE(FormatParameters(parameters).ok()) << i << " " << wrong;
    }
  }
}

TEST(ParametersTextTest, ExtraKeysThatWouldBeMisreadAreRefused) {
  for (const char* key : {"", "x", "a:b", "a,b", "a\nb", " ab", "ab ", "Seed", "Exact prompt", "Clip skip", "VAE"}) {
    ImageParameters parameters = Typical();
    parameters.extra[key] = "1";
    EXPECT_EQ(FormatParameters(parameters).status().code(), absl::StatusCode::kInvalidArgument) << key;
  }
}

}  // namespace
}  // namespace tessera::server
