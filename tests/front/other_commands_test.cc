// Tests the commands `tessera` replay, inspect, models and bench, and the help texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "server/calls/api_keys.h"
#include "server/image/image_file.h"
#include "tests/front/command_line_fixture.h"
#include "tests/support/safetensors_bytes.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ReplayTest : public CommandLineTest {
 protected:
  void MakeImage(const std::string& name) {
    ASSERT_EQ(Run({"generate", "red apple", "--seed", "4", "--steps", "3", "--guidance", "1.5", "-o", name}).exit_code,
              0);
  }
};

TEST_F(ReplayTest, FindsEveryFormatIdenticalToTheLastByte) {
  for (const char* name : {"a.png", "a.jpg", "a.webp"}) {
    MakeImage(name);
    const Result result = Run({"replay", name});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("identical: every byte"));
  }
}

TEST_F(ReplayTest, FindsTheAdaptersOfAnImageByTheirDigestsAndNamesOneThatIsMissing) {
  Write("style.safetensors", OneTensor("style"));
  Write("renamed.safetensors", OneTensor("style"));
  Write("other.safetensors", OneTensor("other"));
  ASSERT_EQ(Run({"generate", "a", "--seed", "4", "--lora", "style.safetensors:0.5", "-o", "a.png"}).exit_code, 0);
  ASSERT_EQ(Run({"generate", "a", "--seed", "4", "-o", "plain.png"}).exit_code, 0);
  EXPECT_NE(Read("a.png"), Read("plain.png"));
  const std::vector<boost::json::object> events = Events(Run({"inspect", "a.png", "--json"}).output);
  ASSERT_EQ(events.size(), 1u);
  const boost::json::array& loras = events[0].at("parameters").as_object().at("loras").as_array();
  ASSERT_EQ(loras.size(), 1u);
  EXPECT_EQ(loras[0].as_object().at("name").as_string(), "style");
  EXPECT_EQ(loras[0].as_object().at("scale").to_number<double>(), 0.5);

  // A tag in the prompt gives the scale, too.
  ASSERT_EQ(
      Run({"generate", "a <lora:style:0.5>", "--seed", "4", "--lora", "style.safetensors", "-o", "tag.png"}).exit_code,
      0);
  EXPECT_EQ(Read("tag.png"), Read("a.png"));

  EXPECT_THAT(Run({"replay", "a.png", "--lora", "renamed.safetensors"}).output, HasSubstr("identical: every byte"));
  const Result missing = Run({"replay", "a.png"});
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_THAT(missing.errors, HasSubstr("was made with the adapter 'style'"));
  EXPECT_THAT(Run({"replay", "a.png", "--lora", "other.safetensors"}).errors,
              HasSubstr("is not one that the image was made with"));
  EXPECT_EQ(Run({"generate", "a", "--lora", "a.png", "-o", "b.png"}).exit_code, 2);
}

TEST_F(ReplayTest, SaysHowManyPixelsDifferAndByHowMuchAndEndsWithCode7) {
  MakeImage("a.png");
  const Result result = Run({"replay", "a.png"}, "salt=1");
  EXPECT_EQ(result.exit_code, 7) << result.errors;
  // Every byte is one larger, and 255 wraps to 0.
  EXPECT_THAT(result.output, HasSubstr("differs: 4096 of 4096 pixels, by at most 255 of 255"));
}

TEST_F(ReplayTest, GivesItsVerdictAsAJsonEvent) {
  MakeImage("a.png");
  const std::vector<boost::json::object> events = Events(Run({"replay", "a.png", "--json"}).output);
  ASSERT_GE(events.size(), 2u);
  const boost::json::object& verdict = events[events.size() - 2];
  EXPECT_EQ(verdict.at("event").as_string(), "replay");
  EXPECT_TRUE(verdict.at("identical").as_bool());
  EXPECT_TRUE(verdict.at("same_bytes").as_bool());
  EXPECT_EQ(verdict.at("different_pixels").as_int64(), 0);
}

TEST_F(ReplayTest, WritesTheImageMadeAgainToTheGivenFile) {
  MakeImage("a.png");
  ASSERT_EQ(Run({"replay", "a.png", "-o", "again.png"}).exit_code, 0);
  EXPECT_EQ(Read("again.png"), Read("a.png"));
}

