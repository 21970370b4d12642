// Tests every family of the goldens through the interface that requests use.
#include "models/families/families.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/model/model_description.h"
#include "control/model/pipelines.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "control/pictures/made_up_frames.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/reference_size.h"
#include "control/protocol/job_replies.h"
#include "control/training/dataset.h"
#include "control/training/model_training.h"
#include "models/autoencoder/autoencoder_config.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/families/text_stage.h"
#include "models/hunyuandit/hunyuandit_transformer.h"
#include "models/keymaps/key_map.h"
#include "models/loading/load_options.h"
#include "models/text_encoders/picture_processor.h"
#include "models/weights/model_folder.h"
#include "models/weights/safetensors_writer.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/denoising/picture_inputs.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/model_info.h"
#include "runtime/training/training_samples.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/opened_autoencoder.h"
#include "tests/support/test_folder.h"

namespace tessera::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kPipelines[] = "tests/golden/pipelines/";

struct OneRank {
  c10::InferenceMode no_gradients;
  parallel::SingleRank group;
  parallel::RankGroups groups = parallel::RankGroups::Alone(group);
  parallel::LocalAttention attention;
  parallel::ForwardContext context{.attention = attention, .tensor = group, .world = group};
};

absl::StatusOr<models::FamilyDescription> Describe(const std::string& path) {
  const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(path);
  if (!folder.ok()) return folder.status();
  const absl::StatusOr<const models::FamilyEntry*> entry = models::FindFamily(folder->class_name());
  if (!entry.ok()) return entry.status();
  return (*entry)->describe(*folder);
}

class FamilyTest : public testing::TestWithParam<const char*> {
 protected:
  void Open(const models::LoadOptions& options) {
    const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(GoldenPipeline(GetParam()));
    ASSERT_TRUE(folder.ok()) << folder.status();
    const models::FamilyEntry* entry = *models::FindFamily(folder->class_name());
    description_ = *entry->describe(*folder);
    std::vector<std::string> warnings;
    sampler_ = *ReadSamplerConfig(*folder, warnings);
    absl::StatusOr<std::unique_ptr<models::Family>> family = entry->load(*folder, options);
    ASSERT_TRUE(family.ok()) << family.status();
    family_ = *std::move(family);
    // Two grids that differ in width, or the only size that the model has.
    const bool one_size = description_.min_size == description_.max_size;
    const int64_t unit = description_.size_multiple;
    height_ = one_size ? description_.min_size : std::max<int64_t>(64 / unit, 2) * unit;
    width_ = one_size ? description_.min_size : height_ + unit;
  }

  bool has_text() const { return description_.max_sequence_length > 0; }

  // The text encoder of FLUX.2 dev has 31 layers and also reads the padding, which would be most of the work.
  int64_t MostTokens() const {
    const int64_t most = description_.default_max_sequence_length;
    return std::string_view(GetParam()) == "flux2_dev" ? std::min<int64_t>(most, 64) : most;
  }

  models::PromptRequest Request(const std::string& prompt, double guidance) const {
    models::PromptRequest request{.prompt = has_text() ? prompt : std::to_string(prompt.size()),
                                  .max_sequence_length = MostTokens(),
                                  .guidance_scale = guidance,
                                  .height = height_,
                                  .width = width_};
    if (has_text()) request.negative_prompt = "a blurred one";
    if (control::PromptHoldsPictures(description_.pictures.fit)) request.pictures = MadeUpPictures(90, 60);
    return request;
  }

  static models::SharedPromptPictures MadeUpPictures(int width, int height) {
    return models::MakePromptPictures({control::NoiseFrame(width, height, 3)});
  }

  models::Guidance Encoded(const models::PromptRequest& request) {
    absl::StatusOr<models::EncodedPrompt> encoded = family_->Encode(request, rank_.context);
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    return encoded.ok() ? std::move(encoded->guidance) : models::Guidance{};
  }

  DenoiseJob Job(const models::PromptRequest& request, uint64_t seed, int steps) {
    return Job(Encoded(request), seed, steps);
  }

  DenoiseJob Job(models::Guidance guidance, uint64_t seed, int steps) {
    DenoiseJob job{.geometry = family_->Geometry(height_, width_), .guidance = std::move(guidance)};
    job.sampler = *MakeSampler(sampler_, steps, *family_, job.geometry);
    job.noise = MakeTesseraNoise(seed);
    if (description_.pictures.required) {
      const PictureInputs inputs{.pictures = {Random({1, 3, 64, 32}, 7).clamp(-1, 1)}};
      EXPECT_TRUE(BeginFromPictures(job, *family_, description_.pictures, inputs, rank_.context).ok());
    } else {
      DrawInitialLatents(job, *family_);
    }
    return job;
  }

  void Step(std::vector<DenoiseJob*> batch) { Denoiser(*family_, rank_.groups).Step(batch); }

  OneRank rank_;
  models::FamilyDescription description_;
  SamplerConfig sampler_;
  std::unique_ptr<models::Family> family_;
  int64_t height_ = 0, width_ = 0;
};

