// Provides a folder with a model that fake workers accept, and checks that no worker is left after the test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/front/child_process.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera {

class FakeWorkerTest : public ::testing::Test {
 protected:
  FakeWorkerTest() {
    folder_.Write("model/model_index.json", "{}");
    setenv("TESSERA_WORKER", FAKE_WORKER, 1);
    setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
    Order("");
  }

  // Fixtures that keep workers in members override this, end the workers, and then call it.
  void TearDown() override { EXPECT_THAT(Workers(), ::testing::IsEmpty()); }

  // Sets the script of workers that start from now on (control/fakes/fake_script.h).
  static void Order(const std::string& script) { setenv("TESSERA_FAKE_WORKER", script.c_str(), 1); }
  std::vector<pid_t> Workers() const { return ProcessesWith(FAKE_WORKER, "XDG_RUNTIME_DIR", folder_.path()); }
  // Workers with "faults=" and this path in their script create the file when they do something wrong.
  std::string faults() const { return folder_ / "faults"; }
  void WaitForFault() const {
    WaitUntil("a worker does something wrong", [this] { return std::filesystem::exists(faults()); });
  }

  TestFolder folder_;
  const std::string model_ = folder_ / "model";
};

}  // namespace tessera
