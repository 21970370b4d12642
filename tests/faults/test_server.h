// TestServer runs `tessera serve` as a child process in a separate folder. Tests start it, call it over HTTP, trace it,
// kill it, and start it again on the same data. Every wait has a deadline of a minute and fails the test after it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/json.hpp>
#include <cstdint>
#include <functional>
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
  std::string worker;         // executable; empty: the one in the folder of `tessera`
  std::string script;         // of the fake worker
  bool fake_workers = false;  // --fake-workers finds the workers; `worker` identifies their processes
  std::vector<std::string>
      groups;               // of the configuration, "{model: …, layout: serial}"; "TINY" is the fake worker's model
  std::string settings;     // further lines of the configuration
  std::string data_folder;  // empty: one in the server's folder
  std::string grpc = "off", admin = "off";         // of the configuration
  std::vector<std::string> arguments;              // of `tessera serve`, in addition to its configuration
  std::map<std::string, std::string> environment;  // in addition to the variables that it needs
  int errors = -1;                                 // its standard error; -1: a file that process().errors() reads
  size_t open_files = 0;                           // limit of open files; 0: that of the test
  size_t processes = 0;                            // as in ChildOptions
};

// Calls to the server are thread-safe, even while it is killed and started.
class TestServer {
 public:
  explicit TestServer(const TestServerOptions& options);
  ~TestServer();  // kills the server, ends its workers, and checks that no process and no socket folder is left

  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  // Returns false and fails the test if the server does not listen.
  bool Start();
  bool TryStart();  // false if the server ends before it listens
  void WaitUntilReady();
  void Kill();      // sends SIGKILL and waits for the end of the process
  int Terminate();  // sends SIGTERM and returns the exit code
  ChildProcess& process() { return *process_; }
  // Waits until the log has this text: a thread writes it, perhaps later than the server has answered.
  void WaitUntilLogged(const std::string& text) const;
  // Returns the serving process, which is a child of the supervisor process(). No value and a failed test if there is
  // none.
  std::optional<pid_t> ServingProcess() const;
  // Kills the serving process with `signal` and asserts that it ends.
  void CrashServingProcess(int signal) const;
  // Calls `change`, which ends the server or its serving process and lets the next one start, and waits until that is
  // ready; again and again until this took less than half of the time that workers have to be adopted. Returns the
  // workers before the last change.
  std::vector<pid_t> ReplaceBy(const std::function<void()>& change);
  // Starts a server that must fail to start, and returns its error output.
  std::string ErrorsOfStart();

  // The status is 0 while there is no server.
  TestResponse Call(const std::string& method, const std::string& target, const std::string& body = "",
                    const std::string& idempotency_key = "");

  // Returns the id of the accepted job. Fails the test if it is not accepted.
  std::string Submit(const std::string& prompt, const std::string& more = "");
  boost::json::object Get(const std::string& job);
  std::string StatusOf(const std::string& job);
  // Waits until the job has ended, across restarts, and returns its status.
  std::string Ended(const std::string& job);
  std::string ImageBytes(const boost::json::object& job, size_t index = 0);
  boost::json::object Group(size_t index = 0);  // from /v1/server

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
  // For failure messages: the job and the server as they report themselves, and the ends of the log and the trace.
  std::string WhatItDoes(const std::string& job);

  TestServerOptions options_;
  TestFolder folder_;
  std::unique_ptr<ChildProcess> process_;
  std::atomic<uint16_t> port_ = 0, grpc_port_ = 0, admin_port_ = 0;
};

}  // namespace tessera
