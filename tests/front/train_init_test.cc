// Tests `tessera train init` with the fake worker's model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "control/training/config.h"
#include "tests/front/command_line_fixture.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TrainInitTest : public CommandLineTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(WorkFolder() + "/photos");
    WritePicture("photos/a.png", 64, 64);
    WritePicture("photos/b.jpg", 160, 96);
    Write("photos/a.txt", "a square");
  }

  void WritePicture(const std::string& name, int width, int height) {
    const control::Frames image = {
        .width = width, .height = height, .bytes = std::vector<uint8_t>(size_t{3} * width * height, 128)};
    const absl::StatusOr<server::ImageFormat> format = server::FormatFromPath(name);
    ASSERT_TRUE(format.ok()) << format.status();
    const absl::StatusOr<std::string> bytes = server::EncodeImage(image, *format, {});
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    Write(name, *bytes);
  }
};

TEST_F(TrainInitTest, WritesAConfigurationThatCanBeRead) {
  Write("photos/broken.png", "no picture");
  const Result result = Run({"train", "init", "--images", "photos", "--trigger-word", "sks", "--rank", "4"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("1 image is left out: photos/broken.png"),
                    HasSubstr("1 image without a caption: photos/b.jpg"), HasSubstr("train.yaml: 2 images in ")));
  const std::string text = Read("train.yaml");
  const absl::StatusOr<control::TrainConfig> config = control::ParseTrainConfig(text);
  ASSERT_TRUE(config.ok()) << config.status() << text;
  EXPECT_EQ(config->trigger_word, "sks");
  EXPECT_EQ(config->network.linear, 4);
  EXPECT_EQ(config->network.linear_alpha, 4);
  EXPECT_EQ(config->datasets[0].folder_path, "photos");
  EXPECT_THAT(text, AllOf(HasSubstr("Found here: 2 images. Buckets:\n"), HasSubstr("Predicted memory of a rank: ")));
}

TEST_F(TrainInitTest, WritesToStandardOutputOnRequest) {
  const Result result = Run({"train", "init", "--images", "photos", "--output", "-", "--type", "full"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const absl::StatusOr<control::TrainConfig> config = control::ParseTrainConfig(result.output);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->network.type, control::NetworkType::kFull);
  EXPECT_THAT(Files(), ElementsAre("photos"));
}

TEST_F(TrainInitTest, AFileThatIsThereIsNeverOverwritten) {
  Write("mine.yaml", "precious");
  const Result result = Run({"train", "init", "--images", "photos", "-o", "mine.yaml"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("--output is 'mine.yaml', which exists; name a new file"));
  EXPECT_EQ(Read("mine.yaml"), "precious");
}

TEST_F(TrainInitTest, AMistakeNamesTheOptionItsValueAndWhatIsValid) {
  for (const auto& [arguments, problem] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"train", "innit"}, "tessera train init writes"},
           {{"train", "innit", "--rank", "4"}, "--rank is for train init"},
           {{"train", "init", "--images", "photos", "--resume", "latest"}, "--resume is for a run"},
           {{"train", "init", "--images", "photos", "--steps", "0"}, "steps is 0"},
           {{"train", "init"}, "--images is missing; it must be a folder with images"},
           {{"train", "init", "--images", "nowhere"}, "folder_path is 'nowhere', which cannot be read: No such file"},
           {{"train", "init", "--images", "photos", "--rank", "0"}, "--rank is '0'; valid values are 1 to 4096"},
           {{"train", "init", "--images", "photos", "--type", "lroa"},
            "--type 'lroa' is unknown; valid values are lora, full; did you mean 'lora'?"}}) {
    const Result result = Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << problem;
    EXPECT_THAT(result.errors, HasSubstr(problem));
    EXPECT_THAT(result.output, IsEmpty());
  }
  EXPECT_THAT(Files(), ElementsAre("photos"));
}

}  // namespace
}  // namespace tessera
