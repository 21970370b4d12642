#!/usr/bin/env bash
# From a clone to an image: does all set-up, then generates with the embedded model into output/.
#
#   ./run-demo.sh ["PROMPT" …] [OPTION …]
#     One image for each prompt; "red apple" without one. Arguments from the first one with a dash on go to
#     `tessera generate`: ./run-demo.sh "purple heart" --seed 7
set -euo pipefail
start=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"
root=$PWD

prompts=()
while (($#)) && [[ $1 != -* ]]; do
  prompts+=("$1")
  shift
done
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set/s/^# \{0,1\}//p' run-demo.sh
  exit 0
fi
((${#prompts[@]})) || prompts=("red apple")

scripts/setup.sh tessera tessera-worker
mkdir -p output
cd "$start"
for prompt in "${prompts[@]}"; do
  "$root/build/release/bin/tessera" generate "$prompt" --output "$root/output/{prompt}-{seed}.png" "$@"
done
