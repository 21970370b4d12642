#!/usr/bin/env bash
# Kills servers and workers N times (default 1000) under a stream of jobs, in a build folder with tests, and prints what
# became of every job that was acknowledged: scripts/kill-server.sh [N] [SEED] [BUILD]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TESSERA_FAULT_KILLS=${1:-1000} TESSERA_FAULT_SEED=${2:-$RANDOM}
exec "${3:-build/release}/tests/faults/server_kills_test" --gtest_filter='*OwnImage:*EmbeddedModel'
