// A model made of single files under their authors' names makes the latents of the folder that they were made from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "control/protocol/job_replies.h"
#include "models/keymaps/key_map.h"
#include "models/weights/model_folder.h"
#include "models/weights/safetensors_writer.h"
#include "runtime/engine/engine.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/test_folder.h"

namespace tessera::runtime {
namespace {

using models::KeyMap;
using models::KeyOperation;
using models::MappedKey;

// A tensor with its bytes.
struct Stored {
  models::StoredType type = models::StoredType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

// Writes the file's tensor of a key: the inverse of what a reader does.
Stored InFile(const MappedKey& key, const std::map<std::string, Stored>& parameters) {
  Stored made = parameters.at(key.parameters.front());
  for (size_t i = 1; i < key.parameters.size(); ++i) {
    const Stored& next = parameters.at(key.parameters[i]);
    made.shape[0] += next.shape[0];
    made.bytes.insert(made.bytes.end(), next.bytes.begin(), next.bytes.end());
  }
  if (key.operation == KeyOperation::kSwap) {
    std::rotate(made.bytes.begin(), made.bytes.begin() + static_cast<std::ptrdiff_t>(made.bytes.size() / 2),
                made.bytes.end());
  }
  if (key.operation == KeyOperation::kConv) made.shape.insert(made.shape.end(), {1, 1});
  return made;
}

// Adds the tensors of a component under its authors' names, each with the prefix.
void AddComponent(const models::ModelFolder& folder, const std::string& component, const std::string& prefix,
                  std::map<std::string, Stored>& to) {
  const absl::StatusOr<models::WeightFolder> weights = folder.Weights(component);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const std::string& class_name = folder.components().at(component).class_name;
  const auto map = models::KeyMapOf(class_name, folder.Config(component)->json(), models::NameForm::kOriginal);
  ASSERT_TRUE(map.ok() && map->has_value()) << class_name;
  std::map<std::string, Stored> parameters;
  for (const auto& [name, location] : weights->tensors()) {
    Stored stored{location.tensor.type, location.tensor.shape, std::vector<std::byte>(location.tensor.bytes())};
    ASSERT_TRUE(weights->Read(location, 0, stored.bytes).ok());
    // transformers 5 saves CLIP without the prefix that published files have.
    const bool is_short = class_name.starts_with("CLIP") && !name.starts_with("text_");
    parameters[is_short ? "text_model." + name : name] = std::move(stored);
  }
  for (const auto& [name, stored] : parameters) {
    const std::optional<std::string> key = (*map)->NameOf(name);
    ASSERT_TRUE(key.has_value()) << name;
    if (!to.contains(prefix + *key)) to[prefix + *key] = InFile(*(*map)->Map(*key), parameters);
  }
}

void WriteFile(const std::string& path, const std::map<std::string, Stored>& tensors) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::vector<models::TensorEntry> entries;
  for (const auto& [name, stored] : tensors) entries.push_back({name, stored.type, stored.shape});
  absl::StatusOr<models::SafetensorsWriter> writer = models::SafetensorsWriter::Create(path, entries, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& [name, stored] : tensors) ASSERT_TRUE(writer->Append(name, stored.bytes).ok());
  ASSERT_TRUE(writer->Finish().ok());
}

absl::StatusOr<std::vector<double>> LatentsOf(const control::LoadParameters& load) {
  Engine engine(WorkerRank{});
  RETURN_IF_ERROR(engine.Load(load).status());
  const control::JobParameters job{.prompt = "a cat on a sofa", .height = 64, .width = 64, .steps = 2};
  ASSIGN_OR_RETURN(const control::JobStarted started, engine.StartJob(0, job));
  const uint64_t number = 0;
  for (int step = 0; step < started.steps; ++step) {
    ASSIGN_OR_RETURN(const control::Stepping stepping, engine.Step({&number, 1}));
    RETURN_IF_ERROR(stepping().status());
  }
  ASSIGN_OR_RETURN(const control::LatentValues latents, engine.Latents(0));
  RETURN_IF_ERROR(engine.EndJob(0));
  return latents.values;
}

// Each file of a model: where it is, and its components with their prefixes.
struct File {
  const char* name;
  std::vector<std::pair<const char*, const char*>> components;
};

struct Model {
  const char* pipeline;
  std::vector<File> files;  // the first is the model
};

class SingleFileTest : public testing::TestWithParam<Model> {};

TEST_P(SingleFileTest, TheLatentsAreThoseOfTheFolder) {
  const std::string pipeline = GoldenPipeline(GetParam().pipeline);
  const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(pipeline);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const TestFolder files;
  for (const File& file : GetParam().files) {
    std::map<std::string, Stored> tensors;
    for (const auto& [component, prefix] : file.components) AddComponent(*folder, component, prefix, tensors);
    WriteFile(files / file.name, tensors);
  }
  control::LoadParameters single{.model = files / GetParam().files.front().name};
  single.files.tokenizer = pipeline;
  const absl::StatusOr<models::ModelFolder> opened = models::ModelFolder::OpenWith(single.model, single.files);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->class_name(), folder->class_name());
  const absl::StatusOr<std::vector<double>> expected = LatentsOf({.model = pipeline});
  const absl::StatusOr<std::vector<double>> made = LatentsOf(single);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(*made, *expected);
}

INSTANTIATE_TEST_SUITE_P(Models, SingleFileTest,
                         testing::Values(Model{"z_image_turbo",
                                               {{"diffusion_models/z_image_turbo.safetensors",
                                                 {{"transformer", "model.diffusion_model."}}},
                                                {"text_encoders/qwen_3_4b.safetensors", {{"text_encoder", ""}}},
                                                {"vae/ae.safetensors", {{"vae", ""}}}}},
                                         Model{"flux2_klein",
                                               {{"klein.safetensors", {{"transformer", ""}}},
                                                {"qwen_3.safetensors", {{"text_encoder", ""}}},
                                                {"flux2-vae.safetensors", {{"vae", ""}}}}}),
                         [](const testing::TestParamInfo<Model>& info) { return std::string(info.param.pipeline); });

}  // namespace
}  // namespace tessera::runtime
