#include "models/loading/load_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "control/parameters/component_files.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/sparse_flux_folder.h"
#include "tests/support/sparse_gguf.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr std::pair<control::Dtype, int64_t> kSizes[] = {
    {control::Dtype::kBf16, 2}, {control::Dtype::kFp32, 4}, {control::Dtype::kFp64, 8}};
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

LoadPlan PlanFor(const std::string& path, const LoadRequest& request) {
  const absl::StatusOr<ModelFolder> folder = ModelFolder::Open(path);
  EXPECT_TRUE(folder.ok()) << folder.status();
  if (!folder.ok()) return {};
  const absl::StatusOr<LoadPlan> plan = PlanLoad(*folder, request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : LoadPlan{};
}

absl::Status Check(const LoadPlan& plan, int64_t host, std::optional<int64_t> device = std::nullopt) {
  return CheckFits(plan, {.machine = host}, device);
}

// Returns the advice of a refusal: the options of each line "it fits with OPTIONS: …".
std::vector<std::string> Advised(const absl::Status& refusal) {
  EXPECT_EQ(refusal.code(), absl::StatusCode::kResourceExhausted) << refusal;
  std::vector<std::string> advised;
  for (absl::string_view line : absl::StrSplit(refusal.message(), '\n')) {
    if (absl::ConsumePrefix(&line, "it fits with ") || absl::ConsumePrefix(&line, "or with ")) {
      advised.emplace_back(line.substr(0, line.find(':')));
    }
  }
  return advised;
}

const PlannedComponent& Component(const LoadPlan& plan, const std::string& name) {
  for (const PlannedComponent& component : plan.components) {
    if (component.name == name) return component;
  }
  ADD_FAILURE() << "no component " << name;
  static const PlannedComponent none;
  return none;
}

// The figures were counted from the files' headers by another program.
TEST(LoadPlan, WhatWaitsInTheHostsMemoryIsCountedThereAndItsBuffersOnTheDevice) {
  for (const bool quantize : {false, true}) {
    LoadRequest request{.dtype = control::Dtype::kBf16, .on_device = true, .quantize = quantize};
    const LoadPlan stays = PlanFor("tests/golden/pipelines/flux_dev", request);
    request.waiting_parameters = 1000;
    request.buffer_parameters = 300;
    const LoadPlan waits = PlanFor("tests/golden/pipelines/flux_dev", request);
    const int64_t bytes = quantize ? 1 : 2;
    EXPECT_EQ(waits.device.resident, stays.device.resident - 700 * bytes);
    EXPECT_EQ(waits.device.peak, stays.device.peak - 700 * bytes);
    EXPECT_EQ(waits.host.resident, stays.host.resident + 1000 * bytes);
    EXPECT_THAT(std::string(Check(waits, kGiB, 0).message()), HasSubstr("offloaded to main memory"));
    request.on_device = false;
    const LoadPlan on_host = PlanFor("tests/golden/pipelines/flux_dev", request);
    EXPECT_EQ(on_host.host.resident, stays.device.resident);
  }
}

TEST(LoadPlan, CountsTheTensorsOfEveryComponentThatHasWeights) {
  struct Expected {
    const char* pipeline;
    const char* component;
    int64_t parameters, largest, stored_bytes;
  };
  const Expected all[] = {
      {"dit", "transformer", 330208, 64064, 330208 * 4},
      {"dit", "vae", 67231, 2304, 67231 * 4},
      {"flux_dev", "text_encoder", 89088, 48448, 89088 * 2},
      {"flux_dev", "text_encoder_2", 29184 + 7264, 15680, (29184 + 7264) * 2},
      {"flux_dev", "transformer", 381760 + 107712, 24576, (381760 + 107712) * 2},
      {"flux_dev", "vae", 72347, 4608, 72347 * 2},
      {"hunyuan11", "text_encoder", 42592, 12928, 42592 * 2},
      {"hunyuan11", "text_encoder_2", 41088, 20320, 41088 * 2},
      {"hunyuan11", "transformer", 788580, 419840, 788580 * 2},
      {"hunyuan11", "vae", 67231, 2304, 67231 * 2},
      {"pixart_alpha", "text_encoder", 36448, 15680, 36448 * 4},
      {"pixart_alpha", "transformer", 424384, 55296, 424384 * 4},
      {"pixart_alpha", "vae", 67231, 2304, 67231 * 4},
      {"sd35", "text_encoder", 90112, 48448, 90112 * 2},
      {"sd35", "text_encoder_2", 163584, 72672, 163584 * 2},
      {"sd35", "text_encoder_3", 109088, 47040, 109088 * 2},
      {"sd35", "transformer", 542400, 36864, 542400 * 2},
      {"sd35", "vae", 72347, 4608, 72347 * 2},
  };
  std::map<std::string, size_t> components;
  for (const Expected& expected : all) {
    ++components[expected.pipeline];
    const LoadPlan plan =
        PlanFor(absl::StrCat("tests/golden/pipelines/", expected.pipeline), {.dtype = control::Dtype::kFp32});
    const PlannedComponent& component = Component(plan, expected.component);
    SCOPED_TRACE(absl::StrCat(expected.pipeline, "/", expected.component));
    EXPECT_EQ(component.parameters, expected.parameters);
    EXPECT_EQ(component.largest_parameters, expected.largest);
    EXPECT_EQ(component.stored_bytes, expected.stored_bytes);
    EXPECT_EQ(component.bytes, expected.parameters * 4);
    EXPECT_EQ(component.largest_bytes, expected.largest * 4);
  }
  for (const auto& [pipeline, count] : components) {
    EXPECT_EQ(PlanFor("tests/golden/pipelines/" + pipeline, {}).components.size(), count) << pipeline;
  }
}

// A full T5 or CLIP in place of its encoder takes no more memory: the other tensors are never read.
TEST(LoadPlan, TheRestOfALargerModelInATextEncodersFileDoesNotCount) {
  const TestFolder folder;
  folder.Write("model_index.json", R"({"_class_name": "P", "text_encoder": ["t", "T"], "vae": ["d", "V"]})");
  const auto file = [](const std::string& name) {
    return SafetensorsBytes("{\"encoder.w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"" + name +
                                "\":{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[4,32]}}",
                            std::string(32, '\0'));
  };
  for (const char* name : {"decoder.block.0.w", "lm_head.weight", "vision_model.w", "visual_projection.weight",
                           "visual.w", "model.visual.w"}) {
    folder.Write("text_encoder/model.safetensors", file(name));
    folder.Write("vae/diffusion_pytorch_model.safetensors", file("decoder.w"));
    const LoadPlan plan = PlanFor(folder.path(), {});
    EXPECT_EQ(Component(plan, "text_encoder").parameters, 1) << name;
    EXPECT_EQ(Component(plan, "vae").parameters, 8);
  }
  // Prompts hold pictures then.
  folder.Write("model_index.json", R"({"_class_name": "P", "text_encoder": ["t", "T"], "processor": ["t", "P"]})");
  folder.Write("processor/processor_config.json", "{}");
  folder.Write("text_encoder/model.safetensors", file("visual.w"));
  EXPECT_EQ(Component(PlanFor(folder.path(), {}), "text_encoder").parameters, 8);
}

// Matrices and tables of tokens in eight bits keep them, with a scale for each row of the matrix and one for each row
// of the table; the biases of positions are widened.
TEST(LoadPlan, QuantizedMatricesAndTablesOfTokensCountAsStored) {
  const TestFolder folder;
  folder.Write("model_index.json", R"({"_class_name": "P", "text_encoder": ["t", "T"], "vae": ["d", "V"]})");
  const auto eight_bits = [](const std::string& name, int begin) {
    return absl::StrCat("\"", name, R"(":{"dtype":"F8_E4M3","shape":[4,2],"data_offsets":[)", begin, ",", begin + 8,
                        "]},\"", name, R"(_scale":{"dtype":"F32","shape":[4],"data_offsets":[)", begin + 8, ",",
                        begin + 24, "]}");
  };
  folder.Write("text_encoder/model.safetensors",
               SafetensorsBytes(absl::StrCat("{", eight_bits("shared.weight", 0), ",", eight_bits("a.weight", 24), ",",
                                             eight_bits("relative_attention_bias.weight", 48), "}"),
                                std::string(72, '\0')));
  folder.Write("vae/diffusion_pytorch_model.safetensors", OneTensor("a"));
  LoadRequest request{.dtype = control::Dtype::kBf16};
  using control::WeightStorage;  // of the transformer alone
  for (const WeightStorage weights : {WeightStorage::kStored, WeightStorage::kBf16, WeightStorage::kInt8}) {
    request.placement.weights = weights;
    EXPECT_EQ(Component(PlanFor(folder.path(), request), "text_encoder").bytes, (8 + 16) + (8 + 16) + 8 * 2);
  }
}

TEST(LoadPlan, OnTheHostEverythingStaysAndTheLargestTensorIsThereTwice) {
  for (const auto& [dtype, size] : kSizes) {
    const LoadPlan plan = PlanFor("tests/golden/pipelines/flux_dev", {.dtype = dtype});
    EXPECT_EQ(plan.host.resident, (89088 + 29184 + 7264 + 381760 + 107712 + 72347) * size);
    EXPECT_EQ(plan.host.peak, plan.host.resident + 48448 * size + 64 * kMiB);
    EXPECT_EQ(plan.device.resident, 0);
    EXPECT_EQ(plan.device.peak, 0);
  }
}

TEST(LoadPlan, OnADeviceTheHostHoldsTheBuffersOnly) {
  const LoadPlan plan = PlanFor("tests/golden/pipelines/flux_dev", {.dtype = control::Dtype::kBf16, .on_device = true});
  EXPECT_EQ(plan.device.resident, (89088 + 29184 + 7264 + 381760 + 107712 + 72347) * 2);
  EXPECT_EQ(plan.device.peak, plan.device.resident + 48448 * 2 + 64 * kMiB);
  EXPECT_EQ(plan.host.resident, 0);
  EXPECT_EQ(plan.host.peak, 64 * kMiB);
}

TEST(LoadPlan, TheCacheOfPromptsCountsOnADeviceOfARankThatEncodes) {
  LoadRequest request = {.dtype = control::Dtype::kBf16, .on_device = true};
  const std::string folder = "tests/golden/pipelines/flux_dev";
  for (const bool encodes : {true, false}) {
    request.encodes_prompts = encodes;
    request.prompt_cache_bytes = 0;
    const LoadPlan without = PlanFor(folder, request);
    request.prompt_cache_bytes = 256 * kMiB;
    const LoadPlan with = PlanFor(folder, request);
    EXPECT_EQ(with.device.resident, without.device.resident + (encodes ? 256 * kMiB : 0));
    EXPECT_EQ(with.device.peak, without.device.peak + (encodes ? 256 * kMiB : 0));
    EXPECT_EQ(with.host.peak, without.host.peak);
    const absl::Status refused = CheckFits(with, {.machine = 64 * kGiB}, 1);
    EXPECT_EQ(
        std::string(refused.message()).find("0.25 GiB are for encoded prompts (--prompt-cache)") != std::string::npos,
        encodes);
  }
  request.on_device = false;
  request.encodes_prompts = true;
  EXPECT_EQ(PlanFor(folder, request).device.peak, 0);
}

TEST(LoadPlan, ComponentsPlacedOnTheCpuAreInMainMemory) {
  const LoadPlan plan =
      PlanFor("tests/golden/pipelines/sd35", {.dtype = control::Dtype::kBf16,
                                              .on_device = true,
                                              .placement = {.text_encoders = control::ComponentPlacement::kCpu,
                                                            .autoencoder = control::AutoencoderPlacement::kCpu}});
  EXPECT_EQ(plan.device.resident, 542400 * 2);
  EXPECT_EQ(plan.device.peak, (542400 + 36864) * 2 + 64 * kMiB);
  EXPECT_EQ(plan.host.resident, (90112 + 163584 + 109088 + 72347) * 2);
  EXPECT_EQ(plan.host.peak, plan.host.resident + 72672 * 2 + 64 * kMiB);
  EXPECT_EQ(Component(plan, "text_encoder_3").memory, MemoryKind::kHost);
  EXPECT_EQ(Component(plan, "transformer").memory, MemoryKind::kDevice);
}

// The figures of the parts: rows of a rank 6 + 6 + 16 + 2, tensors outside blocks 10 + 3, the larger block 28.
TEST(LoadPlan, OfAnEncoderThatRanksShareARankHasItsRowsAndWhileItRunsAlsoWhatIsBrought) {
  const TestFolder folder;
  folder.Write("model_index.json", R"({"_class_name": "P", "text_encoder": ["t", "T"], "vae": ["d", "V"]})");
  std::string header = "{";
  int64_t bytes = 0;
  const auto add = [&](const std::string& name, const std::string& shape, int64_t elements) {
    absl::StrAppend(&header, header.size() > 1 ? "," : "", "\"", name, "\":{\"dtype\":\"F32\",\"shape\":", shape,
                    ",\"data_offsets\":[", bytes, ",", bytes + 4 * elements, "]}");
    bytes += 4 * elements;
  };
  add("shared", "[5,2]", 10);
  add("encoder.block.0.w", "[4,3]", 12);
  add("encoder.block.1.w", "[7,4]", 28);
  add("norm", "[3]", 3);
  folder.Write("text_encoder/model.safetensors", SafetensorsBytes(header + "}", std::string(bytes, '\0')));
  folder.Write("vae/diffusion_pytorch_model.safetensors", OneTensor("a"));
  LoadRequest request{.dtype = control::Dtype::kFp32, .on_device = true, .ranks = 2};
  const LoadPlan whole = PlanFor(folder.path(), request);
  request.placement.text_encoders = control::ComponentPlacement::kSharded;
  const LoadPlan shared = PlanFor(folder.path(), request);
  constexpr int64_t kOwn = 6 + 6 + 16 + 2, kBrought = 13 + 2 * 28;
  const PlannedComponent& encoder = Component(shared, "text_encoder");
  EXPECT_EQ(encoder.bytes, (kOwn + kBrought) * 4);
  EXPECT_EQ(encoder.transient_bytes, kBrought * 4);
  EXPECT_EQ(shared.device.resident, whole.device.resident - (53 - kOwn) * 4);
  EXPECT_EQ(shared.device.peak, shared.device.resident + kBrought * 4 + 64 * kMiB);
  EXPECT_EQ(shared.host.resident, 0);
  EXPECT_THAT(std::string(Check(shared, kGiB, 0).message()), HasSubstr("while in use"));
  // One rank has nothing to share, and what ranks share does not wait in the host's memory.
  request.ranks = 1;
  EXPECT_EQ(PlanFor(folder.path(), request).device.resident, whole.device.resident);
  request.ranks = 2;
  request.offload = Offloaded::kAll;
  EXPECT_EQ(Component(PlanFor(folder.path(), request), "text_encoder").bytes, encoder.bytes);
}

TEST(LoadPlan, OfUnloadedComponentsOnlyTheLargestCounts) {
  const LoadPlan plan =
      PlanFor("tests/golden/pipelines/sd35", {.dtype = control::Dtype::kFp32,
                                              .placement = {.text_encoders = control::ComponentPlacement::kUnloaded,
                                                            .autoencoder = control::AutoencoderPlacement::kUnloaded}});
  EXPECT_EQ(plan.host.resident, 542400 * 4);
  EXPECT_EQ(plan.host.peak, (542400 + 163584 + 72672) * 4 + 64 * kMiB);
  for (const char* name : {"text_encoder", "vae"}) {
    EXPECT_EQ(Component(plan, name).transient_bytes, Component(plan, name).bytes) << name;
  }
  EXPECT_EQ(Component(plan, "transformer").transient_bytes, 0);
}

TEST(LoadPlan, OfStreamedTextEncodersTheFrameAndABlockCount) {
  const LoadRequest unloaded = {.dtype = control::Dtype::kFp32,
                                .placement = {.text_encoders = control::ComponentPlacement::kUnloaded}};
  LoadRequest streamed = unloaded;
  streamed.placement.text_encoders = control::ComponentPlacement::kStreamed;
  for (const bool on_device : {false, true}) {
    streamed.on_device = on_device;
    // Nothing of it waits in main memory.
    streamed.offload = on_device ? Offloaded::kAll : Offloaded::kNone;
    const LoadPlan plan = PlanFor("tests/golden/pipelines/sd35", streamed);
    const PlannedComponent& encoder = Component(plan, "text_encoder_3");
    EXPECT_EQ(encoder.bytes, (encoder.frame_parameters + encoder.block_parameters) * 4);
    EXPECT_LT(encoder.bytes, Component(PlanFor("tests/golden/pipelines/sd35", unloaded), "text_encoder_3").bytes);
    EXPECT_EQ(encoder.transient_bytes, encoder.bytes);
    EXPECT_EQ(encoder.waiting_bytes, 0);
    EXPECT_EQ(encoder.memory, on_device ? MemoryKind::kDevice : MemoryKind::kHost);
  }
}

TEST(LoadPlan, UnloadedComponentsAreInMemoryTogetherWhileTrainingEncodes) {
  const LoadPlan plan =
      PlanFor("tests/golden/pipelines/sd35", {.dtype = control::Dtype::kFp32,
                                              .placement = {.text_encoders = control::ComponentPlacement::kUnloaded,
                                                            .autoencoder = control::AutoencoderPlacement::kUnloaded},
                                              .for_training = true});
  int64_t transient = 0, largest = 0;
  for (const PlannedComponent& component : plan.components) {
    transient += component.transient_bytes;
    largest = std::max(largest, component.largest_bytes);
  }
  EXPECT_EQ(plan.host.resident, 542400 * 4);
  EXPECT_EQ(plan.host.peak, plan.host.resident + transient + largest + 64 * kMiB);
}

TEST(LoadPlan, ASmallUnloadedComponentHidesNotThatALargerTensorIsLoaded) {
  // The transformer's largest tensor alone is larger than the autoencoder and its largest tensor.
  const LoadPlan plan =
      PlanFor("tests/golden/pipelines/hunyuan11",
              {.dtype = control::Dtype::kFp32, .placement = {.autoencoder = control::AutoencoderPlacement::kUnloaded}});
  EXPECT_EQ(plan.host.resident, (42592 + 41088 + 788580) * 4);
  EXPECT_EQ(plan.host.peak, plan.host.resident + 419840 * 4 + 64 * kMiB);
}

TEST(LoadPlan, AnErrorOfAHeaderIsReported) {
  TestFolder folder;
  folder.Write("model_index.json", R"({"_class_name": "FluxPipeline", "vae": ["diffusers", "AutoencoderKL"]})");
  folder.Write("vae/diffusion_pytorch_model.safetensors", OneTensor("a") + "more");
  const absl::StatusOr<ModelFolder> model = ModelFolder::Open(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status status = PlanLoad(*model, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("vae/diffusion_pytorch_model.safetensors"));
}

TEST(CheckProductsTest, ProductsInFp8NeedATransformerWithWeightsInE4m3) {
  using control::Products, control::WeightStorage;
  const auto check = [](const std::string& dtype, int bytes, WeightStorage weights, Products products) {
    TestFolder folder;
    folder.Write("model_index.json",
                 R"({"_class_name": "FluxPipeline", "transformer": ["diffusers", "FluxTransformer2DModel"]})");
    folder.Write("transformer/diffusion_pytorch_model.safetensors",
                 SafetensorsBytes(absl::StrCat(R"({"a.weight":{"dtype":")", dtype,
                                               R"(","shape":[2,3],"data_offsets":[0,)", bytes, "]}}"),
                                  std::string(static_cast<size_t>(bytes), '\0')));
    const absl::StatusOr<ModelFolder> model = ModelFolder::Open(folder.path());
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? CheckProducts(*model, {.weights = weights, .products = products}) : model.status();
  };
  EXPECT_TRUE(check("BF16", 12, WeightStorage::kFp8, Products::kFp8).ok());
  EXPECT_TRUE(check("F8_E4M3", 6, WeightStorage::kStored, Products::kFp8).ok());
  EXPECT_TRUE(check("BF16", 12, WeightStorage::kStored, Products::kPlain).ok());
  for (const WeightStorage weights : {WeightStorage::kStored, WeightStorage::kBf16, WeightStorage::kInt8}) {
    const absl::Status refused = check("BF16", 12, weights, Products::kFp8);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("use --weights fp8 --products fp8"));
  }
  EXPECT_FALSE(check("F8_E5M2", 6, WeightStorage::kStored, Products::kFp8).ok());
  EXPECT_FALSE(check("F8_E4M3", 6, WeightStorage::kBf16, Products::kFp8).ok());
}

