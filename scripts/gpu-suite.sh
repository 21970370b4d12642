#!/usr/bin/env bash
# Proves and measures Tessera on a machine with an NVIDIA GPU. It runs from an unpacked bundle (scripts/bundle.sh
# --preset cuda makes it) or from a clone that is built, and writes a table in the form of docs/performance.md.
#
#   scripts/gpu-suite.sh [--golden DIR]… [--model DIR] [--sizes "512 1024"] [--dtypes "bf16 fp32"] [--steps N]
#                        [--device cuda:N] [--output FILE]
#     --golden DIR  folder of golden cases, run on the CPU and on the GPU (default: tests/golden and tests/emoji of the
#                   current folder, where they exist); "none" for none
#     --model DIR   model folder to measure beside the embedded model
#     --sizes       sides of the square images to measure that model at
#     --output      where the table goes (gpu-suite.md)
#
# LibTorch with its CUDA libraries is taken from TESSERA_LIBTORCH, or else from the torch that python3 imports.
# Exit status: 0 when everything passed, 1 when a golden case failed or the GPU's picture is another, 2 when it cannot
# run here.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command_line="scripts/gpu-suite.sh $*"

stop() {
  printf 'gpu-suite.sh: %s\n' "$@" >&2
  exit 2
}

goldens=()
model=
sizes="512 1024"
dtypes="bf16 fp32"
steps=20
device=cuda
output=gpu-suite.md
while (($#)); do
  case $1 in
    --golden | --model | --sizes | --dtypes | --steps | --device | --output)
      [[ -n ${2:-} ]] || stop "$1 needs a value"
      case $1 in
        --golden) goldens+=("$2") ;;
        --model) model=$2 ;;
        --sizes) sizes=$2 ;;
        --dtypes) dtypes=$2 ;;
        --steps) steps=$2 ;;
        --device) device=$2 ;;
        --output) output=$2 ;;
      esac
      shift 2
      ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) stop "unknown argument $1; see --help" ;;
  esac
