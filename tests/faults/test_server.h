// `tessera serve` as a child process in a folder of its own, for tests that kill it: started, spoken to over HTTP,
// traced, killed, and started again on the same data. Every wait has a deadline of a minute and fails the test when it
// passes.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/front/child_process.h"
#include "tests/support/http_test_client.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera {

struct TestServerOptions {
  std::string worker;         // executable; empty: the one beside `tessera`
  std::string script;         // of the fake worker
  bool fake_workers = false;  // by --fake-workers, which finds them itself; `worker` says which are its own
  std::vector<std::string>
      groups;               // of the configuration, "{model: …, layout: serial}"; "TINY": the fake worker's model
  std::string settings;     // further lines of the configuration
  std::string data_folder;  // empty: one in its own folder
  std::string grpc = "off", admin = "off";         // of the configuration
  std::vector<std::string> arguments;              // of `tessera serve`, beside its configuration
  std::map<std::string, std::string> environment;  // of it, beside what it needs
  int errors = -1;                                 // its standard error; -1: a file that process().errors() reads
  size_t open_files = 0;                           // that it may have; 0: as many as the test
  size_t processes = 0;                            // as ChildOptions has it
};

// Calls to the server are thread-safe, also while it is killed and started.
class TestServer {
 public:
  explicit TestServer(const TestServerOptions& options);
  ~TestServer();  // kills it and ends its workers; no process and no socket folder may be left then

  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  // False and a failed test if it does not listen.
  bool Start();
  bool TryStart();  // false if it ends before it listens
  void WaitUntilReady();
  void Kill();      // kill -9, and waits for the end of the process
  int Terminate();  // SIGTERM; its exit code
  ChildProcess& process() { return *process_; }
  // The process that serves, behind the supervisor that is process(). A failed test and no process if none comes.
  std::optional<pid_t> ServingProcess() const;
  // Ends it by the signal and waits until it has gone, which is asserted.
  void CrashServingProcess(int signal) const;
  // Runs it for what it says when it cannot start.
  std::string ErrorsOfStart();

  // Status 0 while there is no server.
  TestResponse Call(const std::string& method, const std::string& target, const std::string& body = "",
                    const std::string& idempotency_key = "");

  // An accepted job's id; a failed test without one.
  std::string Submit(const std::string& prompt, const std::string& more = "");
  boost::json::object Get(const std::string& job);
  std::string StatusOf(const std::string& job);
  // Waits until it has ended, over restarts too: its status.
  std::string Ended(const std::string& job);
  std::string ImageBytes(const boost::json::object& job, size_t index = 0);
  boost::json::object Group(size_t index = 0);  // of /v1/server

  uint16_t port() const { return port_; }
  uint16_t grpc_port() const { return grpc_port_; }
  uint16_t admin_port() const { return admin_port_; }
  std::vector<pid_t> Workers() const;
  std::string folder() const { return folder_.path(); }
  void Write(const std::string& name, const std::string& text) const;
  size_t SocketFolders() const;

  TestServerOptions& options() { return options_; }

 private:
  std::unique_ptr<ChildProcess> Launch();
  // For a failure's message: the job and the server as they say they are, and the ends of the log and of the trace.
  std::string WhatItDoes(const std::string& job);

  TestServerOptions options_;
  TestFolder folder_;
  std::unique_ptr<ChildProcess> process_;
  std::atomic<uint16_t> port_ = 0, grpc_port_ = 0, admin_port_ = 0;
};

}  // namespace tessera
