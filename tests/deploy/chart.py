"""The Helm chart, rendered by render_chart, which uses the libraries of Helm: Go's text/template and sprig."""

import fcntl
import functools
import json
import os
import shutil
import subprocess

import jsonschema

from manifests import ROOT, parse

CHART = ROOT / "deploy/helm/tessera"
VALUES = ROOT / "deploy/helm/values"
# Values that the values files leave to the command line.
FILES = {
    "gpu": ["-set-file", f"weights.list={ROOT}/deploy/kubernetes/overlays/gpu/weights.sha256"],
    "many-hosts-infiniband": ["-set-file", f"weights.list={ROOT}/deploy/kubernetes/many-hosts-infiniband/weights.sha256"],
    "batch": ["-set-file", f"batch.prompts={ROOT}/deploy/kubernetes/base/batch/prompts.jsonl"],
    "train": ["-set-file", f"train.config={ROOT}/deploy/kubernetes/base/train/train.yaml"],
}


@functools.cache
def renderer():
    """Go builds it again where its source has changed; tests that run at once take turns."""
    program = ROOT / ".deps/render-chart/render_chart"
    program.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": "", "CGO_ENABLED": "1",
                   "GOCACHE": str(ROOT / ".deps/render-chart/cache")}
    if shutil.which("go") is None:
        raise SystemExit("go is missing: scripts/setup.sh --checks installs it")
    with open(program.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(["go", "build", "-o", str(program), "./tests/deploy/render_chart"], cwd=ROOT, env=environment,
                              capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"render_chart is not built: {done.stderr}")
    return str(program)


def run(*arguments):
    return subprocess.run([renderer(), "-chart", str(CHART), *arguments], capture_output=True, text=True)


def check_values(*arguments):
    """Validates the values as Helm does before it renders; returns the schema's first error, or none."""
    done = run("-values-only", *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    validator = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    error = jsonschema.exceptions.best_match(validator.iter_errors(json.loads(done.stdout)))
    return None if error is None else f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


def render(*arguments):
    error = check_values(*arguments)
    if error is not None:
        raise AssertionError(f"the values are refused: {error}")
    done = run(*arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return parse(done.stdout)


def arguments_of(name):
    """Returns the chart's arguments for the values of an overlay."""
    return ["-values", str(VALUES / f"{name}.yaml"), *FILES.get(name, [])]
