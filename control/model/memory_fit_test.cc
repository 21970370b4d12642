#include "control/model/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "base/fields/enum_names.h"
#include "control/model/main_memory.h"
#include "control/parameters/weight_storage.h"

namespace tessera::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr double kGB = 1e9;
constexpr int64_t kContext = kGiB / 2;  // the driver's context and the workspaces of its libraries

WeightSize Matrices(uint64_t elements, uint64_t width) {
  return {.elements = elements, .matrices = elements, .rows = elements / width};
}

// Three blocks of 100 bytes, 10 bytes beside them, 40 of modulations; encoders of 60 and 90 bytes, of which 30 and 20
// are on the device while they are used; an autoencoder of 50. Ten bytes of activations each.
FitNeeds Small() {
  return {.first_block = 0,
          .blocks = {100, 100, 100},
          .frame = 10,
          .modulations = 40,
          .largest_modulation = 8,
          .text_encoders = {},
          .autoencoder = {.bytes = 50, .in_use = 50},
          .cached = 5,
          .step = 10,
          .decode = 10,
          .keeps_step = false,
          .step_flops = 1000};
}

FitDevice Card(int64_t bytes) { return {.free_bytes = bytes, .link_bytes_per_second = 100, .flops = 2000}; }

TEST(MemoryFitTest, AsLittleWaitsAsNecessary) {
  struct Case {
    int64_t bytes;
    Waiting waiting;
    std::vector<int64_t> blocks;
    int64_t peak;
  };
  // By hand: 10 + 300 + 40 + 50 + 5 and 10 of a step. Then the modulations leave 8 bytes of the largest in a step. Then
  // the autoencoder's 50 bytes and its 10 of activations are the most. Two buffers hold two blocks, so fewer than three
  // that wait save nothing; one buffer is the last resort.
  const Case cases[] = {
      {1000, Waiting::kNothing, {}, 415},          {415, Waiting::kNothing, {}, 415},
      {414, Waiting::kModulations, {}, 383},       {383, Waiting::kModulations, {}, 383},
      {382, Waiting::kComponents, {}, 375},        {375, Waiting::kComponents, {}, 375},
      {374, Waiting::kComponents, {0, 1, 2}, 275}, {275, Waiting::kComponents, {0, 1, 2}, 275},
      {274, Waiting::kComponents, {0, 1, 2}, 175}, {175, Waiting::kComponents, {0, 1, 2}, 175},
  };
  for (const Case& each : cases) {
    const absl::StatusOr<MemoryFit> fit = ChooseFit(Small(), Card(each.bytes));
    ASSERT_TRUE(fit.ok()) << fit.status();
    EXPECT_EQ(fit->waiting, each.waiting) << each.bytes;
    EXPECT_EQ(fit->blocks, each.blocks) << each.bytes;
    EXPECT_EQ(fit->peak_bytes, each.peak) << each.bytes;
  }
  EXPECT_EQ(ChooseFit(Small(), Card(275))->buffers, 2);
  EXPECT_EQ(ChooseFit(Small(), Card(274))->buffers, 1);
}

TEST(MemoryFitTest, BelowTheLeastIsRefusedWithWhatIsNeeded) {
  for (const int64_t bytes : {int64_t{174}, int64_t{0}, int64_t{-1000}}) {
    const absl::Status refused = ChooseFit(Small(), Card(bytes)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("needs at least 0.2 KiB of device memory"));
  }
}

TEST(MemoryFitTest, AStepTakesTheLongerOfCopyingAndComputing) {
  const absl::StatusOr<MemoryFit> stays = ChooseFit(Small(), Card(1000)), waits = ChooseFit(Small(), Card(275));
  ASSERT_TRUE(stays.ok() && waits.ok());
  EXPECT_EQ(stays->transfer_bytes, 0);
  EXPECT_DOUBLE_EQ(stays->step_seconds(), 0.5);
  EXPECT_EQ(waits->transfer_bytes, 300);
  EXPECT_DOUBLE_EQ(waits->step_seconds(), 3);
  EXPECT_EQ(waits->waiting_bytes, 300 + 40 + 50);
  EXPECT_DOUBLE_EQ(
      ChooseFit(Small(), {.free_bytes = 275, .link_bytes_per_second = 1000, .flops = 2000})->step_seconds(), 0.5);
}