bool SameText(const models::Guidance& a, const models::Guidance& b) {
  bool same = a.branches.size() == b.branches.size();
  for (size_t i = 0; same && i < a.branches.size(); ++i) {
    const models::ConditioningRow &left = a.branches[i].row, &right = b.branches[i].row;
    same = left.text.defined() == right.text.defined() && (!left.text.defined() || at::equal(left.text, right.text)) &&
           std::ranges::equal(left.extras, right.extras, at::equal);
  }
  return same;
}

// The bytes do not depend on the other jobs in the batch, the order in which jobs join and leave, or the number of
// threads.
TEST_P(FamilyTest, APictureIsAFunctionOfItsRequestAlone) {
  const int threads_before = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    at::set_num_threads(1);
    ASSERT_NO_FATAL_FAILURE(Open({.dtype = dtype}));
    models::PromptRequest other = Request("two cats on a red sofa in the evening", 1);
    other.options.true_cfg_scale = 3;
    if (has_text() && description_.max_sequence_length > 300) other.max_sequence_length = 37;
    const models::PromptRequest requests[] = {Request("a cat", 4), other, Request("", 2.5), Request("a cat", 2)};
    std::vector<models::Guidance> prompts;
    for (const models::PromptRequest& request : requests) prompts.push_back(Encoded(request));
    const auto jobs = [&] {
      std::vector<DenoiseJob> made;
      for (uint64_t i = 0; i < 8; ++i) made.push_back(Job(prompts[i % 4], i, 2 + static_cast<int>(i % 2)));
      return made;
    };
    const auto pictures = [&](const std::vector<DenoiseJob>& of) {
      std::vector<at::Tensor> made;
      for (const DenoiseJob& job : of) made.push_back(*family_->Decode(job.latents.unsqueeze(0), rank_.context));
      return made;
    };
    std::vector<DenoiseJob> alone = jobs();
    for (DenoiseJob& job : alone) {
      while (job.next_step < job.sampler->num_steps()) Step({&job});
    }
    const std::vector<at::Tensor> expected = pictures(alone);
    for (const int threads : {1, 2, 3, 8}) {
      at::set_num_threads(threads);
      ASSERT_NO_FATAL_FAILURE(Open({.dtype = dtype}));  // opened again, so that no prompt is cached
      EXPECT_TRUE(SameText(Encoded(other), prompts[1])) << dtype << ", " << threads << " threads";
      std::vector<DenoiseJob> together = jobs();
      // Either all jobs at a time, or one joins with each step and leaves when it is done.
      const size_t at_once = threads == 1 ? together.size() : static_cast<size_t>(threads);
      std::vector<DenoiseJob*> batch;
      for (size_t joined = 0; joined < together.size() || !batch.empty();) {
        for (size_t i = 0; i < at_once && joined < together.size(); ++i) batch.push_back(&together[joined++]);
        Step(batch);
        std::erase_if(batch, [](const DenoiseJob* job) { return job->next_step == job->sampler->num_steps(); });
      }
      const std::vector<at::Tensor> made = pictures(together);
      for (size_t i = 0; i < made.size(); ++i) {
        EXPECT_TRUE(at::equal(together[i].latents, alone[i].latents)) << dtype << ", job " << i << ", " << threads;
        EXPECT_TRUE(at::equal(made[i], expected[i])) << dtype << ", picture " << i << ", " << threads << " threads";
      }
    }
  }
  at::set_num_threads(threads_before);
}

TEST_P(FamilyTest, ComponentsThatAreReadForEachUseMakeTheSameImage) {
  ASSERT_NO_FATAL_FAILURE(Open({}));
  const int64_t all = family_->weight_bytes();
  DenoiseJob job = Job(Request("a cat", 4), 1, 2);
  Step({&job});
  const at::Tensor expected = *family_->Decode(job.latents.unsqueeze(0), rank_.context);
  for (const auto text_encoders : {control::ComponentPlacement::kUnloaded, control::ComponentPlacement::kStreamed}) {
    ASSERT_NO_FATAL_FAILURE(
        Open({.placement = {.text_encoders = text_encoders, .autoencoder = control::AutoencoderPlacement::kUnloaded}}));
    EXPECT_LT(family_->weight_bytes(), all);
    const int64_t kept = family_->weight_bytes();
    DenoiseJob again = Job(Request("a cat", 4), 1, 2);
    Step({&again});
    EXPECT_TRUE(at::equal(*family_->Decode(again.latents.unsqueeze(0), rank_.context), expected));
    EXPECT_EQ(family_->weight_bytes(), kept);
  }
}

TEST_P(FamilyTest, BlocksThatAreReadForEachUseMakeTheSameLatents) {
  ASSERT_NO_FATAL_FAILURE(Open({}));
  const int64_t all = family_->weight_bytes();
  DenoiseJob job = Job(Request("a cat", 4), 1, 2);
  Step({&job});
  Step({&job});
  ASSERT_NO_FATAL_FAILURE(Open({.placement = {.stream_blocks = true}}));
  EXPECT_LT(family_->weight_bytes(), all);
  const int64_t kept = family_->weight_bytes();
  DenoiseJob again = Job(Request("a cat", 4), 1, 2);
  Step({&again});
  Step({&again});
  EXPECT_TRUE(at::equal(again.latents, job.latents));
  EXPECT_EQ(family_->weight_bytes(), kept);
}

