#!/usr/bin/env bash
# Checks whether two files of the product define one type differently. No compiler can see that in a single file, and a
# linker silently takes either definition. Every file is compiled for link-time optimisation, without code, and all are
# joined, including those that no program links together; the compiler then compares their types (-Wodr).
#
#   scripts/odr-check.sh [BUILD_FOLDER] [FILE…]
#     BUILD_FOLDER  a build that compiles each file for itself (build/single)
#     FILE…         these files alone, which need no build folder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/single
if (($#)) && [[ -d $1 ]]; then
  build=$1
  shift
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags='-O0 -flto -fno-fat-lto-objects -w'

# Prints one command per line.
commands() {
  local file
  if (($#)); then
    for file in "$@"; do echo "g++ -std=c++20 $flags -c $file -o $work/${file//\//,}.o"; done
    return
  fi
  [[ -e $build/compile_commands.json ]] || { echo "$build has no compile_commands.json; run scripts/setup.sh --preset single" >&2; exit 1; }
  # Precompiled headers were made with other flags, so their text is included instead.
  local header
  for header in "$build"/CMakeFiles/*.dir/cmake_pch.hxx; do cp "$header" "$work/$(basename "$(dirname "$header")" .dir).hxx"; done
  sed -n 's/^ *"command": "\(.*\)",$/\1/p' "$build/compile_commands.json" | sed 's/\\"/"/g; s/\\\\/\\/g' |
    grep -E " -c $PWD/(base|client|control|kernels/cpu|kernels|models|parallel|runtime|server)/[^ ]*\.cc$" | grep -vE '_(test|fuzz)\.cc$' |
    grep -v TESSERA_PLANTED_BUGS |
    sed -E "s| -Winvalid-pch -include [^ ]*/([^/ ]*)\.dir/cmake_pch\.hxx| -include $work/\1.hxx|; s| -O[0-9]||g; s| -Werror||g; s| -M[DTF]( [^ ]*)?||g" |
    awk -v flags="$flags" -v work="$work" '{
      at = match($0, / -o [^ ]* -c /); source = $NF; name = source; gsub("/", ",", name)
      if (!seen[source]++) print substr($0, 1, at - 1), flags, "-c", source, "-o", work "/" name ".o"
    }'
}
commands "$@" >"$work/commands"
count=$(wc -l <"$work/commands")
((count)) || { echo "odr-check.sh: there is no file to look at" >&2; exit 1; }
xargs -a "$work/commands" -d '\n' -P "$(nproc)" -I{} bash -c '{}' || { echo "odr-check.sh: a file does not compile" >&2; exit 1; }

# Only the joined types are needed, so several definitions of main are allowed.
g++ -flto -r -nostdlib -O0 -flinker-output=rel -Wl,-z,muldefs "$work"/*.o -o "$work/joined" 2>"$work/messages" ||
  { cat "$work/messages" >&2; exit 1; }
if grep -q -- '\[-Wodr\]' "$work/messages"; then
  grep -A 12 -- '\[-Wodr\]' "$work/messages" >&2
  exit 1
fi
echo "no type is defined twice with different layouts in $count files"
