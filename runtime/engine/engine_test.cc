#include "runtime/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <utility>

#include "base/fields/field_error.h"
#include "base/macros/status_macros.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "control/protocol/job_replies.h"
#include "models/adapters/adapter.h"
#include "models/families/families.h"
#include "models/loading/load_options.h"
#include "models/weights/model_folder.h"
#include "parallel/segment/segment.h"
#include "tests/support/spoil_tensor.h"
#include "tests/support/test_folder.h"

namespace tessera::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kEmoji[] = "assets/emoji";

control::JobParameters Apple() {
  return {.prompt = "red apple", .height = 64, .width = 64, .steps = 3, .guidance_scale = 4, .seed = 1};
}

struct Pixels {
  std::vector<uint8_t> rgb;
  absl::StatusOr<control::Decoded> decoded = absl::UnknownError("not decoded");
};

Pixels Decode(Engine& engine, uint64_t job) {
  Pixels pixels;
  const absl::StatusOr<control::Decoding> decoding = engine.Decode(job);
  if (!decoding.ok()) return {.decoded = decoding.status()};
  pixels.decoded = (*decoding)([&](int32_t first, absl::Span<const uint8_t> rgb) {
    EXPECT_EQ(first, 0);
    pixels.rgb.assign(rgb.begin(), rgb.end());
    return absl::OkStatus();
  });
  return pixels;
}

class EngineTest : public testing::Test {
 protected:
  void Load() {
    const absl::StatusOr<control::Loaded> loaded = engine_.Load({.model = kEmoji});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_FALSE(loaded->memory_budget.has_value()) << "the host's memory is nobody's own";
  }
  // Issues the step and waits for it.
  absl::StatusOr<control::Stepped> Step(absl::Span<const uint64_t> jobs) {
    ASSIGN_OR_RETURN(const control::Stepping stepping, engine_.Step(jobs));
    return stepping();
  }
  std::string StartError(const control::JobParameters& parameters) {
    const absl::StatusOr<control::JobStarted> started = engine_.StartJob(1, parameters);
    EXPECT_EQ(started.status().code(), absl::StatusCode::kInvalidArgument) << started.status();
    return std::string(started.status().message());
  }
  Engine engine_;
};

// A copy of a golden pipeline in which a test changes one file.
class CopiedPipeline {
 public:
  explicit CopiedPipeline(const std::string& name) {
    std::filesystem::copy("tests/golden/pipelines/" + name, path(), std::filesystem::copy_options::recursive);
  }

  std::string path() const { return folder_ / "model"; }

  // `pattern` must occur in the file.
  void Replace(const std::string& file, const std::string& pattern, const std::string& replacement) const {
    std::stringstream text;
    text << std::ifstream(path() + "/" + file).rdbuf();
    const std::string changed = std::regex_replace(text.str(), std::regex(pattern), replacement);
    EXPECT_NE(changed, text.str()) << file;
    folder_.Write("model/" + file, changed);
  }

 private:
  TestFolder folder_;
};

// Returns the bytes of the tensors in a safetensors file.
uint64_t TensorBytes(const std::string& path) {
  uint64_t header = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof(header));
  return std::filesystem::file_size(path) - sizeof(header) - header;
}

TEST(EngineProgressTest, ReportsTheFilesThatItReadsAndAllOfThemInTheEnd) {
  const std::string model(kEmoji);
  const uint64_t encoder = TensorBytes(model + "/text_encoder/model.safetensors");
  const uint64_t others = TensorBytes(model + "/transformer/diffusion_pytorch_model.safetensors") +
                          TensorBytes(model + "/vae/diffusion_pytorch_model.safetensors");
  const std::shared_ptr<parallel::HostSegment> segment = *parallel::HostSegment::CreateInHeap({.ranks = 1});
  Engine engine({.segment = segment});
  ASSERT_TRUE(engine.Load({.model = model}).ok());
  EXPECT_EQ(segment->Load(0).total, encoder + others);
  EXPECT_EQ(segment->Load(0).read, encoder + others);
  // What is read for each use is not part of loading.
  ASSERT_TRUE(
      engine.Load({.model = model, .placement = {.text_encoders = control::ComponentPlacement::kUnloaded}}).ok());
  EXPECT_EQ(segment->Load(0).total, others);
  ASSERT_TRUE(engine.StartJob(1, Apple()).ok());
  EXPECT_EQ(segment->Load(0).read, others);
}