// A latent is (z - shift) * scale, where z is normal with the posterior's mean and log-variance.
TEST_P(FamilyTest, AnImagesPosteriorIsOfTheLatentsThatDiffusionKnows) {
  const std::string folder = GoldenPipeline(GetParam());
  const absl::StatusOr<models::ModelFolder> model = models::ModelFolder::Open(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  if (model->components().at("vae").class_name != "AutoencoderKL") {
    GTEST_SKIP() << "its latents are normalised by channel; the golden cases compare them";
  }
  ASSERT_NO_FATAL_FAILURE(Open({.dtype = at::kDouble}));
  const OpenedAutoencoder opened(GetParam(), at::kDouble);
  const at::Tensor image = Random({1, 3, height_, width_}, 5).clamp(-1, 1);
  const absl::StatusOr<models::LatentPosterior> posterior = family_->EncodeImage(image, rank_.context);
  ASSERT_TRUE(posterior.ok()) << posterior.status();
  const models::Autoencoder::Posterior raw =
      opened.autoencoder->EncodeInBands(image, rank_.context, models::BandBytesOn(at::kCPU));
  const at::Tensor noise = Random(raw.mean.sizes(), 6);
  const at::Tensor z = raw.mean + at::exp(raw.log_variance / 2) * noise;
  absl::StatusOr<base::ConfigReader> reader =
      base::ConfigReader::FromFile(folder + "/vae/config.json", "vae/config.json");
  ASSERT_TRUE(reader.ok()) << reader.status();
  const absl::StatusOr<models::AutoencoderConfig> config = models::ParseAutoencoderConfig(*reader);
  ASSERT_TRUE(config.ok()) << config.status();
  const at::Tensor expected = (z - config->shift_factor) * config->scaling_factor;
  const at::Tensor latents = posterior->mean + posterior->deviation * noise;
  EXPECT_LT((latents - expected).abs().max().item<double>(), 1e-12 * expected.abs().max().item<double>());
}

TEST_P(FamilyTest, APromptThatWasEncodedBeforeNeedsNoEncoder) {
  ASSERT_NO_FATAL_FAILURE(Open({}));
  const models::EncodedPrompt first = *family_->Encode(Request("a cat", 4), rank_.context);
  const models::EncodedPrompt second = *family_->Encode(Request("a cat", 4), rank_.context);
  EXPECT_EQ(first.cached, !has_text());
  EXPECT_TRUE(second.cached);
  ASSERT_EQ(first.guidance.branches.size(), second.guidance.branches.size());
  for (size_t i = 0; i < first.guidance.branches.size() && has_text(); ++i) {
    EXPECT_TRUE(at::equal(first.guidance.branches[i].row.text, second.guidance.branches[i].row.text));
  }
}

// A family whose prompts hold pictures.
class EditFamilyTest : public FamilyTest {};

TEST_P(EditFamilyTest, APromptWithOtherPicturesIsAnotherPrompt) {
  ASSERT_NO_FATAL_FAILURE(Open({}));
  models::PromptRequest request = Request("a cat", 4);
  ASSERT_NE(request.pictures, nullptr);
  const models::EncodedPrompt first = *family_->Encode(request, rank_.context);
  request.pictures = MadeUpPictures(90, 60);
  EXPECT_TRUE(family_->Encode(request, rank_.context)->cached) << "the same pixels";
  std::vector<control::Frames> changed = request.pictures->pictures;
  changed[0].bytes.back() ^= 0xFF;
  request.pictures = models::MakePromptPictures(changed);
  const models::EncodedPrompt second = *family_->Encode(request, rank_.context);
  EXPECT_FALSE(second.cached);
  EXPECT_FALSE(SameText(first.guidance, second.guidance));
  request.pictures = models::MakePromptPictures({changed[0], changed[0]});
  EXPECT_GT(family_->Encode(request, rank_.context)->prompt_tokens, second.prompt_tokens);
  request.prompt = "a <|image_pad|>";
  EXPECT_THAT(std::string(family_->Encode(request, rank_.context).status().message()),
              HasSubstr("stands for a picture"));
  request.pictures = nullptr;
  EXPECT_THAT(std::string(family_->Encode(request, rank_.context).status().message()), HasSubstr("images are missing"));
  request.pictures = MadeUpPictures(402, 2);
  EXPECT_THAT(std::string(family_->Encode(request, rank_.context).status().message()), HasSubstr("402x2"));
}

// For encoders that are read for each use: all prompts are encoded at once, as far as the cache holds them, with the
// same bits.
TEST_P(FamilyTest, PromptsThatAreEncodedAheadNeedNoEncoderAnyMore) {
  ASSERT_NO_FATAL_FAILURE(Open({.placement = {.text_encoders = control::ComponentPlacement::kUnloaded}}));
  const int64_t kept = family_->weight_bytes();
  std::vector<models::PromptRequest> requests;
  for (const char* text : {"a cat", "two dogs in the rain", "a boat"}) requests.push_back(Request(text, 4));
  EXPECT_EQ(family_->EncodeAhead(requests, rank_.context), 3);
  EXPECT_EQ(family_->weight_bytes(), kept);
  std::vector<models::EncodedPrompt> ahead;
  for (const models::PromptRequest& request : requests) {
    ahead.push_back(*family_->Encode(request, rank_.context));
    EXPECT_TRUE(ahead.back().cached);
  }
  ASSERT_NO_FATAL_FAILURE(Open({}));
  for (size_t i = 0; i < requests.size(); ++i) {
    const models::EncodedPrompt alone = *family_->Encode(requests[i], rank_.context);
    ASSERT_EQ(ahead[i].guidance.branches.size(), alone.guidance.branches.size());
    for (size_t branch = 0; branch < alone.guidance.branches.size() && has_text(); ++branch) {
      EXPECT_TRUE(at::equal(ahead[i].guidance.branches[branch].row.text, alone.guidance.branches[branch].row.text));
    }
  }
}

TEST_P(FamilyTest, NoMorePromptsAreEncodedAheadThanTheCacheHolds) {
  ASSERT_NO_FATAL_FAILURE(Open({}));
  if (!has_text()) GTEST_SKIP() << "the model reads no text";
  const models::EncodedPrompt one = *family_->Encode(Request("a cat", 1), rank_.context);
  int64_t bytes = 0;
  for (const models::GuidanceBranch& branch : one.guidance.branches) {
    bytes += static_cast<int64_t>(branch.row.text.nbytes());
  }
  ASSERT_NO_FATAL_FAILURE(Open({.placement = {.text_encoders = control::ComponentPlacement::kUnloaded},
                                .prompt_cache_bytes = 20 * (bytes + 2000)}));
  std::vector<models::PromptRequest> requests;
  for (int i = 0; i < 200; ++i) requests.push_back(Request("cat " + std::to_string(i), 1));
  const int64_t encoded = family_->EncodeAhead(requests, rank_.context);
  EXPECT_GT(encoded, 1);
  EXPECT_LT(encoded, 200);
}

INSTANTIATE_TEST_SUITE_P(Goldens, FamilyTest,
                         testing::Values("dit", "flux_dev", "flux_schnell", "hunyuan11", "hunyuan12", "pixart_alpha",
                                         "pixart_sigma", "flux2_dev", "flux2_klein", "flux2_klein_base",
                                         "qwen_edit_2511", "qwen_image", "sd3", "sd35", "z_image_base",
                                         "z_image_turbo"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Goldens, EditFamilyTest, testing::Values("qwen_edit_2511"),
                         [](const auto& info) { return info.param; });

TEST(HunyuanSkipTest, BlocksOfTheSecondHalfReadTheirMirrorsOfTheFirst) {
  OneRank rank;
  const models::HunyuanConfig config{.heads = 2,
                                     .head_dim = 4,
                                     .layers = 8,
                                     .channels = 4,
                                     .out_channels = 4,
                                     .patch = 1,
                                     .hidden = 8,
                                     .sample_size = 8,
                                     .bert_width = 8,
                                     .t5_width = 8,
                                     .pooled_width = 8,
                                     .bert_tokens = 3,
                                     .t5_tokens = 3};
  models::ParamTable table(at::kDouble, at::kCPU);
  const models::HunyuanTransformer transformer(config, table);
  for (const models::Param& param : table.params()) param.storage.fill_(0.1);
  models::TransformerInput input{.patches = at::ones({1, 4, 4}, at::kDouble),
                                 .grid = {.height = 2, .width = 2},
                                 .span = {.begin = 0, .end = 4},
                                 .timestep = at::ones({1}, at::kDouble),
                                 .text = at::ones({1, 3, 8}, at::kDouble),
                                 .extras = {at::ones({1, 3, 8}, at::kDouble), at::ones({1, 3}), at::ones({1, 3})}};
  const models::ForwardPass pass(transformer, input, rank.context);
  models::BlockState state = pass.Begin();
  const auto kept = [&] {
    std::vector<int> blocks;
    for (const auto& [block, skip] : state.skips) blocks.push_back(block);
    return blocks;
  };
  const std::vector<std::vector<int>> after = {{0}, {0, 1}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2}, {0, 1}, {0}, {}};
  for (int i = 0; i < 8; ++i) {
    transformer.Block(i, state, pass.ConditioningOf(i), rank.context);
    EXPECT_EQ(kept(), after[static_cast<size_t>(i)]) << "after block " << i;
  }
}

TEST(PromptCacheTest, KeepsTheMostRecentlyUsedWithinItsBound) {
  const auto text = [](double value) { return models::EncodedText{.hidden = at::full({1000}, value, at::kFloat)}; };
  models::PromptCache cache(10000);
  cache.Put("a", text(1));
  cache.Put("b", text(2));
  ASSERT_NE(cache.Find("a"), nullptr);
  cache.Put("c", text(3));
  EXPECT_EQ(cache.Find("b"), nullptr);
  ASSERT_NE(cache.Find("a"), nullptr);
  EXPECT_EQ(cache.Find("a")->hidden[0].item<float>(), 1);
  EXPECT_LE(cache.bytes(), 10000);
  cache.Put("huge", models::EncodedText{.hidden = at::zeros({5000}, at::kFloat)});
  EXPECT_EQ(cache.Find("huge"), nullptr);
  EXPECT_NE(cache.Find("c"), nullptr);
}

// A copy of a golden model that a test may damage. Its weights are not copied unless they are linked, because
// describing a model does not read them.
class SpoiledModel {
 public:
  explicit SpoiledModel(const std::string& name) : name_(name) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(kPipelines + name)) {
      if (!entry.is_regular_file() || entry.path().extension() == ".safetensors") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(in)), {});
      folder_.Write(entry.path().lexically_relative(kPipelines + name), bytes);
    }
  }

  SpoiledModel& Replace(const std::string& file, const std::string& from, const std::string& to) {
    std::ifstream in(folder_ / file);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << file << " has no " << from;
    folder_.Write(file, text.replace(at, from.size(), to));
    return *this;
  }

  // Links the weight files of a component.
  void Link(const std::string& component) {
    const std::filesystem::path original = std::filesystem::absolute(kPipelines + name_) / component;
    for (const auto& entry : std::filesystem::directory_iterator(original)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::filesystem::create_symlink(entry.path(), folder_ / (component + "/" + entry.path().filename().string()));
    }
  }
  const std::string& path() const { return folder_.path(); }

  std::string Error() const {
    const absl::StatusOr<models::FamilyDescription> description = Describe(folder_.path());
    EXPECT_FALSE(description.ok());
    return std::string(description.status().message());
  }

 private:
  std::string name_;
  TestFolder folder_;
};

