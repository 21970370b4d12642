#!/usr/bin/env bash
# Proves and measures Tessera on a machine with an NVIDIA GPU by running scripts/first_card.py (see there), and packs
# all results into one file to send. If that script cannot run, the file contains the driver's output.
set -u
here=$(dirname "${BASH_SOURCE[0]}")
if command -v python3 >/dev/null; then exec python3 "$here/first_card.py" "$@"; fi
archive=first-card-$(date -u +%Y%m%d-%H%M%S).tar.gz
folder=$(mktemp -d)
nvidia-smi -q 2>&1 | sed -E 's/(Serial Number|GPU UUID|Board ID|Hostname)( *: ).*/\1\2removed/; s/GPU-[0-9a-f-]{36}/removed/g' >"$folder/nvidia-smi"
echo "python3 is not on this machine; install it and run the script again" | tee "$folder/results.md"
tar -czf "$archive" -C "$folder" .
echo "$archive"
exit 2
