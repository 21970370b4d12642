#!/usr/bin/env bash
# Creates a virtual environment of Python for tests, and creates it again when its pins have changed.
#
#   scripts/python-environment.sh NAME PINS PACKAGE…     it lies in .deps/NAME; PINS says what decides about the packages
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=.deps/${1:?a name} pins=${2:?its pins}
shift 2
[[ $(cat "$folder/.pins" 2>/dev/null) != "$pins" ]] || exit 0
rm -rf "$folder"
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
echo "$pins" >"$folder/.pins"
