#!/usr/bin/env bash
# Real clients against the server's edges: the openai package, grpcio, the example in Python, schemathesis over the OpenAPI
# document.
# Needs a build with tests and, for the first run, Python's package index.
#
#   scripts/client-tests.sh [--preset NAME]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=release
if [[ ${1:-} == --preset ]]; then preset=${2:?--preset needs a name}; fi
build=${TESSERA_BUILD:-build/$preset}
server=$build/tests/server/tessera-fake-server
for program in "$server" "$build/bin/tessera"; do
  [[ -x $program ]] || { echo "$program is missing: scripts/setup.sh --preset $preset tessera-fake-server tessera builds it" >&2; exit 1; }
done

python=.deps/client-tests/bin/python
pins=$(sha256sum <scripts/client-test-requirements.txt)
if [[ $(cat .deps/client-tests/.pins 2>/dev/null) != "$pins" ]]; then
  rm -rf .deps/client-tests
  python3 -m venv .deps/client-tests
  "$python" -m pip install --quiet --disable-pip-version-check -r scripts/client-test-requirements.txt
  echo "$pins" >.deps/client-tests/.pins
fi

work=$(mktemp -d)
trap 'kill "${server_pid:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
"$python" -m grpc_tools.protoc --proto_path=proto --python_out="$work" --grpc_python_out="$work" \
  tessera/v1/image_service.proto
"$python" tests/server/client_tests.py "$server" "$work" "$build/bin/tessera"

mkfifo "$work/stay"
"$server" --step-ms 0 <"$work/stay" >"$work/ports" &
server_pid=$!
exec 3>"$work/stay"
until [[ -s $work/ports ]]; do kill -0 "$server_pid"; sleep 0.05; done
port=$(sed 's/.*"http":\([0-9]*\).*/\1/' "$work/ports")
HYPOTHESIS_STORAGE_DIRECTORY=$work/hypothesis .deps/client-tests/bin/schemathesis run "http://127.0.0.1:$port/openapi.json" --experimental=openapi-3.1 \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
  --exclude-path-regex '/events$' --hypothesis-max-examples "${TESSERA_SCHEMATHESIS_EXAMPLES:-50}" \
  --hypothesis-seed 1 --request-timeout 60000
exec 3>&-
wait "$server_pid"
