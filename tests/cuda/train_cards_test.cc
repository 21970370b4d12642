// Tests `tessera train` of low-rank adapters of full-size models on fake cards of limited memory, on the fake's clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cuda/full_size_models.h"
#include "tests/cuda/newer_full_size_models.h"
#include "tests/front/train_command_fixture.h"
#include "tests/support/fake_cuda/fake_cuda_log.h"
#include "tests/support/fault_runs.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

using ::testing::IsEmpty;

constexpr size_t kSteps = 6;
constexpr double kGib = int64_t{1} << 30;
constexpr double kContextGib = 0.5;

// A card of limited memory on which an adapter of rank 16 is trained.
struct TrainedCard {
  const char* name;
  void (*write)(const TestFolder&);
  const char* model;
  int64_t side, gib;
  const char* train;  // further keys of the configuration
  bool is_long;       // many GB are read, quantized or copied to main memory
};

std::ostream& operator<<(std::ostream& out, const TrainedCard& card) { return out << card.name; }

class TrainedCardTest : public TrainCommandFixture, public testing::WithParamInterface<TrainedCard> {
 protected:
  // The captions fill the model's text tokens.
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

// The time of the card in the steps after the first. All steps have the same attentions over the tokens of a picture,
// and text encoders have none.
FakeCudaLog::Span TimeOfSteps(const FakeCudaLog& log) {
  constexpr int64_t kPictureTokens = 1024;  // at least
  std::vector<int64_t> begins;
  int64_t now = 0;
  for (const FakeCudaEvent& event : log.events()) {
    if (event.kind == "busy") now = event.Number(2);
    if (FakeCudaLog::Attends(event, kPictureTokens)) begins.push_back(now);
  }
  const size_t of_a_step = begins.size() / kSteps;
  if (of_a_step == 0) return {};
  return log.Between(begins[of_a_step], begins[(kSteps - 1) * of_a_step]);
}

TEST_P(TrainedCardTest, AnAdapterIsTrainedInWhatIsPredicted) {
  const TrainedCard& card = GetParam();
  if (card.is_long && !IsLongRun()) GTEST_SKIP() << "many GB are read, quantized or copied";
  card.write(models_);
  const FinishedTraining plan = RunTrain("plan", {"--dry-run"});
  ASSERT_EQ(plan.exit_code, 0) << ErrorOf(plan);
  const FinishedTraining finished = RunTrain("log", {});
  ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
  EXPECT_EQ(finished.Losses().size(), kSteps);
  const std::vector<FakeCudaLog> logs = FakeCudaLog::ReadAll(folder() + "/log");
  ASSERT_EQ(logs.size(), 1u);
  EXPECT_THAT(logs[0].Faults(), IsEmpty());
  const auto number = [](const boost::json::object& event, const char* field) {
    return event.at(field).to_number<double>();
  };
  const boost::json::object planned = plan.Of("plan").at(0);
  const double available = (static_cast<double>(card.gib) - kContextGib) * kGib;
  const double whole = number(planned, "encoding_bytes");
  const double encoding = whole <= available ? whole : number(planned, "encoding_bytes_waiting");
  const double predicted = std::max(number(planned, "memory_bytes"), encoding);
  const auto measured = static_cast<double>(logs[0].PeakBytes());
  const double main_memory = number(finished.Of("done").at(0), "peak_memory_bytes");
  const FakeCudaLog::Span time = TimeOfSteps(logs[0]);
  std::cout << boost::json::serialize(planned) << "\n"
            << card.name << ": predicted " << predicted / kGib << " GiB, measured " << measured / kGib
            << " GiB; main memory " << main_memory / kGib << " GiB; steps " << time.all << " ns, computing "
            << time.computing << " ns, copying " << time.copying << " ns\n";
  EXPECT_LE(measured, available);
  EXPECT_LE(measured, 1.05 * predicted);
  EXPECT_GE(measured, 0.95 * predicted);
  EXPECT_LE(main_memory, 32 * kGib);
  EXPECT_GT(time.copying, 0) << "no block waits";
  EXPECT_LE(static_cast<double>(time.all), 1.15 * static_cast<double>(std::max(time.computing, time.copying)));
}

void WritePixart(const TestFolder& folder) { WritePixartSigmaWithT5(folder, 4); }

INSTANTIATE_TEST_SUITE_P(Cards, TrainedCardTest,
                         testing::Values(TrainedCard{"pixart_sigma", WritePixart, "pixart_sigma", 512, 3,
                                                     "  blocks_to_swap: 4\n", false},
                                         TrainedCard{"z_image_12", WriteWholeZImage, "z_image_turbo", 768, 12,
                                                     "  break_distillation: true\n  blocks_to_swap: 15\n", true},
                                         TrainedCard{"klein_9b_24", WriteWholeKlein9B, "flux2_klein_9b", 1024, 24,
                                                     "  blocks_to_swap: 4\n", true},
                                         TrainedCard{"qwen_image_24", WriteWholeQwenImage, "qwen_image", 1024, 24,
                                                     "  quantize: true\n  blocks_to_swap: 10\n", true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
