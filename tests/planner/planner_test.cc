// Tests the inputs of plans, and the properties that plans must have on every machine.
#include "server/planning/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "control/model/model_description.h"
#include "control/parameters/placement.h"
#include "tests/planner/known_models.h"

namespace tessera::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kModels[] = {"flux", "sd3", "pixart", "hunyuandit", "dit"};

Machine MachineFor(const char* gpu, Link link) { return *MachineOf(*FindGpu(gpu), link, control::Dtype::kBf16); }

PlanRequest Request(const std::string& model, const char* gpu, Link link, int64_t devices) {
  PlanRequest request{.model = KnownModel(model), .work = {}, .machine = MachineFor(gpu, link), .devices = devices};
  request.work = {.width = request.model.default_width, .height = request.model.default_height, .steps = 28};
  return request;
}

double SecondsOf(const char* layout, const std::string& model, const Machine& machine, int side = 1024) {
  return TimeOf(*parallel::ParseLayout(layout), KnownModel(model), {.width = side, .height = side, .steps = 28},
                machine)
      ->image();
}

const Plan& Recommended(const Plans& plans) { return plans.plans[plans.recommended.value()]; }

// Computed by hand: 57 blocks of width 3,072 with 24 width² weights per token in double and single blocks alike, 4,608
// tokens, 2 operations per weight; 4 width operations per pair of query and key.
TEST(PassFlopsTest, AStepOfFlux) {
  const parallel::TokenFlops flops = KnownModel("flux").cost.flops;
  EXPECT_NEAR(flops.Products(4096, 512), 59.5e12, 0.05e12);
  EXPECT_NEAR(flops.Attention(4096, 512), 14.9e12, 0.05e12);
  EXPECT_NEAR(flops.Total(4096, 512), 74.4e12, 0.05e12);
}

TEST(PassFlopsTest, AtTheDefaultSizeTheyAreThoseOfTheBlocks) {
  for (const char* name : kModels) {
    const control::ModelDescription model = KnownModel(name);
    const int64_t side = model.default_width / 16;
    double blocks = 0;
    for (const double flops : model.transformer.block_flops) blocks += flops;
    EXPECT_NEAR(model.cost.flops.Total(side * side, model.cost.text_tokens) / blocks, 1, 1e-12) << name;
  }
}

// At a size other than the default, against the closed form of a block (parallel/plan/stage_balance.h).
TEST(PassFlopsTest, AtOtherSizesTheyAreThoseOfBlocksOfThatSize) {
  for (const char* name : {"flux", "sd3", "pixart", "dit"}) {
    const control::ModelDescription model = KnownModel(name);
    double blocks = 0;
    for (const parallel::BlockExchange& block : model.transformer.exchange.blocks) {
      blocks += parallel::FlopsOf({.kind = block.kind, .width = model.transformer.exchange.width}).Total(1000, 77);
    }
    EXPECT_NEAR(model.cost.flops.Total(1000, 77) / blocks, 1, 1e-12) << name;
  }
}

// 11.901e9 weights of the transformer, 4.885e9 of the text encoders and 84e6 of the autoencoder, two bytes each. With
// activations and the process's own memory this fits into 40 GB. In fp32 it does not, and tensor parallelism makes it
// fit.
TEST(MemoryTest, OfFlux) {
  const control::ModelDescription flux = KnownModel("flux");
  const PlannedImage work = {.width = 1024, .height = 1024, .steps = 28};
  const double weights = 2 * (11.901e9 + 4.885e9 + 0.084e9);
  const double serial = static_cast<double>(*MemoryOf({}, flux, work));
  EXPECT_GT(serial, weights + 1e9);
  EXPECT_LT(serial, 40e9);
  PlannedImage wide = work;
  wide.dtype = control::Dtype::kFp32;
  EXPECT_GT(*MemoryOf({}, flux, wide), 2 * weights);
  EXPECT_LT(*MemoryOf(*parallel::ParseLayout("tensor=2"), flux, work), serial - 11e9);
}