// The bytes of weights that black-forest-labs/FLUX.1-dev publishes: "total_size" of the two indices, and the sizes of
// the two single files without their headers.
constexpr int64_t kTransformerBytes = 23802816640, kT5Bytes = 9524621312, kClipBytes = 246120960, kVaeBytes = 167639366;
constexpr int64_t kAllBytes = kTransformerBytes + kT5Bytes + kClipBytes + kVaeBytes;
// Bytes of the largest tensors.
constexpr int64_t kModulation = int64_t{6} * 3072 * 3072 * 2, kT5Embedding = int64_t{32128} * 4096 * 2,
                  kConvolution = int64_t{512} * 512 * 9 * 2;
// Of T5's first layer, which has the biases of the positions.
constexpr int64_t kT5Block = (int64_t{4} * 4096 * 4096 + 3 * 4096 * 10240 + 2 * 4096 + 32 * 64) * 2;

class SparseFluxTest : public testing::Test {
 protected:
  void SetUp() override { WriteSparseFlux(folder_); }

  LoadPlan Plan(const LoadRequest& request) const { return PlanFor(folder_.path(), request); }

  TestFolder folder_;
};

// Returns the bytes that this process has read from files so far.
int64_t BytesRead() {
  std::ifstream file("/proc/self/io");
  std::string label;
  int64_t bytes = -1;
  file >> label >> bytes;
  EXPECT_EQ(label, "rchar:") << "the kernel does not count what is read";
  return bytes;
}

