#!/usr/bin/env bash
# Kills ranks of real worker groups N times (default 1000) at random moments, in a build folder with tests, and prints
# how each death was reported: scripts/kill-ranks.sh [N] [SEED] [BUILD]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TESSERA_FAULT_KILLS=${1:-1000} TESSERA_FAULT_SEED=${2:-$RANDOM}
exec "${3:-build/release}/tests/faults/rank_faults_test" --gtest_filter='*RandomMoments*'
