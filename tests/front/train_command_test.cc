// Tests what `tessera train` computes on every topology, and how its results can be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/image/image_file.h"
#include "tests/front/train_command_fixture.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Finished = FinishedTraining;
using TrainCommandTest = TrainCommandFixture;

// Returns the largest difference between two images.
int Largest(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size() || a.empty()) return 256;
  int largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

void ExpectNear(const std::vector<double>& losses, const std::vector<double>& expected, double relative) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_LE(std::abs(losses[i] - expected[i]), relative * std::abs(expected[i])) << "step " << i + 1;
  }
}

// From the files to the losses: data, noise and gradients are the same on every layout.
TEST_F(TrainCommandTest, EveryTopologyTakesTheSameSteps) {
  const auto expect = [&](const std::string& model, const std::string& settings, int steps,
                          const std::vector<std::string>& layouts) {
    const Finished serial = Train(Config(model, steps, settings, model));
    ASSERT_EQ(serial.exit_code, 0) << ErrorOf(serial);
    ASSERT_EQ(serial.Losses().size(), static_cast<size_t>(steps));
    EXPECT_NE(serial.Losses()[0], serial.Losses()[1]);
    for (size_t i = 0; i < layouts.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(model, ", ", layouts[i]));
      const Finished finished = Train(
          Config(absl::StrCat(model, i), steps, absl::StrCat(settings, "parallelism:\n  ", layouts[i], "\n"), model));
      ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
      ExpectNear(finished.Losses(), serial.Losses(), 1e-9);
    }
  };
  expect("pixart_sigma", "  gradient_accumulation_steps: 2\n", 3,
         {"data: 2\n  zero: 1", "ring: 3", "data: 2\n  pipe: 2",
          "data: 2\n  tensor: 2\n  sequence_parallel: true\n  zero: 3"});
  expect("flux_schnell", "", 2, {"ulysses: 2", "data: 2\n  tensor: 2\n  zero: 3"});
}

// Uses the common dtype. The first loss equals that of double precision up to rounding, and the losses at fixed noise
// levels fall.
TEST_F(TrainCommandTest, InBf16TheLossIsFiniteAndFalls) {
  const Finished exact = Train(Config("exact", 1));
  ASSERT_EQ(exact.exit_code, 0) << ErrorOf(exact);
  const std::string config =
      Config("run", 30,
             "parallelism:\n  data: 2\n  tensor: 2\n  sequence_parallel: true\n  zero: 1\n"
             "sample:\n  sample_every: 6\n  prompts: [a red house]\n  steps: 1\n  width: 64\n  height: 64\n");
  const std::string text =
      absl::StrReplaceAll(Bytes(config), {{"dtype: fp64", "dtype: bf16"}, {"lr: 0.01", "lr: 0.003"}});
  std::ofstream(config) << text;
  const Finished finished = Train(config);
  ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
  const std::vector<double> losses = finished.Losses();
  ASSERT_EQ(losses.size(), 30u);
  EXPECT_NEAR(losses[0], exact.Losses().at(0), 0.01 * losses[0]);
  EXPECT_NE(losses[0], exact.Losses().at(0));
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss));
  const std::vector<boost::json::object> evaluated = finished.Of("evaluated");
  ASSERT_EQ(evaluated.size(), 5u);
  EXPECT_LT(evaluated[4].at("loss").to_number<double>(), 0.8 * evaluated[0].at("loss").to_number<double>());
}

