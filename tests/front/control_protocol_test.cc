// Tests both ends of the control protocol together: each must receive what the other sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "control/protocol/command_handler.h"
#include "control/protocol/commands.h"
#include "control/protocol/control_channel.h"
#include "control/protocol/worker_client.h"
#include "tests/support/listening_socket.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Records the commands that it receives and returns the answers set by the test.
struct Worker final : control::CommandHandler {
  absl::StatusOr<control::ModelDescription> Describe(const std::string&, const control::ComponentFiles&) override {
    return description;
  }
  absl::StatusOr<control::Loaded> Load(const control::LoadParameters& parameters) override {
    load = parameters;
    return loaded;
  }
  absl::StatusOr<control::DeviceIdentity> Identify(const std::string& device) override {
    if (device == identified) return identity;
    return absl::ResourceExhaustedError("device is " + device);
  }
  absl::StatusOr<control::JobStarted> StartJob(uint64_t, const control::JobParameters& parameters) override {
    job = parameters;
    return started;
  }
  absl::StatusOr<control::Stepping> Step(absl::Span<const uint64_t>) override {
    return [this] { return stepped; };
  }
  absl::StatusOr<control::Decoding> Decode(uint64_t) override {
    return [](control::RowSink) { return control::Decoded{}; };
  }
  absl::StatusOr<control::LatentValues> Latents(uint64_t) override { return latents; }
  absl::StatusOr<control::LatentValues> Predict(uint64_t, const control::LatentValues& asked,
                                                absl::Span<const uint64_t> batch) override {
    control::LatentValues prediction = asked;
    for (const uint64_t job : batch) prediction.values[0] += static_cast<double>(job);
    for (double& value : prediction.values) value *= -2;
    return prediction;
  }
  absl::Status EndJob(uint64_t) override { return absl::OkStatus(); }

  control::ModelDescription description;
  control::JobStarted started;
  control::LatentValues latents;
  control::Loaded loaded;
  control::Stepped stepped;
  std::string identified;
  control::DeviceIdentity identity;
  control::LoadParameters load;
  control::JobParameters job;
};

class ControlProtocolTest : public ::testing::Test {
 protected:
  ControlProtocolTest() {
    thread_ = std::thread(
        [this] { result_ = control::ServeControlChannel(worker_, {.socket_path = parent_ / "folder/socket"}); });
    client_ = std::make_unique<control::WorkerClient>(
        control::WorkerClient::Options{.socket = ConnectWhenListening(parent_ / "folder/socket").Release(),
                                       .timeout = absl::Seconds(60),
                                       .ending = [] { return std::string("the worker went away"); }});
  }

  ~ControlProtocolTest() override {
    EXPECT_TRUE(client_->Call(control::Shutdown()).ok());
    client_.reset();
    thread_.join();
    EXPECT_TRUE(result_.ok()) << result_;
  }

  Worker worker_;
  std::unique_ptr<control::WorkerClient> client_;

 private:
  TestFolder parent_;
  absl::Status result_;
  std::thread thread_;
};

control::JobParameters EveryParameter() {
  return {.prompt = "a",
          .negative_prompt = "b",
          .options = {.prompt_2 = "c",
                      .prompt_3 = "d",
                      .negative_prompt_2 = "e",
                      .negative_prompt_3 = "f",
                      .true_cfg_scale = 4.1,
                      .guidance_rescale = 0.7,
                      .cfg_normalization = 1.5,
                      .cfg_truncation = 0.75,
                      .clip_skip = 2,
                      .skip_layers = {.layers = {9, 7, 8}, .scale = 3.1, .start = 0.1, .stop = 0.9},
                      .original_size = {.height = 1, .width = 2, .crop_top = 3, .crop_left = 4}},
          .height = 64,
          .width = 128,
          .steps = 3,
          .guidance_scale = 4.5,
          .seed = 18446744073709551615u,
          .sampler = "euler",
          .noise = control::NoiseKind::kTorchCpu,
          .clean_caption = true,
          .resolution_binning = true,
          .max_sequence_length = 77};
}

