#include "server/api/generation_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "control/model/model_description.h"
#include "control/parameters/placement.h"
#include "server/api/request_fields.h"

namespace tessera::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

control::ModelDescription Model() {
  control::ModelDescription model;
  model.size_multiple = 16;
  model.min_size = 16;
  model.max_size = 2040;
  model.default_height = 512;
  model.default_width = 768;
  model.default_steps = 20;
  model.max_steps = 1000;
  model.default_guidance_scale = 4.5;
  model.default_max_sequence_length = 300;
  model.max_sequence_length = 512;
  model.options = {"prompt_2",  "prompt_3",    "true_cfg_scale", "guidance_rescale",
                   "clip_skip", "skip_layers", "original_size"};
  model.cost.guidance_is_input = true;
  model.blocks = 24;
  model.default_clean_caption = true;
  model.default_sampler = "dpmsolver++";
  model.samplers = {"ddim", "ddpm", "dpmsolver++", "euler"};
  return model;
}

std::string ErrorOf(const ImageRequest& request, const control::ModelDescription& model = Model()) {
  const absl::StatusOr<control::JobParameters> job = Validate(request, model);
  if (job.ok()) return "";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(job.status().message());
}

TEST(GenerationRequestTest, TakesTheModelsDefaultsForWhatIsAbsent) {
  const absl::StatusOr<control::JobParameters> job = Validate({.prompt = "a", .seed = 7}, Model());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->width, 768);
  EXPECT_EQ(job->height, 512);
  EXPECT_EQ(job->steps, 20);
  EXPECT_EQ(job->guidance_scale, 4.5);
  EXPECT_EQ(job->seed, 7u);
  EXPECT_EQ(job->max_sequence_length, 300);
  EXPECT_TRUE(job->clean_caption);
  EXPECT_FALSE(job->resolution_binning);
  EXPECT_EQ(job->negative_prompt, std::nullopt);
  EXPECT_EQ(job->options, control::PromptOptions());
  EXPECT_EQ(job->sampler, "");
  EXPECT_EQ(job->noise, control::NoiseKind::kTessera);
}

TEST(GenerationRequestTest, TakesWhatIsGivenOverTheDefaults) {
  const absl::StatusOr<control::JobParameters> job = Validate({.prompt = "a",
                                                               .negative_prompt = "b",
                                                               .width = 32,
                                                               .height = 64,
                                                               .steps = 1000,
                                                               .guidance_scale = 0,
                                                               .sampler = "euler",
                                                               .noise = "torch-cpu",
                                                               .clean_caption = false,
                                                               .max_sequence_length = 24},
                                                              Model());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->negative_prompt, "b");
  EXPECT_EQ(job->width, 32);
  EXPECT_EQ(job->height, 64);
  EXPECT_EQ(job->steps, 1000);
  EXPECT_EQ(job->guidance_scale, 0);
  EXPECT_EQ(job->sampler, "euler");
  EXPECT_EQ(job->noise, control::NoiseKind::kTorchCpu);
  EXPECT_FALSE(job->clean_caption);
  EXPECT_EQ(job->max_sequence_length, 24);
}

TEST(GenerationRequestTest, NamesBothNeighboursOfASizeThatIsNoMultiple) {
  EXPECT_THAT(ErrorOf({.width = 100}), AllOf(HasSubstr("width is 100"), HasSubstr("multiples of 16 from 16 to 2032"),
                                             HasSubstr("the nearest are 96 and 112")));
}

TEST(GenerationRequestTest, NamesTheNearestEndOfTheRangeOfSizes) {
  EXPECT_THAT(ErrorOf({.height = 0}), AllOf(HasSubstr("height is 0"), HasSubstr("the nearest is 16")));
  EXPECT_THAT(ErrorOf({.height = -64}), AllOf(HasSubstr("height is -64"), HasSubstr("the nearest is 16")));
  // The nearest valid size is the largest multiple, not the largest size.
  EXPECT_THAT(ErrorOf({.width = std::numeric_limits<int64_t>::max()}), HasSubstr("the nearest is 2032"));
}

TEST(GenerationRequestTest, AcceptsAnySizeInRangeWhereSizesAreBinned) {
  control::ModelDescription model = Model();
  model.can_bin = true;
  EXPECT_EQ(ErrorOf({.width = 1001, .height = 999, .resolution_binning = true}, model), "");
  EXPECT_THAT(ErrorOf({.width = 5000, .resolution_binning = true}, model),
              AllOf(HasSubstr("valid values are 16 to 2040"), Not(HasSubstr("multiple"))));
}

TEST(GenerationRequestTest, RefusesBinningForAModelWithoutATableOfSizes) {
  EXPECT_THAT(ErrorOf({.resolution_binning = true}), HasSubstr("no table of sizes"));
}

