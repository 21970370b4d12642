#!/usr/bin/env bash
# Does all set-up, builds everything and runs every test.
#
#   ./run-tests.sh [--long] [--no-torch]
#     --no-torch  only the front end and all else that needs no LibTorch
#     --long      afterwards also what takes longer: a build that compiles each file for itself, AddressSanitizer and
#                 ThreadSanitizer builds, libFuzzer, one definition of each type, clang-tidy over the files that
#                 include LibTorch, every seed of the tests with random faults, full-size models on eight fake cards,
#                 every layout where a send waits for its receiver, every test three times in random order, goldens,
#                 layouts, batches and soak with each instruction set, real clients of other makers against the
#                 server, the conversion of foreign weights, a server under mixed load for ten minutes, an image whose
#                 steps take minutes, a style that the built-in model is taught, the CPU image's file tree with this
#                 build, run, and the files of a release: made twice and compared, the archive used in bare trees of
#                 Debian 12 and 13, the package installed and removed in Debian 12
#
# The parsers of outside bytes meet their corpus under AddressSanitizer when they or it have changed since that was last
# found clean on this machine, and always with --long.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

long=0
preset=release
for argument in "$@"; do
  case $argument in
    --long) long=1 ;;
    --no-torch) preset=no-torch ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' run-tests.sh; exit 0 ;;
    *) echo "run-tests.sh: unknown argument $argument; valid values: --long, --no-torch" >&2; exit 2 ;;
  esac
done
# Twice as many tests at once as processors, because most wait for processes more than they compute.
jobs=$((2 * ${TESSERA_JOBS:-$(nproc)}))

# stage TITLE COMMAND…: every stage runs, also after a failure; the time of each is printed at the end.
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

# Tests with random faults, of which the other stages run one seed and few faults (tests/support/fault_runs.h).
every_seed() {
  TESSERA_LONG=1 stage "Every seed of the tests with random faults" \
    ctest --preset "$preset" -j "$jobs" -R '^(job_crash_runs|power_cut_test|rank_faults_test|server_kills_test|shared_queue_kills_test|soak_test|batch_test|remote_batch_test|batch_power_cut_test|train_faults_test)$'
}

# Every trajectory of the newer families in fp64 on two more layouts than the tests of a build run.
newer_layouts() {
  local goldens layout
  for goldens in tests/golden-newer tests/golden-edit; do
    for layout in cfg=2,ulysses=2 tensor=2,ring=2; do
      scripts/golden.sh "$goldens" --layout "$layout" --against-one-rank || return
    done
  done
}

# The tests of code that decides the bits of a picture, and those that every run repeats as on another processor.
goldens='golden|golden_embedded_model|.*batch_contract.*'
numerics="$goldens|golden_.*|kernels_.*_test|layouts_test|pipefusion_test|row_split_test|(denoiser|engine|families|loaded_adapters)_test|.*batch.*|soak_test|server_kills_test"
with_instruction_set() {
  stage "Tests of the $preset build with the instruction set $1" \
    scripts/with-instruction-set.sh "$1" ctest --preset "$preset" -R "^($2)\$" -j "$jobs"
}

as_root=()
((EUID == 0)) || as_root=(sudo)
build "$preset"
clean_corpus=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tessera/clean-corpus
parsers=$(find CMakeLists.txt CMakePresets.json base client/cli/batch cmake control models/captions models/tokenizers models/weights parallel/plan \
  proto server tests/fuzz tests/fuzz_replay_main.cc tests/support -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum)
if ((long)) || [[ $(cat "$clean_corpus" 2>/dev/null) != "$parsers" ]]; then
  build debug fuzz_targets
  run debug -R '_fuzz$'
  if ((status == 0)); then { mkdir -p "${clean_corpus%/*}" && echo "$parsers" >"$clean_corpus"; } || true; fi
else
  echo "Parsers and corpora are unchanged since they were last found clean under AddressSanitizer"
