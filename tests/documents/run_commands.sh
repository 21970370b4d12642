#!/bin/sh
# run_commands.sh TESSERA ROOT DOCUMENT…: runs every command that a document shows, as a reader would: in order, in one
# empty folder for each document. A command is an indented line that begins with "tessera" or "mkdir". A model that a
# clone does not have is written PATH/TO/…; a tiny one of the same layout takes its place.
set -eu
tessera=$1 root=$2
shift 2
count=0
for document in "$@"; do
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  ln -s "$root/assets" "$folder/assets"
  grep -E '^    (tessera|mkdir) ' "$root/$document" |
    sed -E "s|PATH/TO/FLUX[^ ]*|$root/tests/golden/pipelines/flux_dev|; s|PATH/TO/[^ ]*|$root/tests/golden/pipelines/pixart_sigma|; s|^ *tessera |\"$tessera\" |" >"$folder/commands"
  [ -s "$folder/commands" ] || { echo "$document shows no command"; exit 1; }
  while IFS= read -r line; do
    echo "$document: $line"
    (cd "$folder" && eval "$line") </dev/null || { echo "FAILED: $line"; exit 1; }
    count=$((count + 1))
  done <"$folder/commands"
  rm -rf "$folder"
done
echo "$count commands of $# documents ran"