TEST_F(EngineTest, DescribesTheEmbeddedModelWithoutLoadingIt) {
  const absl::StatusOr<control::ModelDescription> description = engine_.Describe(kEmoji);
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(description->pipeline, "PixArtSigmaPipeline");
  EXPECT_EQ(description->size_multiple, 8);
  EXPECT_EQ(description->default_height, 64);
  EXPECT_EQ(description->default_max_sequence_length, 300);  // the pipeline's; the tokenizer has 24
  EXPECT_EQ(description->default_sampler, "dpm++2");
  EXPECT_FALSE(description->can_bin);
  EXPECT_EQ(description->digest.size(), 64);
  uint64_t parameters = 0;
  for (const control::ModelComponent& component : description->components) parameters += component.parameters;
  EXPECT_EQ(parameters, 9'065'760u + 505'600u + 954'567u);  // the model card's figures
  EXPECT_THAT(description->warnings, testing::IsEmpty());
}

TEST_F(EngineTest, RefusesToDescribeAModelOfPicklesOrWithoutWeights) {
  for (const char* component : {"transformer", "text_encoder", "vae"}) {
    const CopiedPipeline model("pixart_sigma");
    ASSERT_TRUE(engine_.Describe(model.path()).ok());
    const std::filesystem::path folder = std::filesystem::path(model.path()) / component;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") std::filesystem::remove(entry.path());
    }
    EXPECT_THAT(std::string(engine_.Describe(model.path()).status().message()),
                HasSubstr(std::string(component) + " has no weights"));
    std::ofstream(folder / "pytorch_model.bin") << "a pickle";
    EXPECT_THAT(std::string(engine_.Describe(model.path()).status().message()),
                AllOf(HasSubstr(component), HasSubstr("only as PyTorch pickles"), HasSubstr("convert-model.py")));
  }
}

TEST_F(EngineTest, DescribesFromWhichFilesTokenizersAreRead) {
  const absl::StatusOr<control::ModelDescription> description = engine_.Describe("tests/golden/pipelines/hunyuan11");
  ASSERT_TRUE(description.ok()) << description.status();
  std::map<std::string, std::vector<std::string>> files;
  for (const control::ModelComponent& component : description->components) {
    if (component.name.starts_with("tokenizer")) files[component.class_name] = component.files;
  }
  EXPECT_THAT(files["BertTokenizer"],
              testing::ElementsAre("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"));
  EXPECT_THAT(files["T5Tokenizer"],
              testing::ElementsAre("spiece.model", "tokenizer_config.json", "special_tokens_map.json"));
}

TEST_F(EngineTest, ThePromptOfPixArtHasThePipelinesLengthWhateverTheTokenizerSays) {
  for (const auto& [name, tokens] : {std::pair("pixart_alpha", 120), std::pair("pixart_sigma", 300)}) {
    for (const std::string limit : {"7", "512", "1000000000000000019884624838656"}) {
      const CopiedPipeline model(name);
      model.Replace("tokenizer/tokenizer_config.json", "\"model_max_length\": [0-9]+",
                    "\"model_max_length\" : " + limit);
      const absl::StatusOr<control::ModelDescription> description = engine_.Describe(model.path());
      ASSERT_TRUE(description.ok()) << description.status();
      EXPECT_EQ(description->default_max_sequence_length, tokens) << name << " with " << limit;
    }
  }
}

TEST_F(EngineTest, TheDefaultSizeOfHunyuanDiTIsTheOneThatComesOut) {
  const CopiedPipeline model("hunyuan12");
  model.Replace("transformer/config.json", "\"sample_size\": [0-9]+", "\"sample_size\": 32");
  const absl::StatusOr<control::ModelDescription> description = engine_.Describe(model.path());
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_EQ(description->default_width, 1024);
  EXPECT_EQ(description->default_height, 1024);
}

constexpr char kAdapters[] = "tests/golden-inputs/adapters/";

control::AdapterUse Use(const std::string& name, double scale) {
  const std::string file = kAdapters + name;
  return {.name = "style", .scale = scale, .digest = models::AdapterDigest(file).value_or(""), .file = file};
}

