// Tests `tessera train init` with the fake worker's model, and `tessera train import`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "control/training/config.h"
#include "server/image/image_file.h"
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
           {{"train", "innit", "--control", "before"}, "--control is for train init"},
           {{"train", "init", "--images", "photos", "--control", "photos"},
            "datasets[0].control_path is set, and the model looks at no pictures"},
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

TEST_F(TrainInitTest, AConfigurationOfAnotherProgramIsImported) {
  Write("lora.yaml",
        "config:\n  name: cat\n  process:\n    - model: {name_or_path: emoji}\n      network: {type: lora, linear: 4}\n"
        "      datasets: [{folder_path: photos, default_caption: a}]\n      train: {steps: 3, optimizer: prodigy}\n");
  const Result result = Run({"train", "import", "lora.yaml"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("warning: config.process[0].train.optimizer is \"prodigy\": AdamW is used"),
                    HasSubstr("train.yaml: from lora.yaml, with 3 notes")));
  const std::string text = Read("train.yaml");
  EXPECT_THAT(text,
              AllOf(HasSubstr("# Imported from lora.yaml, a configuration of ai-toolkit.\n"),
                    HasSubstr("# - config.process[0].datasets[0].default_caption is \"a\": there is no equivalent\n")));
  const absl::StatusOr<control::TrainConfig> config = control::ParseTrainConfig(text);
  ASSERT_TRUE(config.ok()) << config.status() << text;
  EXPECT_EQ(config->model, "emoji");
  EXPECT_EQ(config->output, "output/cat");
  EXPECT_EQ(config->network.linear, 4);
  const Result plan = Run({"train", "train.yaml", "--dry-run"});
  EXPECT_EQ(plan.exit_code, 0) << plan.errors;
}

TEST_F(TrainInitTest, AFileOfKohyaNamesOthersFromItsFolder) {
  std::filesystem::create_directory(WorkFolder() + "/kohya");
  Write("kohya/images.toml", "[[datasets]]\n[[datasets.subsets]]\nimage_dir = \"photos\"\n");
  Write("kohya/config.toml", "pretrained_model_name_or_path = \"a\"\ndataset_config = \"images.toml\"\n");
  const Result result = Run({"train", "import", "kohya/config.toml", "--model", "emoji", "-o", "-"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const absl::StatusOr<control::TrainConfig> config = control::ParseTrainConfig(result.output);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model, "emoji");
  ASSERT_EQ(config->datasets.size(), 1u);
}

TEST_F(TrainInitTest, AMistakeOfAnImportNamesItsReason) {
  Write("ours.yaml", "model: emoji\n");
  Write("mine.yaml", "precious");
  for (const auto& [arguments, problem] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"train", "import"}, "FILE is missing; it must be a configuration of ai-toolkit"},
           {{"train", "import", "absent.yaml"}, "absent.yaml"},
           {{"train", "import", "ours.yaml"}, "ours.yaml: it is no configuration of ai-toolkit"},
           {{"train", "import", "ours.yaml", "-o", "mine.yaml"}, "--output is 'mine.yaml', which exists"},
           {{"train", "import", "ours.yaml", "--rank", "4"}, "--rank is for another action, not for train import"},
           {{"train", "import", "ours.yaml", "--json"}, "--json is for a run, not for train import"},
           {{"train", "ours.yaml", "other.yaml"}, "FILE is for train import; a run has one configuration"}}) {
    const Result result = Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << problem;
    EXPECT_THAT(result.errors, HasSubstr(problem));
  }
  EXPECT_EQ(Read("mine.yaml"), "precious");
}

}  // namespace
}  // namespace tessera