TEST_F(ControlProtocolTest, CarriesEveryParameterOfAJob) {
  worker_.started = {.height = 64, .width = 128, .steps = 2};
  const control::JobParameters sent = EveryParameter();
  ASSERT_TRUE(client_->Call(control::StartJob{.job = 1, .parameters = sent}).ok());
  const control::JobParameters& heard = worker_.job;
  EXPECT_EQ(heard.prompt, sent.prompt);
  EXPECT_EQ(heard.negative_prompt, sent.negative_prompt);
  EXPECT_EQ(heard.options, sent.options);
  EXPECT_EQ(heard.height, sent.height);
  EXPECT_EQ(heard.width, sent.width);
  EXPECT_EQ(heard.steps, sent.steps);
  EXPECT_EQ(heard.guidance_scale, sent.guidance_scale);
  EXPECT_EQ(heard.seed, sent.seed);
  EXPECT_EQ(heard.sampler, sent.sampler);
  EXPECT_EQ(heard.noise, sent.noise);
  EXPECT_EQ(heard.clean_caption, sent.clean_caption);
  EXPECT_EQ(heard.resolution_binning, sent.resolution_binning);
  EXPECT_EQ(heard.max_sequence_length, sent.max_sequence_length);
}

TEST_F(ControlProtocolTest, CarriesTheDefaultsOfOptionsAndWhetherThereIsANegativePrompt) {
  worker_.started = {.height = 64, .width = 128, .steps = 2};
  control::JobParameters sent = EveryParameter();
  sent.options = {};
  uint64_t job = 0;
  for (const std::optional<std::string>& negative :
       {std::optional<std::string>(), std::optional<std::string>(""), std::optional<std::string>("x")}) {
    sent.negative_prompt = negative;
    ASSERT_TRUE(client_->Call(control::StartJob{.job = ++job, .parameters = sent}).ok());
    EXPECT_EQ(worker_.job.negative_prompt, negative);
    EXPECT_EQ(worker_.job.options, control::PromptOptions());
  }
}

TEST_F(ControlProtocolTest, CarriesEveryParameterOfLoading) {
  for (const control::ComponentPlacement placement :
       {control::ComponentPlacement::kRank0, control::ComponentPlacement::kCpu, control::ComponentPlacement::kUnloaded,
        control::ComponentPlacement::kSharded, control::ComponentPlacement::kStreamed}) {
    ASSERT_TRUE(
        client_
            ->Call(control::LoadModel{.parameters = {.model = "m",
                                                     .dtype = control::Dtype::kBf16,
                                                     .device = "cuda:1",
                                                     .placement = {.threads = 3,
                                                                   .text_encoders = placement,
                                                                   .autoencoder = control::AutoencoderPlacement::kCpu,
                                                                   .memory_limit = "12GiB"},
                                                     .prompt_cache_bytes = uint64_t{1} << 40}})
            .ok());
    EXPECT_EQ(worker_.load.model, "m");
    EXPECT_EQ(worker_.load.dtype, control::Dtype::kBf16);
    EXPECT_EQ(worker_.load.device, "cuda:1");
    EXPECT_EQ(worker_.load.placement.threads, 3);
    EXPECT_EQ(worker_.load.placement.text_encoders, placement);
    EXPECT_EQ(worker_.load.placement.autoencoder, control::AutoencoderPlacement::kCpu);
    EXPECT_EQ(worker_.load.placement.memory_limit, "12GiB");
    EXPECT_EQ(worker_.load.prompt_cache_bytes, uint64_t{1} << 40);
  }
  for (const control::AutoencoderPlacement placement :
       {control::AutoencoderPlacement::kRank0, control::AutoencoderPlacement::kCpu,
        control::AutoencoderPlacement::kUnloaded}) {
    ASSERT_TRUE(client_->Call(control::LoadModel{.parameters = {.placement = {.autoencoder = placement}}}).ok());
    EXPECT_EQ(worker_.load.placement.autoencoder, placement);
  }
}

TEST_F(ControlProtocolTest, CarriesTheMemoryBudgetOfADeviceAndRefusesMoreOfItFreeThanThereIs) {
  EXPECT_EQ(client_->Call(control::LoadModel())->memory_budget, std::nullopt);
  worker_.loaded.memory_budget = {.most = uint64_t{1} << 40, .free = 0};
  EXPECT_EQ(client_->Call(control::LoadModel())->memory_budget, worker_.loaded.memory_budget);
  for (const control::MemoryBudget memory_budget :
       {control::MemoryBudget{.most = 5, .free = 6}, control::MemoryBudget{}}) {
    worker_.loaded.memory_budget = memory_budget;
    const absl::StatusOr<control::Loaded> loaded = client_->Call(control::LoadModel());
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("memory_budget."));
  }
}

