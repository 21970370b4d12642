#!/usr/bin/env bash
# Packs Tessera with its shared libraries, but without LibTorch, for another Linux machine (x86-64), as
# dist/tessera-VERSION-linux-x86_64.tar.gz. Unpack it anywhere and set TESSERA_LIBTORCH to a LibTorch folder:
#
#   TESSERA_LIBTORCH=/path/to/site-packages tessera-VERSION-linux-x86_64/bin/tessera generate "red apple"
#
#   scripts/bundle.sh [--preset release|cuda] [--no-setup]
#     --no-setup  pack what build/PRESET already holds
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=release
setup=1
while (($#)); do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --no-setup) setup=0; shift ;;
    *) echo "bundle.sh: unknown argument $1; valid values: --preset release|cuda, --no-setup" >&2; exit 2 ;;
  esac
done
build=build/$preset
if ((setup)); then scripts/setup.sh --preset "$preset"; fi

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
libtorch=$(sed -n 's/^TESSERA_LIBTORCH_DIR:PATH=//p' "$build/CMakeCache.txt")
name=tessera-$version-linux-x86_64
mkdir -p dist
stage=$(mktemp -d dist/.stage.XXXXXX)
trap 'rm -rf "$stage"' EXIT
tree=$stage/$name
for component in tessera golden; do
  cmake --install "$build" --prefix "$tree" --component "$component" --strip >"$stage/install.log" ||
    { cat "$stage/install.log" >&2; exit 1; }
done

cp scripts/libtorch-requirements.txt "$tree/"

# Libraries of the system's C library are not packed: they must match the system's loader. By default libstdc++ is not
# used from the bundle either, because ours needs a newer C library than everything else does.
belongs_to_libc() {
  case $1 in
    ld-linux-x86-64.so.* | libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libresolv.so.* | libutil.so.* | libnss_*) return 0 ;;
    *) return 1 ;;
  esac
}

# The libraries of all programs, as the loader finds them here. Libraries in the LibTorch folder are not packed, and
# neither are those of the CUDA plug-in: they come with the LibTorch of a GPU machine and need not exist here.
programs=()
while IFS= read -r -d '' file; do
  if [[ $(head -c 4 "$file" | od -An -tx1) == " 7f 45 4c 46" ]]; then programs+=("$file"); fi
done < <(find "$tree/bin" "$tree/lib" -type f ! -name libtessera_cuda.so -print0)
declare -A libraries=()
while read -r soname _ path _; do
  if [[ $path == not ]]; then echo "bundle.sh: $soname is not found on this machine" >&2; exit 1; fi
  if [[ $path != /* || $(realpath "$path") == "$(realpath "$libtorch")"/* ]] || belongs_to_libc "$soname"; then continue; fi
  libraries[$soname]=$path
done < <(LD_LIBRARY_PATH=$libtorch/torch/lib ldd "${programs[@]}" | grep '=>')
mkdir -p "$tree/lib" "$tree/share/doc/tessera/libraries"
for soname in "${!libraries[@]}"; do
  file=$(realpath "${libraries[$soname]}")
  case $soname in
    libstdc++.so.* | libgcc_s.so.*) install -D -m 644 "$file" "$tree/lib/fallback/$soname" ;;
    *) install -m 644 "$file" "$tree/lib/$soname" ;;
  esac
  # Packages name their files with or without the leading /usr.
  package=$({ dpkg-query -S "$file" || dpkg-query -S "${file#/usr}"; } 2>/dev/null | sed -n '1s/:.*//p' || true)
  if [[ -n $package && -e /usr/share/doc/$package/copyright ]]; then
    cp -L "/usr/share/doc/$package/copyright" "$tree/share/doc/tessera/libraries/$package"
  fi
done

# The newest symbols that are imported from the system's libraries decide which systems it runs on.
newest() { objdump -T "${@:2}" | sed -n "s/.*$1_\([0-9.]*\).*/\1/p" | sort -Vu | tail -n 1; }
glibc=$(newest GLIBC "${programs[@]}" "$tree"/lib/*.so*)
glibcxx=$(newest GLIBCXX "${programs[@]}" "$tree"/lib/*.so*)
fallback_glibc=$(newest GLIBC "$tree"/lib/fallback/*.so*)
torch=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$libtorch/torch/version.py")

cat >"$tree/README.txt" <<EOF
Tessera $version for Linux on x86-64 with glibc $glibc and a libstdc++ with GLIBCXX_$glibcxx (that of GCC 12), or newer: Debian 12,
Ubuntu 22.04 and later. Without such a libstdc++, but with glibc $fallback_glibc, lib/fallback has one: set
LD_LIBRARY_PATH to it.

It needs LibTorch ${torch%+*}, which is not in here. TESSERA_LIBTORCH names the folder that holds torch/: that of any Python
environment with torch ${torch%+*} (\`pip show torch\`, "Location"), which for --device cuda must hold its CUDA libraries
too; or, for the CPU, one that any pip makes from the list in here:

  pip install --target libtorch --no-deps --no-compile --require-hashes --only-binary=:all: --implementation cp \\
    --python-version 3.11 --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \\
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -r libtorch-requirements.txt

  export TESSERA_LIBTORCH=/path/to/libtorch
  bin/tessera generate "red apple"

A link lib/libtorch to that folder does as well. The folder can be moved; nothing else of the system is used but its
C and C++ libraries and, for --device cuda, the NVIDIA driver. Licences: share/doc/tessera.
EOF

archive=dist/$name.tar.gz
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -9n >"$archive.part"
mv "$archive.part" "$archive"
size=$(stat -c %s "$archive")
printf '%s: %d.%d MB, %d libraries, glibc %s or newer\n' "$archive" $((size / 1000000)) $((size / 100000 % 10)) "${#libraries[@]}" "$glibc"
if ((size >= 60000000)); then
  echo "bundle.sh: the archive is larger than 60 MB" >&2
  exit 1
fi
