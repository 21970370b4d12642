#!/usr/bin/env bash
# Runs a command whose workers compute with one instruction set, even if the processor has more. It limits Tessera's
# kernels, oneDNN, ATen and MKL together.
#
#   scripts/with-instruction-set.sh NAME COMMAND …
#     native      all that this processor has
#     avx512      AVX-512 without BF16 and AMX
#     avx2        AVX2 and FMA
#     reference   what every x86-64 processor has: the libraries' and our own plain kernels
#   scripts/with-instruction-set.sh --list
#     the names that make a difference on this processor
#
# On a processor without that set the command runs with the sets that it has.
set -euo pipefail

flags=" $(sed -n 's/^flags[[:space:]]*: //p;/^flags/q' /proc/cpuinfo) "
has() {
  local flag
  for flag in "$@"; do [[ $flags == *" $flag "* ]] || return 1; done
}
has_avx2() { has avx2 fma; }
has_avx512() { has_avx2 && has avx512f avx512bw avx512dq avx512vl; }

# The widest set equals native, so it is not listed under its own name.
list() {
  echo native
  if has_avx512 && { has avx512_bf16 || has amx_tile; }; then echo avx512; fi
  if has_avx512; then echo avx2; fi
  if has_avx2; then echo reference; fi
}

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; }

case ${1:-} in
  --list) list; exit ;;
  -h | --help) usage; exit ;;
esac
if (($# < 2)); then usage >&2; exit 2; fi
name=$1
shift
case $name in
  native) own= onednn= aten= mkl= ;;
  avx512) own=avx512 onednn=AVX512_CORE aten=avx512 mkl=AVX512 ;;
  avx2) own=avx2 onednn=AVX2 aten=avx2 mkl=AVX2 ;;
  reference) own=baseline onednn=SSE41 aten=default mkl=SSE4_2 ;;
  *) echo "with-instruction-set.sh: unknown instruction set $name; valid values are native, avx512, avx2 and reference" >&2; exit 2 ;;
esac
unset TESSERA_INSTRUCTION_SET ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA ATEN_CPU_CAPABILITY MKL_ENABLE_INSTRUCTIONS MKL_CBWR
# ATen does not check the variable and would use instructions that the processor lacks.
if [[ -z $own ]]; then
  exec "$@"
elif ! grep -qxF -- "$name" < <(list); then
  echo "with-instruction-set.sh: this processor has no more than $name, so the command runs with all it has" >&2
  exec "$@"
fi
exec env TESSERA_INSTRUCTION_SET="$own" ONEDNN_MAX_CPU_ISA="$onednn" ATEN_CPU_CAPABILITY="$aten" \
  MKL_ENABLE_INSTRUCTIONS="$mkl" "$@"
