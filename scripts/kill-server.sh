#!/usr/bin/env bash
# Kills servers and workers N times (default 1000) under a stream of jobs, in a build folder with tests. Prints the
# outcome of every acknowledged job, in this run and in all earlier runs of this folder:
# scripts/kill-server.sh [N] [SEED] [BUILD] [STORE]
#   STORE   sqlite: one server with its own queue (the default); postgres: two servers that share one, and its
#           database is killed too
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${3:-build/release}
case ${4:-sqlite} in
  sqlite) test=server_kills_test tests='*OwnImage*:*EmbeddedModel*' tally=kill-server.tally ;;
  postgres) test=shared_queue_kills_test tests='*OwnImage*' tally=kill-shared-queue.tally ;;
  *) echo "kill-server.sh: unknown store $4; valid values: sqlite, postgres" >&2; exit 2 ;;
esac
export TESSERA_FAULT_KILLS=${1:-1000} TESSERA_FAULT_SEED=${2:-$RANDOM} TESSERA_FAULT_TALLY=$build/$tally
status=0
"$build/tests/faults/$test" --gtest_filter="$tests" || status=$?
awk '{ for (i = 1; i < NF; i += 2) { if (!($i in sum)) name[++names] = $i; sum[$i] += $(i + 1) } }
     END { printf "all runs:"; for (i = 1; i <= names; ++i) printf " %s %d", name[i], sum[name[i]]; print "" }' "$TESSERA_FAULT_TALLY"
exit "$status"
