// Tests `tessera train` of a low-rank adapter on fake GPUs: forward, backward and optimizer have CUDA kernels for their
// dtypes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cuda/fake_cuda_fixture.h"
#include "tests/front/train_command_fixture.h"

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

}  // namespace
}  // namespace tessera