done
if ((${#goldens[@]} == 0)); then
  for folder in tests/golden tests/emoji; do
    if [[ -e $folder/cases.json ]]; then goldens+=("$folder"); fi
  done
elif [[ ${goldens[*]} == none ]]; then
  goldens=()
fi
for folder in ${goldens[@]+"${goldens[@]}"}; do
  [[ -e $folder/cases.json ]] || stop "--golden is $folder, which holds no cases.json"
done
if [[ -n $model && ! -e $model/model_index.json ]]; then stop "--model is $model, which holds no model_index.json"; fi
if [[ $device != cuda && ! $device =~ ^cuda:[0-9]+$ ]]; then stop "--device is $device; valid values are cuda and cuda:N"; fi

# ---- what is here
if ! gpus=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1); then
  stop "no NVIDIA driver is at work on this machine (nvidia-smi: ${gpus##*: })"
fi
[[ -n $gpus ]] || stop "the NVIDIA driver finds no GPU on this machine"
index=${device#cuda}
index=${index#:}
gpu=$(sed -n "$((${index:-0} + 1))p" <<<"$gpus")
[[ -n $gpu ]] || stop "there is no GPU for $device; nvidia-smi lists $(grep -c . <<<"$gpus")"

programs=
for folder in "$root/bin" "$root/build/cuda/bin" "$root/build/release/bin"; do
  if [[ -x $folder/tessera && -x $folder/tessera-golden ]]; then programs=$folder; break; fi
done
[[ -n $programs ]] || stop "tessera and tessera-golden are neither in $root/bin nor built"

if [[ -z ${TESSERA_LIBTORCH:-} && $programs == "$root/bin" && ! -e $root/lib/libtorch/torch/lib/libtorch_cuda.so ]]; then
  find_torch='import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("torch").origin).parent.parent)'
  TESSERA_LIBTORCH=$(python3 -c "$find_torch" 2>/dev/null) || stop "TESSERA_LIBTORCH is not set, and python3 has no torch"
  export TESSERA_LIBTORCH
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=()
failed=0
row() {
  rows+=("| $1 | $2 | $3 | $4 | $5 |")
  printf '%-28s %-8s %-5s %-10s %s\n' "$1" "$2" "$3" "$4" "$5"
}
fail() {
  failed=1
  printf 'FAILED: %s\n' "$1" >&2
}
# field NAME: the number of that name in the JSON lines of standard input.
field() { sed -n "s/.*\"$1\": *\([-+0-9.eE]*\).*/\1/p" | tail -n 1; }
generate() { "$programs/tessera" generate "red apple" --seed 1 --steps "$steps" --overwrite "$@"; }

# The plug-in itself has the last word about driver, device and libraries.
if ! "$programs/tessera" generate "red apple" --seed 1 --steps 1 --device "$device" --quiet --overwrite \
  --output "$work/first.png" 2>"$work/errors"; then
  stop "a first image on $device failed:" "$(cat "$work/errors")"
fi
echo "GPU: $gpu"

# ---- the goldens, on both devices
for folder in ${goldens[@]+"${goldens[@]}"}; do
  for place in cpu "$device"; do
    log=$work/golden.log
    if ! "$programs/tessera-golden" "$folder" --device "$place" >"$log" 2>&1; then
      grep -v -E '^(ok  |----)' "$log" >&2 || true
      fail "goldens of $folder on $place"
    fi
    row "goldens $(basename "$folder")" "$place" "all" "" "$(tail -n 1 "$log")"
  done
done

# ---- the same picture from the same seed
generate --device cpu --dtype fp32 --quiet --output "$work/cpu.png"
for dtype in fp32 bf16; do
  set +e
  report=$("$programs/tessera" replay "$work/cpu.png" --device "$device" --dtype "$dtype" --json 2>"$work/errors")
  status=$?
  set -e
  if ((status != 0 && status != 7)); then
    cat "$work/errors" >&2
    fail "the embedded model in $dtype on $device"
    continue
  fi
  squared=$(field mean_squared_difference <<<"$report")
  psnr=$(awk -v mse="$squared" 'BEGIN { if (mse == 0) print "identical"; else printf "%.1f dB", 10 * log(255 * 255 / mse) / log(10) }')
  row "picture against CPU fp32" "$device" "$dtype" "own" \
    "PSNR $psnr, largest difference $(field largest_difference <<<"$report") of 255"
  least=$([[ $dtype == fp32 ]] && echo 40 || echo 20)
  if ! awk -v mse="$squared" -v least="$least" 'BEGIN { exit !(mse == 0 || 10 * log(255 * 255 / mse) / log(10) >= least) }'; then
    fail "the $dtype picture on $device is another than the CPU's: PSNR $psnr, at least $least dB expected"
  fi
  for run in 1 2; do generate --device "$device" --dtype "$dtype" --quiet --output "$work/$dtype-$run.png"; done
  same=yes
  if ! cmp -s "$work/$dtype-1.png" "$work/$dtype-2.png"; then
    same=no
    fail "two runs of one seed in $dtype on $device differ"
  fi
  row "second run, same bytes" "$device" "$dtype" "own" "$same"
done

# ---- speed
# measure NAME DEVICE DTYPE SIZE [OPTION …]
measure() {
  local name=$1 place=$2 dtype=$3 size=$4 report
  shift 4
  if [[ -n $size ]]; then set -- --size "${size}x$size" "$@"; fi
  if ! report=$("$programs/tessera" bench --json --device "$place" --dtype "$dtype" --steps "$steps" "$@" 2>"$work/errors"); then
    cat "$work/errors" >&2
    fail "bench of $name in $dtype on $place at ${size:-its own size}"
    return
  fi
  row "$name" "$place" "$dtype" "$(field height <<<"$report")" "$(
    awk -v step="$(field step_seconds_median <<<"$report")" -v decode="$(field decode_seconds <<<"$report")" \
      -v text="$(field text_seconds <<<"$report")" -v rate="$(field images_per_minute <<<"$report")" \
      -v load="$(field load_seconds <<<"$report")" 'BEGIN {
        printf "step %.2f ms, decode %.1f ms, text %.1f ms, %.1f images/min, load %.2f s",
          step * 1e3, decode * 1e3, text * 1e3, rate, load }'
  )"
}
for dtype in $dtypes; do measure "embedded model" "$device" "$dtype" ""; done
measure "embedded model" cpu fp32 ""
if [[ -n $model ]]; then
  for size in $sizes; do
    for dtype in $dtypes; do measure "$(basename "$model")" "$device" "$dtype" "$size" --model "$model"; done
  done
fi

# ---- the table
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
torch=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "${TESSERA_LIBTORCH:-$root/lib/libtorch}/torch/version.py" 2>/dev/null || true)
{
  printf '### %s, %s\n\n' "${gpu%%,*}" "$(date -u +%Y-%m-%d)"
  printf '`%s`; Tessera %s, LibTorch %s; GPU %s; %s, %s cores; %s steps an image.\n\n' "$command_line" \
    "$("$programs/tessera" --version)" "${torch:-of this clone}" "$gpu" "${cpu:-unknown CPU}" "$(nproc)" "$steps"
  printf '| measurement | device | dtype | side | result |\n|---|---|---|---|---|\n'
  printf '%s\n' "${rows[@]}"
} >"$output.part"
mv "$output.part" "$output"
echo "The table is in $output"
if ((failed)); then
  echo "gpu-suite.sh: something failed; see above" >&2
  exit 1
fi
