#!/usr/bin/env bash
# Lists C++ files whose formatting differs from .clang-format; `scripts/format-check.sh --fix` formats them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

format=clang-format-14
command -v "$format" >/dev/null || { echo "$format is missing; scripts/setup.sh --checks installs it" >&2; exit 1; }
folders=(base bench client control kernels models parallel runtime server tests examples)
mapfile -d '' files < <(find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0)
if [[ ${1:-} == --fix ]]; then
  exec "$format" -i "${files[@]}"
fi
if ! differences=$("$format" --dry-run -Werror "${files[@]}" 2>&1); then
  sed -n 's/:[0-9]*:[0-9]*: error:.*/: differs from .clang-format/p' <<<"$differences" | sort -u >&2
  echo "scripts/format-check.sh --fix formats them" >&2
  exit 1
fi
