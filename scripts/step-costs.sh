#!/usr/bin/env bash
# step-costs.sh [MODEL]: what a step of a published model costs on a GPU at 1024x1024 in bf16: its operations by name,
# host waits, copies and allocations, and how long the host takes to issue it, driver excluded. Counted on the fake CUDA.
# MODEL: flux_dev, hunyuan, pixart_sigma, sd3_medium or sd35_large; without one, all of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
test=build/release/tests/cuda/fake_cuda_step_budgets_test
if [[ ! -x $test ]]; then
  echo "$test is not built: cmake --build --preset release --target fake_cuda_step_budgets_test" >&2
  exit 2
fi
# Files of nothing but holes are read fast from a file system in memory alone.
TEST_TMPDIR=/dev/shm "$test" --gtest_brief=1 --gtest_filter="Models/*/${1:-*}"