// A CUDA graph keeps the memory of its step while an image is decoded. There is no graph before blocks wait.
TEST(MemoryFitTest, TheMemoryOfAStepThatIsKeptCountsWhileOthersCompute) {
  FitNeeds needs = Small();
  needs.step = 30;
  needs.decode = 40;
  EXPECT_EQ(ChooseFit(needs, Card(1000))->peak_bytes, 405 + 40);
  needs.keeps_step = true;
  EXPECT_EQ(ChooseFit(needs, Card(1000))->peak_bytes, 405 + 30 + 40);
  EXPECT_TRUE(ChooseFit(needs, Card(435))->keeps_step);
  EXPECT_FALSE(ChooseFit(needs, Card(434))->keeps_step);
  EXPECT_EQ(ChooseFit(needs, Card(434))->waiting, Waiting::kComponents);
  EXPECT_EQ(ChooseFit(needs, Card(434))->peak_bytes, 5 + 10 + 300 + 50 + 40);
  EXPECT_EQ(ChooseFit(needs, Card(310))->peak_bytes, 5 + 10 + 200 + 50 + 40);
}

TEST(MemoryFitTest, OnlyOneTextEncoderAtATimeIsOnTheDevice) {
  FitNeeds needs = Small();
  needs.modulations = needs.autoencoder.bytes = needs.autoencoder.in_use = 0;
  const int64_t without = ChooseFit(needs, Card(1000))->peak_bytes;
  needs.text_encoders = {{.bytes = 3 * kGiB, .in_use = kGiB}, {.bytes = 2 * kGiB, .in_use = kGiB / 2}};
  const int64_t resident = ChooseFit(needs, Card(64 * kGiB))->peak_bytes;
  const absl::StatusOr<MemoryFit> waits = ChooseFit(needs, Card(resident - 1));
  ASSERT_TRUE(waits.ok()) << waits.status();
  EXPECT_EQ(waits->waiting, Waiting::kComponents);
  EXPECT_EQ(resident - waits->peak_bytes, 5 * kGiB - kGiB);
  EXPECT_EQ(waits->peak_bytes, without + kGiB);
}

TEST(MemoryFitTest, BytesFollowFromTheStorage) {
  const WeightSize size = {.elements = 1100, .matrices = 1024, .rows = 8, .stored_elements = 512, .stored_bytes = 300};
  EXPECT_EQ(BytesOf(size, WeightStorage::kStored, 2), 300 + 588 * 2);
  EXPECT_EQ(BytesOf(size, WeightStorage::kBf16, 4), 1100 * 4);
  EXPECT_EQ(BytesOf(size, WeightStorage::kFp8, 2), 1024 + 8 * 4 + 76 * 2);
  EXPECT_EQ(BytesOf(size, WeightStorage::kInt8, 2), BytesOf(size, WeightStorage::kFp8, 2));
  EXPECT_EQ(BytesOf(size, WeightStorage::kQ8_0, 2), 1024 / 32 * 34 + 76 * 2);
  EXPECT_TRUE(CheckRules(size).ok());
  EXPECT_FALSE(CheckRules(WeightSize{.elements = 10, .matrices = 11}).ok());
  EXPECT_FALSE(CheckRules(WeightSize{.elements = 10, .matrices = 10, .rows = 11}).ok());
  EXPECT_FALSE(CheckRules(WeightSize{.elements = 10, .matrices = 5, .stored_elements = 6}).ok());
}