TEST(BadModelTest, AnUnknownPipelineIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(SpoiledModel("flux_dev").Replace("model_index.json", "FluxPipeline", "KandinskyPipeline").Error(),
              AllOf(HasSubstr("KandinskyPipeline"), HasSubstr("FluxPipeline"), HasSubstr("HunyuanDiTPipeline")));
}

TEST(BadModelTest, TheFamiliesAreThoseThatTheCommandLineKnows) {
  ASSERT_EQ(models::Families().size(), std::size(control::kPipelineClasses));
  for (const control::PipelineClass& known : control::kPipelineClasses) {
    EXPECT_TRUE(models::FindFamily(known.class_name).ok()) << known.class_name;
  }
}

TEST(BadModelTest, AComponentOfAnotherClassIsRefused) {
  EXPECT_THAT(SpoiledModel("sd3").Replace("model_index.json", "SD3Transformer2DModel", "UNet2DConditionModel").Error(),
              AllOf(HasSubstr("transformer"), HasSubstr("UNet2DConditionModel"), HasSubstr("SD3Transformer2DModel")));
  EXPECT_THAT(SpoiledModel("hunyuan11").Replace("model_index.json", "\"BertModel\"", "\"XLMRobertaModel\"").Error(),
              AllOf(HasSubstr("XLMRobertaModel"), HasSubstr("BertModel")));
}