fi
# CUDA kernels, which run on the host there: out of bounds and misaligned access show under the sanitizers.
clean_kernels=${clean_corpus%/*}/clean-kernels
kernels=$(find CMakeLists.txt CMakePresets.json cmake base kernels/cuda tests/planted tests/support/cuda_emulation -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum)
if ((!long)) && [[ $(cat "$clean_kernels" 2>/dev/null) != "$kernels" ]]; then
  build debug cuda_kernel_tests
  run debug -R '^cuda_.*_test$'
  if ((status == 0)); then { mkdir -p "${clean_kernels%/*}" && echo "$kernels" >"$clean_kernels"; } || true; fi
fi
if ((long)); then
  # Checks of the sources run first: they find most, and should not fail after hours of other stages.
  if [[ $preset == release ]]; then
    # Files that are compiled together could rely on each other's includes.
    build single
    stage "clang-tidy over every file" scripts/tidy.sh build/single --all
    stage "One definition of each type" scripts/odr-check.sh build/single
  fi
  build fuzz fuzz_targets
  run fuzz
  for extra in debug tsan; do
    build "$extra"
    run "$extra"
  done
  every_seed
  [[ $preset != release ]] || TESSERA_LONG=1 stage "Steps, layouts and training of full-size models on fake cards, and a real memory limit" \
    ctest --preset "$preset" -R '^(fake_cuda_((layout|step)_budgets|serve|train_cards)_test|first_card_on_fake_cuda|(memory_limit|cpu_memory)_test)$'
  [[ $preset != release ]] || TESSERA_RENDEZVOUS=1 stage "Every layout where a send waits for its receiver" \
    ctest --preset "$preset" -j "$jobs" -R '^(layouts|pipefusion|gradient_layouts)_test$'
  gradients="build/$preset/runtime/training/training_test"
  [[ ! -x $gradients ]] || stage "Gradients of every family on every layout" \
    "$gradients" --source=gradient_layouts_test.cc --gtest_also_run_disabled_tests --gtest_filter='DISABLED_Long/*'
  [[ $preset != release ]] || stage "Trajectories of the newer families on more layouts" newer_layouts
  nccl="build/$preset/runtime/through_nccl_test"
  [[ ! -x $nccl ]] || stage "Every family on every layout through NCCL" \
    "$nccl" --source=nccl_layouts_test.cc --gtest_also_run_disabled_tests --gtest_filter='DISABLED_Long/*'
  run "$preset" --repeat until-fail:3 --schedule-random
  stage "Clients of other makers" scripts/client-tests.sh --preset "$preset" --newest
  if [[ $preset == release ]]; then
    for set in $(scripts/with-instruction-set.sh --list); do with_instruction_set "$set" "$numerics"; done
    stage "Conversion of foreign weights" scripts/convert-tests.sh
    scripts/python-environment.sh emoji-style "$(sha256sum <scripts/emoji-style-requirements.txt)" -r scripts/emoji-style-requirements.txt
    stage "A style that an adapter learns" .deps/emoji-style/bin/python scripts/train-emoji-style.py --output "$(mktemp -d)/run"
    # Two of them, each of a few operators.
    stage "Steps of minutes" "build/$preset/bin/tessera" generate "red apple" --size 1536 --steps 2 --quiet \
      --output "$(mktemp -d)/large.png"
    stage "Ten minutes of mixed load" scripts/soak.sh 10
    stage "The CPU image's file tree by its Dockerfile" "${as_root[@]}" scripts/image-tree.py --installed "build/$preset"
    stage "The files of a release, used in trees of Debian 12 and 13" "${as_root[@]}" scripts/package-check.py "build/$preset"
  fi
else
  echo "Tests with random faults run with seed ${TESSERA_FAULT_SEED:-1} alone"
  run "$preset"
  if [[ $preset == release ]]; then
    sets=$(scripts/with-instruction-set.sh --list)
    # AVX2, or where that is what this processor has, less.
    [[ $sets == *avx2* ]] && other=avx2 || other=reference
    with_instruction_set "$other" "$goldens"
  fi
fi
exit "$status"
