#!/usr/bin/env bash
# installed_tree_test.sh BUILD_FOLDER LIBTORCH_FOLDER
# The installed tree makes an image after it was moved and with nothing of this session's environment; without LibTorch
# it says what to set.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../support/wait_until.sh"
build=$1
libtorch=$2
place=$(mktemp -d "$build/installed-tree.XXXXXX")
server=
trap '[[ -z $server ]] || kill -9 "$server" 2>/dev/null || true; rm -rf "$place"' EXIT
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

for file in man/man1/tessera.1 man/man1/tessera-generate.1 bash-completion/completions/tessera zsh/site-functions/_tessera \
  fish/vendor_completions.d/tessera.fish; do
  [[ -s $place/there/share/$file ]] || fail "there is no share/$file"
done
generate "$tessera" || fail "with the link to LibTorch"
cmp <(head -c 8 "$place"/image-*.png) <(printf '\x89PNG\r\n\x1a\n') || fail "no PNG file was written"
rm "$place"/image-*.png

# The picture decoder finds its libraries and confines itself, and only then says that it is ready.
ready=$({ clean_environment "$place/there/bin/tessera-picture-decoder" 1000 1000 </dev/null || true; } | head -c 8 | od -An -tx1 | tr -d " ")
[[ $ready == 5450523100000000 ]] || fail "the picture decoder is not ready: $ready"

# A certificate is about the program that computes, not about the launcher in front of it.
clean_environment "TESSERA_CERTIFICATES=$place/certificates" "$tessera" verify --layout cfg=2 --steps 3 --json >"$place/verdict" ||
  fail "verify"
built=$(sha256sum <"$place/there/lib/tessera/tessera-worker")
grep -q "\"build\":\"${built%% *}\"" "$place/verdict" || fail "the certificate is about another build: $(cat "$place/verdict")"

# Its workers are known again by the server that follows one which was killed.
printf '%s\n' 'listen: {http: {port: 0}, grpc: off, admin: off}' 'groups: [{model: emoji}]' "data_folder: $place/data" \
  >"$place/tessera.yaml"
serve() {
  # Not by the function: its process would be killed in place of the server.
  env -i PATH=/usr/bin:/bin "XDG_RUNTIME_DIR=$place" "$tessera" serve -c "$place/tessera.yaml" --no-supervisor >"$place/ports" 2>"$place/log" &
  server=$!
}
workers() {
  local exe
  for exe in /proc/[0-9]*/exe; do
    if [[ $exe -ef $place/there/lib/tessera/tessera-worker ]]; then echo "$exe"; fi
  done
}
said() {
  wait_until grep -q "$1" "$place/log" || fail "the server never says: $1; it says $(cat "$place/log")"
}
serve
said 'emoji-0: ready'
worker=$(workers)
[[ -n $worker ]] || fail "a ready group has no worker"
kill -9 "$server"
wait "$server" 2>/dev/null || true
serve
said 'are adopted with their model'
said 'emoji-0: ready'
[[ $(workers) == "$worker" ]] || fail "the worker is another one"
kill -TERM "$server"
wait "$server" || fail "the server does not end in order"
server=

rm "$place/there/lib/libtorch"
if message=$(generate "$tessera" 2>&1); then fail "it runs without LibTorch: the test proves nothing"; fi
[[ $message == *TESSERA_LIBTORCH* ]] || fail "the error without LibTorch does not name TESSERA_LIBTORCH: $message"
if message=$(generate TESSERA_LIBTORCH=/usr/share "$tessera" 2>&1); then fail "it accepts a folder without LibTorch"; fi
[[ $message == *"TESSERA_LIBTORCH is /usr/share"* ]] || fail "the error does not name the wrong folder: $message"

ln -s "$libtorch" "$place/elsewhere"
generate "TESSERA_LIBTORCH=$place/elsewhere" "$tessera" || fail "with TESSERA_LIBTORCH"
