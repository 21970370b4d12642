#include "client/cli/serve/deployment_checks.h"

#include <arpa/inet.h>
#include <linux/capability.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files/atomic_file.h"
#include "base/files/file_descriptor.h"
#include "base/files/private_files.h"
#include "base/machine/machine_memory.h"
#include "base/machine/machine_processors.h"
#include "base/text/byte_text.h"
#include "client/cli/serve/process_limits.h"
#include "control/protocol/worker_version.h"
#include "server/api/generation_request.h"
#include "server/calls/api_keys.h"
#include "server/http/tls_certificates.h"
#include "server/jobs/data_folder.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/store_report.h"
#include "server/jobs/store_rules.h"
#include "server/workers/worker_process.h"

namespace tessera::client {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;
constexpr int64_t kLeastRoom = 100 * kMiB, kFairRoom = 2 * kGiB;
// Files used by workers, the store, logs and libraries.
constexpr int64_t kOtherFiles = 256;
constexpr absl::Duration kSoon = absl::Hours(24 * 30);
// Starting the program may first load its libraries from a slow disk.
constexpr absl::Duration kVersionTimeout = absl::Seconds(60);
constexpr size_t kMaxVersionBytes = 100;

std::string DayText(absl::Time time) { return absl::FormatTime("%Y-%m-%d", time, absl::UTCTimeZone()); }

Finding Failed(const std::string& what, const absl::Status& status, const std::string& advice) {
  return {Health::kFailed, what, std::string(status.message()), advice};
}

// True if other users can read the file; false if it does not exist.
bool OthersCanRead(const std::string& path) {
  struct stat about;
  return stat(path.c_str(), &about) == 0 && (about.st_mode & S_IROTH) != 0;
}

// Returns 0, or the errno with which the address cannot be bound.
int BindError(const server::ListenConfig& listener) {
  addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(listener.address.c_str(), absl::StrCat(listener.port).c_str(), &hints, &found) != 0) return EINVAL;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address(found, &freeaddrinfo);
  const base::FileDescriptor socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  return bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 && listen(socket.get(), 1) == 0 ? 0 : errno;
}

// The number of images in each state.
std::string ImagesText(const server::StoreReport& report) {
  std::string text;
  for (int state = 0; state < server::kTaskStates; ++state) {
    absl::StrAppend(&text, state == 0 ? " " : ", ", report.images.at(static_cast<size_t>(state)), " ",
                    std::string(server::TaskStateName(static_cast<server::TaskState>(state))));
  }
  return text;
}

constexpr char kJobStore[] = "job store";

// `found` is the text that precedes the images of the store.
Finding OfStore(const server::StoreReport& report, const std::string& found) {
  const std::string future = server::FutureText(report.newest, report.now);
  const std::string images = found + ImagesText(report);
  if (future.empty()) return {.what = kJobStore, .found = images};
  return {Health::kWarning, kJobStore, absl::StrCat(images, "; ", future),
          "set the clock if it is wrong; in any case nothing is removed before its retention is over"};
}

}  // namespace

Finding CheckDataFolder(const std::string& folder) {
  const std::string what = "data folder";
  std::error_code error;
  if (!fs::exists(folder, error)) {
    fs::path above = fs::absolute(folder, error).parent_path();
    while (!above.empty() && !fs::exists(above, error) && above != above.parent_path()) above = above.parent_path();
    if (access(above.c_str(), W_OK | X_OK) != 0) {
      return {Health::kFailed, what, absl::StrCat("'", folder, "' does not exist and cannot be created"),
              "create it, or set data_folder to a folder that can be written"};
    }
    return {.what = what, .found = absl::StrCat("'", folder, "' does not exist yet; the server creates it")};
  }
  const std::string probe = folder + "/.doctor";
  const absl::Status written = base::WriteFileAtomically(probe, "a file that is written, synced and moved\n");
  unlink(probe.c_str());
  if (!written.ok()) return Failed(what, written, "give the server a folder that it may write, with free space");
  struct statvfs about;
  if (statvfs(folder.c_str(), &about) != 0) {
    return {Health::kWarning, what, absl::StrCat("its free space is not known: ", std::strerror(errno)),
            "check the file system"};
  }
  const int64_t room = static_cast<int64_t>(about.f_bavail) * static_cast<int64_t>(about.f_frsize);
  const std::string found = absl::StrCat("'", folder, "' can be written; free space: ", base::GibText(room));
  if (room < kLeastRoom) return {Health::kFailed, what, found, "free space: jobs and images are stored there"};
  if (room < kFairRoom) return {Health::kWarning, what, found, "free space, or shorten retention"};
  return {.what = what, .found = found};
}

