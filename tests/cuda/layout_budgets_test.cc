// Checks the cost of a denoising step on each rank of a layout at full size: 1024x1024, bf16, one image with guidance,
// from the third step on. The expected numbers of operations are written here, as for one card in step_budgets_test.cc.
// Exchanges and bytes follow from the table of docs/parallelism.md; the bytes must equal those in the output of
// `tessera layouts`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <iostream>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/cuda/fake_cuda_fixture.h"
#include "tests/cuda/full_size_models.h"
#include "tests/cuda/nccl_calls.h"
#include "tests/cuda/newer_full_size_models.h"
#include "tests/support/fault_runs.h"

namespace tessera {
namespace {

using ::testing::IsEmpty;

constexpr int kFluxAttentions = 19 + 38;
constexpr int kFluxRowProducts = 19 * 4 + 38;
constexpr int kSd3Attentions = 24;
constexpr int kZImageAttentions = 2 + 30;  // of the image's refiners and of the layers
constexpr int kKleinAttentions = 5 + 20;
constexpr int kDevAttentions = 8 + 48;
constexpr int kQwenImageAttentions = 60;

struct LayoutBudget {
  const char* model;
  const char* layout;
  int cards;
  int operations;  // of a rank's step, including its exchanges
  int exchanges;   // groups of NCCL calls, and single calls
  // The last pipeline stage, which differs from the others.
  int last_operations = operations;
  int last_exchanges = exchanges;
};

std::string NameOf(const LayoutBudget& budget) {
  return absl::StrCat(budget.model, "_", absl::StrReplaceAll(budget.layout, {{"=", ""}, {",", "_"}}));
}

std::ostream& operator<<(std::ostream& out, const LayoutBudget& budget) { return out << NameOf(budget); }

// Returns the number of ranks of each communicator.
std::map<std::string, int64_t> SizesOf(const std::vector<FakeCudaLog>& logs) {
  std::map<std::string, int64_t> sizes;
  for (const FakeCudaLog& log : logs) {
    for (const FakeCudaEvent& made : log.Of("communicator")) ++sizes[made.fields.at(0)];
  }
  return sizes;
}

// Returns the bytes that leave the rank, counted as in docs/parallelism.md: an all-reduce is a reduce-scatter and an
// all-gather.
int64_t SentBytes(const FakeCudaStep& step, const std::map<std::string, int64_t>& sizes) {
  int64_t sent = 0;
  for (const auto& [call, bytes] : step.given_bytes) {
    const auto& [function, comm] = call;
    const int64_t ranks = sizes.at(comm);
    if (function == "ncclSend") {
      sent += bytes;
    } else if (function == "ncclRecv") {
      EXPECT_EQ(bytes, 0);
    } else if (function == "ncclAllGather") {
      sent += bytes * (ranks - 1);
    } else if (function == "ncclAllReduce") {
      sent += 2 * bytes * (ranks - 1) / ranks;
    } else {
      ADD_FAILURE() << function << " is in a step";
    }
  }
  return sent;
}

class FullSizeLayoutTest : public FakeCudaTest, public testing::WithParamInterface<LayoutBudget> {
 protected:
  std::string model() const { return "--model=" + (folder_ / GetParam().model); }

