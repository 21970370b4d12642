// Ranks that share the text encoders out make the pictures that they make if the first rank has the encoders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/macros/status_macros.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "control/protocol/job_replies.h"
#include "models/adapters/adapter.h"
#include "models/loading/load_plan.h"
#include "parallel/segment/mesh_groups.h"
#include "runtime/engine/engine.h"
#include "tests/support/late_nccl.h"
#include "tests/support/pretend_device.h"
#include "tests/support/test_folder.h"
#include "tests/support/thread_ranks.h"

namespace tessera::runtime {
namespace {

using control::ComponentPlacement;

absl::StatusOr<at::Device> OpenSharingDevice(const std::string& name) {
  return name == "cpu" ? at::Device(at::kCPU) : kPretendDevice;
}

// Runs `body` on the engines of a layout's ranks.
void OnEngines(const parallel::Layout& layout, const std::function<void(ThreadRank&, Engine&)>& body) {
  ThreadRanksOptions options{.groups = parallel::MeshGroups(*parallel::Mesh::Create(layout.mesh, layout.ranks()))};
  parallel::HostGroup& test = options.groups.emplace_back(parallel::HostGroup{.name = "test"});
  for (int rank = 0; rank < layout.ranks(); ++rank) test.ranks.push_back(rank);
  RunRanks(
      layout.ranks(),
      [&](ThreadRank& thread) {
        Engine engine({.layout = layout, .rank = thread.rank(), .segment = thread.shared_segment()}, OpenSharingDevice);
        body(thread, engine);
      },
      options);
}

// What one rank has after each job.
struct Made {
  std::vector<bool> cached;
  std::vector<int32_t> prompt_tokens;
  std::vector<std::vector<std::string>> warnings;
  std::vector<std::vector<double>> latents;

