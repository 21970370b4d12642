#!/usr/bin/env bash
# step-costs.sh [MODEL]: prints the cost of a published model's step on a GPU at 1024x1024 in bf16: its operations by
# name, host waits, copies and allocations, and the host's time to issue it, excluding the driver. Counted on the fake
# CUDA.
# MODEL: flux_dev, hunyuan, pixart_sigma, sd3_medium or sd35_large; default: all of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
test=build/release/tests/cuda/fake_cuda_step_budgets_test
if [[ ! -x $test ]]; then
  echo "$test is not built: cmake --build --preset release --target fake_cuda_step_budgets_test" >&2
  exit 2
fi
# A file system in memory reads sparse files fast.
TEST_TMPDIR=/dev/shm "$test" --gtest_brief=1 --gtest_filter="Models/*/${1:-*}"
