#!/usr/bin/env bash
# run_target_test.sh
# A fuzz target that gets through enough inputs passes and is recorded; one that ends early, finds something or says
# nothing fails, and is not.
set -euo pipefail
runner=$(dirname "$0")/run_target.sh
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/found" "$place/corpus"
echo a >"$place/corpus/a"
echo b >"$place/corpus/b"
fail() {
  echo "FAILED: $1" >&2
  cat "$place/said" >&2
  exit 1
}
# target NAME: a program that does what is on standard input instead of fuzzing.
target() {
  { echo '#!/usr/bin/env bash' && cat; } >"$place/$1"
  chmod +x "$place/$1"
}
runs() { "$runner" "$place/record" "$place/found" "$place/corpus" "$place/$1" -max_len=9 >"$place/said" 2>&1; }

target enough <<'TARGET'
[[ $* == "-max_len=9 -max_total_time=20 "* ]] && echo 'stat::number_of_executed_units: 2002'
TARGET
runs enough || fail "2,000 inputs beyond a corpus of two are enough"
grep -q '^enough: 2002 executions .*, 2 of them known inputs; the last runs before: none$' "$place/said" || fail "the count is not printed"
runs enough || fail "a second run is like the first"
grep -q 'the last runs before: 2002$' "$place/said" || fail "the previous run is not printed"
[[ $(grep -c '^enough 2002 ' "$place/record") == 2 ]] || fail "the runs are not recorded"

# A slow machine: few in the time, and all of them without a limit of time.
target slow <<'TARGET'
[[ $* == *-runs=2002* ]] && units=2002 || units=7
echo "stat::number_of_executed_units: $units"
TARGET
runs slow || fail "a slow machine decides"

target early <<'TARGET'
echo 'stat::number_of_executed_units: 2001'
TARGET
if runs early; then fail "a target that ends early passes"; fi
grep -q 'too few inputs ran; at least 2002 are expected' "$place/said" || fail "it is not said that they are few"
target silent <<<'true'
if runs silent; then fail "a target that says nothing passes"; fi
target crashing <<'TARGET'
echo 'stat::number_of_executed_units: 99999'
exit 77
TARGET
if runs crashing; then fail "a target that finds something passes"; fi
if grep -qE '^(early|silent|crashing) ' "$place/record"; then fail "a failed run is recorded"; fi