TEST_F(ControlProtocolTest, CarriesTheMemoryOfADeviceAndRefusesMoreOfItThanThereIs) {
  worker_.started = {.height = 8, .width = 8, .steps = 2};
  ASSERT_TRUE(client_->Call(control::StartJob{.job = 1, .parameters = EveryParameter()}).ok());
  const auto step = [&]() -> absl::StatusOr<control::Stepped> {
    const absl::StatusOr<std::vector<control::Stepped>> steps = client_->WaitForSteps(*client_->SendSteps({1}, 1));
    if (!steps.ok()) return steps.status();
    return steps->back();
  };
  EXPECT_EQ(step()->device_memory, std::nullopt);
  EXPECT_EQ(client_->Call(control::LoadModel())->device_memory, std::nullopt);
  const control::DeviceMemory memory = {.total = uint64_t{1} << 40, .free = 1, .used = 2, .cached = 3};
  worker_.stepped.device_memory = worker_.loaded.device_memory = memory;
  EXPECT_EQ(client_->Call(control::LoadModel())->device_memory, memory);
  ASSERT_TRUE(client_->Call(control::StartJob{.job = 1, .parameters = EveryParameter()}).ok());
  EXPECT_EQ(step()->device_memory, memory);
  for (const control::DeviceMemory wrong :
       {control::DeviceMemory{}, control::DeviceMemory{.total = 5, .free = 6},
        control::DeviceMemory{.total = 5, .used = 6}, control::DeviceMemory{.total = 5, .cached = 6}}) {
    worker_.stepped.device_memory = worker_.loaded.device_memory = wrong;
    EXPECT_EQ(step().status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(client_->Call(control::LoadModel()).status().code(), absl::StatusCode::kUnavailable);
    ASSERT_TRUE(client_->Call(control::StartJob{.job = 1, .parameters = EveryParameter()}).ok());
  }
}

TEST_F(ControlProtocolTest, CarriesTheIdentityOfADevice) {
  worker_.identified = "cuda:3";
  worker_.identity = {.device = "a", .driver = "b", .cudnn = "c", .nccl = "d", .communicator = "e"};
  EXPECT_EQ(*client_->Call(control::IdentifyDevice{.device = "cuda:3"}), worker_.identity);
  EXPECT_EQ(client_->Call(control::IdentifyDevice{.device = "cuda:4"}).status(),
            absl::ResourceExhaustedError("device is cuda:4"));
}

TEST_F(ControlProtocolTest, CarriesWhatAModelReads) {
  worker_.description = {.size_multiple = 8,
                         .min_size = 256,
                         .max_size = 256,
                         .max_steps = 10,
                         .default_max_sequence_length = 24,
                         .max_sequence_length = 48,
                         .options = {"prompt_2", "clip_skip"},
                         .blocks = 10};
  const absl::StatusOr<control::ModelDescription> heard = client_->Call(control::DescribeModel{.model = "m"});
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->min_size, 256);
  EXPECT_EQ(heard->max_size, 256);
  EXPECT_EQ(heard->default_max_sequence_length, 24);
  EXPECT_EQ(heard->max_sequence_length, 48);
  EXPECT_EQ(heard->options, worker_.description.options);
  EXPECT_EQ(heard->blocks, 10);
}

control::ModelDescription DescribedTransformer() {
  return {.max_steps = 10,
          .blocks = 4,
          .transformer = {.exchange = {.width = 3072,
                                       .output_features = 64,
                                       .prediction_features = 32,
                                       .blocks = {{.kind = parallel::BlockKind::kImage},
                                                  {.kind = parallel::BlockKind::kCross},
                                                  {.kind = parallel::BlockKind::kJoint,
                                                   .second_attention = true,
                                                   .text_ends = true},
                                                  {.kind = parallel::BlockKind::kFused}},
                                       .long_skips = {{.from = 0, .to = 3}}},
                          .block_flops = {1.0 / 3, 0, 2, 1e20}},
          .cost = {.token_side = 16,
                   .text_tokens = 333,
                   .fixed_text_tokens = 77,
                   .joint_text = true,
                   .guidance_is_input = true,
                   .sizes = {.ratio_is_width_by_height = true, .sizes = {{0.25, 512, 2048}, {1, 1024, 1024}}},
                   .flops = {.image = 1, .text = 2, .image_pair = 3, .image_text_pair = 4, .text_pair = 5},
                   .blocks = 4,
                   .values_per_token = 6,
                   .values_per_block = 7,
                   .encode_flops_per_token = 1.0 / 3,
                   .decode_flops_per_pixel = 9,
                   .decode_values_per_pixel = 1e20}};
}