TEST_F(SparseFluxTest, HasTheSizesOfTheRealOneAndTakesNoDisk) {
  int64_t apparent = 0, on_disk = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
    struct stat info;
    ASSERT_EQ(stat(entry.path().c_str(), &info), 0);
    if (!entry.is_regular_file()) continue;
    apparent += info.st_size;
    on_disk += info.st_blocks * 512;
  }
  EXPECT_GT(apparent, kAllBytes);
  EXPECT_LT(apparent, kAllBytes + kMiB);
  EXPECT_LT(on_disk, kMiB);
}

TEST_F(SparseFluxTest, IsPlannedFromItsHeadersAlone) {
  const int64_t before = BytesRead();
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16});
  const int64_t read = BytesRead() - before;
  EXPECT_LT(read, kMiB);
  EXPECT_EQ(Component(plan, "transformer").stored_bytes, kTransformerBytes);
  EXPECT_EQ(Component(plan, "text_encoder_2").stored_bytes, kT5Bytes);
  EXPECT_EQ(Component(plan, "text_encoder").stored_bytes, kClipBytes);
  EXPECT_EQ(Component(plan, "vae").stored_bytes, kVaeBytes);
  EXPECT_EQ(plan.components.size(), 4);
  EXPECT_EQ(plan.host.resident, kAllBytes);
  EXPECT_EQ(plan.host.peak, kAllBytes + kT5Embedding + 64 * kMiB);
}

