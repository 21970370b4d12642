#include "server/pictures/confinement.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "There is no system call filter for this architecture."
#endif
static_assert(std::endian::native == std::endian::little, "the filter reads the low half of an argument first");

// A system call that is allowed. With `argument` of at least 0, only if (its low 32 bits & `mask`) == `value`.
struct AllowedCall {
  uint32_t number;
  int argument = -1;
  uint32_t mask = 0;
  uint32_t value = 0;
};

constexpr uint32_t kAll = 0xFFFFFFFF;
constexpr uint32_t kExecutable = PROT_EXEC;

constexpr AllowedCall kDecoding[] = {
    {__NR_read, 0, kAll, STDIN_FILENO},
    {__NR_write, 0, kAll, STDOUT_FILENO},
    {__NR_mmap, 2, kExecutable, 0},
    {__NR_mprotect, 2, kExecutable, 0},
    {__NR_munmap},
    {__NR_mremap},
    {__NR_madvise},
    {__NR_brk},
    {__NR_futex},
    {__NR_clock_gettime},
    {__NR_restart_syscall},
    {__NR_rt_sigreturn},
    {__NR_exit},
    {__NR_exit_group},
};

// Returns a program that allows `calls` and takes `otherwise` for all else. Calls of another architecture kill.
std::vector<sock_filter> FilterProgram(const std::vector<AllowedCall>& calls, uint32_t otherwise) {
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  for (const AllowedCall& call : calls) {
    const bool conditional = call.argument >= 0;
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.number, 0, static_cast<uint8_t>(conditional ? 4 : 1)));
    if (conditional) {
      program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, args) +
                                                                                 sizeof(uint64_t) * call.argument)));
      program.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, call.mask));
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.value, 0, 1));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, otherwise));
  return program;
}

absl::Status Refused(const char* step) {
  return absl::FailedPreconditionError(absl::StrCat(step, ": ", std::strerror(errno)));
}

absl::Status InstallFilter(const std::vector<AllowedCall>& calls, uint32_t otherwise) {
  std::vector<sock_filter> program = FilterProgram(calls, otherwise);
  const sock_fprog filter = {static_cast<uint16_t>(program.size()), program.data()};
  // By prctl: system call filters of services, such as systemd's @system-service, allow it and not seccomp(2).
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0) {
    return Refused("a system call filter (seccomp) cannot be installed");
  }
  return absl::OkStatus();
}

absl::Status SetLimits(const ConfinementLimits& limits) {
  struct Limit {
    __rlimit_resource resource;
    rlim_t value;
  };
  const Limit values[] = {
      {RLIMIT_AS, limits.memory_bytes},
      {RLIMIT_CPU, limits.processor_seconds},
      {RLIMIT_NOFILE, 0},
      {RLIMIT_FSIZE, 0},
      {RLIMIT_CORE, 0},
      {RLIMIT_NPROC, 0},
      {RLIMIT_MEMLOCK, 0},
  };
  for (const Limit& limit : values) {
    // At the hard limit of processor time the kernel sends SIGKILL, at the lower one SIGXCPU, which says why.
    const rlim_t hard = limit.resource == RLIMIT_CPU ? limit.value + 1 : limit.value;
    const rlimit both = {limit.value, hard};
    if (setrlimit(limit.resource, &both) != 0) return Refused("a limit of resources cannot be set");
  }
  return absl::OkStatus();
}

// Each attempt must fail because of the filter. They are system calls without a library in between, because a library
// may not make the call at all.
absl::Status ProveFilter() {
  const auto denied = [](long result) { return result == -1 && errno == EPERM; };  // NOLINT(google-runtime-int)
  if (!denied(syscall(__NR_openat, AT_FDCWD, "/", O_RDONLY, 0))) {
    return absl::FailedPreconditionError("a file could be opened in spite of the system call filter");
  }
  if (!denied(syscall(__NR_socket, AF_INET, SOCK_STREAM, 0))) {
    return absl::FailedPreconditionError("a socket could be made in spite of the system call filter");
  }
  const long child = syscall(__NR_clone, SIGCHLD, 0, 0, 0, 0);  // NOLINT(google-runtime-int)
  if (child == 0) _exit(1);
  if (!denied(child)) {
    return absl::FailedPreconditionError("a process could be started in spite of the system call filter");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ConfineThisProcess(const ConfinementLimits& limits) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return Refused("the end with the server cannot be arranged");
  if (prctl(PR_SET_DUMPABLE, 0) != 0) return Refused("the memory cannot be closed to other processes");
  RETURN_IF_ERROR(SetLimits(limits));
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Refused("privileges cannot be given up (no_new_privs)");
  // Where two filters disagree, the stricter one counts: the second kills for what the first only denies.
  std::vector<AllowedCall> calls(std::begin(kDecoding), std::end(kDecoding));
  calls.push_back({.number = __NR_prctl, .argument = 0, .mask = kAll, .value = PR_SET_SECCOMP});
  RETURN_IF_ERROR(InstallFilter(calls, SECCOMP_RET_ERRNO | EPERM));
  RETURN_IF_ERROR(ProveFilter());
  calls.pop_back();
  return InstallFilter(calls, SECCOMP_RET_KILL_PROCESS);
}

}  // namespace tessera::server
