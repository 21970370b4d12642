// Tests `tessera generate` from the command line to the files that it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/image/image_file.h"
#include "server/metadata/parameters_text.h"
#include "tests/front/command_line_fixture.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using GenerateTest = CommandLineTest;

TEST_F(GenerateTest, WritesAnImageNamedAfterPromptAndSeedAndSaysSo) {
  const Result result = Run({"generate", "red apple", "--seed", "7"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(Files(), ElementsAre("red-apple-7.png"));
  EXPECT_THAT(result.output, HasSubstr("red-apple-7.png (seed 7, 64x64, 6 steps"));
}

TEST_F(GenerateTest, WritesThePixelsThatTheWorkerMade) {
  ASSERT_EQ(Run({"generate", "", "--seed", "0", "--steps", "1", "--size", "16x8", "-o", "a.png"}).exit_code, 0);
  const control::Frames image = ReadImage("a.png").image;
  ASSERT_EQ(image.width, 16);
  ASSERT_EQ(image.height, 8);
  // The fake worker's gradient for an empty prompt, seed 0 and one step: 1 + 2 y + i.
  EXPECT_EQ(image.bytes[0], 1);
  EXPECT_EQ(image.bytes[47], 48);
  EXPECT_EQ(image.bytes[48], 3);
}

// Returns the first event of that name.
boost::json::object EventOf(const std::vector<boost::json::object>& events, const std::string& name) {
  for (const boost::json::object& event : events) {
    if (event.at("event").as_string() == name) return event;
  }
  ADD_FAILURE() << "no event " << name;
  return {};
}

// The worker runs the last four steps of a schedule of six.
TEST_F(GenerateTest, CountsTheStepsThatTheWorkerRuns) {
  const Result result =
      Run({"generate", "x", "--steps", "6", "--preview", "2", "-o", "a.png", "--json"}, "first-step=2");
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const std::vector<boost::json::object> events = Events(result.output);
  EXPECT_EQ(EventOf(events, "started").at("steps").as_int64(), 4);
  EXPECT_EQ(EventOf(events, "step").at("steps").as_int64(), 4);
  EXPECT_EQ(EventOf(events, "preview").at("step").as_int64(), 2);
  EXPECT_EQ(std::ranges::count(events, "preview", [](const auto& event) { return event.at("event"); }), 1);
  EXPECT_EQ(std::ranges::count(events, "step", [](const auto& event) { return event.at("event"); }), 4);
  EXPECT_EQ(server::ParseParameters(ReadImage("a.png").parameters)->steps, 6);
  EXPECT_EQ(Run({"replay", "a.png"}, "first-step=2").exit_code, 0);
}

TEST_F(GenerateTest, RecordsEveryParameterInTheImage) {
  ASSERT_EQ(Run({"generate",
                 "red, apple",
                 "--negative",
                 "blurry",
                 "--true-cfg",
                 "2",
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
  const absl::StatusOr<server::ImageParameters> parameters = server::ParseParameters(ReadImage("a.webp").parameters);
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  const server::ImageParameters expected = {.prompt = "red, apple",
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
                                            .layout = "serial",
                                            .instruction_set = "baseline",
                                            .clean_caption = false,
                                            .resolution_binning = false,
                                            .max_sequence_length = 20,
                                            .options = {.true_cfg_scale = 2},
                                            .version = parameters->version};
  EXPECT_EQ(*parameters, expected);
  EXPECT_THAT(parameters->version, HasSubstr("tessera "));
}

TEST_F(GenerateTest, SaysWhatHasNoEffectAndDoesNotRecordIt) {
  const Result result =
      Run({"generate", "x", "--negative", "leaf", "--skip-layers", "1", "--skip-layer-stop", "0.01", "-o", "a.png"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("warning: the negative prompt is not used: it needs a true CFG scale above 1"),
                    HasSubstr("warning: skip-layer guidance is not used: none of the 6 steps lies between")));
  const std::string text = ReadImage("a.png").parameters;
  EXPECT_THAT(text, AllOf(Not(HasSubstr("egative")), Not(HasSubstr("Skip layer"))));
  const Result again = Run({"replay", "a.png"});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_THAT(again.errors, Not(HasSubstr("not used")));
}

TEST_F(GenerateTest, LeavesASwitchThatIsNotGivenToTheModel) {
  ASSERT_EQ(Run({"generate", "x", "-o", "a.png"}).exit_code, 0);
  EXPECT_EQ(server::ParseParameters(ReadImage("a.png").parameters)->clean_caption, true);  // the fake worker's default
}

TEST_F(GenerateTest, WritesTheSameBytesForTheSameSeedOnEveryRun) {
  for (const char* extension : {"png", "jpg", "webp"}) {
    const std::string first = std::string("a.") + extension, second = std::string("b.") + extension;
    ASSERT_EQ(Run({"generate", "x", "--seed", "3", "-o", first}).exit_code, 0);
    ASSERT_EQ(Run({"generate", "x", "--seed", "3", "-o", second}).exit_code, 0);
    EXPECT_EQ(Read(first), Read(second));
  }
}

TEST_F(GenerateTest, TakesAnySeedForMinusOne) {
  for (int run = 0; run < 2; ++run) {
    ASSERT_EQ(Run({"generate", "x", "--seed", "-1", "-o", "{seed}.png"}).exit_code, 0);
  }
  EXPECT_THAT(Files(), testing::SizeIs(2));
  const Result refused = Run({"generate", "x", "--seed", "-2"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("seed is '-2'; it must be a whole number from 0 to"));
}

TEST_F(GenerateTest, MakesTheFoldersOfWhatItWrites) {
  const Result result = Run({"generate", "red apple", "--seed", "1", "--preview", "2", "-o", "new/{prompt}/a.png",
                             "--trace", "traces/below/a.json"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(ReadImage("new/red-apple/a.png").image.width, 64);
  EXPECT_THAT(Read("traces/below/a.json"), HasSubstr("image encode"));
  const Result again = Run({"replay", "new/red-apple/a.png", "-o", "again/a.png"});
  ASSERT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(Read("again/a.png"), Read("new/red-apple/a.png"));
}

TEST_F(GenerateTest, CountsSeedsUpOverSeveralImages) {
  ASSERT_EQ(Run({"generate", "x", "--seed", "9", "-n", "3", "-o", "{index}-{seed}.png"}).exit_code, 0);
  EXPECT_THAT(Files(), ElementsAre("0-9.png", "1-10.png", "2-11.png"));
  ASSERT_EQ(Run({"generate", "x", "--seed", "10", "-o", "alone.png"}).exit_code, 0);
  EXPECT_EQ(Read("1-10.png"), Read("alone.png"));
}

TEST_F(GenerateTest, NeverReplacesAFileUnlessAsked) {
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

TEST_F(GenerateTest, PrintsEveryEventAsOneJsonObjectPerLine) {
  const Result result = Run({"generate", "x", "--seed", "1", "--steps", "4", "--preview", "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  std::vector<std::string> names;
  for (const boost::json::object& event : Events(result.output)) {
    names.emplace_back(event.at("event").as_string().c_str());
  }
  // The last step has no preview, because the image follows.
  EXPECT_THAT(names,
              ElementsAre("warning", "loaded", "started", "step", "step", "preview", "step", "step", "image", "done"));
}

TEST_F(GenerateTest, GivesThePromisedFieldsWithEveryEvent) {
  const Result result = Run({"generate", "x", "--seed", "1", "--steps", "2", "--preview", "1", "--json"});
  const std::map<std::string, std::vector<std::string>> promised = {
      {"warning", {"message"}},
      {"loaded",
       {"model", "pipeline", "digest", "dtype", "device", "layout", "certified", "text_encoders", "autoencoder",
        "seconds", "weight_bytes"}},
      {"started",
       {"image", "seed", "steps", "sampler", "guidance", "width", "height", "generated_width", "generated_height",
        "prompt_tokens", "text_seconds", "cached", "options"}},
      {"step", {"image", "step", "steps", "seconds"}},
      {"preview", {"image", "step", "path"}},
      {"image", {"image", "seed", "width", "height", "path", "lossless", "bytes", "seconds", "decode_seconds"}},
      {"done", {"images", "seconds", "peak_memory_bytes"}}};
  for (const boost::json::object& event : Events(result.output)) {
    const std::string name = event.at("event").as_string().c_str();
    for (const std::string& field : promised.at(name)) EXPECT_TRUE(event.contains(field)) << name << " " << field;
    EXPECT_EQ(event.size(), promised.at(name).size() + 1) << name << " has fields that are not promised";
  }
}

// Every option that the fake worker's model supports, none with its default value.
const std::vector<std::string> kEveryOption = {
    "--negative",         "",         "--prompt-2",         "a, b",  "--negative-2",      "leaf",
    "--true-cfg",         "4",        "--clip-skip",        "1",     "--skip-layers",     "9,7",
    "--skip-layer-scale", "3",        "--skip-layer-start", "0.125", "--skip-layer-stop", "0.5",
    "--original-size",    "1024x768", "--crop-top-left",    "16,32"};

std::vector<std::string> WithEveryOption(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), kEveryOption.begin(), kEveryOption.end());
  return arguments;
}

TEST_F(GenerateTest, RecordsEveryOptionInTheImage) {
  const Result result = Run(WithEveryOption({"generate", "x", "-o", "a.png"}));
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const absl::StatusOr<server::ImageParameters> parameters = server::ParseParameters(ReadImage("a.png").parameters);
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  const control::PromptOptions expected = {
      .prompt_2 = "a, b",
      .negative_prompt_2 = "leaf",
      .true_cfg_scale = 4,
      .clip_skip = 1,
      .skip_layers = {.layers = {9, 7}, .scale = 3, .start = 0.125, .stop = 0.5},
      .original_size = {.height = 768, .width = 1024, .crop_top = 16, .crop_left = 32}};
  EXPECT_EQ(parameters->options, expected);
  EXPECT_EQ(parameters->negative_prompt, "");
  EXPECT_EQ(Run({"replay", "a.png"}).exit_code, 0);  // the fake worker's pixels depend on all options
}

TEST_F(GenerateTest, ReportsTheOptionsThatWereSet) {
  const Result text = Run(WithEveryOption({"generate", "x", "--seed", "1"}));
  EXPECT_THAT(text.output, HasSubstr("6 steps, True CFG scale 4, Clip skip 1, Skip layers 9 7, Skip layer scale 3, "));
  const Result result = Run(WithEveryOption({"generate", "x", "--seed", "1", "--json"}));
  const boost::json::object event = EventOf(Events(result.output), "started");
  const boost::json::value expected = {{"prompt_2", "a, b"},
                                       {"negative_prompt_2", "leaf"},
                                       {"true_cfg_scale", 4.0},
                                       {"clip_skip", 1},
                                       {"skip_layers", {9, 7}},
                                       {"skip_layer_scale", 3.0},
                                       {"skip_layer_start", 0.125},
                                       {"skip_layer_stop", 0.5},
                                       {"original_width", 1024},
                                       {"original_height", 768},
                                       {"crop_top", 16},
                                       {"crop_left", 32}};
  EXPECT_EQ(boost::json::serialize(event.at("options")), boost::json::serialize(expected));
}

TEST_F(GenerateTest, RefusesAnOptionThatTheModelDoesNotReadWithCode2) {
  for (const std::vector<std::string>& option :
       {std::vector<std::string>{"--guidance-rescale", "0.5"}, {"--prompt-3", "x"}, {"--negative-3", "x"}}) {
    const Result result = Run({"generate", "x", option[0], option[1]});
    EXPECT_EQ(result.exit_code, 2) << option[0];
    EXPECT_THAT(result.errors, AllOf(HasSubstr(option[1]), HasSubstr("does not read it"),
                                     HasSubstr("prompt_2, true_cfg_scale, clip_skip, skip_layers, original_size")));
  }
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(GenerateTest, RefusesOptionsThatAreNotValidWithCode2) {
  const std::vector<std::vector<std::string>> cases = {
      {"--true-cfg", "nan", "true CFG scale is nan"},
      {"--true-cfg", "much", "true CFG scale is 'much'"},
      {"--clip-skip", "65", "the nearest is 64"},
      {"--skip-layers", "7,10", "skip layer is 10; valid values are 0 to 9"},
      {"--skip-layers", "7,", "commas"},
      {"--skip-layer-scale", "2", "skip layers are not given"},
      {"--original-size", "0x8", "original width is 0"},
      {"--original-size", "8x", "original size is '8x'"},
      {"--crop-top-left", "8", "TOP,LEFT"},
      {"--max-sequence-length", "49", "valid values are 1 to 48"},
      {"--text-encoders", "rank1", "did you mean 'rank0'?"},
      {"--autoencoder", "gpu", "rank0, cpu, unload"},
      {"--autoencoder", "sharded", "rank0, cpu, unload"},
      {"--prompt-cache", "1.5", "prompt cache (MiB) is '1.5'"},
      {"--prompt-cache", "1048577", "the nearest is 1048576"},
      {"--prompt-2", "", "empty"},
  };
  for (const std::vector<std::string>& wrong : cases) {
    const Result result = Run({"generate", "x", wrong[0], wrong[1]});
    EXPECT_EQ(result.exit_code, 2) << wrong[0];
    EXPECT_THAT(result.errors, HasSubstr(wrong[2])) << wrong[0];
  }
}

TEST_F(GenerateTest, WarnsThatTrueGuidanceIsNotUsedWithoutANegativePrompt) {
  const std::string warning = "true CFG scale 4 is not used";
  EXPECT_THAT(Run({"generate", "x", "--true-cfg", "4"}).errors, HasSubstr(warning));
  EXPECT_THAT(Run({"generate", "x", "--true-cfg", "4", "--negative", ""}).errors, Not(HasSubstr("not used")));
  EXPECT_THAT(Run({"generate", "x", "--true-cfg", "4", "--json"}).output, HasSubstr(warning));
}

TEST_F(GenerateTest, SaysWhichImagesHadTheirPromptInTheCache) {
  const std::vector<boost::json::object> events = Events(Run({"generate", "x", "-n", "2", "--json"}).output);
  std::vector<bool> cached;
  for (const boost::json::object& event : events) {
    if (event.at("event").as_string() == "started") cached.push_back(event.at("cached").as_bool());
  }
  EXPECT_THAT(cached, ElementsAre(false, true));
  EXPECT_THAT(Run({"generate", "x", "-n", "2"}).output, HasSubstr("6 steps, prompt from the cache, "));
  EXPECT_THAT(Run({"generate", "x", "-n", "2", "--prompt-cache", "0"}).output, Not(HasSubstr("cache")));
}

TEST_F(GenerateTest, RecordsPlacementsForAReplayToUse) {
  const std::vector<std::string> arguments = {"generate", "x",    "--text-encoders", "cpu", "--autoencoder", "unload",
                                              "-o",       "a.png"};
  ASSERT_EQ(Run(arguments).exit_code, 0);
  const boost::json::object again = EventOf(Events(Run({"replay", "a.png", "--json"}).output), "loaded");
  EXPECT_EQ(again.at("text_encoders").as_string(), "cpu");
  EXPECT_EQ(again.at("autoencoder").as_string(), "unload");
  const std::vector<std::string> other = {"replay", "a.png", "--json", "--autoencoder", "rank0"};
  EXPECT_EQ(EventOf(Events(Run(other).output), "loaded").at("autoencoder").as_string(), "rank0");
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

TEST_F(GenerateTest, TracesTheStagesOfEveryImage) {
  const Result result = Run({"generate", "red apple", "--count", "2", "--steps", "3", "--preview", "2", "--layout",
                             "cfg=2", "--certify", "off", "--trace", "trace.json"},
                            "step-time=5");
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(Read("trace.json"), Not(HasSubstr("red")));
  std::vector<std::string> stages, lanes;
  const boost::json::value events = boost::json::parse(Read("trace.json"));
  for (const boost::json::value& event : events.as_array()) {
    if (event.at("ph") == "M") lanes.emplace_back(event.at("args").at("name").as_string());
    if (event.at("ph") == "b" && event.at("id") == "generate/1") stages.emplace_back(event.at("name").as_string());
  }
  EXPECT_THAT(stages, ElementsAre("image", "encode", "step", "step", "preview", "step", "decode", "image encode"));
  EXPECT_THAT(lanes, ElementsAre("images", "group generate", "state", "encode", "steps", "decode", "rank 0", "rank 1"));
}

TEST_F(GenerateTest, WritesNoImageWhereTheTraceCannotBeWritten) {
  const Result result = Run({"generate", "red apple", "--trace", "/proc/absent/trace.json"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.errors, HasSubstr("/proc/absent"));
  EXPECT_THAT(Files(), ElementsAre());
}

}  // namespace
}  // namespace tessera