TEST_F(SparseFluxTest, AReadOfATensorWouldBeNoticed) {
  const absl::StatusOr<WeightFolder> weights = WeightFolder::Open(folder_ / "transformer", "transformer");
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<std::byte> bytes(2 * kMiB);
  const int64_t before = BytesRead();
  ASSERT_TRUE(weights->Read(weights->tensors().at("context_embedder.weight"), 0, bytes).ok());
  EXPECT_GE(BytesRead() - before, 2 * kMiB);
}

TEST_F(SparseFluxTest, FitsToTheByte) {
  for (const auto& [dtype, size] : kSizes) {
    const LoadPlan plan = Plan({.dtype = dtype});
    const int64_t needed = (kAllBytes + kT5Embedding) / 2 * size + 64 * kMiB;
    EXPECT_EQ(Check(plan, needed), absl::OkStatus()) << size;
    EXPECT_EQ(Check(plan, needed - 1).code(), absl::StatusCode::kResourceExhausted) << size;
    EXPECT_EQ(CheckFits(plan, base::MachineMemory{}, std::nullopt), absl::OkStatus()) << size;
  }
}

TEST_F(SparseFluxTest, FitsADeviceToTheByte) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16,
                              .on_device = true,
                              .placement = {.text_encoders = control::ComponentPlacement::kCpu}});
  const int64_t device = kTransformerBytes + kVaeBytes + kModulation + 64 * kMiB;
  const int64_t host = kT5Bytes + kClipBytes + kT5Embedding + 64 * kMiB;
  EXPECT_EQ(Check(plan, host, device), absl::OkStatus());
  EXPECT_EQ(Check(plan, host), absl::OkStatus());
  EXPECT_EQ(Check(plan, host, device - 1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Check(plan, host - 1, device).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SparseFluxTest, TheRefusalIsATable) {
  EXPECT_EQ(
      Check(Plan({.dtype = control::Dtype::kFp32}), 40 * kGiB),
      absl::ResourceExhaustedError(
          "the model does not fit in memory; of main memory 63.41 GiB are needed, and this machine has 40.00 GiB "
          "available\n"
          "  component         parameters          fp32  in\n"
          "  text_encoder         123.1 M      0.46 GiB  main memory\n"
          "  text_encoder_2      4762.3 M     17.74 GiB  main memory\n"
          "  transformer        11901.4 M     44.34 GiB  main memory\n"
          "  vae                   83.8 M      0.31 GiB  main memory\n"
          "  together in main memory: 62.85 GiB permanently, at most 63.41 GiB at a time (what is being loaded, its "
          "largest tensor twice, buffers)\n"
          "it fits with --dtype bf16: 31.74 GiB of main memory"));
}

TEST_F(SparseFluxTest, TheLimitThatIsShortIsNamed) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16});
  EXPECT_THAT(std::string(CheckFits(plan, {.machine = 64 * kGiB, .control_group = 8 * kGiB}, {}).message()),
              HasSubstr("and the control group (container) of this process has 8.00 GiB available"));
  const LoadPlan on_device = Plan({.dtype = control::Dtype::kBf16, .on_device = true});
  EXPECT_THAT(std::string(Check(on_device, 64 * kGiB, 24 * kGiB).message()),
              AllOf(HasSubstr("of device memory 31.74 GiB are needed, and the device has 24.00 GiB available"),
                    Not(HasSubstr("; of main memory"))));
}

