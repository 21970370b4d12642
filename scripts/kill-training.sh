#!/usr/bin/env bash
# Kills ranks of a training run, its command or everything N times (default 30) at random moments, in a build folder
# with tests. Resumes from the last checkpoint each time, and compares the result with that of an undisturbed run:
# scripts/kill-training.sh [N] [SEED] [BUILD]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TESSERA_FAULT_KILLS=${1:-30} TESSERA_FAULT_SEED=${2:-$RANDOM}
exec "${3:-build/release}/tests/front/train_faults_test" --gtest_filter='*RandomMoments*'
