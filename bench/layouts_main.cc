// Measures layouts of two ranks in comparison with one, as `bench_layouts [steps [blocks [layout …]]]`: a denoise of a
// DiT of 1,024 tokens with random weights in fp32 and two guidance branches. Each rank is a thread on a separate core
// with single-threaded operators. The reference is the speed-up of two processes that multiply matrices independently
// in the same run, because cores share clock and memory and two cores are not twice as fast as one. Then measures what
// calls on axes of size 1 cost one rank.
#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/random_family.h"
#include "models/dit/dit_transformer.h"
#include "parallel/host/mesh_communicators.h"
#include "parallel/plan/layout.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/denoising/mesh_forward.h"
#include "tests/support/thread_ranks.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSide = 64, kPatch = 2, kChannels = 4;  // 32 x 32 tokens
constexpr int64_t kHeads = 8, kHeadDim = 72;
constexpr int kRounds = 3;

double Seconds(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void Pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core % static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), &cores);
  if (sched_setaffinity(0, sizeof(cores), &cores) != 0) std::perror("sched_setaffinity");
}

double Best(const std::function<double()>& measure) {
  double best = measure();
  for (int i = 1; i < kRounds; ++i) best = std::min(best, measure());
  return best;
}

void MultiplyMatrices() {
  at::set_num_threads(1);
  const at::Tensor a = at::randn({1024, 1024}), b = at::randn({1024, 1024});
  for (int i = 0; i < 100; ++i) at::mm(a, b);
}

// Returns the seconds until this many processes have multiplied, each on its core. They must be forked before this
// process has any threads.
double SecondsOfProcesses(int processes) {
  const Clock::time_point begin = Clock::now();
  std::vector<pid_t> children;
  for (int core = 0; core < processes; ++core) {
    const pid_t child = fork();
    if (child == 0) {
      Pin(core);
      MultiplyMatrices();
      std::_Exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  return Seconds(begin);
}

using BenchFamily = RandomFamily<models::DitTransformer, models::DitConfig>;

models::DitConfig ConfigOf(int blocks) {
  return {.heads = kHeads,
          .head_dim = kHeadDim,
          .layers = blocks,
          .in_channels = kChannels,
          .out_channels = kChannels,
          .patch = kPatch,
          .sample_size = kSide,
          .classes = 1};
}

runtime::DenoiseJob GuidedJob(const models::Family& family, int steps) {
  runtime::DenoiseJob job{.geometry = family.Geometry(kSide, kSide)};
  for (const double weight : {-3.0, 4.0}) {
    const models::ConditioningRow row{.text = {}, .extras = {at::scalar_tensor(weight > 0 ? 0 : 1, at::kLong)}};
    job.guidance.branches.push_back({.row = row, .terms = {{.weight = weight}}, .skipped_blocks = {}});
  }
  job.sampler = *runtime::Sampler::Create(runtime::DefaultSamplerConfig(runtime::DdimOptions{}), steps);
  job.noise = runtime::MakeTesseraNoise(1);
  runtime::DrawInitialLatents(job, family);
  return job;
}

double SecondsOfDenoise(const parallel::Layout& layout, int steps, int blocks) {
  const parallel::Mesh mesh = *parallel::Mesh::Create(layout.mesh, layout.ranks());
  const std::vector<int> bounds =
      runtime::StageBounds(std::vector<double>(static_cast<size_t>(blocks), 1), mesh.size(parallel::Axis::kPipe));
  ThreadRanksOptions options{.groups = parallel::MeshGroups(mesh), .slot_bytes = 1 << 20};
  options.communicator.deadline = options.deadline = std::chrono::hours(1);
  double seconds = 0;
  RunRanks(
      layout.ranks(),
      [&](ThreadRank& thread) {
        const c10::InferenceMode no_gradients;
        Pin(thread.rank());
        const parallel::MeshCommunicators communicators(at::kCPU, thread.shared_segment(), thread.rank(),
                                                        options.communicator);
        const parallel::RankGroups groups = communicators.groups();
        const BenchFamily family(ConfigOf(blocks), kChannels, kPatch, at::kFloat, at::kCPU,
                                 runtime::ShareOf(mesh, thread.rank(), bounds));
        runtime::Denoiser denoiser(family, groups,
                                   {.stage_bounds = bounds, .patches = layout.patches, .warmup = layout.warmup});
        const auto denoise = [&](int count) {
          runtime::DenoiseJob job = GuidedJob(family, count);
          runtime::DenoiseJob* batch[] = {&job};
          while (!job.done()) denoiser.Step(batch);
          denoiser.Flush();
        };
        denoise(2);  // allocates buffers and runs each kernel for the first time
        thread.world().Barrier();
        const Clock::time_point begin = Clock::now();
        denoise(steps);
        thread.world().Barrier();
        if (thread.rank() == 0) seconds = Seconds(begin);
      },
      options);
  return seconds;
}

int64_t Calls(const parallel::Communicator& group) {
  int64_t calls = 0;
  for (int i = 0; i < parallel::kCollectives; ++i) calls += group.count(static_cast<parallel::Collective>(i)).calls;
  return calls;
}

// Returns the seconds of the most expensive call on a group of one, with a tensor of the model's shape.
double SecondsOfNoOp() {
  constexpr int kCalls = 100000;
  const c10::InferenceMode no_gradients;
  parallel::SingleRank one;
  at::Tensor state = at::zeros({1, (kSide / kPatch) * (kSide / kPatch), kHeads * kHeadDim});
  const std::vector<int64_t> rows = {state.size(1)};
  double dearest = 0;
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { one.Sum(state, state); }, [&] { one.AllGather(state, rows, 1); }, [&] { one.Broadcast(state, 0); }}) {
    const auto measure = [&] {
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < kCalls; ++i) call();
      return Seconds(begin) / kCalls;
    };
    dearest = std::max(dearest, Best(measure));
  }
  return dearest;
}