TEST(MemoryTest, NeverRisesWithRanksOfOneAxisAndNeverFallsWithTheSize) {
  const auto memory = [](const std::string& layout, const char* model, int side) {
    return *MemoryOf(*parallel::ParseLayout(layout), KnownModel(model), {.width = side, .height = side, .steps = 28});
  };
  for (const char* model : {"flux", "sd3", "pixart", "hunyuandit"}) {
    for (const char* axis : {"ring=", "ulysses=", "tensor=", "pipe="}) {
      uint64_t before = memory("serial", model, 1024);
      for (const char* ranks : {"2", "4", "8"}) {
        const uint64_t now = memory(std::string(axis) + ranks, model, 1024);
        EXPECT_LE(now, before) << model << " " << axis << ranks;
        before = now;
      }
    }
    EXPECT_LT(memory("serial", model, 512), memory("serial", model, 2048));
    EXPECT_LT(memory("pipe=2", model, 1024), memory("pipe=2,patches=2,warmup=1", model, 1024)) << "keys and values";
  }
}

TEST(PlanTest, WhatIsSentIsWhatTheClosedFormsSay) {
  for (const char* name : kModels) {
    const PlanRequest request = Request(name, "H100", Link::kNvlink, 4);
    const Plans plans = *MakePlans(request);
    const parallel::ForwardPass pass =
        *DefaultPass(request.model, request.work.height, request.work.width, request.work.dtype);
    for (const Plan& plan : plans.plans) {
      const parallel::Mesh mesh = *parallel::Mesh::Create(plan.layout.mesh, plan.layout.ranks());
      const std::vector<int> bounds =
          *parallel::BalanceStages(request.model.transformer.block_flops, plan.layout.mesh.pipe);
      int64_t most = 0;
      for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
        most =
            std::max(most, parallel::PassBytes(request.model.transformer.exchange, mesh, bounds, rank, pass).total());
      }
      EXPECT_EQ(plan.step_bytes, most) << name << " " << parallel::LayoutText(plan.layout);
    }
  }
}

TEST(PlanTest, EveryValidLayoutOfEachNumberOfRanksIsThereOnceAndFastestFirst) {
  const Plans plans = *MakePlans(Request("sd3", "H100", Link::kNvlink, 2));
  std::vector<std::string> layouts;
  for (const Plan& plan : plans.plans) layouts.push_back(parallel::LayoutText(plan.layout));
  EXPECT_THAT(layouts, ::testing::UnorderedElementsAre("serial", "cfg=2", "ulysses=2", "ring=2", "tensor=2", "pipe=2",
                                                       "pipe=2,patches=2,warmup=1"));
  EXPECT_TRUE(std::ranges::is_sorted(plans.plans, {}, [](const Plan& plan) { return plan.time.image(); }));
  EXPECT_EQ(plans.layouts_timed, 7);
  EXPECT_EQ(plans.plans[0].layout, Recommended(plans).layout);
  for (const Plan& plan : plans.plans) EXPECT_EQ(plan.replicas * plan.layout.ranks() + plan.idle, 2);
}

// Guidance is built into FLUX, so a second cfg rank would have nothing to do.
TEST(PlanTest, AModelWithOneBranchHasNoPlanWithCfg) {
  for (const Plan& plan : MakePlans(Request("flux", "H100", Link::kNvlink, 4))->plans) {
    EXPECT_EQ(plan.layout.mesh.cfg, 1);
  }
}

TEST(PlanTest, MoreDevicesAreNeverSlowerAndNeverMakeLessUnderAnObjective) {
  for (const char* name : kModels) {
    for (const Link link : {Link::kNvlink, Link::kPcie, Link::kEthernet}) {
      const double one = MakePlans(Request(name, "H100", link, 1))->plans[0].time.image();
      double latency = INFINITY;
      for (const double slo : {one * 2, one * 0.6}) {
        double images = 0;
        for (int64_t devices = 1; devices <= 12; ++devices) {
          PlanRequest request = Request(name, "H100", link, devices);
          if (slo > one) {
            const Plans fastest = *MakePlans(request);
            EXPECT_LE(Recommended(fastest).time.image(), latency) << name << " " << devices;
            latency = Recommended(fastest).time.image();
          }
          request.slo = slo;
          const Plans within = *MakePlans(request);
          const double made = within.recommended.has_value() ? Recommended(within).images_per_hour : 0;
          EXPECT_GE(made, images) << name << " on " << devices;
          images = made;
        }
      }
    }
  }
}

