#!/usr/bin/env bash
# cpp_example_test.sh BUILD_FOLDER EXAMPLE_SOURCES
# The example for C++ is built outside of the tree, against the installed client library alone, and does against a real
# `tessera serve` what it says.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../support/wait_until.sh"
build=$1
sources=$2
pictures=$(cd "$(dirname "${BASH_SOURCE[0]}")/../pictures/uploads" && pwd)
place=$(mktemp -d "$build/cpp-example.XXXXXX")
server=
# shellcheck disable=SC2329
tidy_up() {
  if [[ -n $server ]]; then kill -KILL "$server" 2>/dev/null || true; fi
  rm -rf "$place"
}
trap tidy_up EXIT
fail() {
  echo "FAILED: $1" >&2
  cat "$place/log" >&2 || true
  exit 1
}

cmake --install "$build" --prefix "$place/tessera" --component client >/dev/null
cp -r "$sources" "$place/sources"
cmake -S "$place/sources" -B "$place/build" -DCMAKE_PREFIX_PATH="$place/tessera" >"$place/log" || fail "configure"
cmake --build "$place/build" >"$place/log" || fail "build"

cd "$place"
printf '%s\n' 'listen: {http: {port: 0}, grpc: {port: 0}, admin: {port: 0}}' 'groups: [{model: emoji}]' \
  'data_folder: data' >tessera.yaml
"$build/bin/tessera" serve --fake-workers --fake-script 'step-time=200 pictures=start' --config tessera.yaml >listening 2>log </dev/null &
server=$!
listens() {
  kill -0 "$server" || fail "the server ended"
  grep -q '"http"' listening
}
wait_until listens || fail "the server did not listen"
port=$(sed 's/.*"http":\([0-9]*\).*/\1/' listening)
[[ $port =~ ^[0-9]+$ ]] || fail "the server did not listen"
example() { timeout 60 ./build/tessera_example "127.0.0.1:$port" "$@"; }

# ran ARGUMENTS… -- PATTERN…: the example ends well and says lines that match.
ran() {
  local arguments=()
  while [[ $1 != -- ]]; do
    arguments+=("$1")
    shift
  done
  shift
  example "${arguments[@]}" >said || fail "${arguments[*]}: $(cat said)"
  for pattern in "$@"; do
    grep -Eq "$pattern" said || fail "${arguments[*]} does not say $pattern: $(cat said)"
  done
}
is_png() { cmp -s <(head -c 8 "$1") <(printf '\x89PNG\r\n\x1a\n') || fail "$1 is no PNG file"; }

ran generate 'red apple' generated.png -- '^accepted as job-' '^step [0-9]+ of [0-9]+$' '^wrote generated.png$'
is_png generated.png
ran edit 'red apple' edited.png "$pictures/rgb.png" -- '^step [0-9]+ of [0-9]+$' '^wrote edited.png$'
is_png edited.png
if example edit 'red apple' none.png tessera.yaml 2>errors; then fail "a text is a picture"; fi
grep -q '^file' errors || fail "a refusal does not name the picture: $(cat errors)"
ran submit 'red apple' submitted.png -- '^accepted as job-' '^wrote submitted.png$'
is_png submitted.png
ran cancel 'red apple' -- '^step [0-9]+' '^job-.* ended as JOB_STATE_CANCELLED$'
if example generate '' none.png 2>errors; then fail "an empty prompt is valid"; fi
grep -q '^prompt' errors || fail "a refusal does not name its field: $(cat errors)"

kill -TERM "$server"
wait "$server" || fail "the server did not end in order"
server=
