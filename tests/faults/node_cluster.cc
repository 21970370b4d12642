#include "tests/faults/node_cluster.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kToken[] = "a token of twenty-six chars";

}  // namespace

NodeCluster::NodeCluster(const NodeClusterOptions& options)
    : options_(options), authority_("authority of the test"), server_(ServerOptions(options)) {}

TestServerOptions NodeCluster::ServerOptions(const NodeClusterOptions& options) const {
  WriteFiles("", authority_);
  WriteToken("", kToken);
  const std::string files = Folder("");
  return {.worker = options.worker,
          .script = options.script,
          .groups = options.groups,
          .settings = absl::StrCat("nodes: {listen: {address: ", Address(), ", port: 0}, certificate_chain: ", files,
                                   "/tls.crt, private_key: ", files, "/tls.key, authority: ", files,
                                   "/ca.crt, token_file: ", files, "/token", options.nodes.empty() ? "" : ", ",
                                   options.nodes, "}\n", options.settings)};
}

NodeCluster::~NodeCluster() {
  for (auto& [name, processes] : nodes_) {
    for (const auto& process : processes) {
      process->Signal(SIGKILL);
      process->Wait();
    }
    WaitUntil(absl::StrCat("the end of the workers of ", name), [&, name = name] { return Workers(name).empty(); });
  }
}

bool NodeCluster::Start() {
  if (!server_.Start()) return false;
  port_ = static_cast<uint16_t>(boost::json::parse(server_.process().output()).at("nodes").as_int64());
  return true;
}

ChildProcess& NodeCluster::Run(const std::string& name, const Node& node) {
  const std::string folder = Folder(name);
  if (!fs::exists(folder + "/tls.crt")) WriteFiles(name, authority_);
  if (!fs::exists(folder + "/token")) WriteToken(name, kToken);
  ChildOptions child = {.arguments = {TESSERA_EXECUTABLE, "node", "--join",
                                      node.join.empty() ? absl::StrCat(Address(), ":", port_) : node.join, "--tls-dir",
                                      folder, "--token-file", folder + "/token", "--name", name, "--devices",
                                      node.devices, "--join-timeout", node.join_timeout},
                        .folder = folder,
                        .environment = {{"PATH", "/usr/bin:/bin"},
                                        {"TESSERA_FAKE_WORKER", absl::StrCat(options_.script, " ", node.script)},
                                        {"XDG_CACHE_HOME", folder + "/cache"},
                                        {"XDG_RUNTIME_DIR", folder + "/sockets"}},
                        .open_files = node.open_files,
                        .processes = node.processes};
  if (node.processes > 0) fs::permissions(folder_.path(), fs::perms(0711));
  if (options_.hosts != nullptr) child.network_namespace = options_.hosts->NamespaceOf(name);
  if (!options_.worker.empty()) child.environment["TESSERA_WORKER"] = options_.worker;
  return *nodes_[name].emplace_back(std::make_unique<ChildProcess>(child));
}

std::string NodeCluster::ErrorsOf(const std::string& name, const Node& node) {
  ChildProcess& process = Run(name, node);
  EXPECT_NE(process.Wait(), 0);
  return process.errors();
}

void NodeCluster::WriteFiles(const std::string& name, const TestAuthority& authority, long seconds) const {
  const std::string folder = Folder(name);
  fs::create_directories(folder + "/sockets");
  authority.Write(folder + "/ca.crt");
  authority.Issue(name.empty() ? "controller" : name,
                  {.certificate_chain = folder + "/tls.crt", .private_key = folder + "/tls.key"}, seconds);
}

void NodeCluster::WriteToken(const std::string& name, const std::string& token) const {
  const std::string path = Folder(name) + "/token";
  std::ofstream(path + ".new") << token << "\n";
  fs::rename(path + ".new", path);
}

std::vector<pid_t> NodeCluster::Workers(const std::string& name) const {
  return ProcessesWith(options_.worker.empty() ? REAL_WORKER : options_.worker, "XDG_RUNTIME_DIR",
                       Folder(name) + "/sockets");
}

}  // namespace tessera