  // Returns the least and the most bytes that a rank sends in a step, as reported by `tessera layouts`.
  std::pair<int64_t, int64_t> ListedBytes() const {
    const Finished finished = Run({"layouts", model(), absl::StrCat("--ranks=", GetParam().cards), "--size=1024x1024",
                                   "--dtype=bf16", "--device=cpu", "--json"});
    EXPECT_EQ(finished.exit_code, 0) << finished.errors;
    const boost::json::value answer = boost::json::parse(finished.output);
    for (const boost::json::value& listed : answer.at("layouts").as_array()) {
      if (listed.at("layout") != GetParam().layout) continue;
      return {listed.at("sent_bytes_least").to_number<int64_t>(), listed.at("sent_bytes_most").to_number<int64_t>()};
    }
    ADD_FAILURE() << GetParam().layout << " is not listed: " << finished.output;
    return {-1, -1};
  }
};

TEST_P(FullSizeLayoutTest, AStepOfARankCostsWhatTheTableOfItsLayoutSays) {
  constexpr size_t kSteps = 5;
  if (GetParam().model == std::string("flux_dev")) WriteFullSizeFlux(folder_);
  if (GetParam().model == std::string("sd3_medium")) WriteFullSizeSd3(folder_, "sd3_medium", 24, /*norms=*/false);
  if (GetParam().model == std::string("z_image_turbo")) WriteFullSizeZImage(folder_);
  if (GetParam().model == std::string("flux2_klein")) WriteFullSizeKlein(folder_);
  if (GetParam().model == std::string("flux2_dev")) WriteFullSizeDev(folder_);
  if (GetParam().model == std::string("qwen_image")) WriteFullSizeQwenImage(folder_);
  // What is listed is for the longest prompt, and some models read no more tokens than a prompt has.
  std::string prompt = "a cat";
  for (int i = 0; i < 600; ++i) prompt += " or a cat";
  // Makes two images. Unlike `generate` it computes no digest of the weights, which takes longer than all else here.
  const Finished run =
      Run({"bench", "--prompt=" + prompt, model(), "--device=cuda", "--dtype=bf16", absl::StrCat("--steps=", kSteps),
           "--repeat=1", "--size=1024", "--certify=off", absl::StrCat("--layout=", GetParam().layout)},
          {{"FAKE_CUDA_DEVICES", absl::StrCat(GetParam().cards)}});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  ASSERT_EQ(run.logs.size(), static_cast<size_t>(GetParam().cards));
  ExpectMatchingNcclCalls(run.logs);
  const std::map<std::string, int64_t> sizes = SizesOf(run.logs);
  std::set<std::pair<int, int>> counted;  // operations and exchanges
  std::vector<int64_t> sent;              // by rank
  for (const FakeCudaLog& log : run.logs) {
    EXPECT_THAT(log.Faults(), IsEmpty());
    const std::vector<FakeCudaStep> steps = log.Steps();
    ASSERT_EQ(steps.size(), 2 * kSteps);
    for (size_t i = 2; i + 1 < kSteps; ++i) {
      counted.insert({steps[i].count, steps[i].exchanges});
      EXPECT_EQ(steps[i].waits, 0) << "step " << i + 1;
      EXPECT_EQ(steps[i].mallocs, 0) << "step " << i + 1;
      EXPECT_EQ(steps[i].pageable_copies, 0) << "step " << i + 1;
      EXPECT_EQ(steps[i].bytes_to_host, 16) << "step " << i + 1;
    }
    sent.push_back(SentBytes(steps[2], sizes));
  }
  const std::set<std::pair<int, int>> expected = {{GetParam().operations, GetParam().exchanges},
                                                  {GetParam().last_operations, GetParam().last_exchanges}};
  EXPECT_EQ(counted, expected);
  if (counted != expected) std::cout << FakeCudaTable(run.logs.front()) << FakeCudaTable(run.logs.back());
  const auto [least, most] = ListedBytes();
  EXPECT_EQ(*std::ranges::min_element(sent), least);
  EXPECT_EQ(*std::ranges::max_element(sent), most);
}

// Under Ulysses an attention takes two exchanges, and each step gathers the tokens of the result. A ring of two passes
// keys and values on once. A row product takes one sum. The results of the guidance branches are gathered over cfg.
std::vector<LayoutBudget> Budgets() {
  std::vector<LayoutBudget> budgets = {
      {"flux_dev", "ulysses=2", 2, 966, 2 * kFluxAttentions + 1},
      {"flux_dev", "ring=2", 2, 1023, kFluxAttentions + 1},
      {"flux_dev", "tensor=2", 2, 908, kFluxRowProducts},
      {"flux_dev", "pipe=2", 2, 267, 2, 416, 2},
      {"sd3_medium", "cfg=2,ulysses=2", 4, 543, 2 * kSd3Attentions + 3},
      {"z_image_turbo", "ulysses=2", 2, 753, 2 * kZImageAttentions + 1},
      {"flux2_klein", "ulysses=2", 2, 431, 2 * kKleinAttentions + 1},
      {"qwen_image", "ulysses=2", 2, 1336, 2 * kQwenImageAttentions + 1},
  };
  if (IsLongRun()) {
    budgets.push_back({"flux2_dev", "ulysses=2", 2, 895, 2 * kDevAttentions + 1});
    budgets.push_back({"flux_dev", "ulysses=4", 4, 966, 2 * kFluxAttentions + 1});
    budgets.push_back({"flux_dev", "ulysses=8", 8, 966, 2 * kFluxAttentions + 1});
  }
  return budgets;
}

INSTANTIATE_TEST_SUITE_P(Layouts, FullSizeLayoutTest, testing::ValuesIn(Budgets()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace tessera
