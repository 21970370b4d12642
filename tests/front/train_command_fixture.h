// Runs `tessera train` with real workers on models of a few thousand parameters, in double precision.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/front/child_process.h"
#include "tests/front/training_picture.h"
#include "tests/support/test_folder.h"

namespace tessera {

// The events that a run printed, and how it ended.
struct FinishedTraining {
  int exit_code = 0;
  std::vector<boost::json::object> events;
  std::string errors;

  std::vector<boost::json::object> Of(const std::string& event) const {
    std::vector<boost::json::object> of;
    for (const boost::json::object& line : events) {
      if (line.at("event").as_string() == event) of.push_back(line);
    }
    return of;
  }
  std::vector<double> Losses() const {
    std::vector<double> losses;
    for (const boost::json::object& line : Of("trained")) losses.push_back(line.at("loss").to_number<double>());
    return losses;
  }
  std::string Path(const char* key) const {
    const std::vector<boost::json::object> saved = Of("saved");
    return saved.empty() ? "" : std::string(saved.back().at(key).as_string());
  }
};

class TrainCommandFixture : public ::testing::Test {
 protected:
  TrainCommandFixture() {
    std::filesystem::create_directories(folder() + "/images");
    for (int i = 0; i < 6; ++i) WriteTrainingPicture(images(), i);
  }

  std::string folder() const { return folder_.path(); }
  std::string images() const { return folder() + "/images"; }

  // `more` contains lines of the configuration's train section and of the sections after it. `model` is a path, or a
  // folder of tests/golden/pipelines.
  std::string Config(const std::string& output, int steps, const std::string& more = "",
                     const std::string& model = "pixart_sigma") const {
    const std::string path = absl::StrCat(folder(), "/", output, ".yaml");
    std::ofstream(path) << "model: " << std::filesystem::path("tests/golden/pipelines") / model
                        << "\noutput: " << folder() << "/" << output
                        << "\nseed: 7\ntrigger_word: zzz\n"
                           "datasets:\n  - folder_path: "
                        << images() << "\n    resolution: 64\n    caption_dropout_rate: 0.3\n"
                        << (more.find("network:") == std::string::npos ? "network:\n  type: full\n" : "")
                        << "train:\n  dtype: fp64\n  batch_size: 2\n  lr: 0.01\n  steps: " << steps << "\n"
                        << (model == "flux_schnell" ? "  break_distillation: true\n" : "") << more;
    return path;
  }

  std::unique_ptr<ChildProcess> Start(std::vector<std::string> arguments,
                                      std::map<std::string, std::string> environment = {}) const {
    ChildOptions options;
    arguments.insert(arguments.begin(), TESSERA_EXECUTABLE);
    options.arguments = std::move(arguments);
    options.folder = std::filesystem::current_path();
    options.environment = {{"PATH", "/usr/bin:/bin"},
                           {"TESSERA_WORKER", TESSERA_WORKER_EXECUTABLE},
                           {"OMP_WAIT_POLICY", "PASSIVE"},
                           {"XDG_RUNTIME_DIR", folder()}};
    options.environment.merge(environment);
    return std::make_unique<ChildProcess>(options);
  }

  static FinishedTraining Finish(ChildProcess& child) {
    FinishedTraining finished{.exit_code = child.Wait(), .events = {}, .errors = child.errors()};
    for (absl::string_view line : absl::StrSplit(child.output(), '\n', absl::SkipEmpty())) {
      finished.events.push_back(boost::json::parse(std::string(line)).as_object());
    }
    return finished;
  }

  FinishedTraining Train(const std::string& config, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"train", config, "--json", "--threads=2"});
    return Finish(*Start(std::move(more)));
  }

  static std::string ErrorOf(const FinishedTraining& finished) {
    const std::vector<boost::json::object> errors = finished.Of("error");
    return errors.empty() ? finished.errors : std::string(errors.back().at("message").as_string());
  }

  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::string Weights(const FinishedTraining& finished) {
    return Bytes(finished.Path("exported") + "/transformer/diffusion_pytorch_model.safetensors");
  }

 private:
  TestFolder folder_;
};

}  // namespace tessera
