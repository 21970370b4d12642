#!/usr/bin/env bash
# run_target.sh RECORD FOUND CORPUS TARGET [OPTION…]
# Runs a libFuzzer target for 20 seconds, and on a slow machine for as long as it takes to get past the inputs of both
# folders and through 2,000 more. A target that ends with fewer has failed, whatever it says: it ends early or
# hangs. How many inputs it ran is printed with the earlier runs of the same build folder, and added to RECORD.
set -euo pipefail
record=$1 found=$2 corpus=$3
shift 3
name=$(basename "$1")
readonly beyond_corpus=2000

touch "$record"
seeds=$(find "$found" "$corpus" -type f | wc -l)
least=$((seeds + beyond_corpus))
output=$(mktemp)
trap 'rm -f "$output"' EXIT
# Prints the target's output, and sets `executions` to the number of inputs that it ran.
run() {
  "$@" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 "$found" "$corpus" 2>&1 | tee "$output"
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$output")
  executions=${executions:-0}
}

begin=$SECONDS
run "$@" -max_total_time=20
((executions >= least)) || run "$@" "-runs=$least"
seconds=$((SECONDS - begin))

earlier=$(awk -v name="$name" '$1 == name { print $2 }' "$record" | tail -n 5 | paste -sd ' ')
echo "$name: $executions executions in $seconds s, $seeds of them known inputs; the last runs before: ${earlier:-none}"
if ((executions < least)); then
  echo "$name: too few inputs ran; at least $least are expected" >&2
  exit 1
fi
printf '%s %s %s %s\n' "$name" "$executions" "$seconds" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >>"$record"
