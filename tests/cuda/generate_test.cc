// Tests `tessera generate --device cuda` for every family, dtype and axis: each operation has a CUDA kernel for its
// dtype, the products of all blocks run on the device, and no part of an image is computed on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/cuda/checkpoint_weights.h"
#include "tests/cuda/fake_cuda_fixture.h"
#include "tests/cuda/nccl_calls.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Case {
  std::string model, dtype, layout;

  int ranks() const {
    int ranks = 1;
    for (const absl::string_view axis : absl::StrSplit(layout, ',', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> words = absl::StrSplit(axis, '=');
      if (words.first != "patches" && words.first != "warmup") ranks *= std::stoi(words.second);
    }
    return ranks;
  }
};

std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.model << " " << one.dtype << " " << one.layout;
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  std::string name = absl::StrCat(info.param.model, "_", info.param.dtype, "_", info.param.layout);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ',' || c == '='; }, '_');
  return name;
}

class FakeCudaGenerateTest : public FakeCudaTest, public testing::WithParamInterface<Case> {
 protected:
  static constexpr int kSteps = 4;

  std::string model() const { return "tests/golden/pipelines/" + GetParam().model; }

  Finished Generate() const {
    std::vector<std::string> arguments = {"generate",
                                          GetParam().model == "dit" ? "class 7" : "a cat",
                                          "--model=" + model(),
                                          "--device=cuda",
                                          "--dtype=" + GetParam().dtype,
                                          absl::StrCat("--steps=", kSteps),
                                          "--seed=1",
                                          "--certify=off",
                                          "--output=" + (folder_ / "a.png")};
    if (!GetParam().layout.empty()) arguments.push_back("--layout=" + GetParam().layout);
    return Run(arguments, {{"FAKE_CUDA_DEVICES", absl::StrCat(GetParam().ranks())}});
  }
};

int64_t Elements(const std::map<int64_t, int64_t>& rows_by_length) {
  int64_t elements = 0;
  for (const auto& [length, rows] : rows_by_length) elements += length * rows;
  return elements;
}

TEST_P(FakeCudaGenerateTest, RunsWhollyOnTheDevices) {
  const Finished run = Generate();
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "a.png"));
  ASSERT_EQ(run.logs.size(), static_cast<size_t>(GetParam().ranks()));
  std::map<int64_t, int64_t> issued;  // rows of the last step's products by length, on all ranks
  for (const FakeCudaLog& log : run.logs) {
    EXPECT_THAT(log.Faults(), IsEmpty());
    const std::vector<FakeCudaStep> steps = log.Steps();
    ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps));
    const auto rows = steps.back().product_rows.find(GetParam().dtype);
    if (rows != steps.back().product_rows.end()) {
      for (const auto& [length, count] : rows->second) issued[length] += count;
    }
    // If the host computed any part of an image, it would have to read data of the device first.
    if (GetParam().layout.empty()) {
      EXPECT_EQ(steps.back().bytes_to_host, 16);
    }
  }
  if (GetParam().ranks() > 1) {
    ExpectMatchingNcclCalls(run.logs);
    for (const FakeCudaLog& log : run.logs) {
      const FakeCudaStep step = log.Steps().back();
      EXPECT_GT(step.exchanges, 0);
      EXPECT_EQ(step.waits, 0);
      EXPECT_EQ(step.bytes_to_host, 16) << "something was exchanged through the memory of the host";
    }
  }
  const bool attends_to_text =
      absl::StartsWith(GetParam().model, "pixart") || absl::StartsWith(GetParam().model, "hun");
  const std::map<int64_t, int64_t> needed = BlockRowsByLength(model(), attends_to_text);
  EXPECT_GE(Elements(issued), Elements(needed));
  if (!GetParam().layout.empty()) return;  // tensor parallelism splits the rows of some, the length of others
  for (const auto& [length, rows] : needed) EXPECT_GE(issued[length], rows) << "products of length " << length;
}