Finding CheckSharedStore(const server::StoreConfig& store) {
  const std::string what = kJobStore;
  const absl::StatusOr<server::StoreReport> report =
      server::InspectSharedStore({.dsn = store.dsn, .password_file = store.password_file});
  if (absl::IsNotFound(report.status())) {
    return {.what = what, .found = "the database can be reached and has no tables yet; the server creates them"};
  }
  if (!report.ok()) {
    return Failed(what, report.status(), "start the database, or correct store.dsn and store.password_file");
  }
  return OfStore(*report, absl::StrCat("a database with ", report->servers, " running servers; images:"));
}

Finding CheckJobStore(const std::string& data_folder, bool& in_use) {
  const std::string what = kJobStore;
  server::DiskResultStore images(absl::StrCat(data_folder, "/", server::kImagesFolder));
  const absl::StatusOr<server::StoreReport> report =
      server::InspectJobStore(absl::StrCat(data_folder, "/", server::kJobsFile), images);
  if (absl::IsNotFound(report.status())) return {.what = what, .found = "there is none yet; the server creates it"};
  if (!report.ok()) return Failed(what, report.status(), server::kStoreAdvice);
  in_use = report->in_use;
  return OfStore(*report, in_use ? "in use by a running server; images:" : "images:");
}

Finding CheckPrivacy(const std::string& data_folder) {
  const std::string what = "privacy";
  const base::Readers readers = base::ReadersOfDataFolder(data_folder);
  if (readers == base::Readers::kOwner) return {.what = what, .found = "no other user can read prompts and pictures"};
  return {Health::kWarning, what,
          absl::StrCat(readers == base::Readers::kGroup ? "the users of its group" : "every user of this machine",
                       " can read prompts and pictures in '", data_folder, "'"),
          absl::StrCat("chmod -R go-rwx '", data_folder, "'")};
}

Finding CheckListener(const std::string& name, const server::ListenConfig& listener, bool in_use) {
  const std::string what = absl::StrCat("listener ", name);
  if (!listener.enabled) return {.what = what, .found = "off"};
  const std::string place = absl::StrCat(listener.address, ", port ", listener.port);
  const int error = BindError(listener);
  if (error == 0) return {.what = what, .found = place + (listener.port == 0 ? ": any free port" : " is free")};
  if (error == EADDRINUSE && in_use) {
    return {.what = what, .found = place + " is in use, as expected while the server of this data folder runs"};
  }
  return {Health::kFailed, what, absl::StrCat(place, ": ", std::strerror(error)),
          error == EADDRINUSE ? "stop the process that listens there, or set listen to another port"
                              : "set listen to an address of this machine and a port that may be used"};
}

Finding CheckKeysFile(const std::string& what, const std::string& path) {
  if (path.empty()) return {.what = what, .found = "none: callers need no key"};
  const auto keys = server::ApiKeys::Load(path, nullptr);
  if (!keys.ok()) return Failed(what, keys.status(), "fix the file; `tessera keys` makes lines for it");
  if (OthersCanRead(path)) {
    return {Health::kWarning, what, "every user of this machine can read it", "chmod o-r the file"};
  }
  return {.what = what, .found = "can be read"};
}

std::vector<Finding> CheckTlsFiles(const server::TlsConfig& tls, absl::Time now) {
  const std::string what = "TLS";
  if (tls.certificate_chain.empty()) return {{.what = what, .found = "none: plain HTTP"}};
  const auto certificates = server::TlsCertificates::Load(
      {.certificate_chain = tls.certificate_chain, .private_key = tls.private_key}, [](const absl::Status&) {});
  if (!certificates.ok()) return {Failed(what, certificates.status(), "set tls to a certificate chain and its key")};
  std::vector<Finding> findings;
  const absl::StatusOr<server::TlsCertificates::Validity> validity = (*certificates)->CurrentValidity();
  if (!validity.ok()) {
    findings.push_back(Failed(what, validity.status(), "get a certificate whose dates can be read"));
  } else if (now < validity->begin || now >= validity->end) {
    findings.push_back({Health::kFailed, what,
                        absl::StrCat("the certificate is valid from ", DayText(validity->begin), " to ",
                                     DayText(validity->end), ", not now"),
                        "renew it, and check the clock of this machine"});
  } else if (now + kSoon >= validity->end) {
    findings.push_back({Health::kWarning, what, absl::StrCat("the certificate ends on ", DayText(validity->end)),
                        "renew it; new connections get the new one without a restart"});
  } else {
    findings.push_back(
        {.what = what,
         .found = absl::StrCat("certificate and key belong together, valid to ", DayText(validity->end))});
  }
  if (OthersCanRead(tls.private_key)) {
    findings.push_back({Health::kWarning, what, "every user of this machine can read the private key", "chmod o-r it"});
  }
  return findings;
}