TEST(GenerationRequestTest, RefusesStepsOutOfRangeNamingTheNearest) {
  EXPECT_THAT(ErrorOf({.steps = 0}), HasSubstr("steps is 0; valid values are 1 to 1000, the nearest is 1"));
  EXPECT_THAT(ErrorOf({.steps = 1001}), HasSubstr("steps is 1001; valid values are 1 to 1000, the nearest is 1000"));
}

TEST(GenerationRequestTest, RefusesGuidanceThatIsNoNumberOrNegativeOrEndless) {
  EXPECT_THAT(ErrorOf({.guidance_scale = std::nan("")}), AllOf(HasSubstr("guidance is nan"), HasSubstr("4.5")));
  EXPECT_THAT(ErrorOf({.guidance_scale = -1}), AllOf(HasSubstr("guidance is -1"), HasSubstr("the nearest is 0")));
  EXPECT_THAT(ErrorOf({.guidance_scale = std::numeric_limits<double>::infinity()}), HasSubstr("guidance is inf"));
}

TEST(GenerationRequestTest, AcceptsAnEmptyPromptAndOneOfExactlyTheLargestLength) {
  EXPECT_EQ(ErrorOf({.prompt = ""}), "");
  EXPECT_EQ(ErrorOf({.prompt = std::string(control::kPrompt.most_bytes, 'a')}), "");
}

TEST(GenerationRequestTest, SaysHowManyBytesAPromptHasTooMany) {
  EXPECT_THAT(ErrorOf({.prompt = std::string(control::kPrompt.most_bytes + 1, 'a')}),
              HasSubstr("prompt has 32769 bytes; valid values are at most 32768"));
}

TEST(GenerationRequestTest, NamesTheOffsetOfTheByteThatIsNotUtf8) {
  EXPECT_THAT(ErrorOf({.prompt = "caf\xC3\xA9 \xFF"}), HasSubstr("byte 0xff at offset 6"));
  EXPECT_THAT(ErrorOf({.negative_prompt = "\xC3"}), HasSubstr("negative prompt is not valid UTF-8"));
}

TEST(GenerationRequestTest, NamesTheOffsetOfANul) {
  EXPECT_THAT(ErrorOf({.prompt = std::string("ab\0c", 4)}), HasSubstr("NUL byte at offset 2"));
}

TEST(GenerationRequestTest, ProposesTheSamplerThatIsSpeltMostLikeTheUnknownOne) {
  EXPECT_THAT(ErrorOf({.sampler = "eluer"}),
              AllOf(HasSubstr("sampler 'eluer' is unknown"), HasSubstr("ddim, ddpm, dpmsolver++, euler"),
                    HasSubstr("did you mean 'euler'?")));
  EXPECT_THAT(ErrorOf({.sampler = "DDIM"}), HasSubstr("did you mean 'ddim'?"));
}

TEST(GenerationRequestTest, ProposesNothingForANameThatIsLikeNoOther) {
  EXPECT_THAT(ErrorOf({.sampler = "quux"}), Not(HasSubstr("did you mean")));
}

TEST(GenerationRequestTest, ShowsNoControlCharactersOfAnUnknownName) {
  EXPECT_THAT(ErrorOf({.sampler = "\x1B[2J\xFF"}), HasSubstr("'?[2J?'"));
}

TEST(GenerationRequestTest, RefusesAnUnknownNoise) {
  EXPECT_THAT(ErrorOf({.noise = "torch"}), AllOf(HasSubstr("noise 'torch'"), HasSubstr("tessera, torch-cpu")));
}

TEST(GenerationRequestTest, RefusesCountsOutOfRange) {
  EXPECT_THAT(ErrorOf({.count = 0}), HasSubstr("count is 0; valid values are 1 to 1000"));
  EXPECT_THAT(ErrorOf({.count = 1001}), HasSubstr("the nearest is 1000"));
}

TEST(GenerationRequestTest, RefusesASeedFromWhichTheOthersCannotCountUp) {
  const uint64_t last = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(ErrorOf({.seed = last}), "");
  EXPECT_EQ(ErrorOf({.seed = last - 1, .count = 2}), "");
  EXPECT_THAT(ErrorOf({.seed = last, .count = 2}), HasSubstr("valid values are at most 18446744073709551614"));
}

TEST(GenerationRequestTest, DistinguishesAnEmptyNegativePromptFromNone) {
  EXPECT_EQ(Validate({.prompt = "a", .negative_prompt = ""}, Model())->negative_prompt, "");
}

