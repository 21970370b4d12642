// Hosts of a network of their own on this machine: network namespaces whose links meet at a bridge. The namespaces have
// no names, so they go with the last process in them, however a test ends.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace tessera {

class NetworkHosts {
 public:
  static constexpr char kFirstAddress[] = "10.77.0.1";

  // The calling thread, and what it starts from then on, is the first host, with the bridge; the others are those of
  // `names`. UNAVAILABLE, saying why, where this process may make no namespaces or `ip` is not installed.
  static absl::StatusOr<std::unique_ptr<NetworkHosts>> Create(const std::vector<std::string>& names);
  ~NetworkHosts();  // by the same thread, which is where it was before

  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  // For ChildOptions.
  int NamespaceOf(const std::string& name) const { return hosts_.at(name).get(); }
  // While it is down nothing goes through, and connections seem alive. A failed test where it cannot be set.
  void SetLink(const std::string& name, bool up) const;

 private:
  NetworkHosts();
  absl::Status AddHost(const std::string& name, const std::string& address);

  const base::FileDescriptor before_;  // the namespace that the thread was in
  bool moved_ = false;                 // whether it is in another one
  std::map<std::string, base::FileDescriptor> hosts_;
};

}  // namespace tessera
