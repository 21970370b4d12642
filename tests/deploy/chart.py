"""The Helm chart, rendered by helm."""

import functools
import os
import re
import subprocess
import tempfile

from manifests import ROOT, parse, program_of

CHART = ROOT / "deploy/helm/tessera"
VALUES = ROOT / "deploy/helm/values"
# Values that the values files leave to the command line.
FILES = {
    "gpu": ["--set-file", f"weights.list={ROOT}/deploy/kubernetes/overlays/gpu/weights.sha256"],
    "many-hosts-infiniband": ["--set-file", f"weights.list={ROOT}/deploy/kubernetes/many-hosts-infiniband/weights.sha256"],
    "batch": ["--set-file", f"batch.prompts={ROOT}/deploy/kubernetes/base/batch/prompts.jsonl"],
    "train": ["--set-file", f"train.config={ROOT}/deploy/kubernetes/base/train/train.yaml"],
}


def helm(*arguments, version=None):
    """Helm without a cluster; it writes its caches into a folder that is removed."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run([program_of("helm", version), *arguments], capture_output=True, text=True,
                              env={**os.environ, "HOME": home, "KUBECONFIG": "/dev/null"})


@functools.cache
def run(*arguments, release="tessera", version=None):
    return helm("template", release, str(CHART), *arguments, version=version)


def check_values(*arguments):
    """Returns why helm refuses the values, with the place of each as values.yaml names it, or none."""
    done = run(*arguments)
    return None if done.returncode == 0 else re.sub(r"'/([^']*)'", lambda place: place[1].replace("/", "."), done.stderr)


def render(*arguments, **options):
    done = run(*arguments, **options)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return parse(done.stdout)


def notes(*arguments, release):
    done = helm("install", release, str(CHART), "--dry-run=client", *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout[done.stdout.index("\nNOTES:\n"):]


def arguments_of(name):
    """Returns the chart's arguments for the values of an overlay."""
    return ["--values", str(VALUES / f"{name}.yaml"), *FILES.get(name, [])]
