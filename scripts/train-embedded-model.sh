#!/usr/bin/env bash
# Trains the transformer of the built-in model from random numbers, and compares it with the one that is built in.
#
#   scripts/train-embedded-model.sh [--steps N] [--output DIR] [--resume]
#     --steps   of the optimizer, 6000 if not given
#     --output  folder of the run, train-emoji-from-scratch if not given
#     --resume  continues from its last complete checkpoint
#
# At the end come the mean loss of both models over every image of the data, at the same timesteps and noise, and a sheet
# of 36 pictures by each, OUTPUT/built-in.png and OUTPUT/trained.png. Needs a build (build/release).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

steps=6000 output=train-emoji-from-scratch resume=()
while (($#)); do
  case $1 in
    --steps) steps=${2:?--steps needs a number}; shift 2 ;;
    --output) output=${2:?--output needs a folder}; shift 2 ;;
    --resume) resume=(--resume latest); shift ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "${0##*/}: unknown argument $1; valid values: --steps, --output, --resume" >&2; exit 2 ;;
  esac
done
tessera=${TESSERA_BUILD:-build/release}/bin/tessera
[[ -x $tessera ]] || { echo "$tessera is missing: scripts/setup.sh builds it" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sed -e "s|^output: .*|output: $output|" -e "s|^  steps: .*|  steps: $steps|" examples/emoji/train.yaml >"$work/train.yaml"
"$tessera" train "$work/train.yaml" "${resume[@]}"
trained=$output/model-$steps

# mean_loss MODEL NAME: prints the mean loss of one epoch with a learning rate of 0.
mean_loss() {
  cat >"$work/loss.yaml" <<YAML
model: $1
output: $work/loss-$2
seed: 1
datasets: [{folder_path: examples/emoji, resolution: 64, caption_dropout_rate: 0}]
network: {type: full}
train: {steps: 21, batch_size: 64, gradient_checkpointing: false, lr: 0, snr_gamma: 5}
save: {save_every: 0}
YAML
  "$tessera" train "$work/loss.yaml" --json | sed -n 's/.*"event":"trained".*"loss":\([0-9.e-]*\).*/\1/p' |
    awk '{ sum += $1 } END { if (NR == 0) exit 1; printf "%.5f\n", sum / NR }'
}

# sheet MODEL NAME: writes a sheet of pictures.
sheet() {
  "$tessera" batch "$work/captions.txt" --model "$1" --out "$work/sheet-$2" --seed 1 --sheet "$output/$2.png" --quiet
}
printf '%s\n' "red apple" "cat face" "sun with face" "red heart" "slice of pizza" rocket tiger octopus "grinning face" crown \
  bicycle snowman banana "soccer ball" "house with garden" "blue heart" guitar airplane key rainbow "dog face" cherries \
  "green apple" penguin umbrella "money bag" "black cat" skull tree hamburger fire "gem stone" "unicorn face" "robot face" \
  "purple heart" "birthday cake" >"$work/captions.txt"
built_in_loss=$(mean_loss emoji built-in)
trained_loss=$(mean_loss "$trained" trained)
sheet emoji built-in
sheet "$trained" trained
echo "mean loss over the data: $built_in_loss built in, $trained_loss trained"
echo "pictures: $output/built-in.png, $output/trained.png; model: $trained"
