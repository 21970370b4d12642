// Runs the real `tessera` with the fake worker in a folder of its own, and checks that nothing is left behind.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <vector>

#include "server/image/image_file.h"
#include "tests/front/child_process.h"
#include "tests/support/test_folder.h"

namespace tessera {

class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest();
  ~CommandLineTest() override;  // no process and no socket folder may be left

  struct Result {
    int exit_code = -1;
    std::string output;
    std::string errors;
  };

  // Starts `tessera`; `script` is that of the fake worker.
  std::unique_ptr<ChildProcess> Start(const std::vector<std::string>& arguments, const std::string& script = "");
  Result Run(const std::vector<std::string>& arguments, const std::string& script = "");

  // Standard output as JSON lines; a line that is not JSON fails the test.
  static std::vector<boost::json::object> Events(const std::string& output);

  // The worker of the command that runs; waits until there is one.
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