TEST_F(ReplayTest, FindsTheModelByItsRecordedNameAmongTheKnownOnes) {
  std::filesystem::rename(ModelsFolder() + "/tiny", ModelsFolder() + "/other");
  ASSERT_EQ(Run({"generate", "x", "-m", ModelsFolder() + "/other", "-o", "a.png"}).exit_code, 0);
  EXPECT_EQ(Run({"replay", "a.png"}).exit_code, 3);
  EXPECT_EQ(Run({"replay", "a.png", "--models-dir", ModelsFolder()}).exit_code, 0);
}

// Encodes `image` again with `from` in its parameters replaced by `to`.
void RewriteParameters(const server::DecodedImage& image, const std::string& from, const std::string& to,
                       std::string* bytes) {
  std::string text = image.parameters;
  ASSERT_NE(text.find(from), std::string::npos) << text;
  text.replace(text.find(from), from.size(), to);
  const absl::StatusOr<std::string> written = server::EncodeImage(image.image, image.format, {.parameters = text});
  ASSERT_TRUE(written.ok()) << written.status();
  *bytes = *written;
}

TEST_F(ReplayTest, UsesTheRecordedLayoutAndNamesItInTheVerdict) {
  ASSERT_EQ(Run({"generate", "x", "--layout", "cfg=2", "--certify", "off", "-o", "a.png"}).exit_code, 0);
  const Result again = Run({"replay", "a.png", "--certify", "off"});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_THAT(again.output, HasSubstr("identical: every byte of the file\n"
                                      "made both times with layout cfg=2, instruction set baseline\n"));
  const Result serial = Run({"replay", "a.png", "--layout", "serial"});
  EXPECT_EQ(serial.exit_code, 0) << serial.errors;
  EXPECT_THAT(serial.output,
              HasSubstr("identical: every pixel; the file differs in its other parts\n"
                        "made first with layout cfg=2, instruction set baseline; made again with layout serial, "
                        "instruction set baseline\n"));
}

TEST_F(ReplayTest, ARecordedLayoutThatIsNotPossibleHereIsReplacedByOneRankWithAWarning) {
  MakeImage("a.png");
  std::string bytes;
  for (const char* layout : {"ulysses=7", "no-layout", "\"\\u001b[31mred\""}) {
    RewriteParameters(ReadImage("a.png"), "Layout: serial", absl::StrCat("Layout: ", layout), &bytes);
    Write("b.png", bytes);
    const Result result = Run({"replay", "b.png", "--certify", "off"});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("which is not possible here, so one rank makes it again")) << layout;
    EXPECT_THAT(result.output, HasSubstr("made again with layout serial")) << layout;
    EXPECT_EQ((result.output + result.errors).find('\x1b'), std::string::npos) << layout;
  }
}

TEST_F(ReplayTest, AnotherInstructionSetIsNamedInTheVerdict) {
  MakeImage("a.png");
  std::string bytes;
  RewriteParameters(ReadImage("a.png"), "Instruction set: baseline", "Instruction set: avx2", &bytes);
  Write("b.png", bytes);
  const Result result = Run({"replay", "b.png"}, "salt=1");
  EXPECT_EQ(result.exit_code, 7) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("made first with layout serial, instruction set avx2; made again with layout "
                                       "serial, instruction set baseline\n"));
  const std::vector<boost::json::object> events = Events(Run({"replay", "b.png", "--json"}).output);
  ASSERT_GE(events.size(), 2u);
  const boost::json::object& verdict = events[events.size() - 2];
  EXPECT_EQ(verdict.at("layout"), "serial");
  EXPECT_EQ(verdict.at("recorded_layout"), "serial");
  EXPECT_EQ(verdict.at("instruction_set"), "baseline");
  EXPECT_EQ(verdict.at("recorded_instruction_set"), "avx2");
}