TEST_F(EngineTest, RefusesAdaptersByTheFieldAndTakesThoseThatChangeNothing) {
  ASSERT_TRUE(engine_.Load({.model = "tests/golden/pipelines/pixart_sigma"}).ok());
  control::JobParameters job = Apple();
  job.adapters = {{.name = "style", .scale = 1, .digest = std::string(64, 'a'), .file = "/nowhere"}};
  const auto refused = [&](absl::StatusCode code, const std::string& why) {
    const absl::Status status = engine_.StartJob(1, job).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(base::FieldOf(status), "loras");
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("\"style\""), HasSubstr(why)));
  };
  refused(absl::StatusCode::kFailedPrecondition, "nowhere");
  job.adapters[0].scale = 0;
  EXPECT_TRUE(engine_.StartJob(2, job).ok());
  job.adapters = {Use("pixart_sigma_metadata.safetensors", 1)};
  job.adapters[0].digest = std::string(64, 'a');
  refused(absl::StatusCode::kFailedPrecondition, "replaced");
  job.adapters = {Use("flux_kohya.safetensors", 1)};
  refused(absl::StatusCode::kInvalidArgument, "FLUX.1");
}

// At scale 0 an adapter changes no bit of the picture; at any other scale it changes the picture.
TEST_F(EngineTest, RunsJobsWithAndWithoutAdaptersSideBySide) {
  ASSERT_TRUE(engine_.Load({.model = "tests/golden/pipelines/pixart_sigma"}).ok());
  const std::vector<std::vector<control::AdapterUse>> sets = {{},
                                                              {Use("pixart_sigma_metadata.safetensors", 0)},
                                                              {Use("pixart_sigma_metadata.safetensors", 1)},
                                                              {Use("pixart_sigma_folder", 1)}};
  // Alone, and then all in one batch: the pictures are the same except for the rounding of larger products.
  std::vector<control::LatentValues> alone;
  const std::vector<uint64_t> batch = {10, 11, 12, 13};
  for (size_t i = 0; i < sets.size(); ++i) {
    control::JobParameters job = Apple();
    job.adapters = sets[i];
    for (const uint64_t id : {uint64_t{i}, batch[i]}) {
      const absl::StatusOr<control::JobStarted> started = engine_.StartJob(id, job);
      ASSERT_TRUE(started.ok()) << started.status();
    }
    for (int step = 0; step < 3; ++step) ASSERT_TRUE(Step({uint64_t{i}}).ok());
    alone.push_back(*engine_.Latents(i));
  }
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(Step(batch).ok());
  EXPECT_EQ(alone[1].values, alone[0].values);
  const auto distance = [](const control::LatentValues& a, const control::LatentValues& b) {
    double worst = 0;
    for (size_t v = 0; v < a.values.size(); ++v) worst = std::max(worst, std::abs(a.values[v] - b.values[v]));
    return worst;
  };
  EXPECT_GT(distance(alone[2], alone[0]), 0.1);
  EXPECT_GT(distance(alone[3], alone[2]), 0.1);
  for (size_t i = 0; i < sets.size(); ++i) EXPECT_LT(distance(*engine_.Latents(batch[i]), alone[i]), 1e-3) << i;
}

TEST_F(EngineTest, SaysWhereASizeIsMovedToTheModelsTable) {
  ASSERT_TRUE(engine_.Load({.model = "tests/golden/pipelines/hunyuan12"}).ok());
  control::JobParameters job = Apple();
  job.resolution_binning = true;
  job.width = 640;
  job.height = 512;
  absl::StatusOr<control::JobStarted> started = engine_.StartJob(1, job);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->width, 1024);
  EXPECT_EQ(started->height, 768);
  EXPECT_THAT(started->warnings, testing::Contains(HasSubstr("the size 640x512 became 1024x768")));

  // A size of the table is kept, and so is every size without binning.
  job.width = 1024;
  job.height = 768;
  started = engine_.StartJob(2, job);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_THAT(started->warnings, Not(testing::Contains(HasSubstr("the size"))));
  job.resolution_binning = false;
  job.width = job.height = 64;
  started = engine_.StartJob(3, job);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->width, 64);
  EXPECT_THAT(started->warnings, Not(testing::Contains(HasSubstr("the size"))));
}

TEST_F(EngineTest, MakesTheSameImageTwiceAndAPreviewChangesNothing) {
  Load();
  std::vector<std::vector<uint8_t>> images;
  for (const uint64_t job : {1, 2}) {
    ASSERT_TRUE(engine_.StartJob(job, Apple()).ok());
    for (int step = 1; step <= 3; ++step) {
      const uint64_t jobs[] = {job};
      const absl::StatusOr<control::Stepped> stepped = Step(jobs);
      ASSERT_TRUE(stepped.ok()) << stepped.status();
      EXPECT_EQ(stepped->completed, step);
      if (job == 2) {
        const Pixels preview = Decode(engine_, job);
        ASSERT_TRUE(preview.decoded.ok());
        EXPECT_EQ(preview.decoded->completed, step);
      }
    }
    const Pixels pixels = Decode(engine_, job);
    ASSERT_TRUE(pixels.decoded.ok());
    EXPECT_EQ(pixels.rgb.size(), 64u * 64 * 3);
    images.push_back(pixels.rgb);
  }
  EXPECT_EQ(images[0], images[1]);
}

