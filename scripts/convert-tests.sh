#!/usr/bin/env bash
# Follows the advice in the errors about foreign weights: runs scripts/convert-model.py on pickles, quantized weights,
# single files, GGUF and LoRA files that the libraries of those formats wrote. Needs a build, and for the first run
# Python's package index (5 GB).
#
#   scripts/convert-tests.sh [--preset NAME] [TEST…]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=release
if [[ ${1:-} == --preset ]]; then
  preset=${2:?--preset needs a name}
  shift 2
fi
tessera=${TESSERA_BUILD:-build/$preset}/bin/tessera
[[ -x $tessera ]] || { echo "$tessera is missing: scripts/setup.sh --preset $preset builds it" >&2; exit 1; }
requirements=scripts/convert-test-requirements.txt
scripts/python-environment.sh convert-tests "$(sha256sum <"$requirements")" -r "$requirements"
exec env HF_HUB_OFFLINE=1 .deps/convert-tests/bin/python tests/convert/convert_model_test.py "$tessera" . "$@"
