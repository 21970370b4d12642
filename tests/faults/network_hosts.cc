#include "tests/faults/network_hosts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/macros/status_macros.h"
#include "tests/front/child_process.h"

namespace tessera {
namespace {

constexpr char kIp[] = "/usr/sbin/ip";
constexpr char kOwn[] = "/proc/thread-self/ns/net";

absl::Status Error(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

base::FileDescriptor OwnNamespace() { return base::FileDescriptor(open(kOwn, O_RDONLY | O_CLOEXEC)); }

// Runs "ip" with `words` in a network namespace; -1: in that of this thread.
absl::Status RunIp(const std::string& words, int network_namespace = -1) {
  std::vector<std::string> arguments = absl::StrSplit(words, ' ');
  arguments.insert(arguments.begin(), kIp);
  ChildProcess ip({.arguments = arguments, .folder = "/", .network_namespace = network_namespace});
  if (ip.Wait() == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("ip ", words, ": ", ip.errors()));
}

std::string BridgeEnd(const std::string& name) { return absl::StrCat("to-", name); }

}  // namespace

absl::StatusOr<std::unique_ptr<NetworkHosts>> NetworkHosts::Create(const std::vector<std::string>& names) {
  if (access(kIp, X_OK) != 0) return Error(absl::StrCat(kIp, " of iproute2 cannot be run"));
  std::unique_ptr<NetworkHosts> hosts(new NetworkHosts);
  if (unshare(CLONE_NEWNET) != 0) return Error("no network namespace can be made");
  hosts->moved_ = true;
  RETURN_IF_ERROR(RunIp("link set lo up"));
  RETURN_IF_ERROR(RunIp("link add bridge type bridge"));
  RETURN_IF_ERROR(RunIp(absl::StrCat("address add ", kFirstAddress, "/24 dev bridge")));
  RETURN_IF_ERROR(RunIp("link set bridge up"));
  for (size_t i = 0; i < names.size(); ++i) {
    RETURN_IF_ERROR(hosts->AddHost(names[i], absl::StrCat("10.77.0.", i + 2)));
  }
  return hosts;
}

NetworkHosts::NetworkHosts() : before_(OwnNamespace()) {}

NetworkHosts::~NetworkHosts() {
  if (!moved_) return;
  EXPECT_EQ(setns(before_.get(), CLONE_NEWNET), 0) << strerror(errno);
}

absl::Status NetworkHosts::AddHost(const std::string& name, const std::string& address) {
  absl::Status made;
  // A separate thread creates the namespace and ends in it. The descriptor keeps the namespace alive.
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) {
      made = Error("no network namespace can be made");
    } else {
      hosts_.emplace(name, OwnNamespace());
    }
  }).join();
  RETURN_IF_ERROR(made);
  const int descriptor = NamespaceOf(name);
  RETURN_IF_ERROR(RunIp(absl::StrCat("link add ", BridgeEnd(name), " type veth peer name eth0 netns /proc/", getpid(),
                                     "/fd/", descriptor)));
  RETURN_IF_ERROR(RunIp(absl::StrCat("link set ", BridgeEnd(name), " master bridge up")));
  RETURN_IF_ERROR(RunIp("link set lo up", descriptor));
  RETURN_IF_ERROR(RunIp(absl::StrCat("address add ", address, "/24 dev eth0"), descriptor));
  return RunIp("link set eth0 up", descriptor);
}

void NetworkHosts::SetLink(const std::string& name, bool up) const {
  const absl::Status set = RunIp(absl::StrCat("link set ", BridgeEnd(name), up ? " up" : " down"));
  EXPECT_TRUE(set.ok()) << set;
}

}  // namespace tessera