TEST(PlanTest, ASlowerLinkIsNeverFaster) {
  Machine fast = MachineFor("H100", Link::kNvlink), slow = fast, late = fast;
  slow.link.bytes_per_second /= 10;
  late.link.seconds *= 10;
  for (const char* name : kModels) {
    const parallel::LayoutModel model = {.heads = KnownModel(name).heads, .blocks = KnownModel(name).blocks};
    for (const parallel::JudgedLayout& judged : parallel::JudgeLayouts(8, model)) {
      if (!judged.verdict.ok()) continue;
      const std::string layout = parallel::LayoutText(judged.layout);
      const double seconds = SecondsOf(layout.c_str(), name, fast);
      EXPECT_GE(SecondsOf(layout.c_str(), name, slow), seconds) << name << " " << layout;
      EXPECT_GE(SecondsOf(layout.c_str(), name, late), seconds) << name << " " << layout;
    }
  }
}

TEST(PlanTest, ALargerImageTakesLonger) {
  for (const char* layout : {"serial", "ulysses=4", "ring=4", "tensor=4", "pipe=4", "pipe=4,patches=4,warmup=1"}) {
    const Machine machine = MachineFor("A100-80", Link::kPcie);
    EXPECT_LT(SecondsOf(layout, "pixart", machine, 1024), SecondsOf(layout, "pixart", machine, 2048)) << layout;
  }
}

TEST(PlanTest, StagesWithoutPatchesShareNoTimeAndWithPatchesDo) {
  const Machine machine = MachineFor("H100", Link::kNvlink);
  EXPECT_GE(SecondsOf("pipe=4", "flux", machine, 2048), SecondsOf("serial", "flux", machine, 2048) * 0.9);
  EXPECT_LT(SecondsOf("pipe=4,patches=4,warmup=1", "flux", machine, 2048),
            SecondsOf("serial", "flux", machine, 2048) / 2);
}

TEST(PlanTest, AnObjectiveIsKeptWithTheMostImages) {
  PlanRequest request = Request("flux", "H100", Link::kNvlink, 8);
  const double serial = SecondsOf("serial", "flux", request.machine);
  request.slo = serial * 1.01;
  EXPECT_EQ(Recommended(*MakePlans(request)).layout, parallel::Layout());
  EXPECT_EQ(Recommended(*MakePlans(request)).replicas, 8);
  request.slo = serial * 0.7;
  const Plans plans = *MakePlans(request);
  EXPECT_GT(Recommended(plans).layout.ranks(), 1);
  EXPECT_LE(Recommended(plans).time.image(), serial * 0.7);
  request.slo = 1e-6;
  const Plans none = *MakePlans(request);
  EXPECT_FALSE(none.recommended.has_value());
  EXPECT_THAT(none.reason, HasSubstr("The fastest is"));
}

