#include "runtime/engine/loaded_adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/fields/field_error.h"
#include "control/parameters/adapter_use.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "control/protocol/job_replies.h"
#include "models/adapters/plan/adapter_files.h"
#include "models/families/families.h"
#include "models/loading/load_options.h"
#include "models/weights/safetensors_writer.h"
#include "runtime/engine/engine.h"
#include "tests/support/test_folder.h"

namespace tessera::runtime {
namespace {

class LoadedAdaptersTest : public testing::Test {
 protected:
  static models::AdaptableModel PixArt() {
    const auto folder = models::ModelFolder::Open("tests/golden/pipelines/pixart_sigma");
    const auto family = (*models::FindFamily(folder->class_name()))->load(*folder, {});
    return (*family)->adaptable();
  }
  static control::AdapterUse Use(const std::string& name, double scale = 1) {
    const std::string file = "tests/golden-inputs/adapters/" + name;
    return {.name = name, .scale = scale, .digest = models::AdapterDigest(file).value_or(""), .file = file};
  }

  const control::AdapterUse first_ = Use("pixart_sigma_metadata.safetensors"), second_ = Use("pixart_sigma_folder");
};

TEST_F(LoadedAdaptersTest, ReadsAFileOnceWhileThereIsRoom) {
  LoadedAdapters adapters(PixArt(), {}, /*is_flow=*/false);
  for (int i = 0; i < 3; ++i) {
    const std::vector<control::AdapterUse> uses = {first_, second_};
    const absl::StatusOr<models::SharedAdapters> sum = adapters.Sum(uses);
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_NE((*sum)->Of("transformer"), nullptr);
  }
  EXPECT_EQ(adapters.reads(), 2);
}

TEST_F(LoadedAdaptersTest, ForgetsTheLeastRecentlyUsedAndAJobKeepsItsOwn) {
  LoadedAdapters adapters(PixArt(), {}, /*is_flow=*/false, /*max_bytes=*/1);
  const absl::StatusOr<models::SharedAdapters> held = adapters.Sum({&first_, 1});
  ASSERT_TRUE(held.ok()) << held.status();
  const int64_t of_first = adapters.bytes();
  ASSERT_TRUE(adapters.Sum({&second_, 1}).ok());
  EXPECT_NE(adapters.bytes(), of_first);
  ASSERT_TRUE(adapters.Sum({&first_, 1}).ok());
  EXPECT_EQ(adapters.bytes(), of_first);
  EXPECT_EQ(adapters.reads(), 3);
  EXPECT_FALSE((*held)->Of("transformer")->empty());
}

TEST_F(LoadedAdaptersTest, SumsOfTheSameFilesAndScalesHaveOneKeyAndOthersNot) {
  LoadedAdapters adapters(PixArt(), {}, /*is_flow=*/false);
  const auto key = [&](double scale) {
    const control::AdapterUse use = Use("pixart_sigma_metadata.safetensors", scale);
    const absl::StatusOr<models::SharedAdapters> sum = adapters.Sum({&use, 1});
    return *sum == nullptr ? "" : (*sum)->key;
  };
  EXPECT_EQ(key(0.5), key(0.5));
  EXPECT_NE(key(0.5), key(0.25));
  EXPECT_EQ(key(0), "");
}

// Returns a copy of the adapter whose header states a prediction type, with an additional tensor named `embedding`
// unless that is empty.
control::AdapterUse TrainedTo(const std::string& prediction_type, const TestFolder& folder,
                              const std::string& embedding = "") {
  const auto file = models::SafetensorsFile::Open("tests/golden-inputs/adapters/pixart_sigma_metadata.safetensors", "");
  std::map<std::string, std::string> header = file->metadata();
  header[models::kPredictionTypeKey] = prediction_type;
  std::vector<models::TensorEntry> entries;
  for (const models::StoredTensor& tensor : file->tensors()) {
    entries.push_back({.name = tensor.name, .type = tensor.type, .shape = tensor.shape});
  }
  if (!embedding.empty()) entries.push_back({.name = embedding, .type = models::StoredType::kF32, .shape = {1}});
  const std::string path = folder / (prediction_type + ".safetensors");
  auto writer = models::SafetensorsWriter::Create(path, entries, header);
  for (const models::StoredTensor& tensor : file->tensors()) {
    std::vector<std::byte> bytes(tensor.bytes());
    EXPECT_TRUE(file->Read(tensor, 0, bytes).ok());
    EXPECT_TRUE(writer->Append(tensor.name, bytes).ok());
  }
  if (!embedding.empty()) {
    EXPECT_TRUE(writer->Append(embedding, std::vector<std::byte>(sizeof(float))).ok());
  }
  EXPECT_TRUE(writer->Finish().ok());
  return {.name = prediction_type, .digest = models::AdapterDigest(path).value_or(""), .file = path};
}

TEST_F(LoadedAdaptersTest, TheSumPredictsWhatItsAdaptersWereTrainedToAndTheyMustAgree) {
  const TestFolder folder;
  control::AdapterUse noise = TrainedTo("epsilon", folder), velocity = TrainedTo("v_prediction", folder);
  LoadedAdapters adapters(PixArt(), {}, /*is_flow=*/false);
  const auto sum = [&](const std::vector<control::AdapterUse>& uses) { return adapters.Sum(uses); };
  EXPECT_EQ((*sum({first_}))->prediction_type, "");
  EXPECT_EQ((*sum({velocity}))->prediction_type, "v_prediction");
  EXPECT_EQ((*sum({first_, velocity}))->prediction_type, "v_prediction");
  const absl::Status disagrees = sum({velocity, first_, noise}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(disagrees)) << disagrees;
  EXPECT_EQ(base::FieldOf(disagrees), "loras");
  EXPECT_THAT(std::string(disagrees.message()),
              testing::HasSubstr("the adapter \"epsilon\": it was trained to predict \"epsilon\", and the adapter "
                                 "\"v_prediction\" to predict \"v_prediction\""));
  // At scale 0 the adapter is not used at all.
  noise.scale = 0;
  EXPECT_EQ((*sum({velocity, noise}))->prediction_type, "v_prediction");
}

TEST_F(LoadedAdaptersTest, RefusesWhatTheModelCannotPredict) {
  const TestFolder folder;
  const auto error = [&](const std::string& prediction_type, bool is_flow) {
    LoadedAdapters adapters(PixArt(), {}, is_flow);
    const control::AdapterUse use = TrainedTo(prediction_type, folder);
    return adapters.Sum({&use, 1}).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(error("v_prediction", true)));
  EXPECT_THAT(std::string(error("v_prediction", true).message()), testing::HasSubstr("this model predicts a flow"));
  EXPECT_THAT(std::string(error("flow_prediction", false).message()), testing::HasSubstr("\"flow_prediction\""));
  EXPECT_THAT(std::string(error("x0", false).message()), testing::HasSubstr("\"x0\""));
  EXPECT_TRUE(error("flow_prediction", true).ok());
}

TEST_F(LoadedAdaptersTest, EmbeddingsThatAreLeftOutAreAWarningOfTheJob) {
  const TestFolder folder;
  const control::AdapterUse with = TrainedTo("epsilon", folder, "emb_params");
  Engine engine(WorkerRank{});
  ASSERT_TRUE(engine.Load({.model = "tests/golden/pipelines/pixart_sigma"}).ok());
  const absl::StatusOr<control::JobStarted> started =
      engine.StartJob(1, {.prompt = "a", .height = 64, .width = 64, .steps = 1, .adapters = {with, first_}});
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_THAT(started->warnings,
              testing::ElementsAre(testing::AllOf(testing::HasSubstr("the adapter \"epsilon\""),
                                                  testing::HasSubstr("embeddings, which are not used: emb_params"))));
}

}  // namespace
}  // namespace tessera::runtime
