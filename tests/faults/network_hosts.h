// NetworkHosts simulates several hosts on this machine: network namespaces whose links meet at a bridge. The namespaces
// have no names, so they vanish with their last process, however a test ends.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/file_descriptor.h"

namespace tessera {

class NetworkHosts {
 public:
  static constexpr char kFirstAddress[] = "10.77.0.1";

  // Makes the calling thread, and the processes that it starts from then on, the first host, which has the bridge.
  // `names` are the other hosts. Returns UNAVAILABLE with the reason if this process may not create namespaces or `ip`
  // is not installed.
  static absl::StatusOr<std::unique_ptr<NetworkHosts>> Create(const std::vector<std::string>& names);
  ~NetworkHosts();  // call it from the same thread; it returns to its former namespace

  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  // Returns the descriptor for ChildOptions::network_namespace.
  int NamespaceOf(const std::string& name) const { return hosts_.at(name).get(); }
  // While the link is down nothing passes, and connections seem alive. Fails the test if the link cannot be set.
  void SetLink(const std::string& name, bool up) const;

 private:
  NetworkHosts();
  absl::Status AddHost(const std::string& name, const std::string& address);

  const base::FileDescriptor before_;  // the thread's former namespace
  bool moved_ = false;                 // whether the thread is in another namespace
  std::map<std::string, base::FileDescriptor> hosts_;
};

}  // namespace tessera