// Initial weights are drawn for whole matrices. A resumed run keeps its own weights.
TEST_F(TrainCommandTest, ARunFromScratchIsTheSameOnEveryTopology) {
  const std::string scratch = "network: {type: full, from_scratch: true}\n";
  const Finished serial = Train(Config("serial", 3, scratch));
  ASSERT_EQ(serial.exit_code, 0) << ErrorOf(serial);
  const std::string tensor = scratch + "parallelism:\n  tensor: 2\n";
  const Finished first = Train(Config("tensor", 2, tensor), {"--resume=latest"});  // no checkpoint: a new run
  ASSERT_EQ(first.exit_code, 0) << ErrorOf(first);
  ExpectNear(first.Losses(), {serial.Losses()[0], serial.Losses()[1]}, 1e-9);
  const Finished pipe = Train(Config("pipe", 1, scratch + "parallelism:\n  pipe: 2\n"));
  ASSERT_EQ(pipe.exit_code, 0) << ErrorOf(pipe);
  ExpectNear(pipe.Losses(), {serial.Losses()[0]}, 1e-9);
  const Finished last = Train(Config("tensor", 3, scratch), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  ExpectNear(last.Losses(), {serial.Losses()[2]}, 1e-9);
}

TEST_F(TrainCommandTest, ARunThatIsResumedAndExtendedEqualsOneRun) {
  const Finished whole = Train(Config("whole", 5, "  ema_decay: 0.9\n"));
  ASSERT_EQ(whole.exit_code, 0) << ErrorOf(whole);
  ASSERT_EQ(Train(Config("parts", 2, "  ema_decay: 0.9\n")).exit_code, 0);
  const Finished second = Train(Config("parts", 3, "  ema_decay: 0.9\n"), {"--resume=latest"});
  ASSERT_EQ(second.exit_code, 0) << ErrorOf(second);
  EXPECT_EQ(second.Of("training").front().at("step").to_number<int>(), 2);
  const Finished third = Train(Config("parts", 5, "  ema_decay: 0.9\n"), {"--resume", second.Path("checkpoint")});
  ASSERT_EQ(third.exit_code, 0) << ErrorOf(third);
  EXPECT_EQ(third.Losses().back(), whole.Losses().back());
  ASSERT_FALSE(Weights(whole).empty());
  EXPECT_EQ(Weights(third), Weights(whole));
  EXPECT_NE(Weights(second), Weights(whole));
}

TEST_F(TrainCommandTest, ARunGoesOnOnAnotherTopology) {
  const Finished whole = Train(Config("whole", 3));
  ASSERT_EQ(Train(Config("parts", 1, "parallelism:\n  tensor: 2\n")).exit_code, 0);
  ASSERT_EQ(Train(Config("parts", 2, "parallelism:\n  data: 2\n  zero: 3\n"), {"--resume=latest"}).exit_code, 0);
  const Finished last = Train(Config("parts", 3, "parallelism:\n  ulysses: 2\n"), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  ExpectNear(last.Losses(), {whole.Losses().back()}, 1e-9);
}

// A Kubernetes Job starts and restarts the run like this.
TEST_F(TrainCommandTest, OneCommandLineBeginsGoesOnAndExportsWhatIsMissing) {
  const Finished first = Train(Config("run", 2), {"--resume=latest"});
  ASSERT_EQ(first.exit_code, 0) << ErrorOf(first);
  EXPECT_EQ(first.Of("training").front().at("step").to_number<int>(), 0);
  ASSERT_EQ(first.Of("warning").size(), 1u);
  EXPECT_THAT(std::string(first.Of("warning").front().at("message").as_string()), HasSubstr("no checkpoint yet"));
  EXPECT_EQ(Weights(first), Weights(Train(Config("other", 2))));
  // Simulates a kill between the last checkpoint and the export.
  const std::string weights = Weights(first);
  fs::remove_all(first.Path("exported"));
  const Finished second = Train(Config("run", 2), {"--resume=latest"});
  ASSERT_EQ(second.exit_code, 0) << ErrorOf(second);
  EXPECT_TRUE(second.Losses().empty());
  EXPECT_EQ(second.Path("exported"), first.Path("exported"));
  EXPECT_EQ(Weights(second), weights);
  // If no checkpoint is complete, the command must not start a new run.
  fs::resize_file(first.Path("checkpoint") + "/rank-00000-of-00001.safetensors", 7);
  const Finished third = Train(Config("run", 3), {"--resume=latest"});
  EXPECT_NE(third.exit_code, 0);
  EXPECT_THAT(ErrorOf(third), HasSubstr("no complete checkpoint"));
}

// Samples of the ordinary pipeline and losses of the averaged weights, while no rank has all weights.
TEST_F(TrainCommandTest, WeightsThatAreSharedOutMakeTheSamplesOfOneRank) {
  const std::string settings =
      "  ema_decay: 0.9\nsample:\n  sample_every: 2\n  prompts: [a red house]\n  steps: 2\n  width: 64\n"
      "  height: 64\n";
  const Finished one = Train(Config("one", 2, settings));
  ASSERT_EQ(one.exit_code, 0) << ErrorOf(one);
  const auto sample = [](const Finished& run) {
    return server::DecodeImage(Bytes(std::string(run.Of("sample").at(0).at("path").as_string())))->image.bytes;
  };
  const auto evaluated = [](const Finished& run) {
    const boost::json::object event = run.Of("evaluated").at(0);
    std::vector<double> losses;
    for (const boost::json::value& loss : event.at("losses").as_array()) {
      losses.push_back(loss.to_number<double>());
    }
    return losses;
  };
  for (const char* parallelism : {"data: 2\n  zero: 3", "pipe: 2\n  data: 2\n  zero: 3"}) {
    SCOPED_TRACE(parallelism);
    const Finished two =
        Train(Config(std::string(parallelism, 4), 2, absl::StrCat(settings, "parallelism:\n  ", parallelism, "\n")));
    ASSERT_EQ(two.exit_code, 0) << ErrorOf(two);
    EXPECT_LE(Largest(sample(two), sample(one)), 1);
    ExpectNear(evaluated(two), evaluated(one), 1e-9);
  }
}

TEST_F(TrainCommandTest, WhatWasTrainedIsServedAndSamplesAreMade) {
  const Finished finished = Train(
      Config("run", 2,
             "sample:\n  sample_every: 2\n  prompts: [a red house, a tree]\n  steps: 2\n  width: 64\n  height: 64\n"));
  ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
  ASSERT_EQ(finished.Of("sample").size(), 2u);
  ASSERT_EQ(finished.Of("grid").size(), 1u);
  const auto grid = server::DecodeImage(Bytes(std::string(finished.Of("grid")[0].at("path").as_string())));
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->image.width, 2 * 68);
  for (size_t i = 0; i < 2; ++i) {
    const auto one = server::DecodeImage(Bytes(std::string(finished.Of("sample")[i].at("path").as_string())));
    ASSERT_TRUE(one.ok());
    for (size_t y = 0; y < 64; ++y) {
      EXPECT_TRUE(std::equal(one->image.bytes.begin() + static_cast<std::ptrdiff_t>(y * 64 * 3),
                             one->image.bytes.begin() + static_cast<std::ptrdiff_t>((y + 1) * 64 * 3),
                             grid->image.bytes.begin() + static_cast<std::ptrdiff_t>((y * 136 + i * 68) * 3)))
          << "picture " << i << ", row " << y;
    }
  }
  ASSERT_EQ(finished.Of("evaluated").size(), 1u);
  EXPECT_EQ(finished.Of("evaluated")[0].at("losses").as_array().size(), 8u);
  const std::string image = folder() + "/served.png";
  const std::unique_ptr<ChildProcess> served =
      Start({"generate", "--model", finished.Path("exported"), "--dtype=fp64", "--steps=2", "--size=64x64", "--seed=42",
             "--threads=2", "-o", image, "a red house"});
  ASSERT_EQ(served->Wait(), 0) << served->errors();
  // The sample uses the weights in training; the image uses the exported files, which have single precision.
  const std::vector<uint8_t> made = server::DecodeImage(Bytes(image))->image.bytes;
  const std::vector<uint8_t> sample =
      server::DecodeImage(Bytes(std::string(finished.Of("sample")[0].at("path").as_string())))->image.bytes;
  EXPECT_LE(Largest(made, sample), 1);
}

// FLUX.1 exports files in the formats of diffusers and kohya, PixArt exports PEFT folders.
TEST_F(TrainCommandTest, AnAdapterIsTrainedAlikeOnEveryTopologyAndServed) {
  for (const auto& [model, layouts] : std::map<std::string, std::vector<std::string>>{
           {"flux_schnell", {"tensor: 2", "ulysses: 2", "tensor: 2\n  sequence_parallel: true"}},
           {"pixart_sigma", {"data: 2\n  zero: 3", "pipe: 2"}}}) {
    const std::string lora = "network: {type: lora, linear: 4, linear_alpha: 8}\n";
    const std::string samples =
        "sample:\n  sample_every: 3\n  prompts: [a red house]\n  steps: 2\n  width: 64\n  height: 64\n";
    const Finished serial = Train(Config(absl::StrCat(model, 0), 3, samples + lora, model));
    ASSERT_EQ(serial.exit_code, 0) << ErrorOf(serial);
    for (size_t i = 0; i < layouts.size(); ++i) {
      const std::string& layout = layouts[i];
      const Finished finished =
          Train(Config(absl::StrCat(model, i + 1), 3,
                       absl::StrCat(i == 0 ? samples : "", lora, "parallelism:\n  ", layout, "\n"), model));
      ASSERT_EQ(finished.exit_code, 0) << layout << ": " << ErrorOf(finished);
      EXPECT_EQ(finished.Of("sample").size(), i == 0 ? 1u : 0u);
      SCOPED_TRACE(absl::StrCat(model, ", ", layout));
      ExpectNear(finished.Losses(), serial.Losses(), 1e-9);
    }
    const auto picture = [&](const std::string& adapter) {
      const std::string image = folder() + "/served.png";
      std::vector<std::string> arguments = {
          "generate",     "--model",     absl::StrCat("tests/golden/pipelines/", model),
          "--dtype=fp64", "--steps=2",   "--size=64x64",
          "--seed=42",    "--threads=2", "--overwrite",
          "-o",           image,         "a red house"};
      if (!adapter.empty()) arguments.insert(arguments.end(), {"--lora", adapter});
      const std::unique_ptr<ChildProcess> served = Start(std::move(arguments));
      EXPECT_EQ(served->Wait(), 0) << served->errors();
      return server::DecodeImage(Bytes(image))->image.bytes;
    };
    const std::vector<uint8_t> sample =
        server::DecodeImage(Bytes(std::string(serial.Of("sample")[0].at("path").as_string())))->image.bytes;
    const std::string exported = serial.Path("exported");
    EXPECT_GT(Largest(picture(""), sample), 1);
    EXPECT_LE(Largest(picture(exported), sample), 1);
    if (model == "pixart_sigma") {
      EXPECT_TRUE(fs::exists(exported.substr(0, exported.rfind(".safetensors")) + "/adapter_config.json"));
    } else {
      for (const char* form : {".kohya.safetensors", ".comfyui.safetensors"}) {
        EXPECT_LE(Largest(picture(exported.substr(0, exported.rfind(".safetensors")) + form), sample), 1) << form;
      }
    }
  }
}

// The base weights are held in eight bits, with the same values on every rank and after every start.
TEST_F(TrainCommandTest, AnAdapterIsTrainedOnABaseInEightBits) {
  const std::string lora =
      "  quantize: true\nsample:\n  sample_every: 4\n  prompts: [a red house]\n  steps: 2\n  width: 64\n  height: 64\n"
      "network: {type: lora, linear: 4, linear_alpha: 8}\n";
  const Finished serial = Train(Config("serial", 4, lora));
  ASSERT_EQ(serial.exit_code, 0) << ErrorOf(serial);
  EXPECT_EQ(serial.Of("sample").size(), 1u);
  const Finished plain = Train(Config("plain", 1, "network: {type: lora, linear: 4, linear_alpha: 8}\n"));
  ASSERT_EQ(plain.exit_code, 0) << ErrorOf(plain);
  EXPECT_NE(plain.Losses()[0], serial.Losses()[0]);
  EXPECT_NEAR(plain.Losses()[0], serial.Losses()[0], 0.05 * plain.Losses()[0]);
  const Finished tensor = Train(Config("tensor", 4, lora + "parallelism:\n  tensor: 2\n"));
  ASSERT_EQ(tensor.exit_code, 0) << ErrorOf(tensor);
  ExpectNear(tensor.Losses(), serial.Losses(), 1e-9);
  ASSERT_EQ(Train(Config("parts", 2, lora)).exit_code, 0);
  const Finished last = Train(Config("parts", 4, lora), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  ASSERT_FALSE(Bytes(serial.Path("exported")).empty());
  EXPECT_EQ(Bytes(last.Path("exported")), Bytes(serial.Path("exported")));
  const std::unique_ptr<ChildProcess> served =
      Start({"generate", "--model", "tests/golden/pipelines/pixart_sigma", "--dtype=fp64", "--steps=2", "--size=64x64",
             "--threads=2", "-o", folder() + "/served.png", "a red house", "--lora", serial.Path("exported")});
  EXPECT_EQ(served->Wait(), 0) << served->errors();
}

TEST_F(TrainCommandTest, ADryRunSaysWhatTheRunWillDoAndLeavesNothing) {
  const Finished finished = Train(
      Config("run", 7, "  gradient_accumulation_steps: 2\nparallelism:\n  data: 2\n  tensor: 2\n"), {"--dry-run"});
  ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
  ASSERT_EQ(finished.Of("plan").size(), 1u);
  const boost::json::object plan = finished.Of("plan").front();
  EXPECT_EQ(plan.at("buckets").as_array().size(), 2u);
  EXPECT_EQ(plan.at("steps_per_epoch").to_number<int>(), 2);  // 6 images, 4 per step
  EXPECT_EQ(plan.at("ranks").to_number<int>(), 4);
  EXPECT_EQ(plan.at("images_of_a_rank").to_number<int>(), 1);
  const auto rate = plan.at("flops_per_second").to_number<double>();
  EXPECT_GT(rate, 0);
  const auto step_seconds = plan.at("step_seconds").to_number<double>();
  EXPECT_GT(step_seconds, 0);
  EXPECT_DOUBLE_EQ(step_seconds * rate, plan.at("step_flops").to_number<double>());
  EXPECT_DOUBLE_EQ(plan.at("run_seconds").to_number<double>(), 7 * step_seconds);
  EXPECT_EQ(plan.at("stages_idle").to_number<double>(), 0);
  int64_t parts = 0;
  for (const char* part : {"weight_bytes", "adapter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes"}) {
    parts += plan.at(part).to_number<int64_t>();
  }
  EXPECT_EQ(plan.at("memory_bytes").to_number<int64_t>(), parts);
  const Finished shared = Train(Config("run", 7,
                                       "  gradient_accumulation_steps: 2\nparallelism:\n  data: 2\n  tensor: 2\n"
                                       "  sequence_parallel: true\n"),
                                {"--dry-run"});
  ASSERT_EQ(shared.Of("plan").size(), 1u);
  const auto saved = plan.at("sequence_parallel_saves_bytes").to_number<int64_t>();
  EXPECT_GT(saved, 0);
  EXPECT_EQ(shared.Of("plan").front().at("activation_bytes").to_number<int64_t>(),
            plan.at("activation_bytes").to_number<int64_t>() - saved);
  const Finished stages =
      Train(Config("run", 7, "  gradient_accumulation_steps: 2\nparallelism:\n  data: 2\n  pipe: 2\n"), {"--dry-run"});
  ASSERT_EQ(stages.Of("plan").size(), 1u);
  EXPECT_EQ(stages.Of("plan").front().at("ranks").to_number<int>(), 4);
  EXPECT_NEAR(stages.Of("plan").front().at("stages_idle").to_number<double>(), 1.0 / 3, 1e-12);
  EXPECT_FALSE(fs::exists(folder() + "/run"));
}

TEST_F(TrainCommandTest, ADryRunCountsTheImagesThatAreLeftOutAndTheCaptionsThatAreCutAsTheRunDoes) {
  std::string longer = "a house";
  for (int i = 0; i < 100; ++i) longer += " and another house";
  for (const char* name : {"/1.txt", "/3.txt", "/5.txt"}) std::ofstream(images() + name) << longer;
  std::ofstream(images() + "/5.png", std::ios::binary) << "no picture";
  const std::string config = Config("run", 1);
  const std::string text = absl::StrReplaceAll(
      Bytes(config), {{"    resolution: 64\n", "    resolution: [64, 96]\n    bad_images: skip\n"}});
  std::ofstream(config) << text;
  const auto warnings = [](const Finished& finished) {
    std::vector<std::string> messages;
    for (const boost::json::object& warning : finished.Of("warning")) {
      messages.emplace_back(warning.at("message").as_string());
    }
    return messages;
  };
  const Finished dry = Train(config, {"--dry-run"});
  ASSERT_EQ(dry.exit_code, 0) << ErrorOf(dry);
  EXPECT_THAT(warnings(dry), testing::IsSupersetOf(
                                 {HasSubstr("1 image is left out: " + images() + "/5.png ("),
                                  HasSubstr(absl::StrCat("2 captions are longer than the model reads and will be cut: ",
                                                         images(), "/1.png, ", images(), "/3.png; of the first"))}));
  const Finished run = Train(config);
  ASSERT_EQ(run.exit_code, 0) << ErrorOf(run);
  EXPECT_EQ(warnings(run), warnings(dry));
}

TEST_F(TrainCommandTest, ImagesWithoutACaptionAreTrainedOnAndNamed) {
  fs::remove(images() + "/1.txt");
  std::ofstream(images() + "/3.txt") << " \n";
  const Finished finished = Train(Config("run", 2));
  ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
  ASSERT_EQ(finished.Of("warning").size(), 1u);
  EXPECT_THAT(std::string(finished.Of("warning").front().at("message").as_string()),
              AllOf(HasSubstr("2 images without a caption: "), HasSubstr("1.png"), HasSubstr("3.png")));
}

// Each image is also the picture that the model edits.
TEST_F(TrainCommandTest, AModelThatLooksAtPicturesIsTrainedAndMakesSamplesWithThem) {
  const auto config = [&](const std::string& output, const std::string& model, const std::string& more,
                          bool pictures = true) {
    std::string path = Config(output, 1, "network: {type: lora, linear: 2}\n" + more, "../../" + model);
    if (!pictures) return path;
    const std::string text = absl::StrReplaceAll(
        Bytes(path), {{"    resolution: 64\n", "    resolution: 64\n    control_path: [" + images() + "]\n"}});
    std::ofstream(path) << text;
    return path;
  };
  const std::string klein = "golden-newer/pipelines/flux2_klein_base", editor = "golden-edit/pipelines/qwen_edit_2511";
  const std::string samples = "sample:\n  sample_every: 1\n  steps: 1\n  width: 64\n  height: 64\n";
  const Finished run = Train(config("run", klein,
                                    samples + "  prompts: [a house]\n  samples: [{prompt: a boat, ctrl_img: [" +
                                        images() + "/0.png, " + images() + "/2.png]}]\n"));
  ASSERT_EQ(run.exit_code, 0) << ErrorOf(run);
  EXPECT_EQ(run.Of("sample").size(), 2u);
  const auto planned = [&](bool pictures) {
    const Finished plan = Train(config("plan", klein, "", pictures), {"--dry-run"});
    EXPECT_EQ(plan.exit_code, 0) << ErrorOf(plan);
    return plan.Of("plan").at(0).at("activation_bytes").to_number<double>();
  };
  // Without pictures the image of 64x64 has the most tokens, 16 next to 512 of text; with them that of 48x80, which has
  // 15, and 24 of its picture of 64x96.
  EXPECT_NEAR(planned(true) / planned(false), (512.0 + 15 + 24) / (512 + 16), 1e-6);
  const auto refused = [&](const std::string& file, const std::string& reason) {
    const Finished finished = Train(file, {"--dry-run"});
    EXPECT_EQ(finished.exit_code, 2) << ErrorOf(finished);
    EXPECT_THAT(ErrorOf(finished), HasSubstr(reason));
  };
  refused(config("edit", editor, samples + "  prompts: [a house]\n"),
          "the prompt 'a house' of sample has no picture, and the model edits pictures; give it as sample.samples: ");
  refused(config("edit", editor, "", /*pictures=*/false),
          "datasets[0].control_path is missing, and the model edits pictures");
  const std::string empty = folder() + "/empty", file = config("edit", editor, "");
  fs::create_directories(empty);
  const std::string text =
      absl::StrReplaceAll(Bytes(file), {{"control_path: [" + images(), "control_path: [" + empty}});
  std::ofstream(file) << text;
  const Finished without = Train(file);
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_THAT(ErrorOf(without), HasSubstr("6 images cannot be used: " + images() + "/0.png: " + empty +
                                          ": there is no picture for it; give 0.png or 0.jpg"));
}

TEST_F(TrainCommandTest, SaysWhatItCannotTrainOn) {
  const Finished first = Train(Config("run", 1));
  ASSERT_EQ(first.exit_code, 0) << ErrorOf(first);
  const auto refused = [&](const std::string& config, std::vector<std::string> more, int code, const char* reason) {
    const Finished finished = Train(config, std::move(more));
    EXPECT_EQ(finished.exit_code, code) << ErrorOf(finished);
    EXPECT_THAT(ErrorOf(finished), HasSubstr(reason));
  };
  refused(Config("run", 2), {}, 2, "--resume latest");
  refused(Config("run", 1), {"--resume=latest"}, 2, "train.steps");
  refused(Config("run", 2, "  max_grad_norm: 3\n"), {"--resume=latest"}, 2, "max_grad_norm");
  refused(Config("run", 2, "", "pixart_alpha"), {"--resume=latest"}, 2, "model");
  refused(Config("other", 2, "network: {type: lora, target_modules: [to_qq]}\n"), {}, 2, "the nearest is \"to_q\"");
  refused(Config("other", 2, "parallelism:\n  data: 3\n"), {}, 2, "batch_size");
  refused(Config("other", 2, "parallelism:\n  ulysses: 3\n"), {}, 2, "ulysses");
  refused(Config("other", 2, "parallelism:\n  pipe: 3\n"), {}, 2, "pipe");
  std::ofstream(images() + "/5.png", std::ios::binary) << "no picture";
  refused(Config("other", 2), {}, 2, "5.png");
}

}  // namespace
}  // namespace tessera
