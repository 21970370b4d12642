#!/usr/bin/env bash
# Kills servers and workers N times (default 1000) under a stream of jobs, in a build folder with tests, and prints what
# became of every job that was acknowledged, in this run and in all runs of this folder so far:
# scripts/kill-server.sh [N] [SEED] [BUILD]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${3:-build/release}
export TESSERA_FAULT_KILLS=${1:-1000} TESSERA_FAULT_SEED=${2:-$RANDOM} TESSERA_FAULT_TALLY=$build/kill-server.tally
status=0
"$build/tests/faults/server_kills_test" --gtest_filter='*OwnImage*:*EmbeddedModel*' || status=$?
awk '{ for (i = 1; i < NF; i += 2) { if (!($i in sum)) name[++names] = $i; sum[$i] += $(i + 1) } }
     END { printf "all runs:"; for (i = 1; i <= names; ++i) printf " %s %d", name[i], sum[name[i]]; print "" }' "$TESSERA_FAULT_TALLY"
exit "$status"