TEST_F(ReplayTest, AFileFromBeforeLayoutsWereRecordedIsReplayedOnOneRank) {
  MakeImage("a.png");
  std::string bytes;
  RewriteParameters(ReadImage("a.png"), "Layout: serial, Instruction set: baseline, ", "", &bytes);
  Write("b.png", bytes);
  const Result result = Run({"replay", "b.png"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("made first with a layout and an instruction set that the file does not name"));
}

TEST_F(ReplayTest, RefusesFilesWithoutParameters) {
  const absl::StatusOr<std::string> plain =
      server::EncodeImage({.width = 1, .height = 1, .bytes = {1, 2, 3}}, server::ImageFormat::kPng, {});
  ASSERT_TRUE(plain.ok());
  Write("plain.png", *plain);
  Write("cut.png", plain->substr(0, plain->size() / 2));
  for (const char* name : {"plain.png", "cut.png", "missing.png"}) {
    const Result result = Run({"replay", name});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_THAT(result.errors, HasSubstr(name));
  }
}

using InspectTest = CommandLineTest;

TEST_F(InspectTest, ShowsWhatAModelIsAndTakes) {
  const Result result = Run({"inspect"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("FakePipeline"), HasSubstr("0123456789abcdef"),
                    HasSubstr("multiples of 8 from 8 to 2048"), HasSubstr("ddim, euler, dpm++"),
                    HasSubstr("24 tokens, at most 48"), HasSubstr("prompt_2, true_cfg_scale, clip_skip")));
}

TEST_F(InspectTest, ShowsAModelAsOneJsonObject) {
  const std::vector<boost::json::object> events = Events(Run({"inspect", ModelsFolder() + "/tiny", "--json"}).output);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].at("family").as_string(), "fake");
  EXPECT_EQ(events[0].at("max_sequence_length").as_int64(), 48);
  EXPECT_EQ(events[0].at("options").as_array().size(), 5u);
  EXPECT_EQ(events[0].at("components").as_array()[0].as_object().at("parameters").as_int64(), 12);
}

TEST_F(InspectTest, ShowsTheParametersOfAnImageWithoutAWorker) {
  ASSERT_EQ(Run({"generate", "red apple", "--seed", "4", "-o", "a.jpg"}).exit_code, 0);
  const Result text = Run({"inspect", "a.jpg"}, "exit=1");
  EXPECT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_THAT(text.output, AllOf(HasSubstr("JPEG"), HasSubstr("64x64"), HasSubstr("red apple"), HasSubstr("Seed: 4")));
  const std::vector<boost::json::object> events = Events(Run({"inspect", "a.jpg", "--json"}, "exit=1").output);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].at("parameters").as_object().at("seed").as_int64(), 4);
}

TEST_F(InspectTest, ShowsTheOptionsOfAnImage) {
  ASSERT_EQ(Run({"generate", "x", "--clip-skip", "2", "-o", "a.png"}).exit_code, 0);
  const std::vector<boost::json::object> events = Events(Run({"inspect", "a.png", "--json"}, "exit=1").output);
  ASSERT_EQ(events.size(), 1u);
  const boost::json::object& parameters = events[0].at("parameters").as_object();
  EXPECT_EQ(boost::json::serialize(parameters.at("options")), R"({"clip_skip":2})");
  EXPECT_TRUE(parameters.at("negative_prompt").is_null());
}

TEST_F(InspectTest, EndsWithCode3ForAModelAndWithCode2ForAnImageThatCannotBeRead) {
  Write("cut.png", "\x89PNG\r\n\x1A\n");
  EXPECT_EQ(Run({"inspect", "cut.png"}).exit_code, 2);
  EXPECT_EQ(Run({"inspect", "/nonexistent"}).exit_code, 3);
}

// A file of the golden set of files that are refused as models.
std::string Refused(const std::string& name) {
  return std::filesystem::absolute("tests/golden-files/refused/flux_tiny/" + name).string();
}

