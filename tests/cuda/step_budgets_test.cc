// Checks the cost of a denoising step at full size: 1024x1024, bf16, one image with guidance, from the third step on.
// The counts are exact: a change that adds an operation, a wait or a copy to a step fails this test, and a change that
// saves some must lower the number here. A failure prints the operations by name, and so does
//   build/release/tests/cuda/fake_cuda_step_budgets_test --gtest_filter='*flux*'
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "control/model/model_cost.h"
#include "models/loading/load_plan.h"
#include "models/weights/model_folder.h"
#include "tests/cuda/fake_cuda_fixture.h"
#include "tests/cuda/full_size_models.h"
#include "tests/cuda/gguf_models.h"
#include "tests/cuda/newer_full_size_models.h"
#include "tests/support/fault_runs.h"

namespace tessera {
namespace {

using ::testing::IsEmpty;

struct Budget {
  const char* model;
  int operations;           // kernels, products, attentions, copies and fills per step
  int before_steps;         // kernels, products and attentions of the text encoders and of work shared by all steps
  int decoding;             // kernels, products, attentions and convolutions after the last step
  int waits = 0;            // per step, in the issuing thread
  int pageable_copies = 0;  // per step
  int64_t memory_mib = 0;   // maximum of device memory, from loading to the image
  int64_t tokens = 0;       // of image and longest text, whose live bytes are predicted; 0: no prediction is compared
  int64_t width = 0;
  int64_t live_widths = control::kLiveWidths;
};

std::ostream& operator<<(std::ostream& out, const Budget& budget) { return out << budget.model; }

class StepBudgetTest : public FakeCudaTest, public testing::WithParamInterface<Budget> {
 protected:
  void WriteModel() const {
    const std::string model = GetParam().model;
    if (model == "flux_dev") WriteFullSizeFlux(folder_);
    if (model == "sd3_medium") WriteFullSizeSd3(folder_, model, 24, /*norms=*/false);
    if (model == "sd35_large") WriteFullSizeSd3(folder_, model, 38, /*norms=*/true);
    if (model == "pixart_sigma") WriteFullSizePixartSigma(folder_);
    if (model == "hunyuan") WriteFullSizeHunyuan(folder_);
    if (model == "z_image_turbo") WriteFullSizeZImage(folder_);
    if (model == "flux2_klein") WriteFullSizeKlein(folder_);
    if (model == "flux2_dev") WriteFullSizeDev(folder_);
    if (model == "qwen_image") WriteFullSizeQwenImage(folder_);
  }
};

// Returns the device memory of a model according to its load plan, plus the front end's prediction for a step.
int64_t PlannedBytes(const std::string& folder, const Budget& budget) {
  const absl::StatusOr<models::ModelFolder> model = models::ModelFolder::Open(folder);
  EXPECT_TRUE(model.ok()) << model.status();
  const absl::StatusOr<models::LoadPlan> plan =
      models::PlanLoad(*model, {.dtype = control::Dtype::kBf16, .on_device = true});
  EXPECT_TRUE(plan.ok()) << plan.status();
  constexpr int64_t kBf16 = 2;
  return plan->device.resident + budget.tokens * budget.live_widths * budget.width * kBf16;
}

// Counts kernels, products, attentions and convolutions, without copies and fills.
int Computed(const FakeCudaStep& step) {
  int count = 0;
  for (const auto& [name, times] : step.operations) {
    if (!name.starts_with("copy") && !name.starts_with("memset")) count += times;
  }
  return count;
}

TEST_P(StepBudgetTest, ASteadyStepCostsWhatIsWrittenHere) {
  constexpr size_t kSteps = 7;  // the last one may differ
  WriteModel();
  // Makes two images. Unlike `generate` it computes no digest of the weights, which takes longer than all else here.
  const Finished run = Run({"bench", "--prompt=a cat", "--model=" + (folder_ / GetParam().model), "--device=cuda",
                            "--dtype=bf16", absl::StrCat("--steps=", kSteps), "--repeat=1", "--size=1024"});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  ASSERT_EQ(run.logs.size(), 1u);
  EXPECT_THAT(run.logs[0].Faults(), IsEmpty());
  const std::vector<FakeCudaStep> steps = run.logs[0].Steps();
  ASSERT_EQ(steps.size(), 2 * kSteps);
  std::cout << GetParam().model << ":\n" << FakeCudaTable(run.logs[0]);
  for (size_t i = 2; i + 1 < kSteps; ++i) {
    EXPECT_EQ(steps[i].count, GetParam().operations) << "step " << i + 1;
    EXPECT_EQ(steps[i].waits, GetParam().waits) << "step " << i + 1;
    EXPECT_EQ(steps[i].pageable_copies, GetParam().pageable_copies) << "step " << i + 1;
    EXPECT_EQ(steps[i].fp32_products, 0) << "step " << i + 1;
    EXPECT_EQ(steps[i].mallocs, 0) << "step " << i + 1;
  }
  // The text encoders and the work shared by all steps precede the operations of the first step.
  EXPECT_EQ(Computed(steps[0]) - Computed(steps[2]), GetParam().before_steps);
  EXPECT_EQ(Computed(run.logs[0].AfterSteps()), GetParam().decoding);
  EXPECT_LE(run.logs[0].PeakBytes(), GetParam().memory_mib << 20);
  if (GetParam().tokens > 0) {
    const int64_t planned = PlannedBytes(folder_ / GetParam().model, GetParam());
    EXPECT_LE(run.logs[0].PeakBytes(), planned / 100 * 105);
  }
}

std::vector<Budget> Budgets() {
  std::vector<Budget> budgets = {
      Budget{.model = "flux_dev",
             .operations = 680,
             .before_steps = 339,
             .decoding = 415,
             .memory_mib = 24166,
             .tokens = 4096 + 512,
             .width = 3072},
      Budget{.model = "sd3_medium", .operations = 465, .before_steps = 1053, .decoding = 415, .memory_mib = 4925},
      Budget{.model = "sd35_large", .operations = 732, .before_steps = 1137, .decoding = 415, .memory_mib = 16990},
      Budget{.model = "pixart_sigma", .operations = 381, .before_steps = 466, .decoding = 417, .memory_mib = 1850},
      Budget{.model = "hunyuan", .operations = 714, .before_steps = 797, .decoding = 417, .memory_mib = 4116},
      Budget{.model = "z_image_turbo",
             .operations = 592,
             .before_steps = 701,
             .decoding = 415,
             .memory_mib = 12900,
             .tokens = 4096 + 512,
             .width = 3840},
      Budget{.model = "flux2_klein",
             .operations = 305,
             .before_steps = 1383,
             .decoding = 424,
             .memory_mib = 8620,
             .tokens = 4096 + 512,
             .width = 3072,
             .live_widths = control::kLiveWidthsOfFlux2},
      Budget{.model = "qwen_image",
             .operations = 1035,
             .before_steps = 387,
             .decoding = 134,
             .memory_mib = 39600,
             .tokens = 4096 + 1024,
             .width = 3072}};
  // Its 64 GB of weights are read and digested in a minute.
  if (IsLongRun()) {
    budgets.push_back({.model = "flux2_dev",
                       .operations = 614,
                       .before_steps = 1422,
                       .decoding = 424,
                       .memory_mib = 63703,
                       .tokens = 4096 + 512,
                       .width = 6144,
                       .live_widths = control::kLiveWidthsOfFlux2});
  }
  return budgets;
}

INSTANTIATE_TEST_SUITE_P(Models, StepBudgetTest, testing::ValuesIn(Budgets()),
                         [](const auto& info) { return info.param.model; });

using WithoutGraphsTest = FakeCudaTest;

// A captured step has the same operations as one without graphs, except for the copies to and from a graph's buffers.
TEST_F(WithoutGraphsTest, AStepHasTheSameBlocks) {
  WriteFullSizePixartSigma(folder_);
  const std::vector<std::string> command = {"generate",
                                            "a cat",
                                            "--model=" + (folder_ / "pixart_sigma"),
                                            "--device=cuda",
                                            "--dtype=bf16",
                                            "--steps=5",
                                            "--seed=1",
                                            "--size=1024",
                                            "--overwrite",
                                            "--output=" + (folder_ / "a.png")};
  const Finished with = Run(command), without = Run(command, {{"TESSERA_GRAPHS", "off"}});
  ASSERT_EQ(without.exit_code, 0) << without.errors;
  EXPECT_THAT(without.logs.at(0).Of("graph"), IsEmpty());
  const std::vector<FakeCudaStep> graphed = with.logs.at(0).Steps(), plain = without.logs.at(0).Steps();
  ASSERT_EQ(plain.size(), 5u);
  constexpr int kFilledAndCopied = 8;
  for (size_t i = 2; i < 4; ++i) {
    for (const auto& [name, count] : graphed[i].operations) {
      const auto found = plain[i].operations.find(name);
      EXPECT_NEAR(count, found == plain[i].operations.end() ? 0 : found->second, kFilledAndCopied) << name;
    }
    EXPECT_LE(plain[i].count, 450);
    EXPECT_EQ(plain[i].waits, 0);
    EXPECT_EQ(plain[i].pageable_copies, 0);
  }
}

using OffloadTest = FakeCudaTest;

// FLUX.1-dev on a card of 24 GB whose desktop takes part of the memory.
TEST_F(OffloadTest, ModulationsInTheHostsMemoryLeaveFluxLessThan18Gib) {
  WriteFullSizeFlux(folder_);
  const Finished run =
      Run({"generate", "a cat", "--model=" + (folder_ / "flux_dev"), "--device=cuda", "--dtype=bf16", "--steps=3",
           "--seed=1", "--size=1024", "--offload=always", "--output=" + (folder_ / "a.png")},
          {{"FAKE_CUDA_MEMORY_MIB", "18432"}});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_LE(run.logs.at(0).PeakBytes() >> 20, 18432);
}

// Includes the text encoders and the autoencoder at full size: 33.7 GB of weights on a card of 24 GB. Weights that are
// used once per image wait in 16 GB of host memory, so this runs only in a long run.
TEST_F(OffloadTest, TheWholeOfFluxRunsOnACardOf24GbOfItsOwnAccord) {
  if (!IsLongRun()) GTEST_SKIP() << "16 GB of the host's memory";
  WriteWholeFlux(folder_);
  const Finished run = Run({"generate", "a cat", "--model=" + (folder_ / "flux_dev"), "--device=cuda", "--dtype=bf16",
                            "--steps=4", "--seed=1", "--size=1024", "--output=" + (folder_ / "a.png")},
                           {{"FAKE_CUDA_MEMORY_MIB", "24576"}});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  ASSERT_EQ(run.logs.size(), 1u);
  EXPECT_THAT(run.logs[0].Faults(), IsEmpty());
  const int64_t peak = run.logs[0].PeakBytes() >> 20;
  std::cout << "peak " << peak << " MiB\n";
  EXPECT_LE(peak, 24576);
  // T5-XXL's products of depth 10240, and the convolutions of the autoencoder's 128 channels over the whole image.
  int of_text = 0, of_picture = 0;
  for (const FakeCudaEvent& event : run.logs[0].Of("product")) of_text += event.Number(5) == 10240;
  for (const FakeCudaEvent& event : run.logs[0].Of("convolution")) of_picture += event.fields.at(4) == "128x128x3x3";
  EXPECT_EQ(of_text, 24);
  EXPECT_EQ(of_picture, 5);
  const std::vector<FakeCudaStep> steps = run.logs[0].Steps();
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[2].mallocs, 0);
  EXPECT_EQ(steps[2].pageable_copies, 0);
}

// A card of limited memory, of which 0.5 GiB are the driver's context, and what a model does on it.
struct Card {
  const char* name;
  void (*write)(const TestFolder&);
  const char* model;
  const char* weights;
  int64_t gib;
  bool streamed;          // blocks of the transformer wait in main memory
  bool is_long;           // many GB are quantized or copied to main memory
  int64_t host_gib = 32;  // main memory that is enough
};

std::ostream& operator<<(std::ostream& out, const Card& card) { return out << card.name; }

// The time of the card between the ends of two steps.
FakeCudaLog::Span TimeOfSteadySteps(const FakeCudaLog& log) {
  std::vector<int64_t> ends;
  bool ended = false;
  for (const FakeCudaEvent& event : log.events()) {
    ended = ended || FakeCudaLog::EndsStep(event);
    if (event.kind != "busy" || !ended || event.fields[1] != "D2H") continue;
    ends.push_back(event.Number(2));
    ended = false;
  }
  if (ends.size() < 4) return {};
  return log.Between(ends[1], ends[ends.size() - 2]);
}

class CardTest : public FakeCudaTest, public testing::WithParamInterface<Card> {};

// "memory: …; at most 7.31 GiB of device memory" of the worker's log.
double PlannedGib(const std::string& log) {
  const size_t line = log.find("memory: "), begin = log.find("at most ", line);
  return line == std::string::npos || begin == std::string::npos ? 0 : std::stod(log.substr(begin + 8));
}

// "wait in main memory (7.31 GiB)" of the worker's log; 0 if nothing waits.
double WaitingGib(const std::string& log) {
  constexpr std::string_view kBefore = "in main memory (";
  const size_t begin = log.find(kBefore);
  if (begin == std::string::npos) return 0;
  const double number = std::stod(log.substr(begin + kBefore.size()));
  const std::string_view unit = std::string_view(log).substr(begin).substr(0, log.find(')', begin) - begin);
  return unit.ends_with("GiB") ? number : unit.ends_with("MiB") ? number / 1024 : 0;
}

TEST_P(CardTest, TheModelFitsAsPredictedAndCopiesWhileItComputes) {
  if (GetParam().is_long && !IsLongRun()) GTEST_SKIP() << "many GB are copied or quantized";
  GetParam().write(folder_);
  const Finished run = Run({"generate", "a cat", "--model=" + (folder_ / GetParam().model), "--device=cuda",
                            "--dtype=bf16", "--steps=7", "--seed=1", "--size=1024", "--verbose",
                            absl::StrCat("--weights=", GetParam().weights), "--output=" + (folder_ / "a.png")},
                           {{"FAKE_CUDA_MEMORY_MIB", absl::StrCat(GetParam().gib << 10)},
                            {"FAKE_CUDA_CONTEXT_MIB", "512"},
                            {"FAKE_CUDA_CLOCK", "1"}});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  ASSERT_EQ(run.logs.size(), 1u);
  EXPECT_THAT(run.logs[0].Faults(), IsEmpty());
  constexpr double kGib = int64_t{1} << 30;
  const double planned = PlannedGib(run.errors), measured = static_cast<double>(run.logs[0].PeakBytes()) / kGib;
  std::cout << GetParam().name << ": planned " << planned << " GiB, measured " << measured << " GiB\n";
  EXPECT_LE(planned, static_cast<double>(GetParam().gib) - 0.5);
  EXPECT_LE(measured, planned * 1.05);
  // What else is in memory: the server's process, and pages of files that are being read.
  const double waiting = WaitingGib(run.errors), resident = static_cast<double>(run.logs[0].PeakHostBytes()) / kGib;
  std::cout << "main memory: " << waiting << " GiB wait, measured " << resident << " GiB\n";
  EXPECT_GT(resident, waiting);
  EXPECT_LE(resident, static_cast<double>(GetParam().host_gib) - 1);
  const FakeCudaLog::Span time = TimeOfSteadySteps(run.logs[0]);
  std::cout << "steps " << time.all << " ns, computing " << time.computing << " ns, copying " << time.copying
            << " ns\n";
  EXPECT_GT(time.computing, 0);
  EXPECT_EQ(run.errors.find("of the transformer's") != std::string::npos, GetParam().streamed) << run.errors;
  EXPECT_LE(static_cast<double>(time.all), 1.15 * static_cast<double>(std::max(time.computing, time.copying)));
}

void WriteFlux(const TestFolder& folder) { WriteFullSizeFlux(folder); }
void WriteKlein(const TestFolder& folder) { WriteFullSizeKlein(folder); }

INSTANTIATE_TEST_SUITE_P(
    Cards, CardTest,
    testing::Values(
        Card{"klein_8", WriteKlein, "flux2_klein", "stored", 8, true, false},
        Card{"klein_16", WriteKlein, "flux2_klein", "stored", 16, false, true},
        Card{"klein_fp8_8", WriteKlein, "flux2_klein", "fp8", 8, false, true},
        Card{"z_image_8", WriteFullSizeZImage, "z_image_turbo", "stored", 8, true, true},
        Card{"z_image_16", WriteFullSizeZImage, "z_image_turbo", "stored", 16, false, true},
        Card{"z_image_fp8_8", WriteFullSizeZImage, "z_image_turbo", "fp8", 8, false, true},
        Card{"flux_24", WriteFlux, "flux_dev", "stored", 24, false, true},
        Card{"flux_12", WriteFlux, "flux_dev", "stored", 12, true, true},
        Card{"flux_fp8_16", WriteFlux, "flux_dev", "fp8", 16, false, true},
        Card{"flux_q8_0_16", WriteFlux, "flux_dev", "q8_0", 16, false, true},
        Card{"qwen_image_fp8_24", WriteWholeQwenImage, "qwen_image", "fp8", 24, false, true},
        Card{"flux_q4_k_8", WriteWholeFluxGguf, "flux_dev/flux_dev.gguf", "stored", 8, false, true, 16},
        Card{"qwen_image_q4_k_12", WriteQwenImageGguf, "qwen_image/qwen_image.gguf", "stored", 12, false, true},
        Card{"qwen_image_q4_k_8", WriteQwenImageGguf, "qwen_image/qwen_image.gguf", "stored", 8, true, true},
        Card{"flux2_dev_q4_k_12", WriteFlux2DevGguf, "flux2_dev/flux2_dev.gguf", "stored", 12, true, true}),
    [](const auto& info) { return info.param.name; });

using PageableTest = FakeCudaTest;

// As under WSL, where the system pins only a part of the memory. Copies of pageable memory take five times as long.
TEST_F(PageableTest, AStepTakesAsLongAsPredictedWhereLittleMemoryCanBePinned) {
  if (!IsLongRun()) GTEST_SKIP() << "several GB are copied to main memory";
  WriteFullSizeZImage(folder_);
  const Finished run =
      Run({"generate", "a cat", "--model=" + (folder_ / "z_image_turbo"), "--device=cuda", "--dtype=bf16", "--steps=7",
           "--seed=1", "--size=1024", "--verbose", "--output=" + (folder_ / "a.png")},
          {{"FAKE_CUDA_MEMORY_MIB", "8192"},
           {"FAKE_CUDA_CONTEXT_MIB", "512"},
           {"FAKE_CUDA_PINNED_MIB", "1024"},
           {"FAKE_CUDA_CLOCK", "1"}});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.logs.at(0).Faults(), IsEmpty());
  const size_t line = run.errors.find("in which weights wait are pageable"),
               step = run.errors.find("a step takes ", line);
  ASSERT_NE(step, std::string::npos) << run.errors;
  const double predicted = std::stod(run.errors.substr(step + 13));
  constexpr double kSteadySteps = 4;
  const double measured = static_cast<double>(TimeOfSteadySteps(run.logs[0]).all) / 1e9 / kSteadySteps;
  std::cout << "a step of " << measured << " s, predicted " << predicted << " s\n";
  EXPECT_GT(measured, 0);
  EXPECT_LE(measured, 1.15 * predicted);
  EXPECT_GE(measured, predicted / 1.15);
}

using BatchMemoryTest = FakeCudaTest;

// The images of a batch are computed in separate passes, one after another.
TEST_F(BatchMemoryTest, FourImagesTakeHardlyMoreThanOne) {
  WriteFullSizeFlux(folder_);
  const Finished run = Run({"bench", "--model=" + (folder_ / "flux_dev"), "--device=cuda", "--dtype=bf16", "--batch=4",
                            "--steps=3", "--repeat=1", "--size=1024"});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  ASSERT_EQ(run.logs.size(), 1u);
  int of_one = 0;
  for (const FakeCudaEvent& event : run.logs[0].Of("attention")) {
    of_one += event.fields[3] == "1x24x4608x128";
    EXPECT_NE(event.fields[3], "4x24x4608x128");
  }
  EXPECT_GE(of_one, 4 * 57);
  EXPECT_LE(run.logs[0].PeakBytes() >> 20, 24166);
}

}  // namespace
}  // namespace tessera
