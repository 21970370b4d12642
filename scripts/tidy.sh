#!/usr/bin/env bash
# clang-tidy by the list in .clang-tidy. Every warning is an error.
#
#   scripts/tidy.sh [BUILD_FOLDER] [--all]
#     BUILD_FOLDER  a configured build (build/release)
#     --all         also the files that include LibTorch: tens of seconds each
#
# A file is looked at again only when it, a header of the project or the list has changed since it was last found clean.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/release
all=0
for argument in "$@"; do
  case $argument in
    --all) all=1 ;;
    -*) echo "tidy.sh: unknown option $argument" >&2; exit 2 ;;
    *) build=$argument ;;
  esac
done
command -v clang-tidy-14 >/dev/null || { echo "clang-tidy-14 is missing; scripts/setup.sh --checks installs it" >&2; exit 1; }
[[ -e $build/compile_commands.json ]] || { echo "$build has no compile_commands.json; run scripts/setup.sh" >&2; exit 1; }

# Our own files, as paths from the root.
list_files() {
  sed -n 's/^ *"command": "\(.*\)",$/\1/p' "$build/compile_commands.json" | grep -v -- ' -c .*\.pb\.cc$' |
    if ((all)); then cat; else grep -v '/torch/include'; fi |
    sed -n "s|.* -c $PWD/\([^ ]*\.cc\)\$|\1|p" | grep -v '^build' | sort -u
}
mapfile -t files < <(list_files)
((${#files[@]})) || { echo "$build/compile_commands.json names no file of $PWD" >&2; exit 1; }

clean=$(realpath -m "$build/tidy")
mkdir -p "$clean"
# clang refuses GCC's precompiled headers, and takes the same headers as text.
for header in "$build"/CMakeFiles/*.dir/cmake_pch.hxx; do
  if [[ -e $header ]]; then cp "$header" "$clean/$(basename "$(dirname "$header")" .dir).hxx"; fi
done
sed "s| -Winvalid-pch -include [^ ]*/\([^/ ]*\)\.dir/cmake_pch.hxx| -include $clean/\1.hxx|" \
  "$build/compile_commands.json" >"$clean/compile_commands.json"
shared=$(find base bench client control kernels models parallel runtime server tests -name '*.h' -print0 | sort -z | xargs -0 cat .clang-tidy scripts/tidy.sh | sha256sum)
stale=()
for file in "${files[@]}"; do
  stamp=$clean/${file//\//,}
  [[ $(cat "$stamp" 2>/dev/null) == "$(sha256sum <"$file") $shared" ]] || stale+=("$file")
done
check() {
  if clang-tidy-14 -p "$1" --quiet --extra-arg=-Wno-unknown-warning-option "$2" 2>/dev/null; then
    echo "$(sha256sum <"$2") $4" >"$3/${2//\//,}"
  else
    echo "$2 is not clean" >&2
    return 1
  fi
}
export -f check
if ((${#stale[@]})); then
  printf '%s\0' "${stale[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c 'check "$@"' _ "$clean" {} "$clean" "$shared"
fi
echo "clang-tidy: ${#files[@]} files clean, ${#stale[@]} of them looked at now"
