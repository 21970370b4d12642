#!/usr/bin/env bash
# scripts/golden.sh DIR [--only TEXT | --complete] [--layout LAYOUT] [--device NAME]: compares the build with a folder of
# golden cases (described in tests/golden/README.md; its training cases are the folder DIR/training, which reads
# DIR/pipelines). Prints one line per case and ends with "N passed, N failed, N not built". With --complete, a case that
# is not built, skipped or of an unknown kind fails the run, and the counts of each kind are printed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
for runner in "${TESSERA_GOLDEN:-}" "$root/build/release/bin/tessera-golden" "$root/bin/tessera-golden"; do
  if [ -n "$runner" ] && [ -x "$runner" ]; then exec "$runner" "$@"; fi
done
echo "golden.sh: tessera-golden is not built; run ./run-tests.sh first" >&2
exit 2
