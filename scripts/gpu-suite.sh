#!/usr/bin/env bash
# Proves and measures Tessera on a machine with an NVIDIA GPU; see scripts/gpu-suite.py, which it runs.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/gpu-suite.py" "$@"
