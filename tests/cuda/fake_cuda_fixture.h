// Runs the real `tessera` with the real worker and the real CUDA plug-in on the fake CUDA (tests/support/fake_cuda).
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/front/child_process.h"
#include "tests/support/fake_cuda/fake_cuda_log.h"
#include "tests/support/test_folder.h"

namespace tessera {

class FakeCudaTest : public ::testing::Test {
 protected:
  struct Finished {
    int exit_code = -1;
    std::string output, errors;
    std::vector<FakeCudaLog> logs;  // of the workers
  };

  // Returns the environment that a process needs to find the fake. `cards` contains the fake's own variables
  // (machine.h).
  std::map<std::string, std::string> Environment(const std::map<std::string, std::string>& cards = {}) const {
    std::map<std::string, std::string> environment = cards;
    environment.insert({{"LD_PRELOAD", FAKE_CUDA_LIBRARY},
                        {"FAKE_CUDA_LOG", folder_ / "log"},
                        {"FAKE_CUDA_CARDS", folder_ / "card"},
                        {"TESSERA_CERTIFICATES", folder_ / "certificates"}});
    return environment;
  }

  Finished Run(std::vector<std::string> arguments, const std::map<std::string, std::string>& cards = {}) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (entry.path().filename().string().starts_with("log.")) std::filesystem::remove(entry.path());
    }
    ChildOptions options;
    arguments.insert(arguments.begin(), TESSERA_EXECUTABLE);
    options.arguments = std::move(arguments);
    options.folder = std::filesystem::current_path();
    options.environment = Environment(cards);
    options.environment.insert(
        {{"PATH", "/usr/bin:/bin"}, {"TESSERA_WORKER", REAL_WORKER}, {"XDG_RUNTIME_DIR", folder_.path()}});
    ChildProcess child(options);
    const int exit_code = child.Wait();
    return {.exit_code = exit_code,
            .output = child.output(),
            .errors = child.errors(),
            .logs = FakeCudaLog::ReadAll(folder_ / "log")};
  }

  const TestFolder folder_;
};

}  // namespace tessera
