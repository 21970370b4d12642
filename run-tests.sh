#!/usr/bin/env bash
# Does all set-up, builds everything and runs every test.
#
#   ./run-tests.sh [--long] [--no-torch]
#     --no-torch  only the front end and all else that needs no LibTorch
#     --long      afterwards also what takes longer: AddressSanitizer and ThreadSanitizer builds, libFuzzer,
#                 clang-tidy over the files that include LibTorch, every test three times in random order, goldens,
#                 layouts, batches and soak with each instruction set, real clients of other makers against the
#                 server, the conversion of foreign weights, and a server under mixed load for ten minutes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

long=0
preset=release
for argument in "$@"; do
  case $argument in
    --long) long=1 ;;
    --no-torch) preset=no-torch ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' run-tests.sh; exit 0 ;;
    *) echo "run-tests.sh: unknown argument $argument; legal: --long, --no-torch" >&2; exit 2 ;;
  esac
done
jobs=${TESSERA_JOBS:-$(nproc)}

# Everything is run, also after a failure.
status=0
run() {
  echo "Tests of the $1 build"
  ctest --preset "$@" -j "$jobs" </dev/null || status=$?
}

# What decides the bits of a picture; and what of it every run repeats as on another processor.
goldens='golden|golden_embedded_model|.*batch_contract.*'
numerics="$goldens|golden_.*|kernels_.*_test|layouts_test|pipefusion_test|row_split_test|runtime_test|.*batch.*|soak_test|server_kills_test"
with_instruction_set() {
  echo "Tests of the $preset build with the instruction set $1"
  scripts/with-instruction-set.sh "$1" ctest --preset "$preset" -R "^($2)\$" -j "$jobs" </dev/null || status=$?
}

scripts/setup.sh --checks --preset "$preset"
# The parsers of outside bytes meet their corpus under AddressSanitizer in every run.
scripts/setup.sh --checks --preset debug fuzz_targets
run debug -R '_fuzz$'
if ((long)); then
  scripts/setup.sh --checks --preset fuzz fuzz_targets
  run fuzz
  for extra in debug tsan; do
    scripts/setup.sh --checks --preset "$extra"
    run "$extra"
  done
  scripts/tidy.sh "build/$preset" --all || status=$?
  run "$preset" --repeat until-fail:3 --schedule-random
  if [[ $preset == release ]]; then
    for set in $(scripts/with-instruction-set.sh --list); do with_instruction_set "$set" "$numerics"; done
  fi
  scripts/client-tests.sh --preset "$preset" --newest || status=$?
  [[ $preset != release ]] || scripts/convert-tests.sh || status=$?
  [[ $preset != release ]] || scripts/soak.sh 10 || status=$?
else
  run "$preset"
  if [[ $preset == release ]]; then
    sets=$(scripts/with-instruction-set.sh --list)
    # AVX2, or where that is what this processor has, less.
    [[ $sets == *avx2* ]] && other=avx2 || other=reference
    with_instruction_set "$other" "$goldens"
  fi
fi
exit "$status"
