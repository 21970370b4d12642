#!/usr/bin/env bash
# scripts/golden.sh DIR [--only TEXT | --complete [--except TEXT]...] [--layout LAYOUT [--against-one-rank]]
# [--device NAME]: compares the build with a folder of golden cases (described in tests/golden/README.md; its training
# cases are the folder DIR/training, which reads DIR/pipelines). Prints one line per case and ends with "N passed,
# N failed, N not built". With --complete, a case that is not built, skipped or of an unknown kind fails the run, and the
# counts of each kind are printed; cases that are not built and whose file name or note in the manifest contains the TEXT
# of an --except are excepted, and an exception of no case fails the run. With --against-one-rank, trajectories also run in
# fp64, where the latents of every rank of the layout must be within 1e-12 of those of one rank.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
for runner in "${TESSERA_GOLDEN:-}" "$root/build/release/bin/tessera-golden" "$root/bin/tessera-golden"; do
  if [ -n "$runner" ] && [ -x "$runner" ]; then exec "$runner" "$@"; fi
done
echo "golden.sh: tessera-golden is not built; run ./run-tests.sh first" >&2
exit 2
