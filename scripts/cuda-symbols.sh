#!/usr/bin/env bash
# cuda-symbols.sh [FOLDER]: regenerates kernels/cuda/library_symbols.txt, the list of functions that cuBLAS, cuDNN and
# NCCL export. A test compares the imports of LibTorch and the plug-in with it, so that no test has to download 1 GB of
# libraries. The libraries come from FOLDER, which contains unpacked wheels; without it they are downloaded and verified
# by hash.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
requirements=scripts/cuda-libraries-requirements.txt
folder=${1:-}
if [[ -z $folder ]]; then
  folder=$(mktemp -d "${TMPDIR:-/tmp}/cuda-symbols.XXXXXX")
  trap 'rm -rf "$folder"' EXIT
  python3 -m pip download --no-deps --require-hashes --no-cache-dir --disable-pip-version-check --progress-bar off \
    --only-binary=:all: --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_18_x86_64 \
    --dest "$folder" -r "$requirements"
  for wheel in "$folder"/*.whl; do unzip -q "$wheel" '*/lib/*.so*' -d "$folder"; done
fi
out=kernels/cuda/library_symbols.txt
{
  echo "# LIBRARY FUNCTION@VERSION, as scripts/cuda-symbols.sh finds them in:"
  sed -n 's/^\([^# ]*\) .*/#   \1/p' "$requirements"
  for library in libcublas.so.13 libcublasLt.so.13 libcudnn.so.9 libnccl.so.2; do
    file=$(find "$folder" -name "$library")
    nm -D --defined-only "$file" | sed -nE "s/.* [TWi] (p?[a-z]+[A-Za-z]\w*)(@@?(.*))?$/$library \1@\3/p" |
      grep -E ' (cublas|cudnn|p?nccl)' | LC_ALL=C sort
  done
} >"$out.new"
mv "$out.new" "$out"
echo "$out: $(grep -vc '^#' "$out") functions"
