#include "tests/support/thread_ranks.h"

#include <ATen/Parallel.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

namespace tessera {
namespace {

constexpr std::string_view kWorld = "world";
constexpr std::chrono::seconds kTimeToEnd{60};  // of poisoned ranks

class SingleThreadedOperators {
 public:
  SingleThreadedOperators() : threads_(at::get_num_threads()) { at::set_num_threads(1); }
  ~SingleThreadedOperators() { at::set_num_threads(threads_); }

 private:
  int threads_;
};

// An exception of one rank. `echo`: it only reports another rank's exception.
struct Ending {
  std::exception_ptr error;
  bool echo = false;
};

Ending Run(const std::function<void(ThreadRank&)>& body, ThreadRank& rank) {
  const auto end = [&rank](std::string_view reason, bool echo) {
    rank.segment().Poison(rank.rank(), "rank " + std::to_string(rank.rank()) + " ended: " + std::string(reason));
    return Ending{std::current_exception(), echo};
  };
  try {
    body(rank);
    return {};
  } catch (const parallel::CommError& error) {
    return end(error.what(), error.details().relayed);
  } catch (const c10::Error& error) {
    return end(error.what_without_backtrace(), false);
  } catch (const std::exception& error) {
    return end(error.what(), false);
  } catch (...) {
    return end("an unknown exception", false);
  }
}

}  // namespace

ThreadRank::ThreadRank(std::shared_ptr<parallel::HostSegment> segment, int rank,
                       const parallel::HostCommunicatorOptions& options)
    : segment_(std::move(segment)), rank_(rank), options_(options), world_(Join(kWorld)) {}

std::unique_ptr<parallel::Communicator> ThreadRank::Join(std::string_view group) const {
  return parallel::JoinGroup(segment_, group, rank_, options_);
}

void RunRanks(int ranks, const std::function<void(ThreadRank&)>& body, const ThreadRanksOptions& options) {
  parallel::HostSegmentOptions plan{
      .ranks = ranks, .groups = options.groups, .slot_bytes = options.slot_bytes, .slots = options.slots};
  if (std::ranges::none_of(plan.groups, [](const parallel::HostGroup& group) { return group.name == kWorld; })) {
    parallel::HostGroup world{.name = std::string(kWorld), .ranks = std::vector<int>(ranks)};
    std::iota(world.ranks.begin(), world.ranks.end(), 0);
    plan.groups.push_back(std::move(world));
  }
  auto created = parallel::HostSegment::CreateInHeap(plan);
  TORCH_CHECK(created.ok(), std::string(created.status().message()));
  const std::shared_ptr<parallel::HostSegment> segment = *std::move(created);

  const SingleThreadedOperators single_threaded;
  std::vector<Ending> endings(ranks);
  std::mutex mutex;
  std::condition_variable one_ended;
  int running = ranks;
  std::vector<std::thread> threads;
  for (const int r : c10::irange(ranks))
    threads.emplace_back([&, r] {
      ThreadRank rank(segment, r, options.communicator);
      endings[r] = Run(body, rank);
      const std::lock_guard lock(mutex);
      --running;
      one_ended.notify_all();
    });
  bool late = false;
  {
    std::unique_lock lock(mutex);
    const auto ended = [&running] { return running == 0; };
    if (!one_ended.wait_for(lock, options.deadline, ended)) {
      late = true;
      segment->Poison(-1, "the ranks were not done after " + std::to_string(options.deadline.count()) + " s");
      if (!one_ended.wait_for(lock, kTimeToEnd, ended)) {
        std::fprintf(stderr, "%d of %d thread ranks do not end\n", running, ranks);
        std::abort();
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool echo : {false, true})
    for (const Ending& ending : endings)
      if (ending.error && ending.echo == echo) std::rethrow_exception(ending.error);
  TORCH_CHECK(!late, "the ranks were done only after ", options.deadline.count(), " s");
}

}  // namespace tessera
