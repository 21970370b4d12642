#include "server/workers/worker_process.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files/file_descriptor.h"
#include "base/machine/machine_memory.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "base/text/random_bytes.h"
#include "base/threads/start_thread.h"
#include "base/time/steady_time.h"

namespace tessera::server {
namespace {

constexpr size_t kKeptOutput = 4096;
constexpr char kSocketName[] = "/worker.sock";
constexpr char kFolderPrefix[] = "/tessera-";

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

int PollMilliseconds(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return -1;
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1))), 0, INT_MAX));
}

// Returns false if `descriptor` did not become readable within `timeout`.
bool WaitReadable(int descriptor, absl::Duration timeout) {
  const absl::Duration deadline = base::SteadyNow() + timeout;
  pollfd event = {descriptor, POLLIN, 0};
  while (true) {
    const int ready = poll(&event, 1, PollMilliseconds(deadline - base::SteadyNow()));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// Environment variables, as "NAME=VALUE", that workers get unless the user has set them.
std::vector<std::string> DefaultEnvironment() {
  struct Default {
    const char* name;
    const char* value;
    const char* other_name = nullptr;  // an alternative name for the same setting
  };
  constexpr Default kDefaults[] = {
      // Threads that wait for each other within an operator spin briefly, then sleep. OpenMP's default is to spin for
      // milliseconds, which makes every step several times slower on a machine with other work.
      {"GOMP_SPINCOUNT", "20000", "OMP_WAIT_POLICY"},
      // Allocation sizes change with prompts, batches and images; segments of fixed size would fragment GPU memory.
      {"PYTORCH_ALLOC_CONF", "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF"},
      // NCCL 2.28 registers the buffers of captured calls but recognizes only one mapping of expandable memory: one of
      // two ranks may register and the other not, and both then wait forever (pytorch/torchtitan#3306).
      {"NCCL_GRAPH_REGISTER", "0"},
      // NCCL connects ranks when communicators are created, so that memory plans include what the connections use.
      {"NCCL_RUNTIME_CONNECT", "0"},
      // Huge pages for weights and activations cause fewer page faults while a model loads. C libraries that do not
      // know this setting and kernels without huge pages ignore it.
      {"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"},
  };
  std::vector<std::string> variables;
  for (const Default& variable : kDefaults) {
    if (std::getenv(variable.name) != nullptr) continue;
    if (variable.other_name != nullptr && std::getenv(variable.other_name) != nullptr) continue;
    variables.push_back(absl::StrCat(variable.name, "=", variable.value));
  }
  return variables;
}

// The folders for sockets, in the order in which they are tried.
std::vector<std::string> SocketPlaces() {
  std::vector<std::string> places;
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* place = std::getenv(name);
    if (place != nullptr && place[0] == '/') places.push_back(place);
  }
  places.push_back("/tmp");
  return places;
}

std::string FolderPrefix(const std::string& owner) {
  return owner.empty() ? kFolderPrefix : absl::StrCat(kFolderPrefix, owner, "-");
}

// Returns the path of a new folder in the first place where a socket's path fits. The worker creates the folder.
absl::StatusOr<std::string> NewFolderName(const std::string& owner) {
  const std::string name =
      absl::StrCat(FolderPrefix(owner), absl::Hex(base::RandomNumber<uint64_t>(), absl::kZeroPad16));
  for (const std::string& place : SocketPlaces()) {
    if (place.size() + name.size() + sizeof(kSocketName) > sizeof(sockaddr_un::sun_path)) continue;
    if (access(place.c_str(), W_OK | X_OK) == 0) return place + name;
  }
  return absl::UnavailableError(
      "no folder for the worker's socket: neither $XDG_RUNTIME_DIR nor $TMPDIR nor /tmp can be written");
}

void RemoveFolder(const std::string& folder) {
  unlink((folder + kSocketName).c_str());
  rmdir(folder.c_str());
}

// Removes the socket and folder of a worker that was killed while it had no server. `socket_path` may be any text.
void RemoveDeserted(const std::string& socket_path) {
  sockaddr_un address = {.sun_family = AF_UNIX};
  struct stat about;
  if (socket_path.size() >= sizeof(address.sun_path) || !absl::StrContains(socket_path, kFolderPrefix) ||
      lstat(socket_path.c_str(), &about) != 0 || !S_ISSOCK(about.st_mode) || about.st_uid != geteuid()) {
    return;
  }
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  const base::FileDescriptor connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 || errno != ECONNREFUSED) {
    return;
  }
  RemoveFolder(socket_path.substr(0, socket_path.rfind('/')));
}