// Returns the number of calls in one rank's step of that model.
double CallsOfAStep(int blocks) {
  constexpr int kSteps = 4;
  const c10::InferenceMode no_gradients;
  parallel::SingleRank one;
  const parallel::RankGroups groups = parallel::RankGroups::Alone(one);
  const BenchFamily family(ConfigOf(blocks), kChannels, kPatch, at::kFloat, at::kCPU);
  runtime::Denoiser denoiser(family, groups);
  runtime::DenoiseJob job = GuidedJob(family, kSteps);
  runtime::DenoiseJob* batch[] = {&job};
  while (!job.done()) denoiser.Step(batch);
  denoiser.Flush();
  return static_cast<double>(Calls(one)) / kSteps;
}

int Main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const int steps = argc > 1 ? std::atoi(argv[1]) : 20, blocks = argc > 2 ? std::atoi(argv[2]) : 8;
  if (steps < 1 || blocks < 2) {
    std::fprintf(stderr, "bench_layouts [steps [blocks [layout …]]]: at least 1 and 2\n");
    return 2;
  }
  std::vector<std::string> layouts(argv + std::min(argc, 3), argv + argc);
  if (layouts.empty()) layouts = {"cfg=2", "ulysses=2", "ring=2", "pipe=2", "pipe=2,patches=2,warmup=1"};
  for (const std::string& layout : layouts) {
    if (const absl::Status valid = parallel::ParseLayout(layout).status(); !valid.ok()) {
      std::fprintf(stderr, "%s\n", std::string(valid.message()).c_str());
      return 2;
    }
  }
  const double one_process = Best([] { return SecondsOfProcesses(1); });
  const double two_processes = Best([] { return SecondsOfProcesses(2); });
  const double reference = 2 * one_process / two_processes;
  std::printf("two matmul processes: %.2f times one\n", reference);
  const double serial = Best([&] { return SecondsOfDenoise({}, steps, blocks); });
  std::printf("%-28s %8.3f s\n", "serial", serial);
  for (const std::string& text : layouts) {
    const double seconds = Best([&] { return SecondsOfDenoise(*parallel::ParseLayout(text), steps, blocks); });
    std::printf("%-28s %8.3f s  %.2f times serial, %5.1f %% of the processes'\n", text.c_str(), seconds,
                serial / seconds, 100 * serial / seconds / reference);
  }
  const double calls = CallsOfAStep(blocks), no_op = SecondsOfNoOp(), step = serial / steps;
  std::printf("axes of size 1: %.1f calls a step of at most %.0f ns each, %.4f %% of a step\n", calls, 1e9 * no_op,
              100 * calls * no_op / step);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
