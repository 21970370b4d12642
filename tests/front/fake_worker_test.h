// A folder with a model that fake workers can read, and nothing left of the workers when the test is over.
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

  // Of fixtures that keep workers in members: they override this, end those, and call it.
  void TearDown() override { EXPECT_THAT(Workers(), ::testing::IsEmpty()); }

  // The script of workers that start from now on (control/fake_script.h).
  static void Order(const std::string& script) { setenv("TESSERA_FAKE_WORKER", script.c_str(), 1); }
  std::vector<pid_t> Workers() const { return ProcessesWith(FAKE_WORKER, "XDG_RUNTIME_DIR", folder_.path()); }
  // Until a worker has done wrong what it was ordered, with "faults=" and this file.
  std::string faults() const { return folder_ / "faults"; }
  void WaitForFault() const {
    WaitUntil("a worker does something wrong", [this] { return std::filesystem::exists(faults()); });
  }

  TestFolder folder_;
  const std::string model_ = folder_ / "model";
};

}  // namespace tessera