TEST(PlanTest, WhatDoesNotFitSaysHowMuchIsMissingAndIsNotRecommended) {
  const PlanRequest request = Request("flux", "RTX-4090", Link::kPcie, 4);
  const Plans plans = *MakePlans(request);
  int too_large = 0;
  for (const Plan& plan : plans.plans) {
    if (plan.fits()) continue;
    ++too_large;
    EXPECT_EQ(plan.missing_bytes, plan.memory_bytes - uint64_t{24'000'000'000});
  }
  EXPECT_GT(too_large, 0);
  EXPECT_TRUE(Recommended(plans).fits());
  const Plans one = *MakePlans(Request("flux", "RTX-4090", Link::kPcie, 1));
  EXPECT_FALSE(one.recommended.has_value());
  EXPECT_THAT(one.reason, AllOf(HasSubstr("Nothing fits"), HasSubstr("lacks")));
}

TEST(PlanTest, LayoutsWithStaleStepsAreRecommendedWhenTheyMayBe) {
  PlanRequest request = Request("flux", "L20", Link::kPcie, 8);
  request.work.width = request.work.height = 2048;
  EXPECT_TRUE(Recommended(*MakePlans(request)).layout.lossless());
  request.approximate = true;
  EXPECT_FALSE(Recommended(*MakePlans(request)).layout.lossless());
}

TEST(PlanTest, PipeFusionIsNotPlannedForAModelOfFewSteps) {
  PlanRequest request = Request("flux", "L20", Link::kPcie, 8);
  request.approximate = true;
  request.work.steps = 4;
  const auto any_stale = [](const Plans& plans) {
    return std::ranges::any_of(plans.plans, [](const Plan& plan) { return !plan.layout.lossless(); });
  };
  EXPECT_TRUE(any_stale(*MakePlans(request)));
  request.model.base_model = "FLUX.1-dev";
  request.model.default_steps = 4;
  const Plans plans = *MakePlans(request);
  EXPECT_FALSE(any_stale(plans));
  EXPECT_THAT(plans.reason, HasSubstr("PipeFusion is left out: the model is distilled to 4 steps"));
}

// Beyond the ranks of one group, more devices do not mean more work, so the answer comes at once.
TEST(PlanTest, AThousandDevicesTakeTheWorkOfOneGroup) {
  const int64_t eight = MakePlans(Request("sd3", "H100", Link::kNvlink, 8))->layouts_timed;
  EXPECT_EQ(MakePlans(Request("sd3", "H100", Link::kNvlink, kMaxPlannedDevices))->layouts_timed, eight);
  EXPECT_LT(eight, 250);
}

TEST(PlanTest, NumbersOutOfRangeAreRefusedByName) {
  for (const int64_t devices : {int64_t{0}, int64_t{-1}, kMaxPlannedDevices + 1}) {
    EXPECT_THAT(std::string(MakePlans(Request("dit", "H100", Link::kNvlink, devices)).status().message()),
                HasSubstr("valid values are 1 to 1024"));
  }
  PlanRequest request = Request("dit", "H100", Link::kNvlink, 1);
  for (const double slo : {0.0, -1.0, std::nan(""), double{INFINITY}}) {
    request.slo = slo;
    EXPECT_THAT(std::string(MakePlans(request).status().message()), HasSubstr("slo is")) << slo;
  }
  request.slo.reset();
  request.work.steps = 0;
  EXPECT_FALSE(MakePlans(request).ok());
}

TEST(MachineTest, NamesAreFoundInAnyCaseAndTheNearestIsNamed) {
  EXPECT_STREQ(FindGpu("h100")->name, "H100");
  EXPECT_THAT(std::string(FindGpu("H1000").status().message()),
              AllOf(HasSubstr("gpu is 'H1000'"), HasSubstr("A100-40"), HasSubstr("the nearest is H100")));
  EXPECT_FALSE(FindGpu("").ok());
  EXPECT_EQ(NearestName("nvlnk", std::vector<std::string>{"pcie", "nvlink"}), "nvlink");
}

TEST(MachineTest, LinksAndDtypesThatAGpuDoesNotHaveAreRefused) {
  EXPECT_THAT(std::string(MachineOf(*FindGpu("L40S"), Link::kNvlink, control::Dtype::kBf16).status().message()),
              HasSubstr("which L40S does not have; valid values are pcie and ethernet"));
  EXPECT_THAT(std::string(MachineOf(*FindGpu("H100"), Link::kNvlink, control::Dtype::kFp64).status().message()),
              HasSubstr("dtype is fp64"));
  EXPECT_GT(MachineFor("H100", Link::kNvlink).product_flops,
            MachineOf(*FindGpu("H100"), Link::kNvlink, control::Dtype::kFp32)->product_flops);
}

TEST(MachineTest, TheDocumentHasThePresets) {
  std::ifstream file("docs/planner.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  for (const GpuPreset& gpu : GpuPresets()) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("| ", gpu.name, " | ", gpu.bf16_tflops, " | ", gpu.fp32_tflops, " | ",
                                             gpu.memory_gb_second, " | ", gpu.memory_gb, " | ", gpu.nvlink_gb_second,
                                             " | ", gpu.pcie_gb_second, " | ", gpu.processors, " |")));
  }
}

TEST(MachineTest, EveryPresetIsComplete) {
  for (const GpuPreset& gpu : GpuPresets()) {
    EXPECT_GT(gpu.bf16_tflops, gpu.fp32_tflops) << gpu.name;
    EXPECT_GT(gpu.processors, 0) << gpu.name;
    for (const Link link : {Link::kPcie, Link::kEthernet}) {
      const Machine machine = MachineFor(gpu.name, link);
      EXPECT_GT(machine.memory_bytes_second, 0) << gpu.name;
      EXPECT_GT(machine.memory_bytes, 0) << gpu.name;
      EXPECT_GT(machine.link.bytes_per_second, 0) << gpu.name;
    }
  }
}

