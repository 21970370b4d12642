// Runs `tessera batch` as a child process with fake workers, and reads its output.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/front/child_process.h"
#include "tests/support/test_folder.h"

namespace tessera {

// Provides a folder for batch runs with fake workers.
class BatchTest : public ::testing::Test {
 protected:
  BatchTest() {
    for (const char* name : {"sockets", "tiny"}) std::filesystem::create_directories(folder_ / name);
    Write("tiny/model_index.json", "{}");
  }
  // Workers of a killed run live on for ten seconds, so those of the last run must be ended here.
  ~BatchTest() override {
    for (const pid_t worker : ProcessesWith(FAKE_WORKER, "XDG_RUNTIME_DIR", folder_ / "sockets")) {
      kill(worker, SIGTERM);
      EXPECT_TRUE(WaitUntilGone(worker)) << "a worker was left";
    }
  }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::unique_ptr<ChildProcess> Start(const std::string& input, const std::string& out,
                                      const std::vector<std::string>& more = {}) {
    ChildOptions child = {
        .arguments = {TESSERA_EXECUTABLE, "batch", folder_ / input, "--out", folder_ / out, "--quiet"},
        .folder = folder_.path(),
        .environment = {{"PATH", "/usr/bin:/bin"},
                        {"TESSERA_CERTIFICATES", folder_ / "certificates"},
                        {"TESSERA_FAKE_WORKER", script_},
                        {"TESSERA_WORKER", worker_},
                        {"XDG_RUNTIME_DIR", folder_ / "sockets"}},
        .largest_file = largest_file_};
    child.arguments.insert(child.arguments.begin(), launcher_.begin(), launcher_.end());
    if (!model_.empty()) child.arguments.insert(child.arguments.end(), {"--model", folder_ / model_});
    child.arguments.insert(child.arguments.end(), more.begin(), more.end());
    return std::make_unique<ChildProcess>(child);
  }
  // Returns the exit code.
  int Run(const std::string& input, const std::string& out, const std::vector<std::string>& more = {}) {
    const std::unique_ptr<ChildProcess> process = Start(input, out, more);
    const int code = process->Wait();
    errors_ = process->errors();
    return code;
  }

  // Returns the output files by name, without those that are needed only to resume.
  std::map<std::string, std::string> FilesOf(const std::string& out) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / out)) {
      const std::string name = entry.path().lexically_relative(folder_ / out);
      if (entry.is_regular_file() && name.substr(0, 4) != "run/") files[name] = Read(out + "/" + name);
    }
    return files;
  }
  std::vector<boost::json::object> Manifest(const std::string& out) const {
    std::vector<boost::json::object> lines;
    for (const absl::string_view line : absl::StrSplit(Read(out + "/manifest.jsonl"), '\n', absl::SkipEmpty())) {
      lines.push_back(boost::json::parse(std::string(line)).as_object());
    }
    return lines;
  }
  int64_t Journaled(const std::string& out) const {
    int64_t lines = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / (out + "/run"), error)) {
      if (entry.path().extension() != ".jsonl") continue;
      const std::string text = Read(out + "/run/" + entry.path().filename().string());
      lines += std::ranges::count(text, '\n');
    }
    return lines;
  }

  // From now on, workers of the runs that start make this many steps each, and the rest after the next call.
  void AllowSteps(int64_t steps) {
    const std::string permits = folder_ / "permits";
    std::ofstream(permits, std::ios::app) << "";
    std::filesystem::resize_file(permits, static_cast<uintmax_t>(steps));
    if (script_.find(" permits=") == std::string::npos) absl::StrAppend(&script_, " permits=", permits);
  }

  // Writes items of three shapes: some have seeds, some are duplicates, two fail.
  void WriteItems(int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) {
      if (i % 41 == 17) {
        absl::StrAppend(&text, R"({"prompt": "fail", "num_inference_steps": 4})", "\n");
      } else if (i % 7 == 3) {
        absl::StrAppend(&text, R"({"prompt": "pear", "size": "64x32", "n": 2, "seed": )", i, "}\n");
      } else {
        absl::StrAppend(&text, R"({"custom_id": "c)", i, R"(", "prompt": "apple )", i % 5,
                        R"(", "num_inference_steps": )", 2 + i % 3, "}\n");
      }
    }
    Write("items.jsonl", text);
  }

  TestFolder folder_;
  std::vector<std::string> launcher_;  // runs tessera, if not empty
  std::string worker_ = FAKE_WORKER;
  std::string model_ = "tiny";  // empty: no --model
  std::string script_ = "step-time=1 step2-of-fail=error";
  size_t largest_file_ = 0;  // limit of a file that the run writes; 0: none
  std::string errors_;
};

}  // namespace tessera
