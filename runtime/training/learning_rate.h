// The learning rate of each step, as diffusers' get_constant_schedule_with_warmup and get_cosine_schedule_with_warmup
// and transformers' get_wsd_schedule (its decay a cosine) have it. Pure, no LibTorch.
#pragma once

#include <cstdint>

#include "control/training/config.h"

namespace tessera::runtime {

struct LearningRate {
  double base = 1e-4;
  control::LearningRateSchedule schedule = control::LearningRateSchedule::kConstant;
  int64_t warmup_steps = 0;  // in which it rises from 0 in a straight line
  int64_t decay_steps = 0;   // the last ones, of warmup_stable_decay
  int64_t steps = 1;         // of the whole run; the cosine ends at 0 behind the last one

  // Of step `step`, counted from 0.
  double At(int64_t step) const;
};

}  // namespace tessera::runtime