TEST_F(SparseFluxTest, ASmallerDtypeIsAdvisedWhereItIsEnough) {
  const int64_t enough = kAllBytes + kT5Embedding + 64 * kMiB;
  const LoadPlan plan = Plan({.dtype = control::Dtype::kFp32});
  EXPECT_THAT(Advised(Check(plan, enough)), ElementsAre("--dtype bf16"));
  EXPECT_THAT(Advised(Check(plan, enough - 1)), Not(testing::Contains("--dtype bf16")));
}

TEST_F(SparseFluxTest, OfTheSmallerDtypesTheLargestThatFitsIsAdvised) {
  EXPECT_THAT(Advised(Check(Plan({.dtype = control::Dtype::kFp64}), 64 * kGiB)), ElementsAre("--dtype fp32"));
  EXPECT_THAT(Advised(Check(Plan({.dtype = control::Dtype::kFp64}), 32 * kGiB)), ElementsAre("--dtype bf16"));
}

TEST_F(SparseFluxTest, UnloadingIsAdvisedWhereItIsEnough) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16});
  // One text encoder at a time: the smaller one is saved.
  const int64_t encoders_unloaded = kAllBytes - kClipBytes + kT5Embedding + 64 * kMiB;
  EXPECT_THAT(Advised(Check(plan, encoders_unloaded)), ElementsAre("--text-encoders unload"));
  // The autoencoder and the text encoders are not in memory at the same time.
  EXPECT_THAT(Advised(Check(plan, encoders_unloaded - 1)), ElementsAre("--text-encoders unload --autoencoder unload"));
  const int64_t both_unloaded = encoders_unloaded - kVaeBytes;
  EXPECT_THAT(Advised(Check(plan, both_unloaded)), ElementsAre("--text-encoders unload --autoencoder unload"));
  // A text encoder a layer at a time, where a whole one does not fit.
  EXPECT_THAT(Advised(Check(plan, both_unloaded - 1)), ElementsAre("--text-encoders stream"));
  const int64_t streamed = kTransformerBytes + kT5Embedding + 4096 * 2 + kT5Block + 64 * kMiB;
  EXPECT_THAT(Advised(Check(plan, streamed)), ElementsAre("--text-encoders stream --autoencoder unload"));
  EXPECT_THAT(
      Advised(Check(plan, streamed - 1)),
      ElementsAre(HasSubstr("--text-encoders stream --autoencoder unload --stream-blocks, which reads every block")));
}

