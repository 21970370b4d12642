#!/usr/bin/env bash
# Keeps a server of the embedded model under mixed load for MINUTES (default 60), with clients that cancel and hang up
# and with deaths of workers and servers. Prints the outcome of the jobs, and whether the memory, descriptors, threads
# or segments of server and worker grow: scripts/soak.sh [MINUTES] [BUILD], in a build folder with tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TESSERA_SOAK_MINUTES=${1:-60}
exec "${2:-build/release}/tests/faults/soak_test" --gtest_filter='*EmbeddedModel*'
