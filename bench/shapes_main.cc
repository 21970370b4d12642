// Measures the speed of published models' shapes with random weights in bf16, as `bench_shapes DEVICE SHAPE [steps
// [blocks [side]]]`: consecutive steps of one image of `side` pixels (1024), or decodings. Shapes: flux_dev,
// sd3_medium, pixart_sigma, hunyuandit, autoencoder (FLUX.1's), qwen_autoencoder, and matmul, which reports the
// device's matrix product rate at the time. `blocks` limits the number of a transformer's blocks. Steps run as in a
// worker: passes are graphs if the device supports graphs, unless TESSERA_GRAPHS=off.
//
// Prints one line of JSON: the mean of all consecutive steps, the first, second (which captures a graph) and third step
// of a shape separately, and the memory of the device at the end. With TESSERA_KERNEL_TABLE=FILE it writes a table of
// the kernels of one step. Weights and activations are random because a device that multiplies zeros uses less power
// and is faster.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/kernel_table.h"
#include "bench/random_family.h"
#include "models/autoencoder/autoencoder_kl.h"
#include "models/autoencoder/qwen_autoencoder.h"
#include "models/flux/flux_transformer.h"
#include "models/hunyuandit/hunyuandit_transformer.h"
#include "models/pixart/pixart_transformer.h"
#include "models/sd3/sd3_transformer.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/device/device.h"
#include "runtime/device/mark.h"

