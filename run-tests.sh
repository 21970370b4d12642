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

# stage TITLE COMMAND…: everything is run, also after a failure; what each stage took is said at the end.
status=0
stages=()
stage() {
  local title=$1 start=$SECONDS result=passed
  shift
  echo "$title"
  "$@" </dev/null || { status=$? result=FAILED; }
  stages+=("$(printf '%6d s  %-6s  %s' "$((SECONDS - start))" "$result" "$title")")
}
summary() { ((${#stages[@]} == 0)) || printf '%s\n' "Stages:" "${stages[@]}" "$(printf '%6d s  in all' "$SECONDS")"; }
trap summary EXIT

# A build that fails ends the run.
build() {
  stage "Build of $1" scripts/setup.sh --checks --preset "$@"
  [[ ${stages[-1]} != *FAILED* ]] || exit "$status"
}
run() { stage "Tests of the $1 build" ctest --preset "$@" -j "$jobs"; }

# What decides the bits of a picture; and what of it every run repeats as on another processor.
goldens='golden|golden_embedded_model|.*batch_contract.*'
numerics="$goldens|golden_.*|kernels_.*_test|layouts_test|pipefusion_test|row_split_test|runtime_test|.*batch.*|soak_test|server_kills_test"
with_instruction_set() {
  stage "Tests of the $preset build with the instruction set $1" \
    scripts/with-instruction-set.sh "$1" ctest --preset "$preset" -R "^($2)\$" -j "$jobs"
}

build "$preset"
# The parsers of outside bytes meet their corpus under AddressSanitizer in every run.
build debug fuzz_targets
run debug -R '_fuzz$'
if ((long)); then
  build fuzz fuzz_targets
  run fuzz
  for extra in debug tsan; do
    build "$extra"
    run "$extra"
  done
  stage "clang-tidy over every file" scripts/tidy.sh "build/$preset" --all
  run "$preset" --repeat until-fail:3 --schedule-random
  stage "Clients of other makers" scripts/client-tests.sh --preset "$preset" --newest
  if [[ $preset == release ]]; then
    for set in $(scripts/with-instruction-set.sh --list); do with_instruction_set "$set" "$numerics"; done
    stage "Conversion of foreign weights" scripts/convert-tests.sh
    stage "Ten minutes of mixed load" scripts/soak.sh 10
  fi
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