TEST(GenerationRequestTest, RefusesMoreTokensThanTheModelReads) {
  EXPECT_EQ(ErrorOf({.max_sequence_length = 512}), "");
  EXPECT_THAT(ErrorOf({.max_sequence_length = 513}),
              HasSubstr("maximum sequence length is 513; valid values are 1 to 512, the nearest is 512"));
  control::ModelDescription wordless = Model();
  wordless.default_max_sequence_length = wordless.max_sequence_length = 0;
  EXPECT_EQ(ErrorOf({}, wordless), "");
  EXPECT_THAT(ErrorOf({.max_sequence_length = 1}, wordless), HasSubstr("reads no tokens"));
}

TEST(GenerationRequestTest, NamesTheOnlyValidSize) {
  control::ModelDescription model = Model();
  model.min_size = model.max_size = model.default_height = model.default_width = 256;
  EXPECT_EQ(ErrorOf({}, model), "");
  EXPECT_THAT(ErrorOf({.width = 512}, model), HasSubstr("width is 512; the only valid value is 256"));
}

TEST(GenerationRequestTest, HandsEveryOptionOn) {
  const absl::StatusOr<control::JobParameters> job = Validate({.prompt_2 = "b",
                                                               .prompt_3 = "c",
                                                               .negative_prompt_2 = "d",
                                                               .negative_prompt_3 = "e",
                                                               .true_cfg_scale = 4,
                                                               .guidance_rescale = 0.5,
                                                               .clip_skip = 2,
                                                               .skip_layers = {9, 7, 0, 23},
                                                               .skip_layer_scale = 3,
                                                               .skip_layer_start = 0.125,
                                                               .skip_layer_stop = 0.25,
                                                               .original_width = 1024,
                                                               .original_height = 768,
                                                               .crop_top = 1,
                                                               .crop_left = 2},
                                                              Model());
  ASSERT_TRUE(job.ok()) << job.status();
  const control::PromptOptions expected = {
      .prompt_2 = "b",
      .prompt_3 = "c",
      .negative_prompt_2 = "d",
      .negative_prompt_3 = "e",
      .true_cfg_scale = 4,
      .guidance_rescale = 0.5,
      .clip_skip = 2,
      .skip_layers = {.layers = {9, 7, 0, 23}, .scale = 3, .start = 0.125, .stop = 0.25},
      .original_size = {.height = 768, .width = 1024, .crop_top = 1, .crop_left = 2}};
  EXPECT_EQ(job->options, expected);
}

TEST(GenerationRequestTest, RefusesEveryOptionThatTheModelDoesNotRead) {
  control::ModelDescription model = Model();
  const std::vector<std::tuple<ImageRequest, std::string, std::string>> cases = {
      {{.prompt_2 = "b"}, "prompt_2", "prompt 2 is 'b'"},
      {{.negative_prompt_2 = "b"}, "prompt_2", "negative prompt 2 is 'b'"},
      {{.prompt_3 = "b"}, "prompt_3", "prompt 3 is 'b'"},
      {{.negative_prompt_3 = "b"}, "prompt_3", "negative prompt 3 is 'b'"},
      {{.true_cfg_scale = 1}, "true_cfg_scale", "true CFG scale is 1"},  // explicit, although it is the default
      {{.guidance_rescale = 0}, "guidance_rescale", "guidance rescale is 0"},
      {{.clip_skip = 0}, "clip_skip", "clip skip is 0"},
      {{.skip_layers = {7, 8}}, "skip_layers", "skip layers is 7,8"},
      {{.skip_layer_scale = 2}, "skip_layers", "skip layer scale is 2"},
      {{.skip_layer_start = 0}, "skip_layers", "skip layer start is 0"},
      {{.skip_layer_stop = 1}, "skip_layers", "skip layer stop is 1"},
      {{.original_width = 8, .original_height = 8}, "original_size", "original width is 8"},
      {{.crop_top = 0}, "original_size", "crop top is 0"},
      {{.crop_left = 0}, "original_size", "crop left is 0"},
  };
  for (const auto& [request, option, message] : cases) {
    model.options = Model().options;
    model.options.erase(std::find(model.options.begin(), model.options.end(), option));
    EXPECT_THAT(ErrorOf(request, model), AllOf(HasSubstr(message), HasSubstr("does not read it"), HasSubstr("leave")));
    EXPECT_THAT(ErrorOf(request, model), HasSubstr(model.options[1] + ", " + model.options[2])) << "the others";
    model.options.clear();
    EXPECT_THAT(ErrorOf(request, model), HasSubstr("no options of this kind"));
  }
}