TEST(BadModelTest, AMissingEncoderIsRefusedUnlessItIsOptional) {
  EXPECT_THAT(SpoiledModel("flux_dev").Replace("model_index.json", "\"text_encoder_2\"", "\"text_encoder_9\"").Error(),
              HasSubstr("text_encoder_"));
  const absl::StatusOr<models::ModelFolder> sd3 = models::ModelFolder::Open(std::string(kPipelines) + "sd3");
  ASSERT_TRUE(sd3.ok());
  const models::FamilyEntry* entry = *models::FindFamily(sd3->class_name());
  EXPECT_TRUE(entry->describe(sd3->Without("text_encoder_3")).ok());
  EXPECT_THAT(std::string(entry->describe(sd3->Without("text_encoder_2")).status().message()),
              HasSubstr("text_encoder_2"));
}

TEST(BadModelTest, ATokenizerOfAnotherModelIsRefused) {
  EXPECT_THAT(SpoiledModel("flux_dev")
                  .Replace("text_encoder/config.json", "\"vocab_size\": 1514", "\"vocab_size\": 1000")
                  .Error(),
              AllOf(HasSubstr("tokenizer"), HasSubstr("vocab_size"), HasSubstr("1000")));
}

TEST(BadModelTest, ATokenizersLengthAndPaddingThatCannotBeAreRefused) {
  EXPECT_THAT(SpoiledModel("flux_dev")
                  .Replace("tokenizer/tokenizer_config.json", "\"model_max_length\": 77", "\"model_max_length\": 78")
                  .Error(),
              AllOf(HasSubstr("tokenizer/tokenizer_config.json"), HasSubstr("model_max_length"), HasSubstr("2 to 77")));
  for (const char* name : {"flux_dev", "sd3", "hunyuan11", "pixart_alpha"}) {
    EXPECT_THAT(
        SpoiledModel(name).Replace("tokenizer/tokenizer_config.json", "{", "{\"padding_side\": \"left\",").Error(),
        AllOf(HasSubstr("tokenizer/tokenizer_config.json"), HasSubstr("padding_side")));
  }
}