TEST_F(SparseFluxTest, AllLeastChangesAreAdvisedAndTheFewestFirst) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kFp32});
  const int64_t encoders_unloaded = (kAllBytes - kClipBytes + kT5Embedding) * 2 + 64 * kMiB;
  EXPECT_THAT(Advised(Check(plan, encoders_unloaded)), ElementsAre("--text-encoders unload", "--dtype bf16"));
  // --autoencoder unload alone saves less.
  EXPECT_THAT(Advised(Check(plan, encoders_unloaded - 1)),
              ElementsAre("--dtype bf16", "--text-encoders unload --autoencoder unload"));
}

TEST_F(SparseFluxTest, WhatIsChosenAlreadyIsNotAdvised) {
  const LoadPlan plan =
      Plan({.dtype = control::Dtype::kFp32, .placement = {.text_encoders = control::ComponentPlacement::kUnloaded}});
  EXPECT_THAT(Advised(Check(plan, 32 * kGiB)), ElementsAre("--dtype bf16"));
}

TEST_F(SparseFluxTest, TextEncodersMoveToTheCpuWhereTheDeviceIsShort) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16, .on_device = true});
  EXPECT_THAT(Advised(Check(plan, 64 * kGiB, 24 * kGiB)), ElementsAre("--text-encoders cpu"));
  const int64_t cpu_encoders = kTransformerBytes + kVaeBytes + kModulation + 64 * kMiB;
  // The autoencoder and its largest tensor are larger than the transformer's largest tensor, of which loading needs two
  // copies.
  ASSERT_GT(kVaeBytes + kConvolution, kModulation);
  EXPECT_THAT(Advised(Check(plan, 64 * kGiB, cpu_encoders - 1)),
              ElementsAre("--text-encoders cpu --autoencoder unload", "--text-encoders cpu --autoencoder cpu"));
}

TEST_F(SparseFluxTest, ComponentsMoveToTheDeviceWhereTheHostIsShort) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16,
                              .on_device = true,
                              .placement = {.text_encoders = control::ComponentPlacement::kCpu}});
  EXPECT_THAT(Advised(Check(plan, kGiB, 80 * kGiB)), ElementsAre("--text-encoders unload", "--text-encoders rank0"));
}

TEST_F(SparseFluxTest, RanksShareTheEncodersWhereOneOfThemHasNoRoomForThose) {
  LoadRequest request{.dtype = control::Dtype::kBf16, .on_device = true, .ranks = 2};
  const LoadPlan plan = Plan(request);
  EXPECT_THAT(Advised(Check(plan, kGiB, 30 * kGiB)), ElementsAre("--text-encoders sharded"));
  request.ranks = 4;
  EXPECT_THAT(Advised(Check(Plan(request), kGiB, 27 * kGiB)), ElementsAre("--text-encoders sharded"));
  // It helps neither in main memory nor a single rank.
  request.ranks = 1;
  const auto shares = testing::Contains(HasSubstr("sharded"));
  EXPECT_THAT(Advised(Check(Plan(request), kGiB, 30 * kGiB)), Not(shares));
  EXPECT_THAT(Advised(Check(Plan({.dtype = control::Dtype::kBf16, .ranks = 4}), 30 * kGiB)), Not(shares));
}

TEST_F(SparseFluxTest, WhereNothingIsEnoughTheLeastNeedIsNamed) {
  const std::string message(Check(Plan({.dtype = control::Dtype::kFp32}), 22 * kGiB).message());
  // (11901408320 + 131596288 + 192946176) * 2 bytes + 64 MiB, with T5's embeddings and one of its blocks
  EXPECT_THAT(message,
              HasSubstr("\nno choice of --dtype, --text-encoders and --autoencoder is enough: 22.84 GiB of main memory "
                        "are needed at least, with --text-encoders stream --autoencoder unload --dtype bf16"));
}

TEST_F(SparseFluxTest, WhereNothingMakesItSmallerNoOptionIsNamed) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16,
                              .placement = {.text_encoders = control::ComponentPlacement::kStreamed,
                                            .autoencoder = control::AutoencoderPlacement::kUnloaded}});
  EXPECT_THAT(std::string(Check(plan, 22 * kGiB).message()),
              HasSubstr("is enough: 22.84 GiB of main memory are needed at least\n"));
}

TEST_F(SparseFluxTest, OfStreamedBlocksTheLargestCounts) {
  constexpr int64_t kWidth = 3072, kHeadDim = 128;
  // Two modulations, eight projections, four norms of heads, two MLPs.
  constexpr int64_t kBlock = 2 * (6 * kWidth * kWidth + 6 * kWidth) + 8 * (kWidth * kWidth + kWidth) + 4 * kHeadDim +
                             2 * (8 * kWidth * kWidth + 5 * kWidth);
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16,
                              .placement = {.text_encoders = control::ComponentPlacement::kUnloaded,
                                            .autoencoder = control::AutoencoderPlacement::kUnloaded,
                                            .stream_blocks = true}});
  const PlannedComponent& transformer = Component(plan, "transformer");
  EXPECT_EQ(transformer.block_parameters, kBlock);
  EXPECT_GT(transformer.frame_parameters, 0);
  EXPECT_LT(transformer.frame_parameters, kBlock / 2);
  EXPECT_EQ(transformer.transient_bytes, (transformer.frame_parameters + kBlock) * 2);
  EXPECT_EQ(plan.host.resident, transformer.frame_parameters * 2);
  // A text encoder is larger than a block.
  EXPECT_EQ(plan.host.peak, plan.host.resident + kT5Bytes + kT5Embedding + 64 * kMiB);
}