  bool operator==(const Made&) const = default;
};

struct SharedModel {
  const char* name;
  const char* layout;
  const char* device = "cpu";
  const char* adapter = "";
  uint64_t prompt_cache_bytes = uint64_t{256} << 20;
};

std::vector<control::JobParameters> JobsFor(const SharedModel& model) {
  control::JobParameters cat{.prompt = "a cat on a sofa", .height = 64, .width = 64, .steps = 2, .guidance_scale = 4};
  cat.negative_prompt = "blurred";
  cat.options.true_cfg_scale = 3;
  control::JobParameters dogs = cat;
  dogs.prompt = "two dogs";
  for (int i = 0; i < 200; ++i) dogs.prompt += " and a dog";
  std::vector<control::JobParameters> jobs = {cat, dogs, cat};
  if (*model.adapter != '\0') {
    const std::string file = std::string("tests/golden-inputs/adapters/") + model.adapter;
    cat.adapters = {{.name = "style", .scale = 1, .digest = models::AdapterDigest(file).value_or(""), .file = file}};
    jobs.push_back(cat);
  }
  return jobs;
}

absl::StatusOr<Made> MakeAll(Engine& engine, const std::vector<control::JobParameters>& jobs) {
  Made made;
  for (uint64_t job = 0; job < jobs.size(); ++job) {
    ASSIGN_OR_RETURN(const control::JobStarted started, engine.StartJob(job, jobs[job]));
    for (int step = 0; step < started.steps; ++step) {
      ASSIGN_OR_RETURN(const control::Stepping stepping, engine.Step({&job, 1}));
      RETURN_IF_ERROR(stepping().status());
    }
    ASSIGN_OR_RETURN(const control::LatentValues latents, engine.Latents(job));
    RETURN_IF_ERROR(engine.EndJob(job));
    made.cached.push_back(started.cached);
    made.prompt_tokens.push_back(started.prompt_tokens);
    made.warnings.push_back(started.warnings);
    made.latents.push_back(latents.values);
  }
  return made;
}

control::LoadParameters LoadOf(const SharedModel& model, ComponentPlacement text_encoders) {
  return {.model = std::string("tests/golden/pipelines/") + model.name,
          .device = model.device,
          .placement = {.text_encoders = text_encoders},
          .prompt_cache_bytes = model.prompt_cache_bytes};
}

// Returns what every rank made.
std::vector<Made> MadeBy(const SharedModel& model, ComponentPlacement text_encoders) {
  const parallel::Layout layout = *parallel::ParseLayout(model.layout);
  std::vector<Made> made(static_cast<size_t>(layout.ranks()));
  OnEngines(layout, [&](ThreadRank& thread, Engine& engine) {
    const absl::StatusOr<control::Loaded> loaded = engine.Load(LoadOf(model, text_encoders));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const absl::StatusOr<Made> own = MakeAll(engine, JobsFor(model));
    ASSERT_TRUE(own.ok()) << own.status();
    made[static_cast<size_t>(thread.rank())] = *own;
  });
  return made;
}

class SharedTextsTest : public testing::TestWithParam<SharedModel> {};

TEST_P(SharedTextsTest, EveryRankMakesTheLatentsOfRanksOfWhichOneHasTheEncoders) {
  const std::vector<Made> expected = MadeBy(GetParam(), ComponentPlacement::kRank0);
  const std::vector<Made> made = MadeBy(GetParam(), ComponentPlacement::kSharded);
  const Made& first = expected.front();
  const bool caches = GetParam().prompt_cache_bytes > 0;
  EXPECT_EQ((std::vector(first.cached.begin(), first.cached.begin() + 3)), (std::vector{false, false, caches}));
  EXPECT_FALSE(first.warnings[1].empty()) << "the second prompt is to be cut";
  EXPECT_EQ(first.latents[2], first.latents[0]);
  if (first.latents.size() > 3) {
    EXPECT_NE(first.latents[3], first.latents[0]) << "the adapter";
  }
  EXPECT_EQ(made, expected);
}

INSTANTIATE_TEST_SUITE_P(Models, SharedTextsTest,
                         testing::Values(SharedModel{"flux_dev", "ulysses=2", "cpu", "flux_kohya_all.safetensors"},
                                         SharedModel{"flux_dev", "pipe=2,ulysses=2"},
                                         SharedModel{"flux_dev", "ulysses=2", "cpu", "", 0},
                                         SharedModel{"flux_dev", "ulysses=2", "cuda", "flux_kohya_all.safetensors"},
                                         SharedModel{"sd3", "cfg=2"}, SharedModel{"sd3", "cfg=2,pipe=2"},
                                         SharedModel{"hunyuan11", "pipe=2"},
                                         SharedModel{"pixart_sigma", "cfg=2,ulysses=2"}),
                         [](const auto& info) { return std::to_string(info.index) + "_" + info.param.name; });

TEST(SharedTexts, ThroughNcclTheLatentsAreThoseOfRanksOfWhichOneHasTheEncoders) {
  LateNccl nccl;
  const SharedModel model{"flux_dev", "ulysses=2", "cuda", "flux_kohya_all.safetensors"};
  EXPECT_EQ(MadeBy(model, ComponentPlacement::kSharded), MadeBy(model, ComponentPlacement::kRank0));
  EXPECT_EQ(nccl.problems(), std::vector<std::string>());
}

// Together the ranks hold each weight of the encoders once, and each of them its part of the plan's.
TEST(SharedTexts, ARankHoldsItsRowsAndAPictureLeavesNoOthersInMemory) {
  constexpr int64_t kBuckets = (2 * 512 + 1) * 8;  // of distances, which T5 keeps on each rank
  for (const auto& [name, ranks] : {std::pair("flux_dev", 2), std::pair("sd3", 2), std::pair("sd3", 4)}) {
    const SharedModel model{name, ranks == 2 ? "ulysses=2" : "cfg=2,ulysses=2", "cuda", "", 0};
    const parallel::Layout layout = *parallel::ParseLayout(model.layout);
    const models::ModelFolder folder = *models::ModelFolder::Open(LoadOf(model, {}).model);
    const models::LoadPlan plan =
        *models::PlanLoad(folder, {.dtype = control::Dtype::kFp32,
                                   .on_device = true,
                                   .placement = {.text_encoders = ComponentPlacement::kSharded},
                                   .ranks = layout.ranks()});
    std::vector<int64_t> bytes;
    for (const ComponentPlacement placement : {ComponentPlacement::kRank0, ComponentPlacement::kSharded}) {
      std::vector<uint64_t> weights(static_cast<size_t>(ranks));
      OnEngines(layout, [&](ThreadRank& thread, Engine& engine) {
        const std::unique_ptr<parallel::Communicator> test = thread.Join("test");
        const int64_t before = PretendDeviceBytes();
        test->Barrier();
        const absl::StatusOr<control::Loaded> loaded = engine.Load(LoadOf(model, placement));
        ASSERT_TRUE(loaded.ok()) << loaded.status();
        weights[static_cast<size_t>(thread.rank())] = loaded->weight_bytes;
        test->Barrier();
        if (thread.rank() == 0) bytes.push_back(PretendDeviceBytes() - before);
        test->Barrier();
        ASSERT_TRUE(MakeAll(engine, {JobsFor(model)[0]}).ok());
        test->Barrier();
        if (thread.rank() == 0) bytes.push_back(PretendDeviceBytes() - before);
        test->Barrier();
      });
      if (placement == ComponentPlacement::kRank0) continue;
      const auto [least, most] = std::ranges::minmax(weights);
      EXPECT_LE(most, static_cast<uint64_t>(plan.device.resident));
      EXPECT_GE(least, static_cast<uint64_t>(plan.device.resident) * 49 / 50) << "the plan counts too much";
    }
    EXPECT_EQ(bytes[2], bytes[0]) << "after loading";
    EXPECT_EQ(bytes[3], bytes[1] + (ranks - 1) * kBuckets) << "after a picture";
  }
}

TEST(SharedTexts, ARankThatCannotReadAnEncoderFailsToLoadAndTheOthersDoNotWait) {
  const TestFolder folder;
  const std::string other = folder / "model", config = "/text_encoder/config.json";
  std::filesystem::copy("tests/golden/pipelines/flux_dev", other, std::filesystem::copy_options::recursive);
  std::stringstream text;
  text << std::ifstream(other + config).rdbuf();
  folder.Write("model" + config, std::regex_replace(text.str(), std::regex("\"intermediate_size\": "), "$&1"));
  OnEngines(*parallel::ParseLayout("ulysses=2"), [&](ThreadRank& thread, Engine& engine) {
    control::LoadParameters load = LoadOf({"flux_dev", "ulysses=2"}, ComponentPlacement::kSharded);
    if (thread.rank() == 1) load.model = other;
    const absl::Status loaded = engine.Load(load).status();
    EXPECT_EQ(loaded.ok(), thread.rank() == 0) << loaded;
    if (thread.rank() == 1) {
      EXPECT_THAT(std::string(loaded.message()),
                  testing::HasSubstr("text_encoder: the weights do not fit config.json"));
      return thread.segment().Poison(1, "the worker ends");
    }
    // The rank that is left finds out with its next picture.
    EXPECT_EQ(engine.StartJob(1, JobsFor({})[0]).status().code(), absl::StatusCode::kAborted);
  });
}

TEST(SharedTexts, OneRankHasTheEncodersAndTrainingDoesNotShareThem) {
  const SharedModel model{"flux_dev", "serial"};
  Engine alone, shares;
  ASSERT_TRUE(alone.Load(LoadOf(model, ComponentPlacement::kRank0)).ok());
  ASSERT_TRUE(shares.Load(LoadOf(model, ComponentPlacement::kSharded)).ok());
  const std::vector<control::JobParameters> jobs = {JobsFor(model)[0]};
  EXPECT_EQ(*MakeAll(shares, jobs), *MakeAll(alone, jobs));
  control::LoadParameters training = LoadOf(model, ComponentPlacement::kSharded);
  training.training = true;
  EXPECT_EQ(shares.Load(training).status(),
            absl::InvalidArgumentError("text_encoders is sharded; for training it must be rank0, cpu or unload"));
}

}  // namespace
}  // namespace tessera::runtime