TEST(BadModelTest, WidthsThatDoNotFitAreRefusedByField) {
  EXPECT_THAT(
      SpoiledModel("sd3").Replace("vae/config.json", "\"latent_channels\": 16", "\"latent_channels\": 4").Error(),
      AllOf(HasSubstr("latent_channels"), HasSubstr("in_channels is 16")));
  EXPECT_THAT(SpoiledModel("hunyuan12")
                  .Replace("transformer/config.json", "\"hidden_size\": 64", "\"hidden_size\": 72")
                  .Error(),
              AllOf(HasSubstr("hidden_size"), HasSubstr("72"), HasSubstr("= 64")));
  EXPECT_THAT(
      SpoiledModel("hunyuan12").Replace("transformer/config.json", "\"num_layers\": 4", "\"num_layers\": 5").Error(),
      AllOf(HasSubstr("num_layers"), HasSubstr("even")));
  EXPECT_THAT(
      SpoiledModel("sd35")
          .Replace("transformer/config.json", "\"caption_projection_dim\": 64", "\"caption_projection_dim\": 80")
          .Error(),
      AllOf(HasSubstr("caption_projection_dim"), HasSubstr("80")));
  EXPECT_THAT(SpoiledModel("flux_dev")
                  .Replace("transformer/config.json", "\"attention_head_dim\": 16", "\"attention_head_dim\": 24")
                  .Error(),
              AllOf(HasSubstr("axes_dims_rope"), HasSubstr("24")));
  EXPECT_THAT(SpoiledModel("flux_dev")
                  .Replace("transformer/config.json", "\"joint_attention_dim\": 32", "\"joint_attention_dim\": 48")
                  .Error(),
              AllOf(HasSubstr("joint_attention_dim is 48"), HasSubstr("text_encoder_2")));
}

TEST(PromptLengthTest, IsThatOfClipsTokenizer) {
  SpoiledModel model("sd3");
  for (const char* encoder : {"text_encoder", "text_encoder_2", "text_encoder_3", "transformer", "vae"})
    model.Link(encoder);
  OneRank rank;
  for (const int64_t length : {77, 10}) {
    if (length != 77)
      model.Replace("tokenizer/tokenizer_config.json", "\"model_max_length\": 77", "\"model_max_length\": 10");
    const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(model.path());
    ASSERT_TRUE(folder.ok()) << folder.status();
    const absl::StatusOr<std::unique_ptr<models::Family>> family =
        (*models::FindFamily(folder->class_name()))->load(*folder, {});
    ASSERT_TRUE(family.ok()) << family.status();
    const absl::StatusOr<models::EncodedPrompt> encoded =
        (*family)->Encode({.prompt = "a cat", .max_sequence_length = 16, .guidance_scale = 1}, rank.context);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_EQ(encoded->guidance.branches[0].row.text.size(0), length + 16);  // both CLIPs' tokens, followed by T5's
  }
}

TEST(BadPromptTest, LayersThatAreNotThereAreRefused) {
  const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(std::string(kPipelines) + "sd35");
  ASSERT_TRUE(folder.ok());
  const absl::StatusOr<std::unique_ptr<models::Family>> family =
      (*models::FindFamily(folder->class_name()))->load(*folder, {});
  ASSERT_TRUE(family.ok()) << family.status();
  OneRank rank;
  const auto encode = [&](const control::PromptOptions& options) {
    return (*family)->Encode({.prompt = "a cat", .options = options, .max_sequence_length = 16, .guidance_scale = 4},
                             rank.context);
  };
  EXPECT_THAT(std::string(encode({.clip_skip = 3}).status().message()), HasSubstr("0 to 2"));
  EXPECT_THAT(std::string(encode({.skip_layers = {.layers = {3}}}).status().message()), HasSubstr("0 to 2"));
  const absl::StatusOr<models::EncodedPrompt> none = encode({}), skipped = encode({.clip_skip = 1});
  ASSERT_TRUE(none.ok() && skipped.ok());
  // The negative prompt comes first, and no layer of it is skipped.
  EXPECT_TRUE(at::equal(none->guidance.branches[0].row.text, skipped->guidance.branches[0].row.text));
  EXPECT_FALSE(at::equal(none->guidance.branches[1].row.text, skipped->guidance.branches[1].row.text));
  const absl::StatusOr<models::EncodedPrompt> guided =
      encode({.skip_layers = {.layers = {1}, .start = 0.1, .stop = 0.5}});
  ASSERT_TRUE(guided.ok());
  const std::vector<models::GuidanceBranch>& branches = guided->guidance.branches;
  ASSERT_EQ(branches.size(), 3u);
  // Strictly between the fractions: steps 2, 3 and 4 of 10.
  EXPECT_EQ(branches[2].WeightAt(1, 10, /*timestep=*/500), std::nullopt);
  EXPECT_EQ(branches[2].WeightAt(2, 10, /*timestep=*/500), -2.8);
  EXPECT_EQ(branches[2].WeightAt(5, 10, /*timestep=*/500), std::nullopt);
  EXPECT_EQ(branches[1].WeightAt(1, 10, /*timestep=*/500), 4);
  EXPECT_DOUBLE_EQ(*branches[1].WeightAt(4, 10, /*timestep=*/500), 6.8);
}

TEST(BadPromptTest, AClassThatIsNotThereIsRefused) {
  const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(std::string(kPipelines) + "dit");
  ASSERT_TRUE(folder.ok());
  const absl::StatusOr<std::unique_ptr<models::Family>> family =
      (*models::FindFamily(folder->class_name()))->load(*folder, {});
  ASSERT_TRUE(family.ok()) << family.status();
  OneRank rank;
  const auto encode = [&](const std::string& prompt) {
    return (*family)->Encode({.prompt = prompt, .guidance_scale = 4}, rank.context).status();
  };
  for (const char* good : {"0", " 999 ", "class 7"}) EXPECT_TRUE(encode(good).ok()) << good;
  for (const char* bad : {"1000", "-1", "", "class 1000", "7.5"}) {
    EXPECT_THAT(std::string(encode(bad).message()), HasSubstr("0 to 999")) << bad;
  }
}