// 19 blocks with two modulations of six widths, 38 with one of three, and the head's modulation of two.
constexpr int64_t kModulations = int64_t{19 * 12 + 38 * 3 + 2} * 3072 * 3072 * 2;
// q, k, v, o and three matrices of the MLP in each of T5's 24 layers; q, k, v, o and two in each of CLIP's 12.
constexpr int64_t kT5Matrices = int64_t{24} * (4 * 4096 * 4096 + 3 * 4096 * 10240) * 2;
constexpr int64_t kClipMatrices = int64_t{12} * (4 * 768 * 768 + 2 * 768 * 3072) * 2;
// What waits in the worst case: chunks of 256 MiB of which one is left over.
constexpr int64_t WithChunk(int64_t bytes) { return bytes + 257 * kMiB; }
// Of T5 while it runs, the table and the norm outside its layers and two layers, of which the first has the biases of
// the positions; of CLIP, both tables, the last norm and two layers.
constexpr int64_t kT5InUse = (int64_t{32128} * 4096 + 4096) * 2 + 2 * kT5Block;
// An image of 1024²: the decoder needs 384 values per pixel, which is more than a step needs.
constexpr int64_t kRun = int64_t{1024} * 1024 * 384 * 2;

TEST_F(SparseFluxTest, ADeviceNeedsMemoryForAnImageInAdditionToTheWeights) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16,
                              .on_device = true,
                              .placement = {.text_encoders = control::ComponentPlacement::kCpu},
                              .run_bytes = kRun});
  EXPECT_EQ(plan.device.resident, kTransformerBytes + kVaeBytes);
  EXPECT_EQ(plan.device.peak, plan.device.resident + kRun);
  EXPECT_LE(static_cast<double>(plan.device.peak), 23.6 * kGiB);
  EXPECT_EQ(plan.host.peak, Plan({.dtype = control::Dtype::kBf16,
                                  .on_device = true,
                                  .placement = {.text_encoders = control::ComponentPlacement::kCpu}})
                                .host.peak);
}

TEST_F(SparseFluxTest, OffloadedMatricesWaitInMainMemory) {
  LoadRequest request = {.dtype = control::Dtype::kBf16, .on_device = true, .run_bytes = kRun};
  request.offload = Offloaded::kModulations;
  const LoadPlan modulations = Plan(request);
  EXPECT_EQ(Component(modulations, "transformer").offloaded_bytes, kModulations);
  EXPECT_EQ(modulations.host.resident, WithChunk(kModulations));
  EXPECT_EQ(modulations.device.resident, kAllBytes - kModulations);
  // The largest modulation is on the device while an image is generated.
  EXPECT_EQ(modulations.device.peak, modulations.device.resident + kRun + kModulation);

  request.offload = Offloaded::kAll;
  const LoadPlan all = Plan(request);
  EXPECT_EQ(Component(all, "text_encoder_2").offloaded_bytes, kT5Bytes);
  EXPECT_EQ(Component(all, "text_encoder_2").bytes, kT5InUse);
  EXPECT_EQ(Component(all, "vae").offloaded_bytes, kVaeBytes);
  EXPECT_EQ(Component(all, "vae").bytes, kVaeBytes);
  EXPECT_GE(all.host.resident, kModulations + kT5Bytes + kClipBytes + kVaeBytes);
  EXPECT_LE(all.host.resident, kModulations + kT5Bytes + kClipBytes + kVaeBytes + kGiB);
  EXPECT_EQ(all.device.resident, kTransformerBytes - kModulations);
  EXPECT_THAT(std::string(Check(all, kGiB, 0).message()), HasSubstr("8.87 GiB offloaded to main memory"));
  // The autoencoder is there in order to decode, T5 in order to encode.
  EXPECT_LE(all.device.peak, 18 * kGiB);
  request.run_bytes = 2 * kRun;
  EXPECT_EQ(Plan(request).device.peak, all.device.resident + 2 * kRun + kModulation + kVaeBytes);
  request.run_bytes = 0;
  EXPECT_EQ(Plan(request).device.peak, all.device.resident + kT5InUse + 64 * kMiB);

  request.transformer_parts = 2;
  EXPECT_EQ(Component(Plan(request), "transformer").offloaded_bytes, kModulations / 2);
  request.on_device = false;
  EXPECT_EQ(Plan(request).host.resident, Plan({.dtype = control::Dtype::kBf16, .transformer_parts = 2}).host.resident);
}

TEST_F(SparseFluxTest, OffloadedTextEncodersThatAreReleasedWaitWhileTheyAreInUse) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16,
                              .on_device = true,
                              .placement = {.text_encoders = control::ComponentPlacement::kUnloaded},
                              .offload = Offloaded::kAll,
                              .run_bytes = kRun});
  const int64_t waits = Component(plan, "transformer").waiting_bytes + Component(plan, "vae").waiting_bytes;
  EXPECT_EQ(plan.host.resident, waits);
  // Weights that are read for each use are not page-locked.
  EXPECT_EQ(plan.host.peak, waits + kT5Matrices + 64 * kMiB);
  EXPECT_EQ(plan.device.resident, kTransformerBytes - kModulations);
  EXPECT_LE(plan.device.peak, 18 * kGiB);
}

// Text encoders stay as their files have them.
TEST_F(SparseFluxTest, TheTransformerAloneIsQuantizedWhileItIsLoaded) {
  LoadRequest request = {.dtype = control::Dtype::kBf16, .on_device = true};
  const LoadPlan plain = Plan(request);
  request.placement.weights = control::WeightStorage::kInt8;
  const LoadPlan quantized = Plan(request);
  EXPECT_EQ(Component(quantized, "text_encoder_2").bytes, kT5Bytes);
  EXPECT_LT(Component(quantized, "transformer").bytes, kTransformerBytes * 0.51);
  // Quantized modulations wait as those of plain numbers do.
  request.offload = Offloaded::kModulations;
  const int64_t waiting = Component(Plan(request), "transformer").offloaded_bytes;
  EXPECT_GT(waiting, kModulations / 2);
  EXPECT_LT(waiting, kModulations * 0.51);
  EXPECT_EQ(Component(Plan(request), "transformer").bytes, Component(quantized, "transformer").bytes - waiting);
  EXPECT_EQ(plain.device.resident - quantized.device.resident,
            Component(plain, "transformer").bytes - Component(quantized, "transformer").bytes);
}

