#!/usr/bin/env bash
# Packs the programs of a build with their shared libraries for another Linux machine (x86-64). The archive can be
# unpacked anywhere, and it is the same to the byte for the same build and SOURCE_DATE_EPOCH.
#
#   scripts/bundle.sh [--build FOLDER] [--out FOLDER] [--cuda]
#     --build  a build folder; without it set-up builds the preset release, or cuda, and that is packed
#     --out    where the archive shall be (dist)
#     --cuda   tessera-VERSION-linux-x86_64-cuda.tar.gz: with the CUDA plug-in, the reference checks and
#              scripts/first-card.sh, but without LibTorch, which for a GPU comes from its Python package
#   without    tessera-VERSION-linux-x86_64.tar.gz: with LibTorch for the CPU; it needs nothing but glibc
#
# Environment: TESSERA_PACKAGE_LIBTORCH=0 leaves LibTorch and the worker out and compresses little, to test the rest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build= out=dist cuda=0
while (($#)); do
  case $1 in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --cuda) cuda=1; shift ;;
    *) echo "bundle.sh: unknown argument $1; valid values: --build FOLDER, --out FOLDER, --cuda" >&2; exit 2 ;;
  esac
done
if [[ -z $build ]]; then
  preset=release
  if ((cuda)); then preset=cuda; fi
  scripts/setup.sh --preset "$preset"
  build=build/$preset
fi
with_libtorch=$((!cuda))
if [[ ${TESSERA_PACKAGE_LIBTORCH:-1} == 0 ]]; then with_libtorch=0; fi
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
libtorch=$(realpath "$(sed -n 's/^TESSERA_LIBTORCH_DIR:PATH=//p' "$build/CMakeCache.txt")")
torch=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' scripts/libtorch-requirements.txt)
name=tessera-$version-linux-x86_64
archive=$out/$name.tar.gz
if ((cuda)); then archive=$out/$name-cuda.tar.gz; fi
mkdir -p "$out"
stage=$(mktemp -d "$out/.stage.XXXXXX")
trap 'rm -rf "$stage"' EXIT
tree=$stage/$name
documents=$tree/share/doc/tessera
install_component() {
  cmake --install "$build" --prefix "$tree" --component "$1" --strip >"$stage/install.log" ||
    { cat "$stage/install.log" >&2; exit 1; }
}
if ((with_libtorch)); then
  deploy/docker/install.sh "$build" "$tree"
else
  install_component tessera
fi
if ((cuda)); then
  if [[ ! -e $tree/lib/tessera/libtessera_cuda.so ]]; then
    echo "bundle.sh: $build has no CUDA plug-in; scripts/setup.sh --preset cuda builds one" >&2
    exit 1
  fi
  install_component golden
  cp scripts/libtorch-requirements.txt "$tree/"
else
  rm -f "$tree/lib/tessera/libtessera_cuda.so"
  if ((!with_libtorch)); then rm -rf "$tree/bin/tessera-worker" "$tree/lib"; fi
fi

# Libraries of the system's C library are not packed: they must match the system's loader.
belongs_to_libc() {
  case $1 in
    ld-linux-x86-64.so.* | libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libresolv.so.* | libutil.so.* | libnss_*) return 0 ;;
    *) return 1 ;;
  esac
}

# The libraries of all programs, as the loader finds them here. Those of LibTorch are in its folder, and those of the CUDA
# plug-in come with the LibTorch of a GPU machine and need not exist here.
mkdir -p "$tree/lib" "$documents/libraries"
programs=()
while IFS= read -r -d '' file; do
  if [[ $(head -c 4 "$file" | od -An -tx1) == " 7f 45 4c 46" ]]; then programs+=("$file"); fi
done < <(find "$tree/bin" "$tree/lib" -name libtorch -prune -o -type f ! -name libtessera_cuda.so -print0)
declare -A libraries=()
while read -r soname _ path _; do
  if [[ $path == not ]]; then echo "bundle.sh: $soname is not found on this machine" >&2; exit 1; fi
  path=$(realpath "$path")
  if [[ $path != /* || $path == "$libtorch"/* || $path == "$(realpath "$tree")"/* ]] || belongs_to_libc "$soname"; then continue; fi
  libraries[$soname]=$path
done < <(LD_LIBRARY_PATH=$libtorch/torch/lib ldd "${programs[@]}" | grep '=>' | sort -u)

# libstdc++ needs a newer C library than all else does. With --cuda the system's is used, so that the archive also runs on
# GPU machines with Ubuntu 22.04; lib/fallback serves systems that have none.
for soname in "${!libraries[@]}"; do
  place=$tree/lib/$soname
  case $soname in
    libstdc++.so.* | libgcc_s.so.*) if ((cuda)); then place=$tree/lib/fallback/$soname; fi ;;
  esac
  install -D -m 644 "${libraries[$soname]}" "$place"
done

# The packages that they come from, and their licences. Packages name their files with or without the leading /usr.
{ dpkg-query -S "${libraries[@]}" "${libraries[@]#/usr}" 2>/dev/null || true; } | sed 's/:.*//' | sort -u |
  while read -r package; do
    dpkg-query -W -f '${Package} ${Version}\n' "$package:amd64"
    cp -L "/usr/share/doc/$package/copyright" "$documents/libraries/$package"
  done >"$documents/packages.txt"

# The newest symbols that are imported from the system's libraries decide which systems it runs on.
newest() { objdump -T "${@:2}" | sed -n "s/.*$1_\([0-9.]*\).*/\1/p" | sort -Vu | tail -n 1; }
glibc=$(newest GLIBC "${programs[@]}" "$tree"/lib/*.so*)
{
  if ((cuda)); then
    cat <<EOF
Tessera $version for Linux on x86-64 with an NVIDIA GPU: glibc $glibc and libstdc++ of GCC 12 or newer (Debian 12, Ubuntu 22.04
and later). Without such a libstdc++, but with glibc $(newest GLIBC "$tree"/lib/fallback/*.so*), set LD_LIBRARY_PATH to lib/fallback.

LibTorch and CUDA's libraries are not in here, because they take 5 GB. They come with torch $torch from Python's index:

  python3 -m venv ~/tessera-libtorch
  ~/tessera-libtorch/bin/pip install torch==$torch
  export TESSERA_LIBTORCH=\$(echo ~/tessera-libtorch/lib/python3*/site-packages)
  bin/tessera generate "red apple" --device cuda

TESSERA_LIBTORCH names the folder that holds torch/; a link lib/libtorch to it does as well. For the CPU alone it is enough
to install libtorch-requirements.txt, which pins LibTorch by hash, with pip's options --target and --no-deps.
EOF
  else
    cat <<EOF
Tessera $version for Linux on x86-64 with glibc $glibc or newer: Debian 12 and later. Nothing else of the system is used.

  bin/tessera generate "red apple"
EOF
  fi
  echo
  echo "The folder can be moved. Licences: share/doc/tessera."
} >"$tree/README.txt"

scripts/reproducible-tar.sh "$stage" "$name" "$archive" "$epoch"
size=$(stat -c %s "$archive")
printf '%s: %d.%d MB, %d libraries, glibc %s or newer\n' "$archive" $((size / 1000000)) $((size / 100000 % 10)) "${#libraries[@]}" "$glibc"