// One image of a training run with two pictures, whose encodings are compared with those of a request.
class ControlEncodingsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const auto& [picture, name] :
         {std::pair{"source.png", "images/a.png"}, {"wide_96x64.png", "one/a.png"}, {"tall_64x80.png", "two/a.png"}}) {
      std::filesystem::create_directories(std::filesystem::path(files_ / name).parent_path());
      std::filesystem::copy_file(std::string("tests/pictures/") + picture, files_ / name);
    }
    files_.Write("images/a.txt", "make it blue");
    const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(GoldenPipeline(GetParam()));
    ASSERT_TRUE(folder.ok()) << folder.status();
    const models::FamilyEntry* const entry = *models::FindFamily(folder->class_name());
    description_ = *entry->describe(*folder);
    absl::StatusOr<std::unique_ptr<models::Family>> family =
        entry->load(*folder, {.dtype = at::kFloat, .for_training = true});
    ASSERT_TRUE(family.ok()) << family.status();
    family_ = *std::move(family);
    const std::vector<control::TrainDataset> datasets = {{.folder_path = files_ / "images",
                                                          .control_path = {files_ / "one", files_ / "two"},
                                                          .caption_dropout_rate = 0.5,
                                                          .resolution = {64}}};
    absl::StatusOr<control::TrainingSet> set =
        control::ScanDatasets({.datasets = datasets,
                               .default_resolution = 64,
                               .rule = {},
                               .controls = control::ControlRulesOf(description_.pictures)});
    ASSERT_TRUE(set.ok()) << set.status();
    set_ = *std::move(set);
  }

  models::ConditioningRow Encoded(const std::string& prompt, models::SharedPromptPictures pictures) {
    const absl::StatusOr<models::EncodedPrompt> encoded = family_->Encode({.prompt = prompt,
                                                                           .options = {},
                                                                           .max_sequence_length = 37,
                                                                           .height = 64,
                                                                           .width = 64,
                                                                           .pictures = std::move(pictures)},
                                                                          context_);
    TORCH_CHECK(encoded.ok(), std::string(encoded.status().message()));
    return encoded->guidance.branches.back().row;
  }

  TestFolder files_;
  models::FamilyDescription description_;
  std::unique_ptr<models::Family> family_;
  control::TrainingSet set_;
  parallel::SingleRank one_;
  parallel::LocalAttention attention_;
  const parallel::ForwardContext context_{.attention = attention_, .tensor = one_, .world = one_};
};

TEST_P(ControlEncodingsTest, AreThoseOfARequestWithThePictures) {
  const control::ReferenceFit fit = description_.pictures.fit;
  PictureInputs inputs;
  std::vector<control::Frames> of_prompt;
  for (const control::ControlPicture& picture : set_.ControlsOf(set_.samples[0])) {
    const absl::StatusOr<control::Frames> frames = control::LoadControlPicture(picture);
    ASSERT_TRUE(frames.ok()) << frames.status();
    inputs.pictures.push_back(PictureValues(*control::FitReference(fit, *frames)));
    if (control::PromptHoldsPictures(fit)) of_prompt.push_back(*control::FitPromptPicture(fit, *frames));
  }
  DenoiseJob job{.geometry = family_->Geometry(64, 64)};
  job.sampler = *MakeSampler(DefaultSamplerConfig(FlowEulerOptions()), 2, *family_, job.geometry);
  job.noise = MakeTesseraNoise(1);
  ASSERT_TRUE(BeginFromPictures(job, *family_, description_.pictures, inputs, context_).ok());
  const models::SharedPromptPictures pictures = models::MakePromptPictures(std::move(of_prompt));
  const models::ConditioningRow caption = Encoded("make it blue", pictures), none = Encoded("", pictures);

  const TrainingGroups groups = TrainingGroups::Alone(one_);
  for (const bool cached : {false, true, true}) {  // encoded, encoded and kept, read
    set_.samples[0].cache_latents_to_disk = set_.samples[0].cache_text_embeddings = cached;
    TrainingSamples samples(set_, *family_, groups,
                            SampleOptions{.max_sequence_length = 37,
                                          .references = fit,
                                          .prompts_hold_pictures = control::PromptHoldsPictures(fit),
                                          .cache = files_ / "cache",
                                          .base = {}});
    ASSERT_TRUE(samples.Prepare(1).ok());
    ASSERT_TRUE(samples.Fetch({0}, {}).ok());
    const SampleReferences references = samples.References(0);
    ASSERT_EQ(references.patches.size(), 2u);
    EXPECT_EQ(references.grids, job.reference_grids);
    for (size_t i = 0; i < references.patches.size(); ++i) {
      EXPECT_TRUE(at::equal(references.patches[i].squeeze(0), job.references[i])) << i;
    }
    EXPECT_TRUE(at::equal(samples.Caption(0).text, caption.text));
    EXPECT_TRUE(at::equal(samples.NoCaption(0).text, none.text)) << "only the text is dropped";
    EXPECT_FALSE(samples.Caption(0).text.sizes() == none.text.sizes() && at::equal(samples.Caption(0).text, none.text));
  }
}

