#!/usr/bin/env bash
# library_symbols_test.sh SYMBOLS LIBRARY…: every function of cuBLAS, cuDNN and NCCL that the LIBRARIES ask for, in the version
# that they ask for, is one of SYMBOLS, which scripts/cuda-symbols.sh has read from NVIDIA's own libraries.
set -euo pipefail
symbols=$1
shift
fail() {
  echo "FAILED: $1" >&2
  exit 1
}
asked=$(for library in "$@"; do nm -D --undefined-only "$library"; done | sed -nE 's/.* U ((cublas|cudnn|p?nccl)\w*)(@(.*))?$/\1@\4/p' | LC_ALL=C sort -u)
missing_from() { LC_ALL=C comm -23 <(echo "$asked") <(grep -v '^#' "$1" | cut -d' ' -f2 | LC_ALL=C sort -u); }

for function in cublasGemmEx cublasLtMatmul cudnnBackendExecute ncclAllReduce; do
  grep -q "^$function@" <<<"$asked" || fail "nothing asks for $function: are these LibTorch's libraries?"
done
missing=$(missing_from "$symbols")
[[ -z $missing ]] || fail "no library of the pinned versions has: ${missing//$'\n'/ }"

# A function that a library lacks, or has in another version, is noticed.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
sed '/ cublasLtMatmul@/d; s/ \(cudnnBackendExecute\)@.*/ \1@libcudnn.so.8/' "$symbols" >"$place/symbols"
[[ $(missing_from "$place/symbols" | wc -l) == 2 ]] || fail "a list that lacks two functions is taken for whole"