TEST_F(EngineTest, RefusesAStepThatIsNotThere) {
  Load();
  ASSERT_TRUE(engine_.StartJob(1, Apple()).ok());
  const uint64_t known[] = {1}, unknown[] = {2};
  EXPECT_EQ(engine_.Step(unknown).status().code(), absl::StatusCode::kNotFound);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine_.Step(known).ok());
  EXPECT_EQ(engine_.Step(known).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(engine_.EndJob(1).ok());
  EXPECT_EQ(engine_.Step(known).status().code(), absl::StatusCode::kNotFound);
}

// The step is issued like any other. Its result reports the failure, and the next picture is not affected.
TEST_F(EngineTest, AStepAfterWhichLatentsAreNotFiniteIsAnsweredSo) {
  Load();
  control::JobParameters bad = Apple();
  bad.guidance_scale = 1e38;
  ASSERT_TRUE(engine_.StartJob(1, bad).ok());
  ASSERT_TRUE(engine_.StartJob(2, Apple()).ok());
  const uint64_t spoiled[] = {1}, good[] = {2};
  absl::Status worst;
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<control::Stepping> issued = engine_.Step(spoiled);
    ASSERT_TRUE(issued.ok()) << issued.status();
    if (const absl::Status done = (*issued)().status(); !done.ok()) worst = done;
  }
  EXPECT_EQ(worst.code(), absl::StatusCode::kDataLoss) << worst;
  EXPECT_EQ(Decode(engine_, 1).decoded.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Step(good).ok());
}

constexpr char kAutoencoderFile[] = "/vae/diffusion_pytorch_model.safetensors";

TEST_F(EngineTest, APictureThatIsNotFiniteIsAnErrorAndNoPixelsAreSent) {
  for (const uint16_t bits : {kLargestBf16, kLowestBf16}) {
    const CopiedPipeline model("pixart_sigma");
    SpoilTensor(model.path() + kAutoencoderFile, "decoder.conv_out.weight", bits);
    ASSERT_TRUE(engine_.Load({.model = model.path()}).ok());
    ASSERT_TRUE(engine_.StartJob(1, Apple()).ok());
    const uint64_t jobs[] = {1};
    for (int step = 1; step <= 3; ++step) {  // previews, and the last step's picture
      ASSERT_TRUE(Step(jobs).ok());
      const Pixels pixels = Decode(engine_, 1);
      EXPECT_EQ(pixels.decoded.status().code(), absl::StatusCode::kDataLoss) << bits << " " << pixels.decoded.status();
      EXPECT_THAT(std::string(pixels.decoded.status().message()), HasSubstr("picture"));
      EXPECT_TRUE(pixels.rgb.empty());
    }
  }
}

TEST_F(EngineTest, APromptWhoseStatesAreNotFiniteIsAnErrorHoweverOftenItIsEncoded) {
  for (const uint16_t bits : {kLargestBf16, kLowestBf16}) {
    const CopiedPipeline model("pixart_sigma");
    SpoilTensor(model.path() + "/text_encoder/model.safetensors", "encoder.final_layer_norm.weight", bits);
    ASSERT_TRUE(engine_.Load({.model = model.path()}).ok());
    for (int i = 0; i < 2; ++i) {
      const absl::Status started = engine_.StartJob(1, Apple()).status();
      EXPECT_EQ(started.code(), absl::StatusCode::kDataLoss) << started;
      EXPECT_THAT(std::string(started.message()), HasSubstr("text_encoder"));
    }
  }
}

TEST(EncodedPicturesTest, APictureThatIsEncodedAsNumbersThatAreNotFiniteIsAnError) {
  const CopiedPipeline copy("pixart_sigma");
  SpoilTensor(copy.path() + kAutoencoderFile, "encoder.conv_out.weight", kLargestBf16);
  const models::ModelFolder folder = *models::ModelFolder::Open(copy.path());
  const std::unique_ptr<models::Family> family = *(*models::FindFamily(folder.class_name()))->load(folder, {});
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  const absl::Status encoded =
      family->EncodeImage(at::zeros({1, 3, 64, 64}), {.attention = attention, .tensor = one, .world = one}).status();
  EXPECT_EQ(encoded.code(), absl::StatusCode::kDataLoss) << encoded;
}

