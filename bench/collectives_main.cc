// Measures the host communicator between processes, each pinned to a core, in comparison with concurrent memcpy calls
// of the same processes: `bench_collectives [ranks]`. Rates are output bytes of all ranks together.
#include <ATen/Parallel.h>
#include <c10/util/irange.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "parallel/host/host_communicator.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMegabyte = 1 << 20;

double Seconds(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void Pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core % static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), &cores);
  if (sched_setaffinity(0, sizeof(cores), &cores) != 0) std::perror("sched_setaffinity");
}

// Returns the median seconds of one `call`, which all ranks make together.
double Median(parallel::Communicator& world, const std::function<void()>& call) {
  constexpr int kSamples = 41, kCalls = 5;
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    world.Barrier();
    const Clock::time_point begin = Clock::now();
    for (int j = 0; j < kCalls; ++j) call();
    samples.push_back(Seconds(begin) / kCalls);
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

void Measure(parallel::Communicator& world) {
  const int ranks = world.size();
  const auto print = [&](const char* what, double rate, double reference) {
    if (world.rank() == 0) std::printf("%-44s %7.2f GB/s  %5.1f %% of memcpy\n", what, rate, 100 * rate / reference);
  };
  double reference = 0;
  for (const int64_t megabytes : {1, 4, 16}) {
    const int64_t bytes = megabytes * kMegabyte, count = bytes / 4 / ranks;
    const at::Tensor from = at::ones({bytes / 4}), to = at::ones({bytes / 4});
    const double copied =
        Median(world, [&] { std::memcpy(to.data_ptr(), from.data_ptr(), static_cast<size_t>(bytes)); });
    reference = static_cast<double>(bytes * ranks) / copied / 1e9;
    char name[80];
    std::snprintf(name, sizeof(name), "memcpy, %ld MB a rank", static_cast<long>(megabytes));
    print(name, reference, reference);
    std::vector<at::Tensor> send, receive;
    for (const int r : c10::irange(ranks)) {
      send.push_back(from.narrow(0, r * count, count));
      receive.push_back(to.narrow(0, r * count, count));
    }
    const double exchanged = Median(world, [&] { world.AllToAll(send, receive); });
    std::snprintf(name, sizeof(name), "all-to-all, %ld MB a rank", static_cast<long>(megabytes));
    print(name, static_cast<double>(bytes * ranks) / exchanged / 1e9, reference);

    // Every rank sends everything to the next rank.
    at::Tensor shifted = to;
    const double shift = Median(
        world, [&] { world.Shift(from, (world.rank() + 1) % ranks, shifted, (world.rank() + ranks - 1) % ranks); });
    std::snprintf(name, sizeof(name), "shift, %ld MB a rank", static_cast<long>(megabytes));
    print(name, static_cast<double>(bytes * ranks) / shift / 1e9, reference);

    const double summed = Median(world, [&] { world.Sum(shifted, shifted); });
    std::snprintf(name, sizeof(name), "all-reduce of fp32, %ld MB", static_cast<long>(megabytes));
    print(name, static_cast<double>(bytes * ranks) / summed / 1e9, reference);
  }
  const auto latency = [&](const char* what, const std::function<void()>& call) {
    constexpr int kCalls = 1000;
    const double seconds = Median(world,
                                  [&] {
                                    for (int i = 0; i < kCalls; ++i) call();
                                  }) /
                           kCalls;
    if (world.rank() == 0) std::printf("%-44s %7.2f us\n", what, seconds * 1e6);
  };
  latency("barrier", [&] { world.Barrier(); });
  at::Tensor small = at::ones({256});
  latency("all-reduce of 1 KB", [&] { world.Sum(small, small); });
  at::Tensor back = at::ones({256});
  latency("shift of 1 KB",
          [&] { world.Shift(small, (world.rank() + 1) % ranks, back, (world.rank() + ranks - 1) % ranks); });
}

int Main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  parallel::HostSegmentOptions plan{.ranks = ranks, .groups = {{.name = "world"}}};
  for (const int r : c10::irange(ranks)) plan.groups[0].ranks.push_back(r);
  if (argc > 2) plan.slot_bytes = std::atoll(argv[2]);
  if (argc > 3) plan.slots = std::atoi(argv[3]);
  const auto segment = parallel::HostSegment::CreateShared(plan);
  if (!segment.ok()) {
    std::fprintf(stderr, "%s\n", std::string(segment.status().message()).c_str());
    return 2;
  }
  for (const int r : c10::irange(ranks)) {
    if (fork() != 0) continue;
    Pin(r);
    at::set_num_threads(1);
    try {
      Measure(*parallel::JoinGroup(*segment, "world", r));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      (*segment)->Poison(r, error.what());
      std::_Exit(1);
    }
    std::fflush(stdout);
    std::_Exit(0);
  }
  int failed = 0;
  for (int status; wait(&status) > 0;) failed |= status;
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