TEST_F(InspectTest, EndsWithCode3ForAFileOfWhichNothingCanBeRead) {
  Write("notes.txt", "a list of words");
  Write("notes.safetensors", "a list of words");
  Write("noise.gguf", std::string("\xD1\x00\x07\xFF\x80\x01\x7F\x00\x33\x10", 10));
  Write("foreign.safetensors", OneTensor("strange"));
  for (const std::string& file : {std::string("notes.txt"), std::string("notes.safetensors"), std::string("noise.gguf"),
                                  std::string("foreign.safetensors"), Refused("sdxl.safetensors"),
                                  Refused("nvfp4.safetensors"), Refused("gguf_architecture.gguf")}) {
    const Result result = Run({"inspect", file}, "exit=1");
    EXPECT_EQ(result.exit_code, 3) << file << ": " << result.output;
    EXPECT_THAT(result.errors, HasSubstr("tessera: ")) << file;
    EXPECT_THAT(result.output, Not(HasSubstr("problem"))) << file << ": the error says it";
  }
  // What is known of the file is reported nevertheless.
  const Result json = Run({"inspect", "foreign.safetensors", "--json"}, "exit=1");
  EXPECT_EQ(json.exit_code, 3);
  const std::vector<boost::json::object> events = Events(json.output);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].at("event"), "weights");
  EXPECT_EQ(events[0].at("unknown").as_array().size(), 1u);
  EXPECT_EQ(events[1].at("event"), "error");
  EXPECT_EQ(events[1].at("exit_code"), 3);
  EXPECT_EQ(events[1].at("message"), events[0].at("problem"));
}

TEST_F(InspectTest, EndsWithCode0ForAnAdapterAPartAndATransformerWhoseOtherPartsAreMissing) {
  for (const char* name : {"lora.safetensors", "only_vae.safetensors", "missing_bias.safetensors"}) {
    const Result result = Run({"inspect", Refused(name)}, "exit=1");
    EXPECT_EQ(result.exit_code, 0) << name << ": " << result.errors;
    EXPECT_THAT(result.output, HasSubstr("problem     ")) << name;
    EXPECT_EQ(result.errors, "") << name;
  }
}

using ModelsTest = CommandLineTest;

TEST_F(ModelsTest, ListsTheModelsOfTheFoldersNamed) {
  std::filesystem::create_directories(ModelsFolder() + "/not-a-model");
  const Result result = Run({"models", "--models-dir", ModelsFolder(), "--json"});
  EXPECT_EQ(result.exit_code, 0);
  std::vector<std::string> names;
  for (const boost::json::object& event : Events(result.output)) {
    if (event.at("event") == "model" && !event.at("embedded").as_bool())
      names.emplace_back(event.at("name").as_string().c_str());
  }
  EXPECT_THAT(names, ElementsAre("tiny"));
}

TEST_F(ModelsTest, ListsThePublishedModelsWithSizeLicenceUseAndLogin) {
  std::map<std::string, boost::json::object> published;
  for (const boost::json::object& event : Events(Run({"models", "--json"}).output)) {
    if (event.at("event") == "published_model") published[event.at("name").as_string().c_str()] = event;
  }
  const boost::json::object& flux = published["black-forest-labs/FLUX.1-dev"];
  EXPECT_EQ(flux.at("commercial_use"), "no");
  EXPECT_EQ(flux.at("login"), true);
  EXPECT_EQ(flux.at("here"), false);
  EXPECT_GT(flux.at("about_bytes").as_int64(), 30'000'000'000);
  EXPECT_THAT(Run({"models"}).output, HasSubstr("FLUX.1-schnell"));
}

TEST_F(ModelsTest, EveryCommandRefusesAFolderOfModelsThatIsNotThere) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"models"},
                                             {"generate", "x"},
                                             {"inspect"},
                                             {"bench"},
                                             {"replay", "a.png"},
                                             {"verify", "--layout", "cfg=2"},
                                             {"layouts", "--ranks", "2"},
                                             {"plan", "--gpus", "2", "--link", "pcie"},
                                             {"serve"},
                                             {"doctor"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--models-dir", ModelsFolder() + ":absent"});
    const Result result = Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << command[0];
    EXPECT_THAT(result.errors, HasSubstr("there is no folder 'absent'")) << command[0];
  }
}

using BenchTest = CommandLineTest;