TEST_F(ControlProtocolTest, CarriesTheShapeOfATransformer) {
  worker_.description = DescribedTransformer();
  const absl::StatusOr<control::ModelDescription> heard = client_->Call(control::DescribeModel{.model = "m"});
  ASSERT_TRUE(heard.ok()) << heard.status();
  const control::TransformerShape& said = worker_.description.transformer;
  EXPECT_EQ(heard->transformer.exchange.width, 3072);
  EXPECT_EQ(heard->transformer.exchange.output_features, 64);
  EXPECT_EQ(heard->transformer.exchange.prediction_features, 32);
  ASSERT_EQ(heard->transformer.exchange.blocks.size(), 4u);
  for (size_t b = 0; b < 4; ++b) {
    const parallel::BlockExchange &block = heard->transformer.exchange.blocks[b], &expected = said.exchange.blocks[b];
    EXPECT_EQ(block.kind, expected.kind) << b;
    EXPECT_EQ(block.second_attention, expected.second_attention) << b;
    EXPECT_EQ(block.text_ends, expected.text_ends) << b;
  }
  EXPECT_EQ(heard->transformer.exchange.long_skips, said.exchange.long_skips);
  EXPECT_EQ(heard->transformer.block_flops, said.block_flops);
  EXPECT_EQ(heard->cost, worker_.description.cost);
}

TEST_F(ControlProtocolTest, AModelWithoutAKnownTransformerIsHeardAsThat) {
  worker_.description = {.max_steps = 10, .blocks = 4};
  const absl::StatusOr<control::ModelDescription> heard = client_->Call(control::DescribeModel{.model = "m"});
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_FALSE(heard->transformer.known());
}

TEST_F(ControlProtocolTest, ATransformerThatCannotBeIsNotBelieved) {
  const auto refused = [this](void (*damage)(control::TransformerShape&)) {
    worker_.description = DescribedTransformer();
    damage(worker_.description.transformer);
    const absl::Status status = client_->Call(control::DescribeModel{.model = "m"}).status();
    return status.code() == absl::StatusCode::kUnavailable &&
           std::string(status.message()).find("transformer") != std::string::npos;
  };
  EXPECT_FALSE(refused([](control::TransformerShape&) {}));
  EXPECT_TRUE(refused([](control::TransformerShape& shape) { shape.exchange.width = 0; }));
  EXPECT_TRUE(refused([](control::TransformerShape& shape) { shape.exchange.width = int64_t{1} << 40; }));
  EXPECT_TRUE(refused([](control::TransformerShape& shape) { shape.exchange.output_features = -1; }));
  EXPECT_TRUE(refused([](control::TransformerShape& shape) { shape.exchange.prediction_features = int64_t{1} << 40; }));
  EXPECT_TRUE(refused(
      [](control::TransformerShape& shape) { shape.exchange.blocks.pop_back(), shape.block_flops.pop_back(); }));
  EXPECT_TRUE(refused([](control::TransformerShape& shape) { shape.block_flops[1] = -1; }));
  EXPECT_TRUE(refused([](control::TransformerShape& shape) { shape.block_flops[1] = std::nan(""); }));
  EXPECT_TRUE(refused([](control::TransformerShape& shape) { shape.exchange.long_skips[0].to = 4; }));
  EXPECT_TRUE(refused([](control::TransformerShape& shape) { shape.exchange.long_skips[0].from = -1; }));
  EXPECT_TRUE(refused([](control::TransformerShape& shape) { shape.exchange.long_skips[0] = {.from = 2, .to = 2}; }));
}