// The parts of a model on one rank: half of each block with tensor ranks, the blocks of its stage with pipeline ranks.
TEST(MemoryFitTest, ARankHasItsPart) {
  const std::vector<ComponentWeights> model = {{.role = ComponentRole::kTransformer,
                                                .blocks = std::vector<WeightSize>(4, {.elements = 101}),
                                                .frame = {.elements = 7},
                                                .modulations = {.elements = 80},
                                                .largest_modulation = 20},
                                               {.role = ComponentRole::kTextEncoder,
                                                .blocks = std::vector<WeightSize>(3, {.elements = 10}),
                                                .frame = {.elements = 5}},
                                               {.role = ComponentRole::kAutoencoder, .frame = {.elements = 9}}};
  FitNeeds needs = NeedsOf(model, {.storage = WeightStorage::kBf16, .tensor = 2});
  EXPECT_THAT(needs.blocks, ElementsAre(101, 101, 101, 101));
  EXPECT_EQ(needs.modulations, 80);
  EXPECT_EQ(needs.largest_modulation, 20);
  EXPECT_EQ(needs.frame, 14);
  ASSERT_EQ(needs.text_encoders.size(), 1u);
  EXPECT_EQ(needs.text_encoders[0].bytes, 70);
  EXPECT_EQ(needs.text_encoders[0].in_use, 50);
  EXPECT_EQ(needs.autoencoder.in_use, 18);
  needs = NeedsOf(model, {.storage = WeightStorage::kBf16,
                          .first_block = 1,
                          .end_block = 3,
                          .has_text_encoders = false,
                          .has_autoencoder = false});
  EXPECT_THAT(needs.blocks, ElementsAre(202, 202));
  EXPECT_EQ(needs.modulations, 80);
  EXPECT_THAT(needs.text_encoders, IsEmpty());
  EXPECT_EQ(needs.autoencoder.bytes, 0);
  const absl::StatusOr<MemoryFit> fit = ChooseFit(needs, {.free_bytes = 14 + 202 + 20 * 2, .link_bytes_per_second = 1});
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_THAT(fit->blocks, ElementsAre(1, 2)) << "numbers in the whole transformer";
}

// Published models at 1024x1024, from their configurations.
struct Published {
  std::vector<ComponentWeights> components;
  double step_bytes = 0, decode_bytes = 0, step_flops = 0;
};

constexpr double kDecodedPixels = 1024.0 * 1024, kBf16 = 2;
constexpr uint64_t kVaeElements = 83'819'683;

ComponentWeights Encoder(uint64_t blocks, uint64_t of_block, uint64_t embedding) {
  return {.role = ComponentRole::kTextEncoder,
          .blocks = std::vector<WeightSize>(blocks, Matrices(of_block, 4096)),
          .frame = {.elements = embedding}};
}

ComponentWeights Vae(uint64_t elements) {
  return {.role = ComponentRole::kAutoencoder, .frame = {.elements = elements}};
}

// The products of a pass and 4 · width operations for each pair of tokens.
double FlopsOf(const ComponentWeights& transformer, double width, double tokens) {
  double elements = 0;
  for (const WeightSize& block : transformer.blocks) elements += static_cast<double>(block.matrices);
  return 2 * elements * tokens + static_cast<double>(transformer.blocks.size()) * 4 * width * tokens * tokens;
}