struct Child {
  char* const* arguments;
  char* const* environment;
  int output;
  int inherited;  // -1: none
  int failure;    // above kInheritedDescriptor; receives errno if exec fails
  pid_t parent;
};

// Runs between fork and exec: only async-signal-safe calls.
[[noreturn]] void Execute(const Child& child) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != child.parent) _exit(1);  // the parent ended before prctl took effect
  signal(SIGPIPE, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDWR);
  if (null >= 0 && dup2(null, 0) >= 0 && dup2(child.output, 1) >= 0 && dup2(child.output, 2) >= 0) {
    close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
    if (child.inherited >= 0) {
      // dup2 of a descriptor to itself would leave FD_CLOEXEC set.
      if (child.inherited == WorkerProcess::kInheritedDescriptor) {
        fcntl(child.inherited, F_SETFD, 0);
      } else {
        dup2(child.inherited, WorkerProcess::kInheritedDescriptor);
      }
    }
    execve(child.arguments[0], child.arguments, child.environment);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(child.failure, &error, sizeof(error));
  _exit(127);
}

std::string ProgramInFolderOfThis(absl::string_view name) {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  const absl::string_view path(self, length > 0 ? length : 0);
  return absl::StrCat(path.substr(0, path.rfind('/') + 1), name);
}

std::string MemoryLimitText(const std::string& system_root) {
  const std::optional<base::ControlGroupMemory> memory = base::ReadControlGroupMemory(system_root);
  const int64_t limit = memory ? memory->limit : base::ReadTotalMemory(system_root);
  return absl::StrCat(memory ? "the memory limit of its control group (container) is " : "the machine's memory is ",
                      base::ByteText(static_cast<uint64_t>(limit)));
}

}  // namespace

std::string WorkerExecutable() {
  const char* chosen = std::getenv("TESSERA_WORKER");
  return chosen != nullptr && *chosen != '\0' ? chosen : ProgramInFolderOfThis("tessera-worker");
}

std::string WorkerProgram() {
  namespace fs = std::filesystem;
  const std::string started = WorkerExecutable();
  std::error_code error;
  const fs::path whole = fs::canonical(started, error);
  const fs::path launched = whole.parent_path().parent_path() / "lib/tessera" / whole.filename();
  return !error && fs::exists(launched, error) ? launched.string() : started;
}

std::string CudaPluginOf(const std::string& program) {
  return std::filesystem::path(program).replace_filename("libtessera_cuda.so");
}

std::string FakeWorkerExecutable() { return ProgramInFolderOfThis("tessera-fake-worker"); }