TEST_F(ControlProtocolTest, ACostThatCannotBeIsNotBelieved) {
  const auto refused = [this](void (*damage)(control::ModelCost&)) {
    worker_.description = DescribedTransformer();
    damage(worker_.description.cost);
    const absl::Status status = client_->Call(control::DescribeModel{.model = "m"}).status();
    return status.code() == absl::StatusCode::kUnavailable &&
           std::string(status.message()).find("cost") != std::string::npos;
  };
  EXPECT_FALSE(refused([](control::ModelCost&) {}));
  EXPECT_TRUE(refused([](control::ModelCost& cost) { cost.token_side = 0; }));
  EXPECT_TRUE(refused([](control::ModelCost& cost) { cost.text_tokens = 1 << 30; }));
  EXPECT_TRUE(refused([](control::ModelCost& cost) { cost.blocks = 0; }));
  EXPECT_TRUE(refused([](control::ModelCost& cost) { cost.flops.text_pair = -1; }));
  EXPECT_TRUE(refused([](control::ModelCost& cost) { cost.values_per_token = std::nan(""); }));
  EXPECT_TRUE(refused([](control::ModelCost& cost) { cost.sizes.sizes[0].ratio = 0; }));
  EXPECT_TRUE(refused([](control::ModelCost& cost) { cost.sizes.sizes[1].width = 0; }));
}

TEST_F(ControlProtocolTest, CarriesWhetherThePromptWasCached) {
  worker_.started = {.height = 64, .width = 128, .steps = 2, .cached = true};
  EXPECT_TRUE(client_->Call(control::StartJob{.job = 1, .parameters = EveryParameter()})->cached);
  worker_.started.cached = false;
  EXPECT_FALSE(client_->Call(control::StartJob{.job = 2, .parameters = EveryParameter()})->cached);
}

TEST_F(ControlProtocolTest, CarriesWhichStepsAJobRuns) {
  worker_.started = {.height = 64, .width = 128, .first_step = 3, .steps = 5};
  const absl::StatusOr<control::JobStarted> started =
      client_->Call(control::StartJob{.job = 1, .parameters = EveryParameter()});
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->first_step, 3);
  EXPECT_EQ(started->steps, 5);
}

TEST_F(ControlProtocolTest, LatentsOfAnySizeArriveToTheBit) {
  worker_.started = {.height = 8, .width = 8, .steps = 2};
  ASSERT_TRUE(client_->Call(control::StartJob{.job = 1, .parameters = EveryParameter()}).ok());
  // Larger than one message.
  worker_.latents = {.shape = {3, 300, 400}, .values = std::vector<double>(3 * 300 * 400)};
  for (size_t i = 0; i < worker_.latents.values.size(); ++i)
    worker_.latents.values[i] = 1.0 / static_cast<double>(i + 1);
  const absl::StatusOr<control::LatentValues> latents = client_->Call(control::ReadLatents{.job = 1});
  ASSERT_TRUE(latents.ok()) << latents.status();
  EXPECT_EQ(latents->shape, worker_.latents.shape);
  EXPECT_EQ(latents->values, worker_.latents.values);

  const absl::StatusOr<control::LatentValues> prediction =
      client_->Call(control::PredictFrom{.job = 1, .latents = *latents});
  ASSERT_TRUE(prediction.ok()) << prediction.status();
  EXPECT_EQ(prediction->values.back(), -2 * latents->values.back());
  ASSERT_TRUE(client_->Call(control::StartJob{.job = 7, .parameters = EveryParameter()}).ok());
  EXPECT_EQ(client_->Call(control::PredictFrom{.job = 1, .latents = *latents, .others = {7}})->values[0],
            prediction->values[0] - 14);
  EXPECT_EQ(client_->Call(control::PredictFrom{.job = 1, .latents = *latents, .others = {2}}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(client_->Call(control::PredictFrom{.job = 1, .latents = *latents, .others = {1}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ControlProtocolTest, LatentsThatDoNotFillTheirShapeAreRefused) {
  worker_.started = {.height = 8, .width = 8, .steps = 2};
  ASSERT_TRUE(client_->Call(control::StartJob{.job = 1, .parameters = EveryParameter()}).ok());
  EXPECT_EQ(
      client_->Call(control::PredictFrom{.job = 1, .latents = {.shape = {2, 2}, .values = {1, 2, 3}}}).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client_
                ->Call(control::PredictFrom{.job = 1,
                                            .latents = {.shape = {int64_t{1} << 40, int64_t{1} << 40}, .values = {1}}})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Call(control::PredictFrom{.job = 2, .latents = {.shape = {1}, .values = {1}}}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tessera
