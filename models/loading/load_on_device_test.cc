// Loading to a device gives it the same values as the host, in few copies, and never waits for a copy.
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "models/flux/flux_config.h"
#include "models/flux/flux_transformer.h"
#include "models/layers/linear.h"
#include "models/loading/component.h"
#include "models/loading/eight_bits.h"
#include "models/loading/sharded_weights.h"
#include "models/loading/weight_loader.h"
#include "tests/support/pretend_device.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"
#include "tests/support/thread_ranks.h"

namespace tessera::models {
namespace {

FluxConfig ConfigOfFlux(const ModelFolder& folder) {
  FluxConfig config;
  std::vector<std::string> warnings;
  EXPECT_TRUE(ReadConfig(folder, "transformer", ParseFluxConfig, config, warnings).ok());
  return config;
}

void ExpectEqual(const ParamTable& on_device, const ParamTable& on_host) {
  ASSERT_EQ(on_device.params().size(), on_host.params().size());
  for (size_t i = 0; i < on_host.params().size(); ++i) {
    const Param &there = on_device.params()[i], &here = on_host.params()[i];
    EXPECT_TRUE(at::equal(there.storage.cpu(), here.storage)) << here.spec.name;
    if (!here.scales.defined()) continue;
    EXPECT_TRUE(at::equal(there.scales.cpu(), here.scales)) << here.spec.name;
  }
}

struct Loading {
  at::ScalarType dtype;
  int tensor;
  bool quantize = false;
};

class LoadOnDeviceTest : public testing::TestWithParam<Loading> {};

// This model's matrices are small: each is a part of one reading turn.
TEST_P(LoadOnDeviceTest, EachPartOfAMatrixIsOneCopyAndNothingIsWaitedFor) {
  const ModelFolder folder = *ModelFolder::Open("tests/golden/pipelines/flux_dev");
  const FluxConfig config = ConfigOfFlux(folder);
  const WeightFolder weights = *folder.Weights("transformer");
  for (int rank = 0; rank < GetParam().tensor; ++rank) {
    const WeightShare share{.tensor = {.rank = rank, .size = GetParam().tensor}};
    const ParamTable::FormOf form_of = GetParam().quantize ? InEightBits() : ParamTable::FormOf();
    ParamTable on_host(GetParam().dtype, at::kCPU, share, form_of);
    ParamTable on_device(GetParam().dtype, kPretendDevice, share, form_of);
    const FluxTransformer here(config, on_host), there(config, on_device);
    ASSERT_TRUE(LoadWeights(weights, on_host, "transformer").ok());
    const HostWaits before = PretendDeviceWaits();
    const int64_t copies = PretendHostCopies();
    ASSERT_TRUE(LoadWeights(weights, on_device, "transformer").ok());
    EXPECT_EQ(PretendDeviceWaits() - before, HostWaits{});
    EXPECT_LE(PretendHostCopies() - copies, static_cast<int64_t>(on_device.params().size()));
    EXPECT_GE(PretendHostCopies() - copies, 100);
    ExpectEqual(on_device, on_host);
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, LoadOnDeviceTest,
                         testing::Values(Loading{at::kBFloat16, 1}, Loading{at::kBFloat16, 2}, Loading{at::kFloat, 2},
                                         Loading{at::kDouble, 3}, Loading{at::kBFloat16, 2, true}),
                         [](const auto& info) {
                           return absl::StrCat(c10::toString(info.param.dtype), "_tensor_", info.param.tensor,
                                               info.param.quantize ? "_in_eight_bits" : "");
                         });

// Two matrices of 24 MiB are six reading turns.
class LargeLoadTest : public testing::Test {
 protected:
  static constexpr int64_t kRows = 2048, kColumns = 3072;
  static constexpr int64_t kMatrices = 2, kTurnsOfAMatrix = 3, kBuffers = 4;

  LargeLoadTest() {
    const at::Tensor values = at::arange(kMatrices * kRows * kColumns, at::kFloat);
    const int64_t bytes = kRows * kColumns * 4;
    const std::string header =
        absl::StrCat(R"({"a.weight":{"dtype":"F32","shape":[)", kRows, ",", kColumns, R"(],"data_offsets":[0,)", bytes,
                     R"(]},"b.weight":{"dtype":"F32","shape":[)", kRows, ",", kColumns, R"(],"data_offsets":[)", bytes,
                     ",", 2 * bytes, "]}}");
    file_ = test_folder_.Write(
        "model.safetensors",
        SafetensorsBytes(header, {static_cast<const char*>(values.const_data_ptr()), values.nbytes()}));
  }

  // The second matrix is read by columns.
  static void AddTo(ParamTable& table) {
    const ParamScope root(table);
    table.AddProduct({{.name = "a.weight", .shape = {kRows, kColumns}, .role = LinearRole::kColumn}});
    table.AddProduct({{.name = "b.weight", .shape = {kRows, kColumns}, .role = LinearRole::kRow}});
  }

  TestFolder test_folder_;
  std::string file_;
};

TEST_F(LargeLoadTest, WaitsForBuffersThatAreUsedAgainAlone) {
  const WeightFolder weights = *WeightFolder::Open(test_folder_.path(), "part");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ParamTable on_host(dtype, at::kCPU), on_device(dtype, kPretendDevice);
    AddTo(on_host);
    AddTo(on_device);
    ASSERT_TRUE(LoadWeights(weights, on_host, "part").ok());
    const HostWaits before = PretendDeviceWaits();
    const int64_t copies = PretendHostCopies();
    ASSERT_TRUE(LoadWeights(weights, on_device, "part").ok());
    EXPECT_EQ(PretendDeviceWaits() - before, (HostWaits{.waits = kMatrices * kTurnsOfAMatrix - kBuffers}));
    EXPECT_EQ(PretendHostCopies() - copies, kMatrices * kTurnsOfAMatrix);
    ExpectEqual(on_device, on_host);
  }
}

TEST_F(LargeLoadTest, RanksHaveTheirPartsOfIt) {
  const WeightFolder weights = *WeightFolder::Open(test_folder_.path(), "part");
  const at::Tensor all = at::arange(kMatrices * kRows * kColumns, at::kFloat).view({kMatrices, kRows, kColumns});
  for (const at::Device device : {at::Device(at::kCPU), kPretendDevice}) {
    for (int rank = 0; rank < 3; ++rank) {
      const TensorShard shard{.rank = rank, .size = 3};
      ParamTable table(at::kFloat, device, {.tensor = shard});
      AddTo(table);
      ASSERT_TRUE(LoadWeights(weights, table, "part").ok());
      EXPECT_TRUE(at::equal(table.params()[0].storage.cpu(), all[0].slice(0, shard.begin(kRows), shard.end(kRows))));
      EXPECT_TRUE(
          at::equal(table.params()[1].storage.cpu(), all[1].slice(1, shard.begin(kColumns), shard.end(kColumns))));
    }
  }
}

// A rank that loads alone: it exchanges nothing.
class OneOfRanks final : public parallel::Communicator {
 public:
  OneOfRanks(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  const int rank_, size_;
};

TEST_F(LargeLoadTest, ARankOfShardedWeightsReadsItsRowsAndNeverHoldsMore) {
  const WeightFolder weights = *WeightFolder::Open(test_folder_.path(), "part");
  const at::Tensor all = at::arange(kMatrices * kRows * kColumns, at::kFloat).view({kMatrices, kRows, kColumns});
  constexpr int kRanks = 3;
  for (const at::Device device : {at::Device(at::kCPU), kPretendDevice}) {
    int64_t together = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      OneOfRanks ranks(rank, kRanks);
      const TensorShard rows{.rank = rank, .size = kRanks};
      const int64_t own = (rows.end(kRows) - rows.begin(kRows)) * kMatrices * kColumns * 4;
      const int64_t before = PretendDeviceBytes();
      LimitPretendDevice(before + own);
      const absl::Cleanup no_limit = [] { LimitPretendDevice(std::numeric_limits<int64_t>::max()); };
      ParamTable table(at::kFloat, device, {.row_ranks = &ranks});
      AddTo(table);
      EXPECT_EQ(PretendDeviceBytes(), before);
      const absl::StatusOr<std::unique_ptr<ShardedWeights>> sharded =
          ShardedWeights::Load(weights, table, "part", ranks);
      ASSERT_TRUE(sharded.ok()) << sharded.status();
      EXPECT_EQ((*sharded)->own_bytes(), own);
      EXPECT_EQ(PretendDeviceBytes() - before, device.is_cpu() ? 0 : own);
      for (int64_t i = 0; i < kMatrices; ++i) {
        const Param& param = table.params()[static_cast<size_t>(i)];
        EXPECT_EQ(param.storage.storage().nbytes(), 0);
        EXPECT_TRUE(at::equal((*sharded)->OwnRows(param).cpu(), all[i].slice(0, rows.begin(kRows), rows.end(kRows))));
      }
      together += own;
    }
    EXPECT_EQ(together, static_cast<int64_t>(all.nbytes()));
  }
}

// A rank brings a block in its message, from which it is copied.
TEST_F(LargeLoadTest, RanksThatBringABlockHoldItTwiceInAdditionToTheirRows) {
  const WeightFolder weights = *WeightFolder::Open(test_folder_.path(), "part");
  const at::Tensor all = at::arange(kMatrices * kRows * kColumns, at::kFloat).view({kMatrices, kRows, kColumns});
  constexpr int kRanks = 2;
  constexpr int64_t kBlock = kRows * kColumns * 4;
  const int64_t before = PretendDeviceBytes();
  LimitPretendDevice(before + kMatrices * kBlock + kRanks * 2 * kBlock);
  const absl::Cleanup no_limit = [] { LimitPretendDevice(std::numeric_limits<int64_t>::max()); };
  ThreadRanksOptions options;
  options.communicator.addresses_devices = true;
  RunRanks(
      kRanks,
      [&](ThreadRank& rank) {
        ParamTable table(at::kFloat, kPretendDevice, {.row_ranks = &rank.world()});
        for (int64_t block = 0; block < kMatrices; ++block) {
          table.EnterBlock(block);
          table.AddProduct({{.name = block == 0 ? "a.weight" : "b.weight", .shape = {kRows, kColumns}}});
          table.LeaveBlock();
        }
        const std::unique_ptr<ShardedWeights> sharded = *ShardedWeights::Load(weights, table, "part", rank.world());
        rank.world().Barrier();
        for (int block = 0; block < kMatrices; ++block) {
          const BroughtPart part(sharded.get(), block);
          EXPECT_TRUE(at::equal(table.params()[static_cast<size_t>(block)].storage.cpu(), all[block]));
          rank.world().Barrier();
        }
        rank.world().Barrier();
        EXPECT_EQ(PretendDeviceBytes() - before, kMatrices * kBlock);
        rank.world().Barrier();
      },
      options);
}

TEST_F(LargeLoadTest, AFileThatEndsEarlyIsNamed) {
  const WeightFolder weights = *WeightFolder::Open(test_folder_.path(), "part");
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 1);
  for (const at::Device device : {at::Device(at::kCPU), kPretendDevice}) {
    ParamTable table(at::kFloat, device);
    AddTo(table);
    OneOfRanks last(2, 3);
    ParamTable sharded(at::kFloat, device, {.row_ranks = &last});
    AddTo(sharded);
    for (const absl::Status& status :
         {LoadWeights(weights, table, "part"), ShardedWeights::Load(weights, sharded, "part", last).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_NE(status.message().find("part/model.safetensors"), std::string::npos) << status;
    }
  }
}

}  // namespace
}  // namespace tessera::models