TEST_F(EngineTest, BatchesOnlyJobsOfOneSize) {
  Load();
  control::JobParameters other = Apple();
  other.width = 48;
  ASSERT_TRUE(engine_.StartJob(1, Apple()).ok());
  ASSERT_TRUE(engine_.StartJob(2, other).ok());
  const uint64_t jobs[] = {1, 2};
  EXPECT_EQ(engine_.Step(jobs).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, PredictsWithOtherJobsWhatItPredictsAlone) {
  ASSERT_TRUE(engine_.Load({.model = kEmoji, .dtype = control::Dtype::kFp64}).ok());
  control::JobParameters other = Apple();
  other.prompt = "a blue fish";
  other.seed = 9;
  ASSERT_TRUE(engine_.StartJob(1, Apple()).ok());
  ASSERT_TRUE(engine_.StartJob(2, other).ok());
  const control::LatentValues latents = *engine_.Latents(1);
  const absl::StatusOr<control::LatentValues> alone = engine_.Predict(1, latents, {});
  const absl::StatusOr<control::LatentValues> with_others = engine_.Predict(1, latents, {2});
  ASSERT_TRUE(alone.ok() && with_others.ok()) << alone.status() << with_others.status();
  ASSERT_EQ(alone->values.size(), with_others->values.size());
  for (size_t i = 0; i < alone->values.size(); ++i) EXPECT_EQ(alone->values[i], with_others->values[i]) << i;
  EXPECT_NE(engine_.Predict(2, latents, {})->values, alone->values);
  EXPECT_EQ(engine_.Latents(1)->values, latents.values);
  EXPECT_EQ(engine_.Predict(1, latents, {3}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(EngineTest, RefusesWhatNoFrontEndLetsThrough) {
  Load();
  using Change = void (*)(control::JobParameters&);
  for (const Change change : std::initializer_list<Change>{
           [](control::JobParameters& job) { job.height = 60; },
           [](control::JobParameters& job) { job.width = 1 << 30; },
           [](control::JobParameters& job) { job.width = -8; },
           [](control::JobParameters& job) { job.max_sequence_length = 1 << 20; },
           [](control::JobParameters& job) { job.resolution_binning = true; },
       }) {
    control::JobParameters parameters = Apple();
    change(parameters);
    EXPECT_THAT(StartError(parameters), HasSubstr("does not fit the model"));
  }
  control::JobParameters parameters = Apple();
  parameters.steps = 0;
  EXPECT_THAT(StartError(parameters), HasSubstr("steps"));
  parameters = Apple();
  parameters.sampler = "magic";
  EXPECT_THAT(StartError(parameters), AllOf(HasSubstr("magic"), HasSubstr("ddim")));
}

TEST_F(EngineTest, SaysWhatWasCutFromALongPrompt) {
  Load();
  control::JobParameters parameters = Apple();
  parameters.max_sequence_length = 24;
  for (int i = 0; i < 40; ++i) parameters.prompt += " and a red apple";
  const absl::StatusOr<control::JobStarted> started = engine_.StartJob(1, parameters);
  ASSERT_TRUE(started.ok()) << started.status();
  ASSERT_EQ(started->warnings.size(), 1u);
  EXPECT_THAT(started->warnings[0], AllOf(HasSubstr("cut to 24"), HasSubstr("red apple")));
  EXPECT_EQ(started->prompt_tokens, 24);
}

TEST_F(EngineTest, RefusesUnknownDevicesAndMissingModels) {
  EXPECT_THAT(std::string(engine_.Load({.model = kEmoji, .device = "tpu"}).status().message()), HasSubstr("cuda:N"));
  EXPECT_FALSE(engine_.Load({.model = "assets/none"}).ok());
  EXPECT_EQ(engine_.StartJob(1, Apple()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(EngineTest, SaysWhichPartOfCudaIsMissing) {
  const absl::Status status = engine_.Load({.model = kEmoji, .device = "cuda"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::AnyOf(HasSubstr("plug-in"), HasSubstr("driver"), HasSubstr("device")));
}

}  // namespace
}  // namespace tessera::runtime