Finding CheckOpenFiles(int64_t connections, int64_t needed_to_start) {
  const std::string what = "open files";
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return {Health::kWarning, what, "the limit is not known", "check it with ulimit -n"};
  const int64_t most = limit.rlim_max == RLIM_INFINITY ? INT64_MAX : static_cast<int64_t>(limit.rlim_max);
  if (const absl::Status starts = CheckFileLimit(needed_to_start, most); !starts.ok()) {
    return Failed(what, starts, "raise it: a server does not start with fewer");
  }
  const int64_t needed = connections + kOtherFiles;
  const std::string found =
      absl::StrCat("at most ", limit.rlim_cur, "; ", connections, " connections need about ", needed);
  if (limit.rlim_cur != RLIM_INFINITY && static_cast<int64_t>(limit.rlim_cur) < needed) {
    return {Health::kWarning, what, found, "raise it (ulimit -n, LimitNOFILE), or lower limits.connections"};
  }
  return {.what = what, .found = found};
}

Finding CheckProcesses(int64_t needed, const std::vector<base::TaskLimit>& limits) {
  const std::string what = "processes";
  if (const absl::Status left = base::CheckTaskLimits(needed, limits); !left.ok()) {
    return Failed(what, left, "raise it: a server does not start with fewer");
  }
  return {.what = what, .found = absl::StrCat(needed, " processes and threads are needed, and may be started")};
}

LockedMemory ReadLockedMemory() {
  LockedMemory locked = {.limit = 0};
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    locked.limit = limit.rlim_cur == RLIM_INFINITY ? std::nullopt : std::optional(static_cast<int64_t>(limit.rlim_cur));
  }
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  locked.exempt = syscall(SYS_capget, &header, sets) == 0 && (sets[0].effective & (1u << CAP_IPC_LOCK)) != 0;
  return locked;
}

Finding CheckLockedMemory(const LockedMemory& locked) {
  const std::string what = "locked memory";
  if (!locked.limit) return {.what = what, .found = "unlimited"};
  const std::string found = absl::StrCat("at most ", base::ByteText(static_cast<uint64_t>(*locked.limit)));
  if (locked.exempt)
    return {.what = what, .found = found + ", from which the capability IPC_LOCK exempts this process"};
  return {Health::kWarning, what,
          found +
              ", so NCCL cannot register memory with an adapter and ranks on several hosts fail; the capability "
              "IPC_LOCK is not "
              "effective here: a user other than root does not get it from a container's configuration",
          "raise the limit to unlimited: LimitMEMLOCK=infinity for containerd on the node (systemctl edit containerd, "
          "restart it, recreate the pod), --ulimit memlock=-1 for docker, LimitMEMLOCK=infinity for a systemd service"};
}

Finding CheckThreads(int64_t threads) {
  const std::string what = "threads";
  const base::MachineProcessors processors = base::ReadMachineProcessors();
  const std::string found =
      absl::StrCat(threads, " requested, ", processors.available(), " processors in ", processors.available_in());
  if (threads > processors.available()) {
    return {Health::kWarning, what, found, "request fewer: threads that share a processor make every step slower"};
  }
  return {.what = what, .found = found};
}

Finding CheckMemory(int64_t bytes) {
  const std::string what = "memory";
  const base::MachineMemory memory = base::ReadMachineMemory();
  std::string found =
      absl::StrCat("weights need ", base::ByteText(static_cast<uint64_t>(bytes)), "; ",
                   base::ByteText(static_cast<uint64_t>(memory.available())), " are free in ", memory.available_in());
  if (const std::optional<base::ControlGroupMemory> group = base::ReadControlGroupMemory()) {
    absl::StrAppend(&found, "; the memory limit of the control group (container) is ",
                    base::ByteText(static_cast<uint64_t>(group->limit)));
  }
  if (bytes > memory.available()) {
    return {Health::kWarning, what, found, "serve fewer groups, a smaller dtype, or text encoders with unload"};
  }
  return {.what = what, .found = found};
}

Finding CheckClock(absl::Time now) {
  const std::string what = "clock";
  const std::string found = absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", now, absl::UTCTimeZone());
  if (now < absl::FromCivil(absl::CivilDay(2024, 1, 1), absl::UTCTimeZone())) {
    return {Health::kFailed, what, found, "set it: certificates and the times of jobs depend on it"};
  }
  timex state = {};
  if (adjtimex(&state) == TIME_ERROR) {
    return {Health::kWarning, what, found + ", not synchronized by a time service",
            "run a time service: certificates and the times of jobs depend on the clock"};
  }
  return {.what = what, .found = found};
}

