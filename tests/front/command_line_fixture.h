// Runs the real `tessera` with the fake worker in a separate folder, and checks that no process is left.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/front/child_process.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
struct DecodedImage;
}

namespace tessera {

class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest();
  ~CommandLineTest() override;  // checks that no process and no socket folder is left

  struct Result {
    int exit_code = -1;
    std::string output;
    std::string errors;
  };

  // Starts `tessera` with `script` for the fake worker.
  std::unique_ptr<ChildProcess> Start(const std::vector<std::string>& arguments, const std::string& script = "");
  Result Run(const std::vector<std::string>& arguments, const std::string& script = "");

  // Parses standard output as JSON lines. A line that is not JSON fails the test.
  static std::vector<boost::json::object> Events(const std::string& output);

  // Waits for the worker of the running command and returns its process id.
  pid_t WorkerPid() const;
  std::vector<pid_t> Workers() const;

  std::vector<std::string> Files() const;  // names in the working folder, hidden ones included
  std::string Read(const std::string& name) const;
  server::DecodedImage ReadImage(const std::string& name) const;
  void Write(const std::string& name, const std::string& bytes) const;
  std::string WorkFolder() const { return folder_ / "work"; }
  std::string ModelsFolder() const { return folder_ / "models"; }
  size_t SocketFolders() const;

  size_t largest_file_ = 0;

 private:
  TestFolder folder_;
};

}  // namespace tessera
