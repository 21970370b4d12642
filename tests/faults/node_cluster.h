// A server that nodes join, and nodes on the same machine, each a process with a folder, certificate and token of its
// own, and with a network of its own where there are NetworkHosts.
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
  std::string script;               // of fake workers, on every host; without `worker` there are none
  std::string worker;               // executable; empty: the real one
  std::string nodes;                // more of the section of nodes: "beat: 100ms, lost_after: 1s"
  std::string settings;             // further lines of the configuration
  // Where nodes run that are named there, with this thread as the server's host; null: all are on loopback. Outlives
  // the cluster.
  const NetworkHosts* hosts = nullptr;
};

class NodeCluster {
 public:
  explicit NodeCluster(const NodeClusterOptions& options);
  ~NodeCluster();  // ends the nodes, and none of their workers may be left

  NodeCluster(const NodeCluster&) = delete;
  NodeCluster& operator=(const NodeCluster&) = delete;

  struct Node {
    std::string devices = "cpu:1";
    std::string join;    // HOST:PORT; empty: the server's listener
    std::string script;  // of its fake workers, behind the cluster's
    std::string join_timeout = "60";
    size_t open_files = 0, processes = 0;  // as ChildOptions has them
  };

  TestServer& server() { return server_; }
  bool Start();                            // the server
  uint16_t port() const { return port_; }  // of its listener for nodes

  // Starts a process of that node. Those that were started before under that name go on.
  ChildProcess& Run(const std::string& name, const Node& node);
  ChildProcess& Run(const std::string& name) { return Run(name, Node()); }
  // The last process that was started of it.
  ChildProcess& node(const std::string& name) { return *nodes_.at(name).back(); }
  // Waits until it says that it has joined.
  bool HasJoined(const std::string& name) { return node(name).WaitForOutput("joined"); }
  // Runs one until it ends by itself: what it wrote to its standard error.
  std::string ErrorsOf(const std::string& name, const Node& node);

  // The files of a node, or of the server (""), which may be written anew at any time.
  std::string Folder(const std::string& name) const { return folder_ / (name.empty() ? "controller" : name); }
  void WriteFiles(const std::string& name, const TestAuthority& authority, long seconds = 3600) const;
  void WriteToken(const std::string& name, const std::string& token) const;
  const TestAuthority& authority() const { return authority_; }

  // Those that the processes of a node have started.
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
