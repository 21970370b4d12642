#!/usr/bin/env bash
# instruction_sets_test.sh TESSERA
# Under scripts/with-instruction-set.sh our kernels and oneDNN use only the set, the picture names it, and an
# unknown name is refused with the valid ones.
set -euo pipefail
tessera=$1
with=scripts/with-instruction-set.sh
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
fail() {
  echo "FAILED: $1" >&2
  cat "$place/said" >&2
  exit 1
}
declare -A own=([avx512]=avx512 [avx2]=avx2 [reference]=baseline)
declare -A onednn=([avx512]="Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions" [avx2]="Intel AVX2"
  [reference]="Intel SSE4.1")

make() {  # make SET: a picture of one step in $place, and what was said
  ONEDNN_VERBOSE=1 "$with" "$1" "$tessera" generate "red apple" --seed 1 --steps 1 --dtype bf16 --verbose \
    --output "$place/$1.png" >"$place/said" 2>&1 || fail "$1: no picture"
  parameters=$("$tessera" inspect "$place/$1.png")
}
for set in $("$with" --list); do
  make "$set"
  if [[ $set == native ]]; then
    native=$(sed -n 's/.*Instruction set: \([a-z0-9_]*\).*/\1/p' <<<"$parameters")
    [[ -n $native ]] || fail "the picture names no instruction set"
    continue
  fi
  [[ $parameters == *"Instruction set: ${own[$set]}, "* ]] || fail "$set: the picture says $parameters"
  [[ ${own[$set]} != "$native" ]] || fail "$set is the native set, which the list leaves out"
  # Our operators decide whether oneDNN is called at all.
  used=$(sed -n 's/^onednn_verbose.*,cpu,isa://p' "$place/said")
  [[ -z $used || $used == "${onednn[$set]}" ]] || fail "$set: oneDNN uses '$used'"
done

if TESSERA_INSTRUCTION_SET=avx3 "$tessera" generate "red apple" --steps 1 --output "$place/none.png" >"$place/said" 2>&1; then
  fail "an unknown set is accepted"
fi
grep -q "TESSERA_INSTRUCTION_SET is 'avx3'; valid values are baseline, avx2, avx512, avx512_bf16 and amx" "$place/said" ||
  fail "the error does not name the valid sets"
if "$with" avx3 true >"$place/said" 2>&1; then fail "the script accepts an unknown set"; fi
[[ $("$with" native bash -c 'echo "${TESSERA_INSTRUCTION_SET-none} ${ONEDNN_MAX_CPU_ISA-none}"') == "none none" ]] || fail "native is not native"