Finding CheckWorker() {
  const std::string what = "worker program";
  const std::string advice = "install the worker program of this tessera in its folder";
  const std::string program = server::WorkerExecutable();
  const absl::StatusOr<std::unique_ptr<server::WorkerProcess>> worker =
      server::WorkerProcess::Start({.executable = program, .arguments = {"--version"}});
  if (!worker.ok()) return {Health::kFailed, what, std::string(worker.status().message()), advice};
  if (!(*worker)->WaitForExit(kVersionTimeout)) {
    return {Health::kFailed, what, absl::StrCat(program, " does not print its version"), advice};
  }
  const std::string said(absl::StripAsciiWhitespace((*worker)->LastOutput()));
  const std::string version = control::WorkerVersion();
  if (said == version) return {.what = what, .found = absl::StrCat(program, ": ", version)};
  // Quote only the beginning, in case the program is not a worker.
  return {Health::kFailed, what,
          absl::StrCat(program, " is of another build: its version is ",
                       server::QuotedValue(said.substr(0, kMaxVersionBytes)), ", and this program's is ", version),
          advice};
}

Finding CheckCuda(const std::string& worker) {
  const std::string what = "cuda";
  std::error_code error;
  const fs::path plugin = server::CudaPluginOf(worker);
  if (!fs::exists(plugin, error)) {
    return {Health::kFailed, what, absl::StrCat(plugin.filename().string(), " is not in the worker's folder"),
            "install a build with CUDA, or set devices to [cpu]"};
  }
  if (!fs::exists("/dev/nvidiactl", error)) {
    return {Health::kFailed, what, "the plug-in is installed, but no device of the NVIDIA driver is visible",
            "install the driver, and make its devices visible to this process or container"};
  }
  return {.what = what, .found = "plug-in and driver are installed"};
}

Finding CheckDriver(const control::NvidiaDriver& driver, const std::string& compat) {
  const std::string what = "driver";
  const std::string update = "install NVIDIA's driver 580 or newer on this host (for a container, on its node)";
  const std::string too_old = absl::StrCat(driver.version, ", and CUDA 13.0 needs 580 or newer");
  switch (control::FitOf(driver)) {
    case control::DriverFit::kUnknown:
      return {.what = what, .found = "the kernel does not show its version"};
    case control::DriverFit::kServes:
      return {.what = what, .found = absl::StrCat(driver.version, " serves CUDA 13.0")};
    case control::DriverFit::kCompat:
      if (!compat.empty()) {
        return {.what = what, .found = too_old + "; workers use cuda-compat 13.0, as all cards are data-centre cards"};
      }
      return {Health::kFailed, what, too_old,
              update + ", or run the CUDA image, whose cuda-compat 13.0 serves these data-centre cards"};
    case control::DriverFit::kTooOld:
      break;
  }
  return {Health::kFailed, what, too_old,
          update + "; cuda-compat 13.0 works with driver 535 or newer on data-centre cards alone"};
}

std::vector<Finding> CheckTopology(const control::HostTopology& topology) {
  std::vector<Finding> findings;
  const auto node_text = [](const std::optional<int32_t>& node) {
    return node ? absl::StrCat("NUMA node ", *node) : "NUMA node unknown";
  };
  for (size_t i = 0; i < topology.gpus.size(); ++i) {
    const control::GpuPlace& gpu = topology.gpus[i];
    findings.push_back(
        {.what = absl::StrCat("GPU cuda:", i), .found = absl::StrCat(gpu.pci_address, ", ", node_text(gpu.numa_node))});
  }
  const std::string links = control::LinksText(topology);
  if (!links.empty()) findings.push_back({.what = "GPU links", .found = links});
  std::vector<std::string> ports;
  const bool active = topology.has_active_port();
  for (const base::InfinibandPort& port : topology.infiniband) {
    ports.push_back(absl::StrCat(port.device, " port ", port.port, " (", port.link_layer, port.rate.empty() ? "" : ", ",
                                 port.rate, "), ", node_text(port.numa_node), ", ",
                                 port.active ? "active" : "not active"));
  }
  if (!ports.empty()) {
    findings.push_back(
        {active ? Health::kOk : Health::kWarning, "InfiniBand", absl::StrJoin(ports, "; "),
         active ? "" : "check its cable and its subnet manager; without it GPUs of several hosts use sockets"});
  }
  for (const std::string& problem : topology.problems) {
    findings.push_back(
        {Health::kWarning, "topology", problem, "make /sys and the driver visible to this process or container"});
  }
  return findings;
}

}  // namespace tessera::client
