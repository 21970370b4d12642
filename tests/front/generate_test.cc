// `tessera generate` from what is typed to the files it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/image/parameters_text.h"
#include "tests/front/command_line_fixture.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using GenerateTest = CommandLineTest;

TEST_F(GenerateTest, WritesAnImageNamedAfterPromptAndSeedAndSaysSo) {
  const Result result = Run({"generate", "red apple", "--seed", "7"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(Files(), ElementsAre("red-apple-7.png"));
  EXPECT_THAT(result.output, HasSubstr("red-apple-7.png (seed 7, 64x64, 6 steps"));
}

TEST_F(GenerateTest, WritesThePixelsThatTheWorkerMade) {
  ASSERT_EQ(Run({"generate", "", "--seed", "0", "--steps", "1", "--size", "16x8", "-o", "a.png"}).exit_code, 0);
  const Image image = ReadImage("a.png").image;
  ASSERT_EQ(image.width, 16);
  ASSERT_EQ(image.height, 8);
  // The fake worker's gradient for an empty prompt, seed 0 and one step: 1 + 2 y + i.
  EXPECT_EQ(image.rgb[0], 1);
  EXPECT_EQ(image.rgb[47], 48);
  EXPECT_EQ(image.rgb[48], 3);
}

TEST_F(GenerateTest, RecordsEveryParameterInTheImage) {
  ASSERT_EQ(Run({"generate",
                 "red, apple",
                 "--negative",
                 "blurry",
                 "--seed",
                 "18446744073709551615",
                 "--steps",
                 "3",
                 "--guidance",
                 "2.5",
                 "--sampler",
                 "euler",
                 "--noise",
                 "torch-cpu",
                 "--width",
                 "24",
                 "--height",
                 "32",
                 "--no-clean-caption",
                 "--max-sequence-length",
                 "20",
                 "--dtype",
                 "bf16",
                 "-o",
                 "a.webp"})
                .exit_code,
            0);
  const absl::StatusOr<ImageParameters> parameters = ParseParameters(ReadImage("a.webp").parameters);
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  const ImageParameters expected = {.prompt = "red, apple",
                                    .negative_prompt = "blurry",
                                    .steps = 3,
                                    .sampler = "euler",
                                    .guidance_scale = 2.5,
                                    .seed = 18446744073709551615u,
                                    .width = 24,
                                    .height = 32,
                                    .model = "tiny",
                                    .model_digest = "0123456789",
                                    .noise = "torch-cpu",
                                    .dtype = "bf16",
                                    .device = "cpu",
                                    .clean_caption = false,
                                    .resolution_binning = false,
                                    .max_sequence_length = 20,
                                    .version = parameters->version};
  EXPECT_EQ(*parameters, expected);
  EXPECT_THAT(parameters->version, HasSubstr("tessera "));
}

TEST_F(GenerateTest, LeavesASwitchThatIsNotGivenToTheModel) {
  ASSERT_EQ(Run({"generate", "x", "-o", "a.png"}).exit_code, 0);
  EXPECT_EQ(ParseParameters(ReadImage("a.png").parameters)->clean_caption, true);  // the fake worker's default
}

TEST_F(GenerateTest, WritesTheSameBytesForTheSameSeedOnEveryRun) {
  for (const char* extension : {"png", "jpg", "webp"}) {
    const std::string first = std::string("a.") + extension, second = std::string("b.") + extension;
    ASSERT_EQ(Run({"generate", "x", "--seed", "3", "-o", first}).exit_code, 0);
    ASSERT_EQ(Run({"generate", "x", "--seed", "3", "-o", second}).exit_code, 0);
    EXPECT_EQ(Read(first), Read(second));
  }
}

TEST_F(GenerateTest, CountsSeedsUpOverSeveralImages) {
  ASSERT_EQ(Run({"generate", "x", "--seed", "9", "-n", "3", "-o", "{index}-{seed}.png"}).exit_code, 0);
  EXPECT_THAT(Files(), ElementsAre("0-9.png", "1-10.png", "2-11.png"));
  ASSERT_EQ(Run({"generate", "x", "--seed", "10", "-o", "alone.png"}).exit_code, 0);
  EXPECT_EQ(Read("1-10.png"), Read("alone.png"));
}

TEST_F(GenerateTest, NeverReplacesAFileUnlessToldTo) {
  Write("a.png", "mine");
  ASSERT_EQ(Run({"generate", "x", "--seed", "1", "-n", "2", "-o", "a.png"}).exit_code, 0);
  EXPECT_EQ(Read("a.png"), "mine");
  EXPECT_THAT(Files(), ElementsAre("a-2.png", "a-3.png", "a.png"));
  ASSERT_EQ(Run({"generate", "x", "--seed", "1", "-o", "a.png", "--overwrite"}).exit_code, 0);
  EXPECT_EQ(Read("a.png"), Read("a-2.png"));
}

TEST_F(GenerateTest, ChoosesAnotherSeedOnEveryRunAndSaysWhich) {
  const Result first = Run({"generate", "x", "-o", "{seed}.png", "-q"});
  const Result second = Run({"generate", "x", "-o", "{seed}.png", "-q"});
  EXPECT_NE(first.output, second.output);
  EXPECT_THAT(Files(), ::testing::UnorderedElementsAre(first.output.substr(0, first.output.size() - 1),
                                                       second.output.substr(0, second.output.size() - 1)));
}

TEST_F(GenerateTest, TakesTheNameOfACommandOrAnOptionOrNothingAsAPrompt) {
  EXPECT_EQ(Run({"generate", "models", "--seed", "1"}).exit_code, 0);
  EXPECT_EQ(Run({"generate", "--seed", "1", "--", "--steps"}).exit_code, 0);
  EXPECT_EQ(Run({"generate", "", "--seed", "1"}).exit_code, 0);
  EXPECT_THAT(Files(), ElementsAre("image-1.png", "models-1.png", "steps-1.png"));
}

TEST_F(GenerateTest, TellsEveryEventAsOneJsonObjectPerLine) {
  const Result result = Run({"generate", "x", "--seed", "1", "--steps", "4", "--preview", "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  std::vector<std::string> names;
  for (const boost::json::object& event : Events(result.output)) {
    names.emplace_back(event.at("event").as_string().c_str());
  }
  // No preview after the last step: the image comes.
  EXPECT_THAT(names,
              ElementsAre("warning", "loaded", "started", "step", "step", "preview", "step", "step", "image", "done"));
}

TEST_F(GenerateTest, GivesThePromisedFieldsWithEveryEvent) {
  const Result result = Run({"generate", "x", "--seed", "1", "--steps", "2", "--preview", "1", "--json"});
  const std::map<std::string, std::vector<std::string>> promised = {
      {"warning", {"message"}},
      {"loaded", {"model", "pipeline", "digest", "dtype", "device", "seconds", "weight_bytes"}},
      {"started",
       {"image", "seed", "steps", "sampler", "guidance", "width", "height", "generated_width", "generated_height",
        "prompt_tokens", "text_seconds"}},
      {"step", {"image", "step", "steps", "seconds"}},
      {"preview", {"image", "step", "path"}},
      {"image", {"image", "seed", "width", "height", "path", "bytes", "seconds", "decode_seconds"}},
      {"done", {"images", "seconds", "peak_memory_bytes"}}};
  for (const boost::json::object& event : Events(result.output)) {
    const std::string name = event.at("event").as_string().c_str();
    for (const std::string& field : promised.at(name)) EXPECT_TRUE(event.contains(field)) << name << " " << field;
    EXPECT_EQ(event.size(), promised.at(name).size() + 1) << name << " has fields that are not promised";
  }
}

TEST_F(GenerateTest, ShowsAPreviewThatIsAWholeImageAndRemovesItInTheEnd) {
  const auto child = Start({"generate", "x", "--seed", "1", "--preview", "2", "--json", "-o", "a.jpg"}, "step5=hang");
  ASSERT_TRUE(child->WaitForOutput("\"event\":\"preview\",\"image\":0,\"step\":4"));
  EXPECT_THAT(Files(), ElementsAre("a.preview.png"));
  EXPECT_EQ(ReadImage("a.preview.png").image.width, 64);
  child->Signal(SIGINT);
  EXPECT_EQ(child->Wait(), 130);
  EXPECT_THAT(Files(), IsEmpty());
  ASSERT_EQ(Run({"generate", "x", "--seed", "1", "--preview", "2", "-o", "a.jpg"}).exit_code, 0);
  EXPECT_THAT(Files(), ElementsAre("a.jpg"));
}

TEST_F(GenerateTest, MakesTheSameImageWithAndWithoutPreviews) {
  ASSERT_EQ(Run({"generate", "x", "--seed", "1", "--preview", "1", "-o", "a.png"}).exit_code, 0);
  ASSERT_EQ(Run({"generate", "x", "--seed", "1", "-o", "b.png"}).exit_code, 0);
  EXPECT_EQ(Read("a.png"), Read("b.png"));
}

TEST_F(GenerateTest, WritesNothingToStandardOutputButResultsAndNothingOfTheWorkers) {
  const Result result = Run({"generate", "x", "--seed", "1", "-q"});
  EXPECT_EQ(result.output, "x-1.png\n");
  EXPECT_EQ(result.errors, "");
}

}  // namespace
}  // namespace tessera