namespace tessera {
namespace {

struct Arguments {
  std::string shape;
  int steps = 50;
  int64_t blocks = 0;  // 0: all
  int64_t side = 1024;
};

constexpr int64_t kPixelsPerLatent = 8, kLatentChannels = 16;

double DeviceSeconds(at::Device device, const std::function<void()>& work) {
  const runtime::Mark begin(device);
  work();
  const runtime::Mark end(device);
  end.Wait();
  return end.SecondsSince(begin);
}

at::Tensor RandomOn(at::Device device, at::IntArrayRef shape) {
  return at::randn(shape, at::TensorOptions(at::kBFloat16).device(device));
}

struct StepTimes {
  double mean = 0;  // of all steps of one image, in seconds
  double fastest = 0;
  std::vector<double> beginning;  // of the first steps of a shape
};

runtime::DenoiserOptions OptionsOfAWorker() {
  runtime::DenoiserOptions options;
  const char* const graphs = std::getenv("TESSERA_GRAPHS");
  if (graphs == nullptr || std::string_view(graphs) != "off") options.graphs.emplace();
  return options;
}

// Writes the kernels that `work` runs to the file named by TESSERA_KERNEL_TABLE. Runs nothing if the variable is not
// set.
void WriteKernelTable(at::Device device, const std::function<void()>& work) {
  const char* const path = std::getenv("TESSERA_KERNEL_TABLE");
  if (path == nullptr) return;
  std::ofstream file(path);
  file << "milliseconds\tcount\tkernel\n";
  for (const KernelTime& kernel : KernelsOf(device, work)) {
    file << kernel.milliseconds << "\t" << kernel.count << "\t" << kernel.name << "\n";
  }
}

// Measures the steps of a job whose branches all have this row.
StepTimes TimesOfSteps(const models::Family& family, const models::ConditioningRow& row, bool flow,
                       const std::vector<double>& weights, const Arguments& arguments) {
  parallel::SingleRank one;
  const parallel::RankGroups groups = parallel::RankGroups::Alone(one);
  runtime::Denoiser denoiser(family, groups, OptionsOfAWorker());
  const int64_t side = arguments.side / kPixelsPerLatent;
  // Returns the seconds of each step.
  const auto denoise = [&](int steps) {
    runtime::DenoiseJob job{.geometry = family.Geometry(side, side)};
    for (const double weight : weights) {
      job.guidance.branches.push_back({.row = row, .terms = {{.weight = weight}}, .skipped_blocks = {}});
    }
    const runtime::SamplerConfig sampler = flow ? runtime::DefaultSamplerConfig(runtime::FlowEulerOptions{})
                                                : runtime::DefaultSamplerConfig(runtime::DdimOptions{});
    job.sampler = *runtime::MakeSampler(sampler, steps, family, job.geometry);
    job.noise = runtime::MakeTesseraNoise(1);
    runtime::DrawInitialLatents(job, family);
    runtime::DenoiseJob* batch[] = {&job};
    std::vector<std::unique_ptr<runtime::Mark>> marks;
    marks.push_back(std::make_unique<runtime::Mark>(family.device()));
    while (!job.done()) {
      denoiser.Step(batch);
      marks.push_back(std::make_unique<runtime::Mark>(family.device()));
    }
    marks.back()->Wait();
    denoiser.Flush();
    std::vector<double> seconds;
    for (size_t i = 1; i < marks.size(); ++i) seconds.push_back(marks[i]->SecondsSince(*marks[i - 1]));
    return seconds;
  };
  StepTimes times;
  times.beginning = denoise(3);  // allocation and choice of kernels, graph capture, first launch
  const std::vector<double> seconds = denoise(arguments.steps);
  for (const double step : seconds) times.mean += step / static_cast<double>(seconds.size());
  times.fastest = *std::ranges::min_element(seconds);
  WriteKernelTable(family.device(), [&] { denoise(1); });
  return times;
}

void Print(const Arguments& arguments, at::Device device, const StepTimes& times, double flops) {
  std::printf(R"({"shape":"%s","side":%lld,"steps":%d,"milliseconds":%.3f)", arguments.shape.c_str(),
              static_cast<long long>(arguments.side), arguments.steps, times.mean * 1e3);
  if (times.fastest > 0) std::printf(R"(,"fastest_milliseconds":%.3f)", times.fastest * 1e3);
  constexpr const char* kNames[] = {"first", "second", "third"};
  for (size_t i = 0; i < times.beginning.size(); ++i) {
    std::printf(R"(,"%s_milliseconds":%.3f)", kNames[i], times.beginning[i] * 1e3);
  }
  if (flops > 0) std::printf(R"(,"teraflops_per_second":%.1f)", flops / times.mean / 1e12);
  if (const std::optional<kernels::DeviceMemory> memory = runtime::ReadDeviceMemory(device)) {
    std::printf(R"(,"used_mib":%lld,"cached_mib":%lld,"free_mib":%lld)", static_cast<long long>(memory->used >> 20),
                static_cast<long long>(memory->cached >> 20), static_cast<long long>(memory->free >> 20));
  }
  std::printf("}\n");
}

// Floating-point operations of products and attention: 24 n D² and 4 n² D for a block of width D over n tokens.
double FlopsOfFlux(const models::FluxConfig& config, double tokens) {
  const auto width = static_cast<double>(config.width());
  return static_cast<double>(config.double_blocks + config.single_blocks) *
         (24 * tokens * width * width + 4 * tokens * tokens * width);
}

void Flux(at::Device device, const Arguments& arguments) {
  constexpr int64_t kText = 512, kPatch = 2;
  models::FluxConfig config{.heads = 24,
                            .head_dim = 128,
                            .double_blocks = 19,
                            .single_blocks = 38,
                            .channels = 64,
                            .text_width = 4096,
                            .pooled_width = 768,
                            .guidance = true,
                            .axes = {16, 56, 56}};
  if (arguments.blocks > 0) config.double_blocks = config.single_blocks = arguments.blocks;
  RandomFamily<models::FluxTransformer, models::FluxConfig> family(config, config.latent_channels(), kPatch,
                                                                   at::kBFloat16, device);
  family.PackForInference();
  const models::ConditioningRow row{
      .text = RandomOn(device, {kText, config.text_width}),
      .extras = {RandomOn(device, {config.pooled_width}), at::full({}, 3.5, at::kFloat).to(device)}};
  const int64_t grid = arguments.side / kPixelsPerLatent / kPatch;
  Print(arguments, device, TimesOfSteps(family, row, /*flow=*/true, {1}, arguments),
        FlopsOfFlux(config, static_cast<double>(grid * grid + kText)));
}

void Sd3(at::Device device, const Arguments& arguments) {
  constexpr int64_t kText = 77 + 256;
  const models::Sd3Config config{.heads = 24,
                                 .head_dim = 64,
                                 .layers = arguments.blocks > 0 ? arguments.blocks : 24,
                                 .channels = 16,
                                 .patch = 2,
                                 .sample_size = 128,
                                 .position_side = 192,
                                 .text_width = 4096,
                                 .pooled_width = 2048};
  RandomFamily<models::Sd3Transformer, models::Sd3Config> family(config, config.channels, config.patch, at::kBFloat16,
                                                                 device);
  family.PackForInference();
  const models::ConditioningRow row{.text = RandomOn(device, {kText, config.text_width}),
                                    .extras = {RandomOn(device, {config.pooled_width})}};
  Print(arguments, device, TimesOfSteps(family, row, /*flow=*/true, {-6, 7}, arguments), 0);
}

void PixArt(at::Device device, const Arguments& arguments) {
  constexpr int64_t kText = 300;
  const models::PixArtConfig config{.heads = 16,
                                    .head_dim = 72,
                                    .layers = arguments.blocks > 0 ? arguments.blocks : 28,
                                    .in_channels = 4,
                                    .out_channels = 8,
                                    .patch = 2,
                                    .sample_size = 128,
                                    .caption_channels = 4096,
                                    .interpolation_scale = 2};
  RandomFamily<models::PixArtTransformer, models::PixArtConfig> family(config, config.in_channels, config.patch,
                                                                       at::kBFloat16, device);
  family.PackForInference();
  const models::ConditioningRow row{.text = RandomOn(device, {kText, config.caption_channels}), .extras = {}};
  Print(arguments, device, TimesOfSteps(family, row, /*flow=*/false, {-3.5, 4.5}, arguments), 0);
}

void Hunyuan(at::Device device, const Arguments& arguments) {
  const models::HunyuanConfig config{.heads = 16,
                                     .head_dim = 88,
                                     .layers = arguments.blocks > 0 ? arguments.blocks : 40,
                                     .channels = 4,
                                     .out_channels = 8,
                                     .patch = 2,
                                     .hidden = 6144,
                                     .sample_size = 128,
                                     .bert_width = 1024,
                                     .t5_width = 2048,
                                     .pooled_width = 1024,
                                     .bert_tokens = 77,
                                     .t5_tokens = 256};
  RandomFamily<models::HunyuanTransformer, models::HunyuanConfig> family(config, config.channels, config.patch,
                                                                         at::kBFloat16, device);
  family.PackForInference();
  const auto all = [&](int64_t tokens) { return at::ones({tokens}, at::TensorOptions(at::kBFloat16).device(device)); };
  const models::ConditioningRow row{.text = RandomOn(device, {config.bert_tokens, config.bert_width}),
                                    .extras = {RandomOn(device, {config.t5_tokens, config.t5_width}),
                                               all(config.bert_tokens), all(config.t5_tokens)}};
  Print(arguments, device, TimesOfSteps(family, row, /*flow=*/false, {-5, 6}, arguments), 0);
}

// Decodes with an autoencoder whose latents have 16 channels.
void DecodeWith(const std::function<std::unique_ptr<models::Autoencoder>(models::ParamTable&)>& make, at::Device device,
                const Arguments& arguments) {
  models::ParamTable table(at::kBFloat16, device);
  const std::unique_ptr<models::Autoencoder> autoencoder = make(table);
  for (const models::Param& param : table.params()) param.Value().normal_(0, 0.02);
  table.PackForInference();
  parallel::SingleRank one;
  parallel::LocalAttention attention;
  const int64_t side = arguments.side / kPixelsPerLatent;
  const at::Tensor latents = RandomOn(device, {1, kLatentChannels, side, side});
  const auto decode = [&](int times) {
    for (int i = 0; i < times; ++i) {
      autoencoder->Decode(latents, {.attention = attention, .tensor = one, .world = one});
    }
  };
  decode(2);
  const double seconds = DeviceSeconds(device, [&] { decode(arguments.steps); });
  Print(arguments, device, {.mean = seconds / arguments.steps}, 0);
  WriteKernelTable(device, [&] {
    decode(1);
    runtime::Mark(device).Wait();
  });
}

// Decodes with FLUX.1's autoencoder.
void Decode(at::Device device, const Arguments& arguments) {
  const models::AutoencoderConfig config{.latent_channels = kLatentChannels,
                                         .widths = {128, 256, 512, 512},
                                         .layers_per_block = 2,
                                         .quant_conv = false,
                                         .post_quant_conv = false};
  DecodeWith([&](models::ParamTable& table) { return models::MakeAutoencoderKl(config, table); }, device, arguments);
}

// Decodes with Qwen-Image's autoencoder.
void DecodeQwen(at::Device device, const Arguments& arguments) {
  const models::QwenAutoencoderConfig config{.latent_channels = kLatentChannels,
                                             .multipliers = {1, 2, 4, 4},
                                             .halves_time = {false, true, true},
                                             .means = std::vector<double>(kLatentChannels, 0),
                                             .deviations = std::vector<double>(kLatentChannels, 1)};
  DecodeWith([&](models::ParamTable& table) { return models::MakeQwenAutoencoder(config, table); }, device, arguments);
}

void Multiply(at::Device device, const Arguments& arguments) {
  const int64_t side = 8 * arguments.side;
  const at::Tensor a = RandomOn(device, {side, side}), b = RandomOn(device, {side, side});
  const auto multiply = [&](int times) {
    for (int i = 0; i < times; ++i) at::mm(a, b);
  };
  multiply(2);
  const auto operations = 2 * static_cast<double>(side) * static_cast<double>(side) * static_cast<double>(side);
  const double seconds = DeviceSeconds(device, [&] { multiply(arguments.steps); });
  Print(arguments, device, {.mean = seconds / arguments.steps}, operations);
}

int Main(int argc, char** argv) {
  const std::string shapes = "flux_dev, sd3_medium, pixart_sigma, hunyuandit, autoencoder, qwen_autoencoder, matmul";
  if (argc < 3 || argc > 6) {
    std::fprintf(stderr, "usage: bench_shapes DEVICE SHAPE [steps [blocks [side]]]; shapes: %s\n", shapes.c_str());
    return 2;
  }
  Arguments arguments{.shape = argv[2]};
  if (argc > 3) arguments.steps = std::max(1, std::atoi(argv[3]));
  if (argc > 4) arguments.blocks = std::max(0, std::atoi(argv[4]));
  if (argc > 5) arguments.side = std::max(64, std::atoi(argv[5]) / 16 * 16);
  const absl::StatusOr<at::Device> device = runtime::OpenDevice(argv[1]);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
    return 2;
  }
  const c10::InferenceMode no_gradients;
  const std::vector<std::pair<std::string, std::function<void(at::Device, const Arguments&)>>> table = {
      {"flux_dev", Flux},      {"sd3_medium", Sd3},     {"pixart_sigma", PixArt},
      {"hunyuandit", Hunyuan}, {"autoencoder", Decode}, {"qwen_autoencoder", DecodeQwen},
      {"matmul", Multiply}};
  for (const auto& [name, run] : table) {
    if (name != arguments.shape) continue;
    run(*device, arguments);
    return 0;
  }
  std::fprintf(stderr, "the shape is %s; valid values are %s\n", argv[2], shapes.c_str());
  return 2;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