Published PublishedModel(const std::string& name) {
  ComponentWeights transformer = {.role = ComponentRole::kTransformer, .largest_modulation = 0};
  const auto add = [&](int count, uint64_t elements, uint64_t width) {
    for (int i = 0; i < count; ++i) transformer.blocks.push_back(Matrices(elements, width));
  };
  const ComponentWeights qwen3 = Encoder(36, 100'900'000, 151'936 * 2560);
  std::vector<ComponentWeights> encoders;
  uint64_t width = 3072, live_widths = 16, vae = kVaeElements;
  double tokens = 4096 + 512, decoded_values = 640;
  if (name == "flux") {
    const uint64_t square = width * width;
    add(19, 24 * square, width);
    add(38, 12 * square, width);
    transformer.modulations = Matrices((19 * 12 + 38 * 3 + 2) * square, width);
    transformer.largest_modulation = 6 * square;
    transformer.frame = Matrices(20'000'000, width);
    encoders = {Encoder(24, 192'900'000, 32'128 * 4096), Encoder(12, 7'087'872, 38'000'000)};
  } else if (name == "z_image") {
    width = 3840;
    add(32, 4 * width * width + 3 * width * 10'240, width);
    transformer.frame = Matrices(2 * (4 * width * width + 3 * width * 10'240) + 140'000'000, width);
    encoders = {qwen3};
  } else if (name == "klein" || name == "flux2_dev") {
    const bool dev = name == "flux2_dev";
    width = dev ? 6144 : 3072;
    live_widths = 22;
    add(dev ? 8 : 5, 26 * width * width, width);
    add(dev ? 48 : 20, 13 * width * width, width);
    transformer.frame = Matrices(20 * width * width, width);
    encoders = {dev ? Encoder(40, 555'745'280, uint64_t{131'072} * 5120) : qwen3};
  } else {
    add(60, 24 * width * width, width);
    transformer.modulations = Matrices((60 * 12 + 2) * width * width, width);
    transformer.largest_modulation = 6 * width * width;
    transformer.frame = Matrices(30'000'000, width);
    // The vision tower is in use as a whole.
    encoders = {Encoder(28, 233'046'016, uint64_t{152'064} * 3584 + 676'000'000)};
    tokens = 4096 + 1024;
    decoded_values = 384;
    vae = 126'892'531;
  }
  Published model = {.components = {transformer, Vae(vae)},
                     .step_bytes = static_cast<double>(live_widths * width) * tokens * kBf16,
                     .decode_bytes = decoded_values * kDecodedPixels * kBf16,
                     .step_flops = FlopsOf(transformer, static_cast<double>(width), tokens)};
  model.components.insert(model.components.end(), encoders.begin(), encoders.end());
  return model;
}

// Makes the files hold the matrices of all components in Q4_K: 144 bytes for 256 numbers.
void StoreAsQ4K(std::vector<ComponentWeights>& components) {
  const auto store = [](WeightSize& size) {
    size.stored_elements = size.matrices;
    size.stored_bytes = size.matrices / 256 * 144;
  };
  for (ComponentWeights& component : components) {
    for (WeightSize& block : component.blocks) store(block);
    store(component.frame);
    store(component.modulations);
  }
}

enum class Files { kBf16, kQ4K };

struct CardCase {
  const char* model;
  Files files;
  WeightStorage storage;
  int64_t gib;     // of the card
  bool streamed;   // whether blocks wait
  double seconds;  // of a step at 25 GB/s on a card of 70 TFLOP/s, at most

  int64_t main_gib() const { return files == Files::kQ4K && gib == 8 ? 16 : 32; }
};

std::ostream& operator<<(std::ostream& out, const CardCase& card) {
  return out << card.model << " on " << card.gib << " GiB, storage " << static_cast<int>(card.storage);
}

class CardTest : public testing::TestWithParam<CardCase> {};

TEST_P(CardTest, TheModelFitsAsPeopleRunIt) {
  Published model = PublishedModel(GetParam().model);
  if (GetParam().files == Files::kQ4K) StoreAsQ4K(model.components);
  const FitQuery query = {.storage = GetParam().storage,
                          .cached_bytes = kGiB / 4,
                          .step_bytes = model.step_bytes,
                          .decode_bytes = model.decode_bytes,
                          .step_flops = model.step_flops};
  const int64_t free = GetParam().gib * kGiB - kContext;
  const absl::StatusOr<MemoryFit> fit = ChooseFit(
      NeedsOf(model.components, query), {.free_bytes = free, .link_bytes_per_second = 25 * kGB, .flops = 70e12});
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_LE(fit->peak_bytes, free);
  EXPECT_EQ(!fit->blocks.empty(), GetParam().streamed) << FitText(*fit);
  EXPECT_LE(fit->step_seconds(), GetParam().seconds) << FitText(*fit);
  EXPECT_GE(fit->step_seconds(), model.step_flops / 70e12);
  // One block fewer would not have fitted.
  if (!fit->blocks.empty()) {
    const FitNeeds needs = NeedsOf(model.components, query);
    EXPECT_LE(free - fit->peak_bytes, *std::max_element(needs.blocks.begin(), needs.blocks.end()));
  }
  const MainMemoryNeed main = MainMemoryOf(NeedsOf(model.components, query), *fit, GetParam().main_gib() * kGiB);
  EXPECT_LE(main.bytes, GetParam().main_gib() * kGiB) << FitText(*fit);
  EXPECT_EQ(main.reads, EncoderReads::kNone) << "a second prompt would wait for their files";
  RecordProperty("fit", FitText(*fit));
}

constexpr WeightStorage kStored = WeightStorage::kStored;

std::string NameOf(const CardCase& card) {
  return absl::StrCat(card.model, "_", card.files == Files::kQ4K ? "q4_k" : base::EnumName(card.storage), "_",
                      card.gib);
}

INSTANTIATE_TEST_SUITE_P(Models, CardTest,
                         testing::Values(CardCase{"flux", Files::kBf16, kStored, 24, false, 1.4},
                                         CardCase{"flux", Files::kBf16, kStored, 12, true, 1.4},
                                         CardCase{"flux", Files::kBf16, WeightStorage::kFp8, 16, false, 1.4},
                                         CardCase{"flux", Files::kBf16, WeightStorage::kQ8_0, 16, false, 1.4},
                                         CardCase{"flux", Files::kQ4K, kStored, 8, false, 1.4},
                                         CardCase{"z_image", Files::kBf16, kStored, 16, false, 1},
                                         CardCase{"z_image", Files::kBf16, kStored, 8, true, 1},
                                         CardCase{"z_image", Files::kBf16, WeightStorage::kFp8, 8, false, 1},
                                         CardCase{"klein", Files::kBf16, kStored, 16, false, 0.6},
                                         CardCase{"klein", Files::kBf16, kStored, 8, true, 0.6},
                                         CardCase{"klein", Files::kBf16, WeightStorage::kFp8, 8, false, 0.6},
                                         CardCase{"qwen_image", Files::kBf16, WeightStorage::kFp8, 24, false, 3},
                                         CardCase{"qwen_image", Files::kQ4K, kStored, 12, false, 3},
                                         CardCase{"flux2_dev", Files::kQ4K, kStored, 12, true, 6}),
                         [](const auto& info) { return NameOf(info.param); });

TEST(MemoryFitTest, NamesTheFastestStorageOfAModelThatStreams) {
  const Published flux = PublishedModel("flux");
  const FitQuery query = {
      .step_bytes = flux.step_bytes, .decode_bytes = flux.decode_bytes, .step_flops = flux.step_flops};
  const FitDevice slow = {.free_bytes = 12 * kGiB - kContext, .link_bytes_per_second = kGB, .flops = 70e12};
  const WeightStorage storages[] = {kStored, WeightStorage::kFp8, WeightStorage::kQ8_0};
  EXPECT_EQ(*FastestStorage(flux.components, query, slow, storages), WeightStorage::kFp8);
  // Where everything stays in any storage, the first is as fast as the others.
  const FitDevice large = {.free_bytes = 80 * kGiB, .link_bytes_per_second = kGB, .flops = 70e12};
  EXPECT_EQ(*FastestStorage(flux.components, query, large, storages), kStored);
  EXPECT_FALSE(
      FastestStorage(flux.components, query, {.free_bytes = kGiB / 4, .link_bytes_per_second = 1}, storages).ok());
}

TEST(PageableWeightsTest, MakeAStepSlowerByWhatIsCopiedFromThem) {
  constexpr int64_t kGib = int64_t{1} << 30;
  const MemoryFit fit{.transfer_bytes = 4 * kGib, .transfer_seconds = 0.5, .compute_seconds = 1};
  const PageableWeights quarter{.bytes = kGib, .waiting_bytes = 8 * kGib, .bytes_per_second = kGib};
  const PageableWeights all{.bytes = 8 * kGib, .waiting_bytes = 8 * kGib, .bytes_per_second = kGib};
  EXPECT_DOUBLE_EQ(WithPageable(fit, quarter).step_seconds(), 1.375);
  EXPECT_DOUBLE_EQ(WithPageable(fit, all).step_seconds(), 4);
  EXPECT_EQ(PageableText(fit, quarter),
            "1.00 GiB of the 8.00 GiB in which weights wait are pageable, because the system refuses to pin more; "
            "copies are slower, and a step takes 1.38 s");
}

TEST(PageableWeightsTest, OfTextEncodersAloneMakeNoStepSlower) {
  constexpr int64_t kGib = int64_t{1} << 30;
  const PageableWeights weights{.bytes = kGib, .waiting_bytes = 2 * kGib, .bytes_per_second = kGib};
  EXPECT_EQ(WithPageable({.compute_seconds = 1}, weights).step_seconds(), 1);
  EXPECT_EQ(PageableText({.compute_seconds = 1}, weights),
            "1.00 GiB of the 2.00 GiB in which weights wait are pageable, because the system refuses to pin more; "
            "copies are slower");
}

TEST(MainMemoryTest, WeightsThatWaitAndTheProgramsCount) {
  FitNeeds needs = Small();
  needs.text_encoders = {{.bytes = 60, .in_use = 30}, {.bytes = 90, .in_use = 20}};
  const MemoryFit stays = *ChooseFit(needs, Card(1000)), waits = *ChooseFit(needs, Card(275));
  EXPECT_EQ(MainMemoryOf(needs, stays, 0).bytes, kProgramBytes);
  ASSERT_EQ(waits.waiting_bytes, 300 + 40 + 50 + 60 + 90);
  EXPECT_EQ(MainMemoryOf(needs, waits, kProgramBytes + 540).bytes, kProgramBytes + 540);
  EXPECT_EQ(MainMemoryOf(needs, waits, kProgramBytes + 540).reads, EncoderReads::kNone);
  // One byte less, and text encoders are read for each use: the larger of them is in memory then.
  const MainMemoryNeed read = MainMemoryOf(needs, waits, kProgramBytes + 539);
  EXPECT_EQ(read.reads, EncoderReads::kWhole);
  EXPECT_EQ(read.bytes, kProgramBytes + 540 - 60);
  // That is too much, and they are read a layer at a time.
  const MainMemoryNeed layers = MainMemoryOf(needs, waits, kProgramBytes + 479);
  EXPECT_EQ(layers.reads, EncoderReads::kLayers);
  EXPECT_EQ(layers.bytes, kProgramBytes + 540 - 60 - 90);
  EXPECT_EQ(MainMemoryOf(needs, waits, kProgramBytes + 389).reads, EncoderReads::kNone) << "it would not be enough";
  EXPECT_EQ(MainMemoryText({.bytes = 3 * kGiB}), "at most 3.00 GiB of main memory");
  EXPECT_EQ(MainMemoryText({.bytes = 3 * kGiB, .reads = EncoderReads::kWhole}),
            "at most 3.00 GiB of main memory, because text encoders are read from their files for each prompt");
  EXPECT_EQ(MainMemoryText({.bytes = 3 * kGiB, .reads = EncoderReads::kLayers}),
            "at most 3.00 GiB of main memory, because text encoders are read from their files for each prompt, a layer "
            "at a time");
}

TEST(MainMemoryTest, ARefusalNamesWhatWouldFit) {
  const auto check = [](const Published& model, WeightStorage storage, int64_t gib, int64_t main_gib) {
    const FitQuery query = {
        .storage = storage, .step_bytes = model.step_bytes, .decode_bytes = model.decode_bytes, .step_flops = 1};
    return CheckMainMemory(model.components, query, {.free_bytes = gib * kGiB - kContext}, main_gib * kGiB);
  };
  const Published flux = PublishedModel("flux");
  EXPECT_TRUE(check(flux, kStored, 12, 32).ok()) << check(flux, kStored, 12, 32);
  const absl::Status blocks = check(flux, kStored, 8, 16);
  EXPECT_EQ(blocks.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(blocks.message()), HasSubstr("are available; it fits with --weights fp8"));
  Published dev = PublishedModel("flux2_dev");
  const ComponentWeights encoder = dev.components.back();
  StoreAsQ4K(dev.components);
  EXPECT_TRUE(check(dev, kStored, 12, 32).ok()) << check(dev, kStored, 12, 32);
  // Its text encoder takes 46 GB in bf16, of which main memory holds a layer.
  dev.components.back() = encoder;
  EXPECT_TRUE(check(dev, kStored, 12, 32).ok()) << check(dev, kStored, 12, 32);
  EXPECT_THAT(std::string(check(dev, kStored, 12, 8).message()), HasSubstr("use a machine with more"));
  // The error of a device that is too small comes first.
  EXPECT_THAT(std::string(check(dev, kStored, 1, 32).message()), HasSubstr("of device memory"));
}

TEST(MemoryFitTest, SaysWhatStaysAndWhatIsPredicted) {
  EXPECT_EQ(FitText(*ChooseFit(Small(), Card(1000))),
            "all weights stay on the device; at most 0.4 KiB of device memory; a step takes 0.5 s");
  EXPECT_EQ(FitText(*ChooseFit(Small(), Card(414))),
            "the transformer stays on the device, and modulations wait in main memory (0.0 KiB); at most 0.4 KiB of "
            "device memory; a step takes 0.5 s");
  EXPECT_EQ(FitText(*ChooseFit(Small(), Card(275))),
            "3 of the transformer's 3 blocks, modulations, text encoders and autoencoder wait in main memory (0.4 "
            "KiB); at most 0.3 KiB of device memory; 0.3 KiB are copied for each step; a step takes 3 s");
  // Without a clock there is no prediction of time.
  EXPECT_THAT(FitText(ClosestFit(Small(), Card(275))), ::testing::EndsWith("are copied for each step"));
}

}  // namespace
}  // namespace tessera::control