TEST_F(SparseFluxTest, BlocksThatWaitLeaveTheirBuffersOnTheDevice) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16, .on_device = true, .run_bytes = kRun});
  const base::MachineMemory large = {.machine = 64 * kGiB};
  const LoadPlan all = WithWaiting(plan, {.offload = Offloaded::kAll}, large);
  const LoadPlan blocks =
      WithWaiting(plan, {.offload = Offloaded::kAll, .block_bytes = 7 * kGiB, .buffer_bytes = kGiB}, large);
  EXPECT_EQ(blocks.device.resident, all.device.resident - 6 * kGiB);
  EXPECT_EQ(blocks.host.resident, all.host.resident + 7 * kGiB);
  EXPECT_EQ(Component(blocks, "transformer").offloaded_bytes, kModulations + 7 * kGiB);
}

TEST_F(SparseFluxTest, TextEncodersThatMainMemoryCannotHoldAreReadForEachUse) {
  const LoadPlan plan = Plan({.dtype = control::Dtype::kBf16, .on_device = true, .run_bytes = kRun});
  const auto placed = [&](int64_t host) {
    return WithWaiting(plan, {.offload = Offloaded::kAll}, {.machine = host}).request.placement.text_encoders;
  };
  EXPECT_EQ(placed(64 * kGiB), control::ComponentPlacement::kRank0);
  EXPECT_EQ(placed(31 * kGiB / 2), control::ComponentPlacement::kUnloaded);
  EXPECT_EQ(placed(8 * kGiB), control::ComponentPlacement::kStreamed) << "a whole T5 would not fit";
  EXPECT_EQ(placed(kGiB), control::ComponentPlacement::kRank0) << "it would not be enough";
}

// Which weights can wait follows from what they are, not from the names of the file.
TEST(LoadPlan, UnderTheNamesOfItsAuthorsAFileIsPlannedAsUnderThoseOfDiffusers) {
  const TestFolder folder;
  WriteGgufModel(folder, "flux_dev", "golden/pipelines/flux_dev", FluxGguf(4096, 32));
  std::filesystem::remove_all(folder / "flux_dev/text_encoder_2");
  T5Gguf().Write(folder, "flux_dev/t5.gguf");
  const absl::StatusOr<ModelFolder> model = ModelFolder::OpenWith(folder / "flux_dev/flux_dev.gguf", {});
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::StatusOr<LoadPlan> plan = PlanLoad(
      *model, {.dtype = control::Dtype::kBf16, .on_device = true, .offload = Offloaded::kAll, .run_bytes = kRun});
  ASSERT_TRUE(plan.ok()) << plan.status();
  constexpr int64_t kSquare = int64_t{3072} * 3072;
  // Of 19 double blocks with 12 squares each and 38 single blocks with 3, the first and the last are in Q6_K; the last
  // modulation, with 2, is plain.
  constexpr int64_t kModulationBytes = kSquare / 256 * ((18 * 12 + 37 * 3) * 144 + 15 * 210) + 2 * kSquare * 2;
  EXPECT_EQ(Component(*plan, "transformer").offloaded_bytes, kModulationBytes);
  // T5's table of 32128 tokens, two of its blocks of 4 * 4096 * 4096 + 3 * 4096 * 10240 in Q8_0, and what is plain.
  constexpr int64_t kTable = int64_t{32128} * 4096, kBlock = int64_t{4096} * (4 * 4096 + 3 * 10240);
  constexpr int64_t kInUse = (kTable + 2 * kBlock) / 32 * 34;
  EXPECT_GE(Component(*plan, "text_encoder_2").bytes, kInUse);
  EXPECT_LE(Component(*plan, "text_encoder_2").bytes, kInUse + kMiB);
}

TEST(LoadPlan, AModulationIsKnownByItsName) {
  for (const char* name :
       {"transformer_blocks.0.norm1.linear.weight", "transformer_blocks.18.norm1_context.linear.weight",
        "single_transformer_blocks.37.norm.linear.weight", "norm_out.linear.weight",
        "transformer_blocks.59.img_mod.1.weight", "transformer_blocks.0.txt_mod.1.weight"}) {
    EXPECT_TRUE(IsModulation(name)) << name;
  }
  for (const char* name : {"transformer_blocks.0.norm1.linear.bias", "adaln_single.linear.weight", "linear.weight",
                           "transformer_blocks.0.attn.norm_q.weight", "proj_out.weight"}) {
    EXPECT_FALSE(IsModulation(name)) << name;
  }
}

TEST_F(SparseFluxTest, StreamedBlocksAreTheLastResort) {
  const std::string message(Check(Plan({.dtype = control::Dtype::kFp32}), 12 * kGiB).message());
  EXPECT_THAT(message,
              HasSubstr("\nit fits with --text-encoders stream --autoencoder unload --dtype bf16 --stream-blocks, "
                        "which reads every block from its file at every step: "));
  EXPECT_THAT(std::string(Check(Plan({.dtype = control::Dtype::kFp32}), 32 * kGiB).message()),
              Not(HasSubstr("--stream-blocks")));
  EXPECT_THAT(std::string(Check(Plan({.dtype = control::Dtype::kFp32}), kGiB).message()),
              Not(HasSubstr("--stream-blocks")));
  EXPECT_THAT(
      std::string(Check(Plan({.dtype = control::Dtype::kBf16, .placement = {.stream_blocks = true}}), kGiB).message()),
      Not(HasSubstr("--stream-blocks")));
}

TEST(LoadPlan, SizesBeyondAllCountingAreRefused) {
  LoadPlan plan{.request = {.dtype = control::Dtype::kFp64},
                .components = {{.name = "transformer", .parameters = kMost, .largest_parameters = kMost},
                               {.name = "vae", .parameters = kMost / 2, .largest_parameters = 1}},
                .host = {.resident = kMost, .peak = kMost}};
  EXPECT_THAT(std::string(Check(plan, kMost - 1).message()), HasSubstr("8589934592.00 GiB of main memory"));
}

}  // namespace
}  // namespace tessera::models