std::vector<Case> Families() {
  std::vector<Case> cases;
  for (const char* model :
       {"dit", "flux_dev", "flux_schnell", "hunyuan11", "hunyuan12", "pixart_alpha", "pixart_sigma", "sd3", "sd35"}) {
    for (const char* dtype : {"bf16", "fp32", "fp64"}) cases.push_back({model, dtype, ""});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, FakeCudaGenerateTest, testing::ValuesIn(Families()), NameOf);

INSTANTIATE_TEST_SUITE_P(Layouts, FakeCudaGenerateTest,
                         testing::Values(Case{"flux_dev", "bf16", "ulysses=2"}, Case{"flux_dev", "fp32", "ring=2"},
                                         Case{"flux_dev", "bf16", "tensor=2"}, Case{"flux_dev", "fp64", "pipe=2"},
                                         Case{"flux_dev", "bf16", "pipe=2,patches=2,warmup=1"},
                                         Case{"sd35", "bf16", "cfg=2,ulysses=2"}, Case{"sd3", "bf16", "cfg=2,ring=2"},
                                         Case{"pixart_sigma", "bf16", "cfg=2,tensor=2"},
                                         Case{"hunyuan12", "bf16", "cfg=2,pipe=2"}, Case{"dit", "fp32", "cfg=2"}),
                         NameOf);

class FakeCudaFp8Test : public FakeCudaTest {
 protected:
  using RowsOfProducts = std::map<std::string, std::map<int64_t, int64_t>>;  // by dtype and length

  FakeCudaStep LastStep(const std::string& products, const std::string& architecture) const {
    const Finished run = Run(
        {"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--device=cuda", "--dtype=bf16", "--steps=4",
         "--seed=1", "--weights=fp8", "--products=" + products, "--overwrite", "--output=" + (folder_ / "a.png")},
        {{"FAKE_CUDA_ARCH", architecture}});
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    if (run.logs.size() != 1 || run.logs[0].Steps().size() != 4) {
      ADD_FAILURE() << "not one worker with four steps";
      return {};
    }
    EXPECT_THAT(run.logs[0].Faults(), IsEmpty());
    const FakeCudaStep step = run.logs[0].Steps().back();
    EXPECT_EQ(step.bytes_to_host, 16);
    EXPECT_EQ(step.waits, 0);
    return step;
  }
  RowsOfProducts RowsOfAStep(const std::string& products, const std::string& architecture) const {
    return LastStep(products, architecture).product_rows;
  }
};

// FLUX of two double and two single blocks. In each stream of a double block the norms before q, k and v and before the
// MLP and the GELU quantize their rows, and attention's result is quantized separately. In a single block the norm
// quantizes its rows, and the joined input of the last product is quantized separately.
TEST_F(FakeCudaFp8Test, NormsAndActivationsQuantizeTheirRowsThemselves) {
  const FakeCudaStep plain = LastStep("plain", "90"), fp8 = LastStep("fp8", "90");
  const auto launches = [](const FakeCudaStep& step, const std::string& kernel) {
    int count = 0;
    for (const auto& [name, times] : step.operations) count += absl::StrContains(name, kernel) ? times : 0;
    return count;
  };
  constexpr int kStreams = 2 * 2, kSingle = 2;
  EXPECT_EQ(launches(plain, "QuantizeRows"), 0);
  EXPECT_EQ(launches(fp8, "QuantizeRows"), kStreams * 2 + kSingle);
  EXPECT_EQ(launches(plain, "Activations") - launches(fp8, "Activations"), kStreams);
  EXPECT_EQ(launches(fp8, "ResidualNorm"), launches(plain, "ResidualNorm"));
}

TEST_F(FakeCudaFp8Test, BlocksUseTheLibrarysProductsInFp8WhereTheCardHasThem) {
  RowsOfProducts plain = RowsOfAStep("plain", "90"), fp8 = RowsOfAStep("fp8", "90"), older = RowsOfAStep("fp8", "86");
  EXPECT_FALSE(plain.contains("e4m3"));
  EXPECT_EQ(fp8["fp32"], plain["fp32"]);
  EXPECT_EQ(Elements(fp8["e4m3"]) + Elements(fp8["bf16"]), Elements(plain["bf16"]));
  EXPECT_GT(Elements(fp8["e4m3"]), Elements(fp8["bf16"]));
  // Other cards multiply the same codes in fp32.
  EXPECT_FALSE(older.contains("e4m3"));
  EXPECT_EQ(Elements(older["fp32"]), Elements(plain["fp32"]) + Elements(fp8["e4m3"]));
}

// The cost of a step on each rank of a layout, for a FLUX of four blocks.
struct LayoutBudget {
  const char* layout;
  int cards;
  int operations;  // of each rank's step, including its exchanges
  int exchanges;   // groups of NCCL calls, and single calls
};

std::ostream& operator<<(std::ostream& out, const LayoutBudget& budget) { return out << budget.layout; }

class LayoutBudgetTest : public FakeCudaTest, public testing::WithParamInterface<LayoutBudget> {};

TEST_P(LayoutBudgetTest, ASteadyStepOnSeveralCardsCostsWhatIsWrittenHere) {
  constexpr size_t kSteps = 6;
  const Finished run = Run({"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--device=cuda",
                            "--dtype=bf16", absl::StrCat("--steps=", kSteps), "--seed=1", "--certify=off",
                            absl::StrCat("--layout=", GetParam().layout), "--output=" + (folder_ / "a.png")},
                           {{"FAKE_CUDA_DEVICES", absl::StrCat(GetParam().cards)}});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  ASSERT_EQ(run.logs.size(), static_cast<size_t>(GetParam().cards));
  ExpectMatchingNcclCalls(run.logs);
  std::cout << GetParam() << ":\n" << FakeCudaTable(run.logs[0]);
  for (const FakeCudaLog& log : run.logs) {
    EXPECT_THAT(log.Faults(), IsEmpty());
    const std::vector<FakeCudaStep> steps = log.Steps();
    ASSERT_EQ(steps.size(), kSteps);
    for (size_t i = 2; i + 1 < kSteps; ++i) {
      EXPECT_EQ(steps[i].count, GetParam().operations) << "step " << i + 1;
      EXPECT_EQ(steps[i].exchanges, GetParam().exchanges) << "step " << i + 1;
      EXPECT_EQ(steps[i].waits, 0) << "step " << i + 1;
      EXPECT_EQ(steps[i].pageable_copies, 0) << "step " << i + 1;
      EXPECT_EQ(steps[i].bytes_to_host, 16) << "step " << i + 1;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutBudgetTest,
                         testing::Values(LayoutBudget{"ulysses=2", 2, 88, 9}, LayoutBudget{"ulysses=4", 4, 88, 9}),
                         [](const auto& info) { return absl::StrCat("ulysses", info.param.cards); });

using FakeCudaPlanTest = FakeCudaTest;

// First one card is measured, then two together over NCCL. The fake's times have no meaning.
TEST_F(FakeCudaPlanTest, ThisMachinesCardsAreMeasuredOnceForItsPlans) {
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"plan",           "--device=cuda", "--json",
                                          "--size=256x256", "--dtype=bf16",  "--model=tests/golden/pipelines/flux_dev"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments, {{"FAKE_CUDA_DEVICES", "2"}, {"XDG_CACHE_HOME", std::string(folder_.path())}});
  };
  const Finished measured = plan({});
  ASSERT_EQ(measured.exit_code, 0) << measured.errors;
  EXPECT_THAT(measured.errors, HasSubstr("measuring how fast this machine's ranks compute and exchange"));
  const boost::json::value plans = boost::json::parse(measured.output);
  EXPECT_EQ(plans.at("gpus"), 2);
  EXPECT_THAT(std::string(plans.at("gpu").as_string()), HasSubstr("Fake GPU"));
  EXPECT_EQ(plans.at("link"), "as measured");
  std::set<std::string> layouts;
  for (const boost::json::value& one : plans.at("plans").as_array()) {
    layouts.insert(std::string(one.at("layout").as_string()));
    EXPECT_EQ(one.at("replicas"), one.at("layout") == "serial" ? 2 : 1);
  }
  EXPECT_TRUE(layouts.contains("ulysses=2") && layouts.contains("ring=2") && layouts.contains("tensor=2"));
  int64_t products = 0, exchanges = 0;
  for (const FakeCudaLog& log : measured.logs) {
    products += log.Count("product");
    exchanges += log.Count("nccl");
  }
  EXPECT_GT(products, 0);
  EXPECT_GT(exchanges, 0);

  const Finished kept = plan({});
  ASSERT_EQ(kept.exit_code, 0) << kept.errors;
  EXPECT_EQ(kept.errors, "");
  EXPECT_EQ(kept.output, measured.output);
  const Finished too_many = plan({"--gpus=3"});
  EXPECT_NE(too_many.exit_code, 0);
  EXPECT_THAT(too_many.errors + too_many.output, HasSubstr("gpus is 3; valid values here are 1 to 2"));
}

using FakeCudaNcclTest = FakeCudaTest;

TEST_F(FakeCudaNcclTest, RanksThatShareACardExchangeThroughTheHost) {
  const std::vector<std::string> arguments = {"generate",
                                              "a cat",
                                              "--model=tests/golden/pipelines/flux_dev",
                                              "--dtype=bf16",
                                              "--steps=2",
                                              "--seed=1",
                                              "--certify=off",
                                              "--layout=ulysses=2",
                                              "--output=" + (folder_ / "a.png")};
  for (const bool share : {true, false}) {
    std::vector<std::string> all = arguments;
    all.push_back(share ? "--device=cuda:0" : "--device=cuda");
    const Finished run = Run(all, {{"FAKE_CUDA_DEVICES", "2"}});
    ASSERT_EQ(run.exit_code, 0) << run.errors;
    ASSERT_EQ(run.logs.size(), 2u);
    for (const FakeCudaLog& log : run.logs) EXPECT_EQ(log.Count("nccl") == 0, share);
  }
}

// Simulates a driver that fails on one card only. No rank may launch a graph, and the image is still made.
TEST_F(FakeCudaNcclTest, WhereOneRankCannotMakeAGraphNoneDoes) {
  for (const char* layout : {"ulysses=2", "tensor=2"}) {
    const Finished run = Run({"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--dtype=bf16",
                              "--steps=5", "--certify=off", "--verbose", "--overwrite",
                              absl::StrCat("--layout=", layout), "--device=cuda", "--output=" + (folder_ / "a.png")},
                             {{"FAKE_CUDA_DEVICES", "2"}, {"FAKE_CUDA_FAIL", "1/cudaStreamEndCapture:1"}});
    ASSERT_EQ(run.exit_code, 0) << run.errors;
    ASSERT_EQ(run.logs.size(), 2u);
    EXPECT_THAT(run.errors, HasSubstr("a CUDA graph could not be made"));
    for (const FakeCudaLog& log : run.logs) EXPECT_EQ(log.Count("graph"), 0) << layout;
  }
}

// A worker that registers captured buffers would hang here on real cards when an exchange's memory lies in two
// mappings; the fake rejects that call. Workers that are started normally make the image.
TEST_F(FakeCudaNcclTest, AWorkerWithoutItsVariableForRegistrationFailsInACapturedExchange) {
  folder_.Write("planted-worker",
                absl::StrCat("#!/bin/sh\nunset NCCL_GRAPH_REGISTER\nexec ", REAL_WORKER, " \"$@\"\n"));
  std::filesystem::permissions(folder_ / "planted-worker", std::filesystem::perms::owner_all);
  for (const bool planted : {false, true}) {
    std::map<std::string, std::string> environment = {{"FAKE_CUDA_DEVICES", "2"}};
    if (planted) environment["TESSERA_WORKER"] = folder_ / "planted-worker";
    const Finished run = Run({"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--dtype=bf16",
                              "--steps=3", "--seed=1", "--certify=off", "--size=1024", "--layout=ulysses=2",
                              "--device=cuda", "--overwrite", "--output=" + (folder_ / "a.png")},
                             environment);
    ASSERT_EQ(run.logs.size(), 2u);
    std::set<std::string> faults;
    for (const FakeCudaLog& log : run.logs) {
      for (const std::string& fault : log.Faults()) faults.insert(fault);
    }
    EXPECT_EQ(run.exit_code == 0, !planted) << run.errors;
    EXPECT_EQ(faults.contains("error ncclSend 5") || faults.contains("error ncclRecv 5"), planted);
  }
}

// No rank may take memory of another rank's card for a context that it does not use.
TEST_F(FakeCudaNcclTest, ARankHasAContextOnItsOwnCardAlone) {
  const Finished run = Run({"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--dtype=bf16", "--steps=5",
                            "--certify=off", "--layout=ulysses=2", "--device=cuda", "--output=" + (folder_ / "a.png")},
                           {{"FAKE_CUDA_DEVICES", "2"}});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  std::multiset<int64_t> contexts;
  for (const FakeCudaLog& log : run.logs) {
    EXPECT_EQ(log.Count("context"), 1);
    for (const FakeCudaEvent& event : log.Of("context")) contexts.insert(event.Number(0));
  }
  EXPECT_THAT(contexts, testing::ElementsAre(0, 1));
}

TEST_F(FakeCudaNcclTest, NcclsVariablesReachTheWorkersAndEachSaysWhereItRuns) {
  const std::map<std::string, std::string> variables = {{"NCCL_IB_DISABLE", "1"}, {"NCCL_SOCKET_IFNAME", "lo"}};
  std::map<std::string, std::string> environment = variables;
  environment["FAKE_CUDA_DEVICES"] = "2";
  const Finished run =
      Run({"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--dtype=bf16", "--steps=1", "--certify=off",
           "--verbose", "--layout=ulysses=2", "--device=cuda", "--output=" + (folder_ / "a.png")},
          environment);
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  ASSERT_EQ(run.logs.size(), 2u);
  for (const FakeCudaLog& log : run.logs) {
    std::map<std::string, std::string> seen;
    for (const FakeCudaEvent& event : log.Of("variable")) {
      seen.insert(absl::StrSplit(event.fields.at(0), absl::MaxSplits('=', 1)));
    }
    for (const auto& [name, value] : variables) EXPECT_EQ(seen[name], value);
    // The defaults of workers, unless the user overrides them.
    EXPECT_EQ(seen["NCCL_GRAPH_REGISTER"], "0");
    EXPECT_EQ(seen["NCCL_RUNTIME_CONNECT"], "0");
  }
  // The fake's cards are on no bus of this machine.
  for (const char* address : {"0000:10:00.0", "0000:11:00.0"}) {
    EXPECT_THAT(run.errors, HasSubstr(absl::StrCat("threads are not bound: the NUMA node of GPU ", address)));
  }
}

TEST_F(FakeCudaNcclTest, RanksNameWhatTheyExchangeTensorsThrough) {
  const struct {
    std::map<std::string, std::string> environment;
    const char* said;
  } cases[] = {{{{"FAKE_CUDA_NVLINK", "1"}}, "through NCCL over NVLink\n"},
               {{}, "through NCCL over PCIe\n"},
               {{{"FAKE_CUDA_NCCL_VIA", "SHM/direct/direct"}}, "through NCCL over the memory of the host\n"},
               // If the user configured NCCL's log, the worker does not read it.
               {{{"NCCL_DEBUG", "WARN"}}, "through NCCL\n"}};
  for (auto [environment, said] : cases) {
    environment["FAKE_CUDA_DEVICES"] = "2";
    const Finished run = Run(
        {"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--dtype=bf16", "--steps=1", "--certify=off",
         "--verbose", "--layout=ulysses=2", "--device=cuda", "--overwrite", "--output=" + (folder_ / "a.png")},
        environment);
    ASSERT_EQ(run.exit_code, 0) << run.errors;
    EXPECT_THAT(run.errors, HasSubstr(said));
  }
}

TEST_F(FakeCudaNcclTest, DoctorSaysWhatLiesBetweenTheCards) {
  folder_.Write(
      "tessera.yaml",
      absl::StrCat("groups: [{model: ", std::filesystem::current_path().string(),
                   "/tests/golden/pipelines/flux_dev, devices: [\"cuda:0\", \"cuda:1\"], layout: ulysses=2}]\n",
                   "data_folder: ", folder_ / "data", "\n"));
  for (const bool nvlink : {true, false}) {
    const Finished run = Run({"doctor", "--config=" + (folder_ / "tessera.yaml")},
                             {{"FAKE_CUDA_DEVICES", "2"}, {"FAKE_CUDA_NVLINK", nvlink ? "1" : "0"}});
    EXPECT_THAT(run.output, HasSubstr("GPU cuda:1       0000:11:00.0, NUMA node unknown")) << run.errors;
    EXPECT_THAT(run.output,
                HasSubstr(nvlink ? "GPU links        NVLink between all" : "GPU links        PCIe between all"));
  }
}

using FakeCudaRefusalTest = FakeCudaTest;

TEST_F(FakeCudaRefusalTest, ACardOrADriverThatCannotServeIsNamed) {
  const std::vector<std::string> generate = {"generate", "a cat", "--model=tests/golden/pipelines/flux_dev",
                                             "--device=cuda", "--output=" + (folder_ / "a.png")};
  const Finished old_card = Run(generate, {{"FAKE_CUDA_ARCH", "70"}});
  EXPECT_EQ(old_card.exit_code, 4);
  EXPECT_THAT(old_card.errors, HasSubstr("the GPU Fake GPU sm_70 is of architecture 70"));
  const Finished old_driver = Run(generate, {{"FAKE_CUDA_DRIVER", "12080"}});
  EXPECT_EQ(old_driver.exit_code, 4);
  EXPECT_THAT(old_driver.errors, HasSubstr("the NVIDIA driver is too old: it serves CUDA 12.8"));
}

}  // namespace
}  // namespace tessera
