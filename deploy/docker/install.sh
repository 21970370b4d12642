#!/usr/bin/env bash
# Makes the tree that an image holds in /opt/tessera: the installed programs and the parts of LibTorch that they need.
#
#   deploy/docker/install.sh BUILD PREFIX          for the CPU: the libraries that the worker loads, and no others
#   deploy/docker/install.sh BUILD PREFIX CUDA     also all else of torch/lib, and the libraries in CUDA/nvidia
set -euo pipefail
build=${1:?a build folder} prefix=${2:?where the tree shall be} cuda=${3:-}
libtorch=$(sed -n 's/^TESSERA_LIBTORCH_DIR:PATH=//p' "$build/CMakeCache.txt")
cmake --install "$build" --prefix "$prefix" --component tessera --strip >/dev/null

keep() { install -D -m 644 "$(realpath "$1")" "$prefix/lib/libtorch/${1#"$libtorch/"}"; }
worker=$prefix/lib/tessera/tessera-worker
LD_LIBRARY_PATH=$libtorch/torch/lib ldd "$worker" | while read -r name _ path _; do
  if [[ $path == not ]]; then echo "install.sh: $name is not found" >&2; exit 1; fi
  # The loader prints /a/b/../../c if a library's search path is relative to its own folder.
  path=$(realpath -s "$path" 2>/dev/null || true)
  if [[ $path == "$libtorch"/* ]]; then keep "$path"; fi
done
keep "$libtorch/torch/version.py"
if [[ -n $cuda ]]; then
  for library in "$libtorch"/torch/lib/*.so*; do
    case ${library##*/} in libtorch_python.so | libshm.so) ;; *) keep "$library" ;; esac
  done
  cp -a "$cuda/nvidia/." "$prefix/lib/libtorch/nvidia/"
  find "$prefix/lib/libtorch/nvidia" \( -name include -o -name __pycache__ \) -prune -exec rm -rf {} +
  find "$prefix/lib/libtorch/nvidia" -name '*.a' -delete
fi
for licence in "$libtorch"/*.dist-info; do
  mkdir -p "$prefix/share/doc/tessera/libraries"
  find "$licence" -maxdepth 2 -iname 'licen[cs]e*' -type f -exec cp {} "$prefix/share/doc/tessera/libraries/$(basename "${licence%%-[0-9]*}")" \; -quit
done
