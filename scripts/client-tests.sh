#!/usr/bin/env bash
# Tests the server's interfaces with real clients: the openai package in versions of both generations, grpcio, the
# Python example, OpenTelemetry's definition of its protocol, SGLang's load client, client code of SGLang and vLLM-Omni
# with fields of their servers, and schemathesis with the OpenAPI document, without keys, with a key, and without the
# key that is required. Each package has its own virtual environment under .deps/.
# Needs a build and, for the first run, Python's package index.
#
#   scripts/client-tests.sh [--preset NAME] [--newest]
#     --newest  also the openai package that the index has today, in an environment that is thrown away
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=release newest=0
while (($#)); do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --newest) newest=1; shift ;;
    *) echo "client-tests.sh: unknown argument $1; valid are --preset NAME and --newest" >&2; exit 2 ;;
  esac
done
build=${TESSERA_BUILD:-build/$preset}
tessera=$build/bin/tessera
[[ -x $tessera ]] || { echo "$tessera is missing: scripts/setup.sh --preset $preset tessera builds it" >&2; exit 1; }

scripts/python-environment.sh client-tests "$(sha256sum <scripts/client-test-requirements.txt)" -r scripts/client-test-requirements.txt
python=.deps/client-tests/bin/python

work=$(mktemp -d)
trap 'kill "${server_pid:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
"$python" -m grpc_tools.protoc --proto_path=proto --python_out="$work" --grpc_python_out="$work" \
  tessera/v1/image_service.proto
"$python" tests/server/client_tests.py "$tessera" "$work"
"$python" tests/server/otlp_tests.py "$tessera" "$work"

for version in 1.109.1 3.57.0; do
  scripts/python-environment.sh "openai-$version" "$version" "openai==$version"
  ".deps/openai-$version/bin/python" tests/server/openai_tests.py "$tessera"
done
if ((newest)); then
  python3 -m venv "$work/newest"
  "$work/newest/bin/python" -m pip install --quiet --disable-pip-version-check openai
  "$work/newest/bin/python" tests/server/openai_tests.py "$tessera"
fi

scripts/python-environment.sh sglang-load "$(sha256sum <scripts/sglang-load-requirements.txt)" -r scripts/sglang-load-requirements.txt
wheels=.deps/sglang-load/wheels
wheel=$wheels/sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl
[[ -e $wheel ]] || .deps/sglang-load/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheels" \
  --platform manylinux_2_34_x86_64 --python-version 3.11 --only-binary :all: sglang==0.5.23
echo "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937  $wheel" | sha256sum --check --quiet
.deps/sglang-load/bin/python tests/server/sglang_load_test.py "$tessera" "$wheel"
omni=$wheels/vllm_omni-0.30.0-py3-none-any.whl
[[ -e $omni ]] || .deps/sglang-load/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheels" \
  vllm-omni==0.30.0
echo "141cb0c7b9c07970e5c92a99aab9696e81682dbfa3d2bfcde359c3c1533385f4  $omni" | sha256sum --check --quiet
.deps/sglang-load/bin/python tests/server/foreign_client_tests.py "$tessera" "$wheel" "$omni"

"$tessera" keys client-tests >"$work/key"
secret=$(sed -n 's/^ *\(sk-tessera-\)/\1/p' "$work/key")
tail -n 1 "$work/key" >"$work/keys.txt"

# conformance NAME CONFIGURATION OPTION…: starts a server with that configuration and checks it against its OpenAPI
# document.
conformance() {
  local name=$1 configuration=$2
  shift 2
  echo "schemathesis: $name"
  printf '%s\n' 'listen: {http: {port: 0}, grpc: off, admin: off}' 'groups: [{model: fake}]' "data_folder: $work/data" \
    "$configuration" >"$work/tessera.yaml"
  : >"$work/ports"
  "$tessera" serve --config "$work/tessera.yaml" --fake-workers --fake-script step-time=0 >"$work/ports" 2>"$work/log" &
  server_pid=$!
  until [[ -s $work/ports ]]; do kill -0 "$server_pid"; sleep 0.05; done
  port=$(sed 's/.*"http":\([0-9]*\).*/\1/' "$work/ports")
  HYPOTHESIS_STORAGE_DIRECTORY=$work/hypothesis PYTHONPATH=tests/server SCHEMATHESIS_HOOKS=schemathesis_checks \
    .deps/client-tests/bin/schemathesis run "http://127.0.0.1:$port/openapi.json" --experimental=openapi-3.1 \
    --hypothesis-max-examples "${TESSERA_SCHEMATHESIS_EXAMPLES:-50}" --hypothesis-seed 1 --request-timeout 60000 "$@"
  kill "$server_pid"
  wait "$server_pid"
}

documented=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance
conformance "without keys" "" --checks "$documented" --exclude-path-regex '/events$'
conformance "with a key" "keys_file: $work/keys.txt" --checks "$documented" --exclude-path-regex '/events$' \
  --header "Authorization: Bearer $secret"
# Without the key, every path that requires one must answer any request with that error only.
conformance "without the key" "keys_file: $work/keys.txt" --checks "$documented,asks_for_a_key" \
  --exclude-path-regex '^/(livez|readyz|openapi\.json|v1/schema)$'