TEST_F(BenchTest, GivesTheWorkersOwnTimesAndItsPeakMemory) {
  const Result result = Run({"bench", "--repeat", "2", "--steps", "3", "--json"},
                            "load-time=250 encode-time=125 step-time=50 decode-time=62");
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const std::vector<boost::json::object> events = Events(result.output);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_GE(events[0].at("load_seconds").as_double(), 0.25);
  EXPECT_GE(events[0].at("text_seconds").as_double(), 0.125);
  EXPECT_GE(events[0].at("step_seconds_median").as_double(), 0.05);
  EXPECT_GE(events[0].at("decode_seconds").as_double(), 0.062);
  EXPECT_GT(events[0].at("peak_memory_bytes").as_int64(), 1 << 20);
}

TEST_F(BenchTest, MakesImagesOfItsPrompt) {
  EXPECT_EQ(Run({"bench", "--repeat=1", "--prompt=a cat"}).exit_code, 0);
  const Result result = Run({"bench", "--repeat=1", "--prompt=a \xff cat"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("prompt"));
}

TEST_F(BenchTest, TimesTheCacheOnRequest) {
  const Result result = Run({"bench", "--repeat", "1", "--prompt-cache", "1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(Events(result.output)[0].at("text_seconds").as_double(), 0);
}

TEST_F(BenchTest, MakesSeveralImagesAtOnceOnRequest) {
  const Result result = Run({"bench", "--repeat", "2", "--batch", "3", "--steps", "4", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const boost::json::object figures = Events(result.output).at(0);
  EXPECT_EQ(figures.at("batch").as_int64(), 3);
  EXPECT_EQ(figures.at("images").as_int64(), 6);
  EXPECT_GT(figures.at("images_per_minute").as_double(), 0);
}

TEST_F(BenchTest, RefusesToMeasureNothing) {
  EXPECT_EQ(Run({"bench", "--repeat", "0"}).exit_code, 2);
  EXPECT_EQ(Run({"bench", "--batch", "0"}).exit_code, 2);
}

using KeysTest = CommandLineTest;

TEST_F(KeysTest, MakesASecretThatTheServerKnowsByTheLine) {
  const std::vector<boost::json::object> events =
      Events(Run({"keys", "render-farm", "--requests-per-minute", "60", "--queued-jobs", "20",
                  "--queued-device-seconds", "1234567.125", "--share", "2.5", "--json"})
                 .output);
  ASSERT_EQ(events.size(), 1u);
  const std::string secret(events[0].at("secret").as_string().c_str());
  Write("keys.txt", std::string(events[0].at("line").as_string().c_str()) + "\n");
  const absl::StatusOr<std::unique_ptr<server::ApiKeys>> keys =
      server::ApiKeys::Load(WorkFolder() + "/keys.txt", nullptr);
  ASSERT_TRUE(keys.ok()) << keys.status();
  const std::optional<server::ApiKey> key = (*keys)->Find(secret);
  ASSERT_TRUE(key.has_value());
  EXPECT_EQ(key->name, "render-farm");
  EXPECT_EQ(key->limits,
            (server::KeyLimits{.requests_per_minute = 60, .queued_jobs = 20, .queued_device_seconds = 1234567.125}));
  EXPECT_EQ(key->share, 2.5);
  EXPECT_FALSE((*keys)->Find(secret.substr(0, secret.size() - 1)).has_value());
  EXPECT_FALSE((*keys)->Find("").has_value());
}

TEST_F(KeysTest, MakesAnotherSecretEveryTimeAndKeepsItOutOfTheLine) {
  const Result first = Run({"keys", "a"}), second = Run({"keys", "a"});
  EXPECT_EQ(first.exit_code, 0) << first.errors;
  EXPECT_NE(first.output, second.output);
  EXPECT_THAT(first.output, ::testing::ContainsRegex("\n  sk-tessera-[0-9a-f]{64}\n"));
  EXPECT_THAT(first.output, ::testing::ContainsRegex("\n  a sha256:[0-9a-f]{32}:[0-9a-f]{64}\n"));
  EXPECT_THAT(Files(), ElementsAre());
}

TEST_F(KeysTest, RefusesNamesAndLimitsThatTheServerWouldRefuse) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"keys"},
           {"keys", "a b"},
           {"keys", "anonymous"},
           {"keys", "a", "--queued-jobs", "0"},
           {"keys", "a", "--queued-jobs", "1.5"},
           {"keys", "a", "--requests-per-minute", "many"},
           {"keys", "a", "--queued-device-seconds", "nan"},
           {"keys", "a", "--queued-device-seconds", "-1"},
       }) {
    const Result result = Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_EQ(result.output, "");
  }
  EXPECT_THAT(Run({"keys", "a", "--queued-jobs", "0"}).errors,
              HasSubstr("queued_jobs is '0'; it must be a number above 0"));
}

using HelpTest = CommandLineTest;

TEST_F(HelpTest, NamesEveryCommandAndExitCode) {
  const Result result = Run({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* text : {"generate", "inspect", "replay", "models", "bench", "keys", "130"}) {
    EXPECT_THAT(result.output, HasSubstr(text));
  }
}

TEST_F(HelpTest, GivesTheVersion) {
  const Result result = Run({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, ::testing::MatchesRegex("tessera [0-9.]+\n"));
}

TEST_F(HelpTest, EndsWithCode2WithoutACommand) {
  EXPECT_EQ(Run({}).exit_code, 2);
  EXPECT_EQ(Run({"paint"}).exit_code, 2);
  EXPECT_THAT(Run({}).errors, AllOf(HasSubstr("generate"), HasSubstr("pull"), HasSubstr("serve")));
}

TEST_F(HelpTest, NamesWhatIsUnknownAndWhatMayBeMeant) {
  const struct {
    std::vector<std::string> arguments;
    std::string says;
  } kCases[] = {
      {{"genrate", "x"}, "tessera: unknown command 'genrate'; did you mean 'generate'?\n"},
      {{"xyzzy"}, "tessera: unknown command 'xyzzy'\n"},
      {{"run", "flux"}, "tessera: unknown command 'run'; make an image with 'tessera generate'"},
      {{"list"}, "tessera: unknown command 'list'; 'tessera models' lists the models"},
      {{"rm", "flux"}, "tessera: unknown command 'rm'; delete the model's folder, which 'tessera models' lists"},
      {{"generate", "x", "--stpes", "4"}, "tessera generate: unknown option '--stpes'; did you mean '--steps'?\n"},
      // The argument after an unknown option counts as the prompt, so there seem to be two prompts.
      {{"generate", "--gidance", "4", "red apple"}, "unknown option '--gidance'; did you mean '--guidance'?\n"},
      {{"generate", "x", "--seeed=4"}, "unknown option '--seeed'; did you mean '--seed'?\n"},
      {{"bench", "--no-such-thing-at-all"}, "tessera bench: unknown option '--no-such-thing-at-all'\n"},
      {{"replay", "--imagefile"}, "unknown option '--imagefile'"},
      {{"generate", "red", "apple"}, "unexpected argument 'apple'; put a text of several words in quotation marks"},
  };
  for (const auto& [arguments, says] : kCases) {
    const Result result = Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << says;
    EXPECT_THAT(result.errors, HasSubstr(says));
    EXPECT_EQ(result.output, "");
  }
}

// Uses a shell for its redirections. A command whose output is lost must report that instead of success.
class LostOutputTest : public CommandLineTest {
 protected:
  static int CodeOf(const std::string& command) {
    const int status = std::system(absl::StrCat("'", TESSERA_EXECUTABLE, "' ", command).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST_F(LostOutputTest, EndsEveryCommandWithCode5) {
  for (const char* command : {"keys bob", "keys bob --json", "--version", "--help", "keys --help", "completion bash",
                              "manual", "models", "models --json", "serve --print-config"}) {
    EXPECT_EQ(CodeOf(absl::StrCat(command, " >/dev/null")), 0) << command;
    EXPECT_EQ(CodeOf(absl::StrCat(command, " >/dev/full 2>", WorkFolder(), "/errors")), 5) << command;
    EXPECT_THAT(Read("errors"), HasSubstr("standard output cannot be written")) << command;
    EXPECT_EQ(CodeOf(absl::StrCat(command, " >&- 2>&-")), 5) << command;
  }
}

}  // namespace
}  // namespace tessera
