// StepRecorder computes digests of the blocks' results on one rank, for control/model/step_record.h.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "control/model/step_record.h"
#include "parallel/plan/token_layout.h"

namespace tessera::runtime {

// Used by one thread.
class StepRecorder {
 public:
  explicit StepRecorder(std::unique_ptr<control::StepRecordWriter> writer) : writer_(std::move(writer)) {}

  // Sets the job, step and branch of each row of the following passes.
  void Begin(std::vector<control::StatePlace> rows) { rows_ = std::move(rows); }

  // Records state [rows, tokens, features] after that block, for the tokens of these runs in order: all of the image's
  // or all of the text's.
  void Record(int block, std::span<const parallel::TokenRun> runs, const at::Tensor& state);

 private:
  const std::unique_ptr<control::StepRecordWriter> writer_;
  std::vector<control::StatePlace> rows_;
};

}  // namespace tessera::runtime
