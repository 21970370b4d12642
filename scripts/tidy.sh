#!/usr/bin/env bash
# Runs clang-tidy with the checks in .clang-tidy. Every warning is an error.
#
#   scripts/tidy.sh [BUILD_FOLDER] [--all]
#     BUILD_FOLDER  a build that is up to date and compiles each file for itself (build/single)
#     --all         also the files that include LibTorch: ten seconds each
#
# A file is checked again only if it, its includes within the project, the list of checks or clang-tidy have changed
# since it was last clean on this machine, in any clone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/single
all=0
for argument in "$@"; do
  case $argument in
    --all) all=1 ;;
    -*) echo "tidy.sh: unknown option $argument" >&2; exit 2 ;;
    *) build=$argument ;;
  esac
done
[[ -e $build/compile_commands.json ]] || { echo "$build has no compile_commands.json; run scripts/setup.sh --preset single" >&2; exit 1; }
requirements=scripts/tidy-requirements.txt
scripts/python-environment.sh tidy "$(sha256sum <"$requirements")" --require-hashes -r "$requirements"

# Our own files, as paths from the root.
list_files() {
  sed -n 's/^ *"command": "\(.*\)",$/\1/p' "$build/compile_commands.json" | grep -v -- ' -c .*\.pb\.cc$' |
    if ((all)); then cat; else grep -v '/torch/include'; fi |
    sed -n "s|.* -c $PWD/\([^ ]*\.cc\)\$|\1|p" | grep -v '^build' | sort -u
}
list_files >"$build/tidy-files"
count=$(wc -l <"$build/tidy-files")
((count)) || { echo "$build/compile_commands.json names no file of $PWD" >&2; exit 1; }

commands=$build/tidy
mkdir -p "$commands"
# clang rejects GCC's precompiled headers, so their text is included instead.
for header in "$build"/CMakeFiles/*.dir/cmake_pch.hxx; do
  if [[ -e $header ]]; then cp "$header" "$commands/$(basename "$(dirname "$header")" .dir).hxx"; fi
done
# clang-tidy lacks OpenMP's header, and rejects an assignment in RapidJSON that is never called.
headers=$commands/headers
mkdir -p "$headers"
ln -sf "$(g++ -print-file-name=include/omp.h)" "$headers/omp.h"
cp -r /usr/include/rapidjson "$headers"
sed -i '/{ s = rhs.s; length = rhs.length; }/d' "$headers/rapidjson/document.h"
sed "s| -Winvalid-pch -include [^ ]*/\([^/ ]*\)\.dir/cmake_pch.hxx| -include $PWD/$commands/\1.hxx|; s| -c | -isystem $PWD/$headers -c |" \
  "$build/compile_commands.json" >"$commands/compile_commands.json"

# The inputs of each file, as the compiler reported them. Prints "FILE DIGEST" for them and for everything else that
# affects the result.
digests() {
  local list
  list=$(cat .clang-tidy "$requirements" scripts/tidy.sh cmake/*.cmake CMakeLists.txt | sha256sum)
  git ls-files -z '*.h' '*.cc' '*.inc' '*.proto' | xargs -0 sha256sum >"$commands/contents"
  ninja -C "$build" -t deps |
    awk -v root="$PWD/" -v list="$list" '
      FILENAME != "-" { content[$2] = $1; next }
      /^[^ ]/ { source = ""; next }
      NF == 0 { source = ""; next }
      {
        path = $1
        if (index(path, root) != 1) next
        path = substr(path, length(root) + 1)
        if (source == "") { source = path; text[source] = list }  # the first is the compiled file
        if (path in content) text[source] = text[source] " " path " " content[path]
      }
      END { for (source in text) if (source in content) print source, text[source] }' "$commands/contents" - |
    while read -r source text; do echo "$source $(sha256sum <<<"$text" | cut -d' ' -f1)"; done
}
digests >"$commands/digests"

clean=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tessera/tidy
mkdir -p "$clean"
declare -A digest
while read -r source value; do digest[$source]=$value; done <"$commands/digests"
stale=()
while read -r file; do
  [[ -n ${digest[$file]-} && -e $clean/${digest[$file]} ]] || stale+=("$file ${digest[$file]-}")
done <"$build/tidy-files"
check() {
  local folder=$1 clean=$2 file digest
  read -r file digest <<<"$3"
  if .deps/tidy/bin/clang-tidy -p "$folder" --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-deprecated-declarations "$file" 2>/dev/null; then
    [[ -z $digest ]] || touch "$clean/$digest"
  else
    echo "$file is not clean" >&2
    return 1
  fi
}
export -f check
if ((${#stale[@]})); then
  printf '%s\0' "${stale[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c 'check "$@"' _ "$commands" "$clean" {}
fi
echo "clang-tidy: $count files clean, ${#stale[@]} of them looked at now"
