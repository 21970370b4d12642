// Tests ranks that are processes. Each maps the segment that it inherits, and a rank may be killed at any time.
#include <c10/util/irange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include "parallel/host/host_communicator.h"

namespace tessera::parallel {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kTimeout{60000};

struct Process {
  pid_t pid;
  int socket;  // receives what the rank reports
};

// Ranks forked from this process, which uses no operator of LibTorch itself.
class ForkedRanks {
 public:
  using Body = std::function<void(Communicator& world, const std::function<void(std::string_view)>& report)>;

  ForkedRanks(int ranks, const HostCommunicatorOptions& options, const Body& body) {
    HostGroup world{.name = "world"};
    for (const int r : c10::irange(ranks)) world.ranks.push_back(r);
    segment_ = *HostSegment::CreateShared({.ranks = ranks, .groups = {world}, .slot_bytes = 4096, .slots = 2});
    for (const int r : c10::irange(ranks)) Start(r, options, body);
  }
  ~ForkedRanks() {
    for (const Process& process : processes_) {
      kill(process.pid, SIGKILL);
      waitpid(process.pid, nullptr, 0);
      close(process.socket);
    }
  }
  ForkedRanks(const ForkedRanks&) = delete;

  HostSegment& segment() { return *segment_; }
  void Kill(int rank) { kill(processes_[rank].pid, SIGKILL); }

  // Returns the next line that the rank reports; empty if it has ended.
  std::string NextReport(int rank) {
    std::string line;
    for (char byte;;) {
      pollfd event = {processes_[rank].socket, POLLIN, 0};
      if (poll(&event, 1, static_cast<int>(kTimeout.count())) != 1) {
        ADD_FAILURE() << "rank " << rank << " reported nothing in time";
        return line;
      }
      if (read(processes_[rank].socket, &byte, 1) != 1 || byte == '\n') return line;
      line += byte;
    }
  }

 private:
  void Start(int rank, const HostCommunicatorOptions& options, const Body& body) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[0]);
      for (const Process& sibling : processes_) close(sibling.socket);
      RunRank(ends[1], segment_->descriptor(), rank, options, body);
      _exit(0);
    }
    close(ends[1]);
    processes_.push_back({pid, ends[0]});
  }

  static void RunRank(int socket, int descriptor, int rank, const HostCommunicatorOptions& options, const Body& body) {
    const auto report = [socket](std::string_view line) {
      const std::string text = std::string(line) + "\n";
      if (write(socket, text.data(), text.size()) < 0) _exit(1);
    };
    const auto segment = HostSegment::Map(descriptor);
    if (!segment.ok()) return report(std::string(segment.status().message()));
    try {
      body(*JoinGroup(*segment, "world", rank, options), report);
    } catch (const CommError& error) {
      report(error.what());
    }
  }

  std::shared_ptr<HostSegment> segment_;
  std::vector<Process> processes_;
};

void SumForever(Communicator& world, const std::function<void(std::string_view)>& report) {
  for (int round = 0;; ++round) {
    at::Tensor sum = at::full({20000}, world.rank() + round, at::kLong);
    world.Sum(sum, sum);
    world.Barrier();
    if (round == 3) report("summing");
  }
}

TEST(HostProcessTest, RanksThatAreProcessesExchangeTensors) {
  ForkedRanks ranks(3, {.deadline = kTimeout}, [](Communicator& world, const auto& report) {
    const std::vector<int64_t> rows = {700, 1, 2000};
    at::Tensor sum = at::full({30000}, world.rank() + 1, at::kFloat);
    world.Sum(sum, sum);
    const at::Tensor whole = world.AllGather(at::full({rows[world.rank()], 5}, world.rank(), at::kInt), rows);
    std::ostringstream line;
    line << sum[0].item<float>() << " " << sum[29999].item<float>() << " " << whole.sum().item<int64_t>();
    report(line.str());
  });
  for (const int r : c10::irange(3)) EXPECT_EQ(ranks.NextReport(r), "6 6 20005");
}

TEST(HostProcessTest, PoisonFromOutsideEndsTheRanksThatOutliveAKilledOne) {
  constexpr int kRanks = 3;
  std::mt19937 random(7);
  for (int round = 0; round < 10; ++round) {
    ForkedRanks ranks(kRanks, {.deadline = kTimeout}, SumForever);
    for (const int r : c10::irange(kRanks)) ASSERT_EQ(ranks.NextReport(r), "summing");
    const int victim = static_cast<int>(random() % kRanks);
    ranks.Kill(victim);
    EXPECT_EQ(ranks.NextReport(victim), "");
    ranks.segment().Poison(victim, "rank " + std::to_string(victim) + " was killed");
    for (const int r : c10::irange(kRanks)) {
      if (r == victim) continue;
      EXPECT_THAT(ranks.NextReport(r), HasSubstr(": rank " + std::to_string(victim) + " was killed"));
      EXPECT_EQ(ranks.NextReport(r), "");
    }
  }
}

TEST(HostProcessTest, WithoutPoisonTheDeadlineEndsTheRanksAndNamesTheKilledOne) {
  // Longer than a process may stand still.
  ForkedRanks ranks(2, {.deadline = std::chrono::seconds(10)}, SumForever);
  for (const int r : c10::irange(2)) ASSERT_EQ(ranks.NextReport(r), "summing");
  ranks.Kill(1);
  EXPECT_THAT(ranks.NextReport(0), HasSubstr("rank 1 "));
  ASSERT_TRUE(ranks.segment().poison());
  EXPECT_EQ(ranks.segment().poison()->rank, 1);
}

TEST(HostProcessTest, TheNextGroupKnowsNothingOfTheOneThatDied) {
  for (const bool die : {true, false}) {
    ForkedRanks ranks(2, {.deadline = kTimeout}, [die](Communicator& world, const auto& report) {
      at::Tensor sum = at::ones({5000}, at::kDouble);
      if (die && world.rank() == 0) {
        world.Send(sum.narrow(0, 0, 500), 1);
        report("sent");
        kill(getpid(), SIGKILL);
      }
      if (die) world.Barrier();
      world.Sum(sum, sum);
      report(std::to_string(sum.sum().item<int64_t>()));
    });
    if (die) {
      EXPECT_EQ(ranks.NextReport(0), "sent");
      EXPECT_EQ(ranks.NextReport(0), "");
      ranks.segment().Poison(0, "it died");
      EXPECT_THAT(ranks.NextReport(1), HasSubstr("it died"));
    } else {
      EXPECT_EQ(ranks.NextReport(0), "10000");
      EXPECT_EQ(ranks.NextReport(1), "10000");
    }
  }
}

}  // namespace
}  // namespace tessera::parallel
