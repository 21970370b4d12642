// Tests `tessera train` of a low-rank adapter on fake GPUs: forward, backward and optimizer have CUDA kernels for their
// dtypes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cuda/fake_cuda_fixture.h"
#include "tests/cuda/full_size_models.h"
#include "tests/cuda/newer_full_size_models.h"
#include "tests/front/train_command_fixture.h"
#include "tests/support/fault_runs.h"

namespace tessera {
namespace {

using ::testing::IsEmpty;

class FakeCudaTrainTest : public TrainCommandFixture {
 protected:
  // Trains three steps into the folder `output`. `more` contains further lines of the configuration.
  FinishedTraining TrainOn(const std::string& model, const std::string& dtype, const std::string& output,
                           const std::string& more = "") const {
    const std::string path = folder() + "/adapter.yaml";
    std::ofstream(path) << "model: tests/golden/pipelines/" << model << "\noutput: " << folder() << "/" << output
                        << "\nseed: 7\ndatasets:\n  - folder_path: " << images()
                        << "\n    resolution: 64\nnetwork:\n  type: lora\n  linear: 4\ntrain:\n  batch_size: 2\n"
                           "  lr: 0.01\n  steps: 3\n  dtype: "
                        << dtype << "\n"
                        << more;
    return Finish(
        *Start({"train", path, "--json", "--device=cuda"},
               {{"LD_PRELOAD", FAKE_CUDA_LIBRARY}, {"FAKE_CUDA_LOG", folder() + "/log"}, {"FAKE_CUDA_DEVICES", "2"}}));
  }

  // Checks that `workers` workers took part, and that each computed products on a device and called no function that
  // the fake lacks.
  void ExpectWhollyOnDevices(size_t workers) const {
    const std::vector<FakeCudaLog> logs = FakeCudaLog::ReadAll(folder() + "/log");
    EXPECT_EQ(logs.size(), workers);
    for (const FakeCudaLog& log : logs) {
      EXPECT_THAT(log.Faults(), IsEmpty());
      EXPECT_GT(log.Count("product"), 100);
    }
  }
};

TEST_F(FakeCudaTrainTest, AnAdapterIsTrainedOnTheDevice) {
  for (const char* model : {"flux_dev", "pixart_sigma"}) {
    for (const char* dtype : {"bf16", "fp32"}) {
      SCOPED_TRACE(absl::StrCat(model, " ", dtype));
      const FinishedTraining finished = TrainOn(model, dtype, absl::StrCat(model, "_", dtype));
      ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
      EXPECT_EQ(finished.Losses().size(), 3u);
    }
  }
  ExpectWhollyOnDevices(4);
}

TEST_F(FakeCudaTrainTest, RanksTrainOnADeviceEach) {
  for (const char* layout : {"data: 2", "tensor: 2", "pipe: 2", "ulysses: 2"}) {
    SCOPED_TRACE(layout);
    const FinishedTraining finished =
        TrainOn("flux_dev", "bf16", std::string(layout).substr(0, 4), absl::StrCat("parallelism:\n  ", layout, "\n"));
    ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
    EXPECT_EQ(finished.Losses().size(), 3u);
  }
  ExpectWhollyOnDevices(8);
}

constexpr size_t kSteps = 6;

// A card of limited memory on which an adapter of rank 16 is trained, 0.5 GiB of which are the driver's context.
struct TrainedCard {
  const char* name;
  void (*write)(const TestFolder&);
  const char* model;
  int64_t side, gib;
  const char* train;  // further keys of the configuration
  bool is_long;       // many GB are quantized or copied to main memory
};

std::ostream& operator<<(std::ostream& out, const TrainedCard& card) { return out << card.name; }

class TrainedCardTest : public TrainCommandFixture, public testing::WithParamInterface<TrainedCard> {
 protected:
  FinishedTraining RunTrain(const std::string& log, std::vector<std::string> more) const {
    const std::string path = folder() + "/adapter.yaml";
    std::string caption = "a red house";
    for (int i = 0; i < 600; ++i) caption += " and another red house";
    for (int i = 0; i < 6; ++i) std::ofstream(absl::StrCat(images(), "/", i, ".txt")) << caption;
    std::ofstream(path) << "model: " << models_ / GetParam().model << "\noutput: " << folder()
                        << "/out\nseed: 7\ndatasets:\n  - folder_path: " << images()
                        << "\n    resolution: " << GetParam().side
                        << "\n    caption_dropout_rate: 0\nnetwork:\n  type: lora\n  linear: 16\ntrain:\n"
                           "  batch_size: 1\n  lr: 0.01\n  dtype: bf16\n  steps: "
                        << kSteps << "\n"
                        << GetParam().train;
    more.insert(more.begin(), {"train", path, "--json", "--device=cuda"});
    return Finish(*Start(std::move(more), {{"LD_PRELOAD", FAKE_CUDA_LIBRARY},
                                           {"FAKE_CUDA_LOG", folder() + "/" + log},
                                           {"FAKE_CUDA_MEMORY_MIB", absl::StrCat(GetParam().gib << 10)},
                                           {"FAKE_CUDA_CONTEXT_MIB", "512"},
                                           {"FAKE_CUDA_CLOCK", "1"}}));
  }

