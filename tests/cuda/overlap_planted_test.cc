// Measures how much of the transfers overlaps with computation on a card, by the fake's clock (clock.h): blocks that
// are copied from host memory, and keys and values that travel around a ring, must arrive while the card computes. A
// planted bug puts each on the computing stream, where nothing overlaps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cuda/full_size_models.h"
#include "tests/front/train_command_fixture.h"
#include "tests/support/fake_cuda/fake_cuda_log.h"

namespace tessera {
namespace {

using ::testing::IsEmpty;

class OverlapTest : public TrainCommandFixture {
 protected:
  // Returns the logs of workers with that planted bug.
  std::vector<FakeCudaLog> Run(const std::vector<std::string>& command, const std::string& bug) const {
    const std::string prefix = folder() + "/" + bug + ".log";
    const std::unique_ptr<ChildProcess> child = Start(command, {{"LD_PRELOAD", FAKE_CUDA_LIBRARY},
                                                                {"FAKE_CUDA_LOG", prefix},
                                                                {"FAKE_CUDA_CARDS", folder() + "/card"},
                                                                {"FAKE_CUDA_DEVICES", "2"},
                                                                {"FAKE_CUDA_CLOCK", "1"},
                                                                {"TESSERA_PLANTED_BUG", bug}});
    EXPECT_EQ(child->Wait(), 0) << child->errors();
    std::vector<FakeCudaLog> logs = FakeCudaLog::ReadAll(prefix);
    for (const FakeCudaLog& log : logs) EXPECT_THAT(log.Faults(), IsEmpty());
    return logs;
  }
};

// Three of four blocks are swapped and share two buffers. The first block of a pass arrives before anything computes.
// Encoders are copied to the card when they are used, before the first step.
TEST_F(OverlapTest, ABlockIsBroughtWhileTheOneBeforeItComputes) {
  const auto overlap = [&](const std::string& bug) {
    const std::string config = Config(bug, 3, "  blocks_to_swap: 3\nnetwork:\n  type: lora\n  linear: 4\n", "flux_dev");
    const std::vector<FakeCudaLog> logs = Run({"train", config, "--json", "--device=cuda"}, bug);
    EXPECT_EQ(logs.size(), 1u);
    return logs.size() == 1 ? logs[0].BusyWith("H2D", "grad_input").overlap() : -1;
  };
  EXPECT_GT(overlap("none"), 0.9);
  EXPECT_LT(overlap("swapped_block_on_the_computing_stream"), 0.1);
}

// At full size, where an exchange takes about as long as the attention that hides it.
TEST_F(OverlapTest, KeysAndValuesGoRoundTheRingWhileTheCardAttends) {
  const TestFolder models;
  WriteFullSizeSd3(models, "sd3_medium", 24, /*norms=*/false);
  const auto overlap = [&](const std::string& bug) {
    const std::vector<FakeCudaLog> logs =
        Run({"generate", "a cat", "--model=" + (models / "sd3_medium"), "--device=cuda", "--dtype=bf16", "--steps=4",
             "--seed=1", "--size=1024", "--layout=ring=2", "--certify=off", "--overwrite",
             "--output=" + folder() + "/a.png"},
            bug);
    EXPECT_EQ(logs.size(), 2u);
    return logs.size() == 2 ? logs[0].BusyWith("nccl").overlap() : -1;
  };
  EXPECT_GT(overlap("none"), 0.9);
  EXPECT_LT(overlap("exchange_on_the_computing_stream"), 0.1);
}

}  // namespace
}  // namespace tessera