// FLUX.2 reads small pictures as they are, and the prompts of Qwen-Image-Edit hold them.
INSTANTIATE_TEST_SUITE_P(Families, ControlEncodingsTest, testing::Values("flux2_klein_base", "qwen_edit_2511"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime

// A model made of single files under their authors' names makes the latents of the folder that they were made from.
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

absl::StatusOr<std::vector<double>> LatentsIn(Engine& engine) {
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

absl::StatusOr<std::vector<double>> LatentsOf(const control::LoadParameters& load) {
  Engine engine(WorkerRank{});
  RETURN_IF_ERROR(engine.Load(load).status());
  return LatentsIn(engine);
}

TEST(StreamedBlocksTest, TheFilesAreOpenedOnce) {
  const TestFolder folder;
  const std::string model = folder / "model";
  std::filesystem::copy(GoldenPipeline("flux_dev"), model, std::filesystem::copy_options::recursive);
  Engine kept(WorkerRank{}), streamed(WorkerRank{});
  ASSERT_TRUE(kept.Load({.model = model}).ok());
  const absl::Status loaded = streamed.Load({.model = model, .placement = {.stream_blocks = true}}).status();
  ASSERT_TRUE(loaded.ok()) << loaded;
  std::filesystem::remove_all(model + "/transformer");
  const absl::StatusOr<std::vector<double>> expected = LatentsIn(kept), made = LatentsIn(streamed);
  ASSERT_TRUE(expected.ok() && made.ok()) << expected.status() << made.status();
  EXPECT_EQ(*made, *expected);
}

// The bytes of a row of values in GGUF's Q8_0, 32 to a scale, and the values that these mean.
std::string PackQ8(const std::vector<float>& values, std::vector<float>& meant) {
  std::string bytes;
  for (size_t begin = 0; begin < values.size(); begin += 32) {
    float largest = 0;
    for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(values[begin + i]));
    const c10::Half scale(largest / 127);
    bytes += GgufBytes::Number(scale.x, 2);
    for (size_t i = 0; i < 32; ++i) {
      const float code = largest > 0 ? std::round(values[begin + i] / static_cast<float>(scale)) : 0;
      const auto stored = static_cast<int8_t>(std::clamp(code, -127.0F, 127.0F));
      bytes += static_cast<char>(stored);
      meant.push_back(static_cast<float>(scale) * static_cast<float>(stored));
    }
  }
  return bytes;
}

// Writes the CLIP of a pipeline as GGUF with its matrices in Q8_0, and as safetensors with the values that these mean.
void WriteClips(const models::ModelFolder& folder, const std::string& gguf, const std::string& safetensors) {
  std::map<std::string, Stored> tensors;
  AddComponent(folder, "text_encoder", "", tensors);
  constexpr uint32_t kF32 = 0, kQ8 = 8;
  GgufBytes header;
  header.Text("general.architecture", "clip");
  std::string data;
  for (auto& [name, stored] : tensors) {
    ASSERT_EQ(stored.type, models::StoredType::kBF16) << name;
    std::vector<float> values(stored.bytes.size() / sizeof(c10::BFloat16)), meant;
    for (size_t i = 0; i < values.size(); ++i) {
      c10::BFloat16 value;
      std::memcpy(&value, stored.bytes.data() + i * sizeof(value), sizeof(value));
      values[i] = static_cast<float>(value);
    }
    const bool is_packed = stored.shape.size() == 2 && stored.shape[1] % 32 == 0;
    const std::string packed = is_packed ? PackQ8(values, meant) : "";
    const std::vector<float>& held = is_packed ? meant : values;
    const std::span<const std::byte> plain = std::as_bytes(std::span(held));
    stored.type = models::StoredType::kF32;
    stored.bytes.assign(plain.begin(), plain.end());
    data.resize((data.size() + 31) / 32 * 32, '\0');
    header.Tensor(name, {stored.shape.rbegin(), stored.shape.rend()}, is_packed ? kQ8 : kF32, data.size());
    data += is_packed ? packed : std::string(reinterpret_cast<const char*>(plain.data()), plain.size());
  }
  std::ofstream(gguf, std::ios::binary) << header.Bytes(data);
  WriteFile(safetensors, tensors);
}

TEST(ClipInGgufTest, TheLatentsAreThoseOfTheValuesThatItHolds) {
  const std::string pipeline = GoldenPipeline("flux_dev");
  const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(pipeline);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const TestFolder files;
  const std::string gguf = files / "clip_l-Q8_0.gguf", plain = files / "clip_l.safetensors";
  ASSERT_NO_FATAL_FAILURE(WriteClips(*folder, gguf, plain));
  const auto load = [&](const std::string& encoder) {
    return control::LoadParameters{.model = pipeline, .files = {.text_encoders = {encoder}}};
  };
  const absl::StatusOr<std::vector<double>> packed = LatentsOf(load(gguf)), expected = LatentsOf(load(plain));
  ASSERT_TRUE(packed.ok() && expected.ok()) << packed.status() << expected.status();
  EXPECT_EQ(*packed, *expected);
  EXPECT_NE(*packed, *LatentsOf({.model = pipeline})) << "eight bits are not the folder's values";
  // Its products stay packed in memory.
  Engine of_packed(WorkerRank{}), of_plain(WorkerRank{});
  EXPECT_LT(of_packed.Load(load(gguf))->weight_bytes, of_plain.Load(load(plain))->weight_bytes);
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
