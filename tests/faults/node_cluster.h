// NodeCluster runs a server and the nodes that join it on this machine. Each is a process with a separate folder,
// certificate and token, and with a separate network if NetworkHosts are given.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/faults/network_hosts.h"
#include "tests/faults/test_server.h"
#include "tests/tls/test_authority.h"

namespace tessera {

struct NodeClusterOptions {
  std::vector<std::string> groups;  // as in TestServerOptions
  std::string script;               // for fake workers on every host; needs `worker`
  std::string worker;               // executable; empty: the real one
  std::string nodes;                // more fields of the nodes section: "beat: 100ms, lost_after: 1s"
  std::string settings;             // further lines of the configuration
  // Nodes that are named here run on these hosts, and this thread is the server's host. Null: all run on loopback. Must
  // outlive the cluster.
  const NetworkHosts* hosts = nullptr;
};

class NodeCluster {
 public:
  explicit NodeCluster(const NodeClusterOptions& options);
  ~NodeCluster();  // ends the nodes and checks that none of their workers is left

  NodeCluster(const NodeCluster&) = delete;
  NodeCluster& operator=(const NodeCluster&) = delete;

  struct Node {
    std::string devices = "cpu:1";
    std::string join;    // HOST:PORT; empty: the server's listener
    std::string script;  // for its fake workers, appended to the cluster's
    std::string join_timeout = "60";
    size_t open_files = 0, processes = 0;  // as ChildOptions has them
  };

  TestServer& server() { return server_; }
  bool Start();                            // starts the server
  uint16_t port() const { return port_; }  // of the server's listener for nodes

  // Starts a process of that node. Earlier processes of the same name keep running.
  ChildProcess& Run(const std::string& name, const Node& node);
  ChildProcess& Run(const std::string& name) { return Run(name, Node()); }
  // Returns the latest process of that node.
  ChildProcess& node(const std::string& name) { return *nodes_.at(name).back(); }
  // Waits until the node reports that it has joined.
  bool HasJoined(const std::string& name) { return node(name).WaitForOutput("joined"); }
  // Runs a node until it exits. Returns its standard error.
  std::string ErrorsOf(const std::string& name, const Node& node);

  // Returns the folder of a node, or of the server (""). The files in it may be rewritten at any time.
  std::string Folder(const std::string& name) const { return folder_ / (name.empty() ? "controller" : name); }
  void WriteFiles(const std::string& name, const TestAuthority& authority, long seconds = 3600) const;
  void WriteToken(const std::string& name, const std::string& token) const;
  const TestAuthority& authority() const { return authority_; }

  // Returns the workers that the processes of a node have started.
  std::vector<pid_t> Workers(const std::string& name) const;

 private:
  TestServerOptions ServerOptions(const NodeClusterOptions& options) const;
  std::string Address() const { return options_.hosts == nullptr ? "127.0.0.1" : NetworkHosts::kFirstAddress; }

  const NodeClusterOptions options_;
  TestFolder folder_;
  TestAuthority authority_;
  TestServer server_;
  uint16_t port_ = 0;
  std::map<std::string, std::vector<std::unique_ptr<ChildProcess>>> nodes_;
};

}  // namespace tessera
