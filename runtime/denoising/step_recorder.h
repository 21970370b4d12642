// Digests of what the blocks of one rank compute, for control/step_record.h.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "control/step_record.h"
#include "parallel/plan/token_layout.h"

namespace tessera::runtime {

// Used by one thread.
class StepRecorder {
 public:
  explicit StepRecorder(std::unique_ptr<control::StepRecordWriter> writer) : writer_(std::move(writer)) {}

  // Job, step and branch of each row of the passes to come.
  void Begin(std::vector<control::StatePlace> rows) { rows_ = std::move(rows); }

  // state [rows, tokens, features] after that block: the tokens of these runs, all of the image or all of the text, one
  // run after another.
  void Record(int block, std::span<const parallel::TokenRun> runs, const at::Tensor& state);

 private:
  const std::unique_ptr<control::StepRecordWriter> writer_;
  std::vector<control::StatePlace> rows_;
};

}  // namespace tessera::runtime