TEST(GenerationRequestTest, RefusesOptionsOutOfRange) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const int64_t most = std::numeric_limits<int64_t>::max();
  const std::vector<std::pair<ImageRequest, std::string>> cases = {
      {{.true_cfg_scale = nan}, "true CFG scale is nan; it must be a number from 0 to 1000"},
      {{.true_cfg_scale = -1}, "true CFG scale is -1; it must be a number from 0 to 1000, the nearest is 0"},
      {{.true_cfg_scale = infinity}, "the nearest is 1000"},
      {{.guidance_rescale = 1.5}, "guidance rescale is 1.5; it must be a number from 0 to 1, the nearest is 1"},
      {{.guidance_rescale = nan}, "guidance rescale is nan"},
      {{.clip_skip = 65}, "clip skip is 65; valid values are 0 to 64"},
      {{.clip_skip = -1}, "clip skip is -1"},
      {{.skip_layers = {7, 24}}, "skip layer is 24; valid values are 0 to 23, the nearest is 23"},
      {{.skip_layers = {-1}}, "skip layer is -1"},
      {{.skip_layers = {most}}, "skip layer is 9223372036854775807"},
      {{.skip_layers = {7, 8, 7}}, "skip layer 7 is given twice"},
      {{.skip_layers = {7}, .skip_layer_scale = infinity}, "skip layer scale is inf"},
      {{.skip_layers = {7}, .skip_layer_start = -0.5}, "skip layer start is -0.5"},
      {{.skip_layers = {7}, .skip_layer_stop = 1.5}, "skip layer stop is 1.5"},
      {{.skip_layers = {7}, .skip_layer_start = 0.5},
       "skip layer start is 0.5; valid values are at most the stop, which is 0.2"},
      {{.skip_layer_scale = 2}, "skip layers are not given"},
      {{.original_width = 0, .original_height = 8},
       "original width is 0; valid values are 1 to 65536, the nearest is 1"},
      {{.original_width = 8, .original_height = 65537}, "original height is 65537"},
      {{.original_width = 8}, "original width is 8 without an original height"},
      {{.crop_top = -1}, "crop top is -1; valid values are 0 to 65536, the nearest is 0"},
      {{.crop_left = most}, "crop left is 9223372036854775807"},
      {{.prompt_2 = "\xFF"}, "prompt 2 is not valid UTF-8"},
      {{.prompt_3 = std::string("a\0", 2)}, "prompt 3 has a NUL byte"},
      {{.negative_prompt_2 = std::string(control::kPrompt.most_bytes + 1, 'a')}, "negative prompt 2 has 32769 bytes"},
      {{.negative_prompt_3 = "\xC3"}, "negative prompt 3 is not valid UTF-8"},
  };
  for (const auto& [request, message] : cases) EXPECT_THAT(ErrorOf(request), HasSubstr(message));
}

TEST(GenerationRequestTest, AcceptsTheEndsOfTheRangesOfOptions) {
  EXPECT_EQ(ErrorOf({.true_cfg_scale = 0, .guidance_rescale = 0, .clip_skip = 0, .crop_top = 0, .crop_left = 0}), "");
  EXPECT_EQ(ErrorOf({.true_cfg_scale = 1000,
                     .guidance_rescale = 1,
                     .clip_skip = 64,
                     .skip_layers = {0, 23},
                     .skip_layer_scale = 1000,
                     .skip_layer_start = 1,
                     .skip_layer_stop = 1,
                     .original_width = 65536,
                     .original_height = 1,
                     .crop_top = 65536,
                     .crop_left = 65536}),
            "");
}

std::string DtypeError(const std::string& name, const std::string& device) {
  const absl::StatusOr<control::Dtype> dtype = ServedDtype(name, device);
  return dtype.ok() ? "" : std::string(dtype.status().message());
}

TEST(ServedDtypeTest, AcceptsEveryValidDevice) {
  for (const char* device : {"cpu", "cuda", "cuda:0", "cuda:15", "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f",
                             "MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"}) {
    EXPECT_EQ(DtypeError("fp32", device), "") << device;
  }
}

TEST(ServedDtypeTest, RefusesDevicesThatAreAlmostValid) {
  for (const char* device : {"", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999"}) {
    EXPECT_THAT(DtypeError("fp32", device),
                HasSubstr("device is '" + std::string(device) + "'; valid values are cpu, cuda,"))
        << device;
  }
}

TEST(ServedDtypeTest, ProposesTheDtypeThatIsSpeltMostLikeTheUnknownOne) {
  EXPECT_THAT(DtypeError("bf6", "cpu"), AllOf(HasSubstr("dtype 'bf6' is unknown"), HasSubstr("fp64, fp32, bf16"),
                                              HasSubstr("did you mean 'bf16'?")));
}

TEST(ServedDtypeTest, WithoutANameTheDeviceDecides) {
  EXPECT_EQ(*ServedDtype("", "cpu"), control::Dtype::kFp32);
  EXPECT_EQ(*ServedDtype("", "cuda:1"), control::Dtype::kBf16);
  EXPECT_EQ(*ServedDtype("fp64", "cuda:1"), control::Dtype::kFp64);
}

}  // namespace
}  // namespace tessera::server
