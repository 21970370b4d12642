#!/usr/bin/env bash
# Makes the files of a release from the commit that is checked out, in a clone of it, so that nothing else gets in:
#
#   tessera_VERSION_amd64.deb                     the Debian 12 package, with LibTorch for the CPU
#   tessera-VERSION-linux-x86_64.tar.gz           the same programs with all their libraries, for any Linux with glibc 2.36
#   tessera-VERSION-linux-x86_64-cuda.tar.gz      the programs and the CUDA plug-in, without LibTorch
#   tessera-sdk-VERSION-linux-x86_64.tar.gz       the C++ client library for Debian 12
#   tessera-VERSION.spdx.json                     what is inside, in which versions and under which licences
#   NOTES.md, SHA256SUMS                          this version's part of CHANGELOG.md; the checksums of the files above
#
#   scripts/release.sh VERSION [--no-cuda] [--build FOLDER] [--out FOLDER]
#     --no-cuda  without the CUDA plug-in and its archive
#     --build    pack what this build folder has, in place of a clone that is built first; with the CUDA archive if the
#                plug-in was built
#     --out      where the files shall be (dist/VERSION)
#
# Times in the files are those of the commit, and the same build gives the same bytes. The compilers map the source's path
# and the programs have no path of the build, so that another clone can give them too. TESSERA_MAINTAINER in
# the environment names who answers for the package, as NAME <ADDRESS>; it counts when the build is configured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version= build= out= preset=package-cuda
while (($#)); do
  case $1 in
    --no-cuda) preset=package; shift ;;
    --build) build=$(realpath "${2:?--build needs a folder}"); shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "release.sh: unknown option $1; valid values: --no-cuda, --build FOLDER, --out FOLDER" >&2; exit 2 ;;
    *) version=$1; shift ;;
  esac
done
stop() { echo "release.sh: $1" >&2; exit 1; }
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || stop "the version is \"$version\"; it must be three numbers, as in 0.1.0"
project=$(sed -n 's/^project(tessera VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[[ $version == "$project" ]] || stop "the version is $version, but CMakeLists.txt says $project"
notes=$(sed -n "/^## $version\( \|\$\)/,/^## /{/^## /d;p}" CHANGELOG.md)
[[ $notes == *[![:space:]]* ]] || stop "CHANGELOG.md has no text below \"## $version\""
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C.UTF-8
out=$(realpath -m "${out:-dist/$version}")
mkdir -p "$out"
work=$(mktemp -d "$out/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT

source=$PWD
if [[ -z $build ]]; then
  [[ -z $(git status --porcelain --untracked-files=no) ]] || stop "files are changed and not committed: git status names them"
  source=$work/clone
  git clone --quiet --no-hardlinks . "$source"
  git -C "$source" checkout --quiet "$commit"
  # What is pinned by hash is not fetched again; set-up compares the pins.
  mkdir "$source/.deps"
  for folder in libtorch cuda; do
    if [[ -d .deps/$folder ]]; then cp -al "$(realpath ".deps/$folder")" "$source/.deps/$folder"; fi
  done
  programs=(tessera tessera-worker tessera-fake-worker)
  if [[ $preset == package-cuda ]]; then programs+=(tessera_cuda tessera-golden bench_operators bench_shapes); fi
  "$source/scripts/setup.sh" --preset "$preset" "${programs[@]}" tessera_image_client
  build=$source/build/$preset
fi
libtorch=$(sed -n 's/^TESSERA_LIBTORCH_DIR:PATH=//p' "$build/CMakeCache.txt")

(cd "$build" && cpack -G DEB -B "$work/deb" >"$work/cpack.log" 2>&1) || { cat "$work/cpack.log" >&2; exit 1; }
"$source/scripts/bundle.sh" --build "$build" --out "$work"
if [[ -e $build/bin/libtessera_cuda.so && $preset == package-cuda ]]; then
  "$source/scripts/bundle.sh" --build "$build" --out "$work" --cuda
fi

sdk=tessera-sdk-$version-linux-x86_64
cmake --install "$build" --prefix "$work/$sdk" --component client >/dev/null
mkdir -p "$work/$sdk/share/doc/tessera-sdk"
cp -r "$source/examples/cpp" "$work/$sdk/share/doc/tessera-sdk/example"
cp "$source/LICENSE" "$work/$sdk/share/doc/tessera-sdk/"
cat >"$work/$sdk/README.txt" <<EOF
The C++ client library of Tessera $version for Debian 12 on x86-64. It needs g++, cmake, libprotobuf-dev, libabsl-dev and
libssl-dev. The folder can be anywhere; a program finds it by

  cmake -S share/doc/tessera-sdk/example -B build -DCMAKE_PREFIX_PATH=\$PWD

and in its CMakeLists.txt by find_package(Tessera). On another system build it from the sources of Tessera:
cmake --install BUILD --prefix PREFIX --component client.
EOF
"$source/scripts/reproducible-tar.sh" "$work" "$sdk" "$work/$sdk.tar.gz" "$SOURCE_DATE_EPOCH"

archives=("$work"/*.tar.gz)
python3 "$source/scripts/sbom.py" --version "$version" --commit "$commit" --libtorch "$libtorch" \
  --archives "${archives[@]}" --package "$work"/deb/*.deb \
  >"$work/tessera-$version.spdx.json"
printf '%s\n' "$notes" | sed '/./,$!d' >"$work/NOTES.md"
files=("$work"/deb/*.deb "${archives[@]}" "$work/tessera-$version.spdx.json" "$work/NOTES.md")
mv "${files[@]}" "$out/"
(cd "$out" && sha256sum -- "${files[@]##*/}" | sort -k 2 >SHA256SUMS)
echo "The files of Tessera $version are in $out:"
(cd "$out" && ls -sh --block-size=MB "${files[@]##*/}" SHA256SUMS)