  const TestFolder models_;
};

// The time of the card in the steps after the first, and how long it computed and copied in them.
struct StepsTime {
  int64_t all = 0, computing = 0, copying = 0;  // nanoseconds
};

// All steps have the same attentions over the tokens of a picture, and text encoders have none.
StepsTime TimeOfSteps(const FakeCudaLog& log) {
  constexpr int64_t kPictureTokens = 1024;  // at least
  std::vector<int64_t> begins;
  const FakeCudaEvent* busy = nullptr;
  for (const FakeCudaEvent& event : log.events()) {
    if (event.kind == "busy") busy = &event;
    if (FakeCudaLog::Attends(event, kPictureTokens)) begins.push_back(busy->Number(2));
  }
  const size_t of_a_step = begins.size() / kSteps;
  if (of_a_step == 0) return {};
  const int64_t begin = begins[of_a_step], end = begins[(kSteps - 1) * of_a_step];
  StepsTime time{.all = end - begin};
  for (const FakeCudaEvent& event : log.Of("busy")) {
    if (event.Number(2) < begin || event.Number(2) >= end) continue;
    const int64_t duration = event.Number(3) - event.Number(2);
    time.computing += event.fields[1] == "compute" ? duration : 0;
    time.copying += event.fields[1] == "H2D" ? duration : 0;
  }
  return time;
}

TEST_P(TrainedCardTest, AnAdapterIsTrainedInWhatIsPredicted) {
  if (GetParam().is_long && !IsLongRun()) GTEST_SKIP() << "many GB are quantized or copied";
  GetParam().write(models_);
  const FinishedTraining plan = RunTrain("plan", {"--dry-run"});
  ASSERT_EQ(plan.exit_code, 0) << ErrorOf(plan);
  const FinishedTraining finished = RunTrain("log", {});
  ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
  EXPECT_EQ(finished.Losses().size(), kSteps);
  const std::vector<FakeCudaLog> logs = FakeCudaLog::ReadAll(folder() + "/log");
  ASSERT_EQ(logs.size(), 1u);
  EXPECT_THAT(logs[0].Faults(), IsEmpty());
  constexpr double kGib = int64_t{1} << 30;
  const auto predicted = plan.Of("plan").at(0).at("memory_bytes").to_number<double>();
  const double measured = static_cast<double>(logs[0].PeakBytes());
  const auto main_memory = finished.Of("done").at(0).at("peak_memory_bytes").to_number<double>();
  const StepsTime time = TimeOfSteps(logs[0]);
  std::cout << boost::json::serialize(plan.Of("plan").at(0)) << "\n"
            << GetParam().name << ": predicted " << predicted / kGib << " GiB, measured " << measured / kGib
            << " GiB; main memory " << main_memory / kGib << " GiB; steps " << time.all << " ns, computing "
            << time.computing << " ns, copying " << time.copying << " ns\n";
  EXPECT_LE(measured, (static_cast<double>(GetParam().gib) - 0.5) * kGib);
  EXPECT_LE(measured, 1.05 * predicted);
  EXPECT_LE(main_memory, 32 * kGib);
  EXPECT_GT(time.copying, 0) << "no block waits";
  EXPECT_LE(static_cast<double>(time.all), 1.15 * static_cast<double>(std::max(time.computing, time.copying)));
}

void WriteZImage(const TestFolder& folder) { WriteFullSizeZImage(folder); }
void WriteKlein9B(const TestFolder& folder) { WriteFullSizeKlein9B(folder); }
void WritePixart(const TestFolder& folder) { WritePixartSigmaWithT5(folder, 4); }

INSTANTIATE_TEST_SUITE_P(
    Cards, TrainedCardTest,
    testing::Values(TrainedCard{"pixart_sigma", WritePixart, "pixart_sigma", 512, 3, "  blocks_to_swap: 14\n", false},
                    TrainedCard{"z_image_12", WriteZImage, "z_image_turbo", 768, 12,
                                "  break_distillation: true\n  blocks_to_swap: 15\n", true},
                    TrainedCard{"klein_9b_24", WriteKlein9B, "flux2_klein_9b", 1024, 24, "  blocks_to_swap: 8\n", true},
                    TrainedCard{"qwen_image_24", WriteFullSizeQwenImage, "qwen_image", 1024, 24,
                                "  quantize: true\n  blocks_to_swap: 10\n", true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
