#!/usr/bin/env bash
# installed_tree_test.sh BUILD_FOLDER LIBTORCH_FOLDER
# The installed tree makes an image after it was moved and with nothing of this session's environment; without LibTorch
# it says what to set.
set -euo pipefail
build=$1
libtorch=$2
place=$(mktemp -d "$build/installed-tree.XXXXXX")
trap 'rm -rf "$place"' EXIT
fail() {
  echo "FAILED: $1" >&2
  exit 1
}
clean_environment() { env -i PATH=/usr/bin:/bin "$@"; }
generate() { clean_environment "$@" generate "red apple" --seed 1 --steps 2 --output "$place/image-{index}.png"; }

cmake --install "$build" --prefix "$place/here" --component tessera >/dev/null
cmake --install "$build" --prefix "$place/here" --component libtorch-link >/dev/null
mv "$place/here" "$place/there"
tessera=$place/there/bin/tessera
if readelf -d "$tessera" "$place/there/lib/tessera/tessera-worker" | grep -E 'R(UN)?PATH' | grep -v '\[\$ORIGIN'; then
  fail "an installed program looks for libraries at a fixed place"
fi

generate "$tessera" || fail "with the link to LibTorch"
cmp <(head -c 8 "$place"/image-*.png) <(printf '\x89PNG\r\n\x1a\n') || fail "no PNG file was written"
rm "$place"/image-*.png

rm "$place/there/lib/libtorch"
if message=$(generate "$tessera" 2>&1); then fail "it runs without LibTorch: the test proves nothing"; fi
[[ $message == *TESSERA_LIBTORCH* ]] || fail "the error without LibTorch does not name TESSERA_LIBTORCH: $message"
if message=$(generate TESSERA_LIBTORCH=/usr/share "$tessera" 2>&1); then fail "it accepts a folder without LibTorch"; fi
[[ $message == *"TESSERA_LIBTORCH is /usr/share"* ]] || fail "the error does not name the wrong folder: $message"

ln -s "$libtorch" "$place/elsewhere"
generate "TESSERA_LIBTORCH=$place/elsewhere" "$tessera" || fail "with TESSERA_LIBTORCH"