void RemoveDesertedFolders(const std::string& owner, absl::FunctionRef<bool(const std::string& socket)> in_use) {
  const std::string prefix = FolderPrefix(owner).substr(1);
  for (const std::string& place : SocketPlaces()) {
    std::error_code error;
    for (std::filesystem::directory_iterator it(place, error), end; !error && it != end; it.increment(error)) {
      const std::string folder = it->path().string(), socket_path = folder + kSocketName;
      if (!absl::StartsWith(it->path().filename().string(), prefix) || in_use(socket_path)) continue;
      RemoveDeserted(socket_path);
      rmdir(folder.c_str());  // removes only empty folders, left by workers killed before they bound the socket
    }
  }
}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(const WorkerProcessOptions& options) {
  ASSIGN_OR_RETURN(std::string folder, NewFolderName(options.owner));
  std::vector<std::string> words = {options.executable, "--socket", absl::StrCat(folder, kSocketName)};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  if (options.orphan_grace_period > absl::ZeroDuration())
    words.insert(words.end(),
                 {"--orphan-grace-period", absl::StrCat(absl::ToDoubleSeconds(options.orphan_grace_period))});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  int output[2], failure[2];
  if (pipe2(output, O_CLOEXEC) != 0) return SystemError("cannot start the worker");
  base::FileDescriptor output_read(output[0]), output_write(output[1]);
  if (pipe2(failure, O_CLOEXEC) != 0) return SystemError("cannot start the worker");
  base::FileDescriptor failure_read(failure[0]), failure_low(failure[1]);
  base::FileDescriptor failure_write(
      fcntl(failure_low.get(), F_DUPFD_CLOEXEC, WorkerProcess::kInheritedDescriptor + 1));
  if (failure_write.get() < 0) return SystemError("cannot start the worker");
  failure_low.Close();

  std::vector<std::string> defaults = DefaultEnvironment();
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
  for (std::string& variable : defaults) environment.push_back(variable.data());
  environment.push_back(nullptr);

  const Child child = {.arguments = arguments.data(),
                       .environment = environment.data(),
                       .output = output_write.get(),
                       .inherited = options.inherited,
                       .failure = failure_write.get(),
                       .parent = getpid()};
  const pid_t pid = fork();
  if (pid < 0) return SystemError("cannot start the worker");
  if (pid == 0) Execute(child);
  output_write.Close();
  failure_write.Close();

  int error = 0;
  ssize_t got = 0;
  while ((got = read(failure_read.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  base::FileDescriptor pid_file(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (got > 0 || pid_file.get() < 0) {
    if (got <= 0) error = errno;
    kill(pid, SIGKILL);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return absl::UnavailableError(
        absl::StrCat("cannot start the worker '", options.executable, "': ", std::strerror(error)));
  }
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(
      {.pid = pid, .pid_file = pid_file.Release(), .output = output_read.Release(), .folder = std::move(folder)},
      options.show_output, options.system_root));
}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Adopt(const WorkerIdentity& identity,
                                                                    const std::string& system_root) {
  const absl::string_view name(kSocketName);
  if (!absl::EndsWith(identity.socket, name)) return absl::NotFoundError("it is not a worker's socket");
  const absl::StatusOr<int> process = OpenWorker(identity, WorkerProgram());
  if (!process.ok()) {
    RemoveDeserted(identity.socket);
    return process.status();
  }
  return std::unique_ptr<WorkerProcess>(
      new WorkerProcess({.pid = identity.pid,
                         .pid_file = *process,
                         .output = -1,
                         .folder = identity.socket.substr(0, identity.socket.size() - name.size())},
                        /*show_output=*/false, system_root));
}

WorkerProcess::WorkerProcess(Handles handles, bool show_output, const std::string& system_root)
    : pid_(handles.pid),
      pid_file_(handles.pid_file),
      output_(handles.output),
      stop_(eventfd(0, EFD_CLOEXEC)),
      folder_(std::move(handles.folder)),
      show_output_(show_output),
      system_root_(system_root),
      kills_at_start_(base::ReadOutOfMemoryKills(system_root)),
      reader_(base::StartThread([this] {
        if (output_ >= 0) ReadOutput();
        std::lock_guard<std::mutex> lock(output_mutex_);
        output_ended_ = true;
        output_changed_.notify_all();
      })) {}

WorkerProcess::~WorkerProcess() {
  End();
  eventfd_write(stop_, 1);
  reader_.join();
  close(stop_);
  if (output_ >= 0) close(output_);
  close(pid_file_);
}

absl::StatusOr<int> WorkerProcess::Connect(absl::Duration timeout) {
  const absl::Duration deadline = base::SteadyNow() + timeout;
  sockaddr_un address = {.sun_family = AF_UNIX};
  const std::string path = folder_ + kSocketName;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  while (true) {
    base::FileDescriptor connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connection.get() < 0) return SystemError("cannot connect to the worker");
    if (connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
      return connection.Release();
    }
    // The worker has not yet created the folder, bound the socket or started to listen.
    if (errno != ENOENT && errno != ECONNREFUSED && errno != EINTR) return SystemError("cannot connect to the worker");
    if (WaitForExit(absl::Milliseconds(2))) {
      return absl::UnavailableError(absl::StrCat("the worker ", StateText(), " while it started"));
    }
    if (base::SteadyNow() >= deadline) return absl::DeadlineExceededError("the worker did not start in time");
  }
}

bool WorkerProcess::WaitForExit(absl::Duration timeout) {
  if (!WaitReadable(pid_file_, timeout)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(ended_, true) || output_ < 0) return true;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  wait_status_ = status;
  return true;
}

std::string WorkerProcess::StateText() {
  WaitForExit(absl::ZeroDuration());
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ended_) return "is running";
  // How an adopted process has ended is not known.
  const bool may_be_killed =
      !wait_status_.has_value() || (WIFSIGNALED(*wait_status_) && WTERMSIG(*wait_status_) == SIGKILL);
  if (may_be_killed && !killed_here_ && base::ReadOutOfMemoryKills(system_root_) > kills_at_start_) {
    return absl::StrCat("ran out of memory and was killed by the kernel: ", MemoryLimitText(system_root_));
  }
  if (!wait_status_.has_value()) return "has ended";
  if (WIFSIGNALED(*wait_status_)) {
    const int signal = WTERMSIG(*wait_status_);
    return absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
  }
  return absl::StrCat("ended with exit code ", WEXITSTATUS(*wait_status_));
}

bool WorkerProcess::IsStopped() const { return ProcessStat(pid_, /*number=*/3).value_or("") == "T"; }

std::string WorkerProcess::LastOutput() {
  const bool ended = WaitForExit(absl::ZeroDuration());
  std::unique_lock<std::mutex> lock(output_mutex_);
  // The process may end before its last lines have been read. A process that it started may hold the pipe open, so the
  // wait is bounded.
  if (ended) output_changed_.wait_for(lock, std::chrono::seconds(1), [this] { return output_ended_; });
  return last_output_;
}

uint64_t WorkerProcess::PeakMemoryBytes() const {
  FILE* file = fopen(absl::StrCat("/proc/", pid_, "/status").c_str(), "re");
  if (file == nullptr) return 0;
  uint64_t kilobytes = 0;
  char line[256];
  while (fgets(line, sizeof(line), file) != nullptr) {
    if (sscanf(line, "VmHWM: %lu kB", &kilobytes) == 1) break;
  }
  fclose(file);
  return kilobytes * 1024;
}

void WorkerProcess::Signal(int signal) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) return;
  killed_here_ |= signal == SIGKILL;
  if (output_ >= 0) {
    kill(-pid_, signal);
  } else {
    // Another process reaps an adopted worker, after which its ID may be reused, so signal through the pidfd.
    syscall(SYS_pidfd_send_signal, pid_file_, signal, nullptr, 0);
  }
}

