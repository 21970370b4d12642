// Computes the learning rate of each step, like diffusers' get_constant_schedule_with_warmup and
// get_cosine_schedule_with_warmup and transformers' get_wsd_schedule (with a cosine decay). Pure, no LibTorch.
#pragma once

#include <cstdint>

#include "control/training/config.h"

namespace tessera::runtime {

struct LearningRate {
  double base = 1e-4;
  control::LearningRateSchedule schedule = control::LearningRateSchedule::kConstant;
  int64_t warmup_steps = 0;  // in which the rate rises linearly from 0
  int64_t decay_steps = 0;   // the last steps of warmup_stable_decay
  int64_t steps = 1;         // of the whole run; the cosine reaches 0 after the last one

  // Returns the rate of step `step`, counted from 0.
  double At(int64_t step) const;
};

}  // namespace tessera::runtime
