#!/bin/bash
# Lists the shared libraries that a library names in its text, which are those that it needs and those that it opens while it
# runs (dlopen), and fails if one is not installed. Without it NCCL exchanges tensors over TCP and reports no error.
#
#   ldconfig -p | opened-libraries.sh LIBRARY     prints a line for each name: NAME installed|driver|optional|MISSING
set -euo pipefail
export LC_ALL=C
library=${1:?a shared library}
installed=$(cat)
missing=0
for name in $(grep -aoE 'lib[A-Za-z0-9_+-]+\.so(\.[0-9]+)*' "$library" | sort -u); do
  stem=${name%%.so*}.so
  case $name in
    "${library##*/}") continue ;;
    # NVIDIA's container toolkit mounts them from the host.
    libcuda.so* | libnvidia-ml.so*) state=driver ;;
    # GPUDirect copies for small messages, and plug-ins of a cluster.
    libgdrapi.so* | libnccl-*.so*) state=optional ;;
    *) state=MISSING ;;
  esac
  # A name without a version is what NCCL tries after, or before, the one with it.
  if [[ $state == MISSING ]] && grep -qF -e "/$name" -e "/$stem." <<<"$installed"; then state=installed; fi
  echo "$name $state"
  if [[ $state == MISSING ]]; then missing=1; fi
done
exit "$missing"
