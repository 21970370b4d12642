// Kills a process that uses a job store, again and again, and reports what happened to the jobs.
//
//   job_crash_runs FOLDER --kills N [--seed S]
//
// Each run is a child process with several threads on real files. It is killed (SIGKILL) at a named point of the store
// or at a random time. Its acknowledgements are in a file that survives it. Without a seed, the seeds of
// tests/support/fault_runs.h run one after another, each in an emptied folder. After the last kill all tasks are
// finished and the oracle's line is printed, which sums up all runs. The exit code is 0 if nothing was lost, duplicated
// or torn.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/sqlite_job_store.h"
#include "tests/jobs/job_oracle.h"
#include "tests/jobs/job_workload.h"
#include "tests/support/fault_runs.h"

namespace tessera {
namespace {

constexpr int kThreads = 3;
constexpr char kRandom[] = "random";  // instead of a failpoint
constexpr auto kPoints = std::to_array<const char*>(
    {"submit.begin", "submit.before_commit", "submit.after_commit", "claim.before_commit", "claim.after_commit",
     "finish.before_file", "finish.after_file", "finish.before_commit", "finish.after_commit", "cancel.before_commit",
     "cancel.after_commit", "settle.before_files", "settle.after_files", "settle.before_commit", "settle.after_commit",
     "give_back.before_commit", "group_died.after_commit", "fail.after_commit"});

struct Folder {
  std::string path;
  std::string database() const { return path + "/jobs.sqlite3"; }
  std::string results() const { return path + "/results"; }
  std::string acks() const { return path + "/acknowledged"; }
};

// Writes each line with one call, so that a kill leaves the line complete or absent.
class AckFile {
 public:
  explicit AckFile(const std::string& path)
      : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {}
  ~AckFile() { ::close(file_); }
  void Hear(const Ack& ack) {
    const std::string line = AckLine(ack);
    if (::write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
  }

 private:
  const int file_;
};

// Runs the work of the child process until it is killed, at its failpoint or from outside.
int Work(const Folder& folder, uint64_t seed, const std::string& die_at) {
  base::SystemClock clock;
  server::DiskResultStore files(folder.results());
  server::SqliteJobStoreOptions options = {
      .path = folder.database(), .files = &files, .clock = &clock, .most_committed_bytes = kWorkloadCommittedBytes};
  if (die_at != kRandom) {
    absl::StatusOr<server::AtPoint> at_point = server::DieAt(die_at);
    if (!at_point.ok()) return 1;
    options.at_point = *std::move(at_point);
  }
  absl::StatusOr<std::unique_ptr<server::JobStore>> store = server::SqliteJobStore::Open(options);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  AckFile acks(folder.acks());
  std::vector<std::unique_ptr<JobWorkload>> workloads;
  for (int i = 0; i < kThreads; ++i) {
    workloads.push_back(
        std::make_unique<JobWorkload>(**store, seed * kThreads + i, [&](const Ack& ack) { acks.Hear(ack); }));
  }
  // All tasks of a job go to one thread, because only that thread may cancel the job.
  const absl::StatusOr<server::Recovery> recovery = (*store)->Recover([&](const server::QueuedTask& task) {
    workloads[(task.id - static_cast<uint64_t>(task.index)) % kThreads]->Adopt(task.id, task.job);
  });
  if (!recovery.ok()) return 1;
  std::vector<std::thread> threads;
  for (auto& workload : workloads) {
    threads.emplace_back([&] {
      while (workload->Step()) {
      }
      ::kill(::getpid(), SIGTERM);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 1;
}

// Runs the child. Returns whether it was killed as planned.
bool RunAndKill(const Folder& folder, uint64_t seed, const std::string& point, std::mt19937_64& random) {
  const std::string seed_text = absl::StrCat(seed);
  const std::string die_at = point == kRandom ? point : absl::StrCat(point, ":", 1 + random() % 4);
  const pid_t child = ::fork();
  if (child == 0) {
    const char* arguments[] = {"job_crash_runs",  folder.path.c_str(), "--work",
                               seed_text.c_str(), die_at.c_str(),      nullptr};
    ::execv("/proc/self/exe", const_cast<char* const*>(arguments));
    ::_exit(127);
  }
  // Waits for the child's end, at most until a random time, or for a limited time if it should reach a failpoint.
  pollfd end = {static_cast<int>(::syscall(SYS_pidfd_open, child, 0)), POLLIN, 0};
  ::poll(&end, 1, point == kRandom ? static_cast<int>(random() % 150) : 10000);
  ::close(end.fd);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

int Judge(const Folder& folder, int kills) {
  JobOracle oracle;
  std::ifstream lines(folder.acks());
  for (std::string line; std::getline(lines, line);) {
    Ack ack;
    if (ParseAck(line, &ack)) oracle.Hear(ack);
  }
  base::SystemClock clock;
  server::DiskResultStore files(folder.results());
  absl::StatusOr<std::unique_ptr<server::JobStore>> store =
      server::SqliteJobStore::Open({.path = folder.database(), .files = &files, .clock = &clock});
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  JobWorkload workload(**store, 0, [&](const Ack& ack) { oracle.Hear(ack); });
  const absl::StatusOr<server::Recovery> recovery =
      (*store)->Recover([&](const server::QueuedTask& task) { workload.Adopt(task.id, task.job); });
  if (!recovery.ok() || !workload.Drain()) {
    std::fprintf(stderr, "the tasks could not be brought to their end\n");
    return 1;
  }
  const OracleTally tally = oracle.Judge(**store);
  std::printf("%d kills: %s\n", kills, tally.Line().c_str());
  return tally.clean() && tally.acked > 0 ? 0 : 1;
}

int RunAndJudge(const Folder& folder, uint64_t seed, int kills) {
  std::printf("seed %d\n", static_cast<int>(seed));
  std::filesystem::remove_all(folder.path);
  std::filesystem::create_directories(folder.path);
  std::mt19937_64 random(seed);
  for (int kill = 0; kill < kills; ++kill) {
    const std::string point = kill % 2 == 0 ? kRandom : kPoints[static_cast<size_t>(kill / 2) % kPoints.size()];
    if (!RunAndKill(folder, seed + kill, point, random)) {
      std::fprintf(stderr, "run %d ended before it was killed (%s)\n", kill, point.c_str());
      return 1;
    }
  }
  return Judge(folder, kills);
}

int Main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  uint64_t seed = 0;
  int number = 0;
  if (arguments.size() == 4 && arguments[1] == "--work" && absl::SimpleAtoi(arguments[2], &seed)) {
    return Work({arguments[0]}, seed, arguments[3]);
  }
  const bool valid = (arguments.size() == 3 ||
                      (arguments.size() == 5 && arguments[3] == "--seed" && absl::SimpleAtoi(arguments[4], &seed))) &&
                     arguments[1] == "--kills" && absl::SimpleAtoi(arguments[2], &number) && number > 0;
  if (!valid) {
    std::fprintf(stderr, "usage: job_crash_runs FOLDER --kills N [--seed S]\n");
    return 2;
  }
  const Folder folder{arguments[0]};
  if (arguments.size() == 5) return RunAndJudge(folder, seed, number);
  int status = 0;
  for (const int each : FaultSeeds()) status |= RunAndJudge(folder, static_cast<uint64_t>(each), number);
  return status;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