// FLUX.1-dev's transformer as its configuration describes it, a text encoder and an autoencoder.
control::ModelDescription SizedFlux() {
  control::ModelDescription model = KnownModel("flux");
  constexpr uint64_t kSquare = uint64_t{3072} * 3072;
  const auto matrices = [](uint64_t elements) {
    return control::WeightSize{.elements = elements, .matrices = elements, .rows = elements / 3072};
  };
  control::ComponentWeights transformer = {.role = control::ComponentRole::kTransformer,
                                           .modulations = matrices(344 * kSquare),
                                           .largest_modulation = 6 * kSquare};
  transformer.blocks.resize(19, matrices(24 * kSquare));
  transformer.blocks.resize(57, matrices(12 * kSquare));
  control::ComponentWeights text = {.role = control::ComponentRole::kTextEncoder};
  text.blocks.resize(24, matrices(192'900'000));
  model.weights = {
      transformer, text, {.role = control::ComponentRole::kAutoencoder, .frame = {.elements = 84'000'000}}};
  return model;
}

TEST(PlannerTest, OneDeviceOfLimitedMemoryIsPlannedAtThreeRatesOfMainMemory) {
  PlanRequest request = Request("flux", "RTX-4090", Link::kPcie, 1);
  request.model = SizedFlux();
  request.memory_limit = uint64_t{12} << 30;
  const absl::StatusOr<Plans> plans = MakePlans(request);
  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_EQ(plans->fits.size(), 3u) << plans->unfit;
  double before = 0;
  for (const LinkFit& at : plans->fits) {
    EXPECT_FALSE(at.fit.blocks.empty());
    EXPECT_LE(at.fit.peak_bytes, (int64_t{23} << 30) / 2);
    const double copying = static_cast<double>(at.fit.transfer_bytes) / at.bytes_per_second;
    EXPECT_DOUBLE_EQ(at.fit.step_seconds(), std::max(copying, plans->plans.front().time.step));
    if (before > 0) {
      EXPECT_LE(at.fit.step_seconds(), before);
    }
    before = at.fit.step_seconds();
  }
  // In 8 bits the transformer stays, and the rate does not matter.
  request.weights = control::WeightStorage::kFp8;
  request.memory_limit = uint64_t{16} << 30;
  const std::vector<LinkFit> stays = MakePlans(request)->fits;
  ASSERT_EQ(stays.size(), 3u);
  EXPECT_TRUE(stays.front().fit.blocks.empty());
  EXPECT_EQ(stays.front().fit.step_seconds(), stays.back().fit.step_seconds());
}

TEST(PlannerTest, MainMemoryThatIsTooSmallForWhatWaitsIsNamedWithAStorageThatFits) {
  PlanRequest request = Request("flux", "RTX-4090", Link::kPcie, 1);
  request.model = SizedFlux();
  request.memory_limit = uint64_t{8} << 30;
  request.main_memory = uint64_t{32} << 30;
  const Plans plans = *MakePlans(request);
  ASSERT_EQ(plans.fits.size(), 3u) << plans.unfit;
  EXPECT_EQ(plans.fits.front().main.bytes, plans.fits.front().fit.waiting_bytes + control::kProgramBytes);
  request.main_memory = uint64_t{16} << 30;
  EXPECT_THAT(MakePlans(request)->unfit, HasSubstr("of main memory, and 16.00 GiB are available; it fits with "
                                                   "--weights fp8"));
}

TEST(PlannerTest, ADeviceThatIsTooSmallOrAModelOfUnknownSizesHasNoFit) {
  PlanRequest request = Request("flux", "H100", Link::kPcie, 1);
  EXPECT_THAT(MakePlans(request)->unfit, HasSubstr("the sizes of the model's weights are not known"));
  request.model = SizedFlux();
  EXPECT_TRUE(MakePlans(request)->unfit.empty());
  request.memory_limit = uint64_t{2} << 30;
  EXPECT_THAT(MakePlans(request)->unfit, HasSubstr("of device memory while all other weights wait in main memory"));
}

}  // namespace
}  // namespace tessera::server