absl::StatusOr<WorkerIdentity> WorkerProcess::identity() const { return IdentityOf(pid_, folder_ + kSocketName); }

absl::StatusOr<int> WorkerProcess::OpenInherited() const {
  const int descriptor = open(absl::StrCat("/proc/", pid_, "/fd/", kInheritedDescriptor).c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return SystemError("the worker's memory cannot be opened");
  return descriptor;
}

void WorkerProcess::Kill() { Signal(SIGKILL); }

void WorkerProcess::End(absl::Duration timeout) {
  Signal(SIGTERM);
  if (!WaitForExit(timeout)) {
    Signal(SIGKILL);
    WaitForExit(absl::InfiniteDuration());
  }
  // Remove the folder in case the worker could not.
  RemoveFolder(folder_);
}

void WorkerProcess::ReadOutput() {
  pollfd events[] = {{output_, POLLIN, 0}, {stop_, POLLIN, 0}};
  char buffer[4096];
  while (true) {
    if (poll(events, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (events[0].revents == 0) return;  // everything written before the stop has been read
    const ssize_t got = read(output_, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    if (show_output_) {
      [[maybe_unused]] const size_t shown = fwrite(buffer, 1, got, stderr);
    }
    std::lock_guard<std::mutex> lock(output_mutex_);
    last_output_.append(buffer, got);
    if (last_output_.size() > kKeptOutput) {
      last_output_.erase(0, last_output_.size() - kKeptOutput);
      last_output_.erase(0, last_output_.find('\n') + 1);
    }
  }
}

}  // namespace tessera::server
