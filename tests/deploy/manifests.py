"""The Kubernetes objects of deploy/: rendered, found again by kind and name, and validated against schemas.

An object is the dictionary of its YAML. What is rendered together is a list of them, in no particular order.
"""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import jsonschema
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
# Overlays too, of a LeaderWorkerSet, which not every cluster knows.
MANY_HOSTS = ["many-hosts", "many-hosts-infiniband"]
# The oldest version of Kubernetes, in which backoffLimitPerIndex is on by default, that of the newest helm and kubectl here, and
# the newest whose schemas are here.
KUBERNETES_VERSIONS = ("1.29", "1.35", kubernetes_validate.latest_version())
# The versions of Kubernetes whose helm and kubectl are here.
OLDEST_PROGRAMS, NEWEST_PROGRAMS = "v29", "v35"


class ConfigurationLoader(yaml.SafeLoader):
    """Reads tessera.yaml as the server does, to which `off` is a text."""


ConfigurationLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_configuration(text):
    return yaml.load(text, Loader=ConfigurationLoader)


def program_of(name, version=None):
    """helm or kubectl, which set-up unpacks, of Kubernetes' version."""
    path = ROOT / ".deps/kubernetes" / (version or NEWEST_PROGRAMS) / name
    if not path.exists():
        raise SystemExit(f"{name} is missing: scripts/setup.sh --checks fetches it")
    return str(path)


def kustomize(folder, version=None):
    """The objects of an overlay's folder. What kubectl warns of is an error."""
    done = subprocess.run([program_of("kubectl", version), "kustomize", str(folder)], capture_output=True, text=True)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{folder} cannot be rendered: {done.stderr}")
    return parse(done.stdout)


def edited(overlay, edit):
    """The objects of an overlay whose kustomization.yaml an operator has edited, as `edit` does with its text."""
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copytree(KUBERNETES, pathlib.Path(folder, "kubernetes"))
        file = copied / overlay / "kustomization.yaml"
        before = file.read_text()
        after = edit(before)
        if after == before:
            raise AssertionError(f"the edit changes nothing of {overlay}/kustomization.yaml")
        file.write_text(after)
        return kustomize(copied / overlay)


def parse(text):
    return [document for document in yaml.safe_load_all(text) if document is not None]


@functools.cache
def rendered_text(overlay):
    return json.dumps(kustomize(KUBERNETES / ("" if overlay in MANY_HOSTS else "overlays") / overlay))


def overlay_objects(name):
    """Returns a new copy for each caller, which may change it."""
    return json.loads(rendered_text(name))


def comparable(objects):
    """Objects by kind and name, without what tools do differently and a cluster does not mind: the hash in the name of a
    generated ConfigMap, empty annotations, the order of things that have names, comments and layout of tessera.yaml."""
    text = json.dumps(objects)
    for thing in of_kind(objects, "ConfigMap"):
        name = thing["metadata"]["name"]
        text = text.replace(f'"{name}"', f'"{re.sub("-[a-z0-9]{10}$", "", name)}"')

    def ordered(value):
        if isinstance(value, dict):
            return {key: ordered(inner) for key, inner in value.items()}
        if isinstance(value, list):
            inner = [ordered(item) for item in value]
            return sorted(inner, key=lambda item: item["name"]) if all(isinstance(i, dict) and "name" in i for i in inner) else inner
        return value

    things = ordered(json.loads(text))
    for thing in things:
        if not thing["metadata"].get("annotations", True):
            del thing["metadata"]["annotations"]
        if "tessera.yaml" in thing.get("data", {}):
            thing["data"]["tessera.yaml"] = parse_configuration(thing["data"]["tessera.yaml"])
    found = {title(thing): thing for thing in things}
    if len(found) != len(things):
        raise AssertionError(f"an object is there twice: {[title(thing) for thing in things]}")
    return found


def title(thing):
    return f"{thing['kind']}/{thing['metadata']['name']}"


def of_kind(objects, *kinds):
    return [thing for thing in objects if thing["kind"] in kinds]


def named(objects, kind, name):
    """Returns the object, or None if there is none."""
    found = [thing for thing in of_kind(objects, kind) if thing["metadata"]["name"] == name]
    return found[0] if found else None


def leader_and_worker(group):
    """The two kinds of pods of a LeaderWorkerSet, each as a separate workload."""
    template = group["spec"]["leaderWorkerTemplate"]
    return [{"kind": group["kind"], "metadata": group["metadata"],
             "spec": {"replicas": group["spec"].get("replicas"), "template": template[which]}}
            for which in ("leaderTemplate", "workerTemplate")]


def workloads(objects):
    return of_kind(objects, "StatefulSet", "Deployment", "DaemonSet", "Job") + [
        part for group in of_kind(objects, "LeaderWorkerSet") for part in leader_and_worker(group)]


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


def containers_of(workload):
    return pod_of(workload).get("initContainers", []) + pod_of(workload)["containers"]


def configuration_of(objects, workload):
    """Returns the content of the pod's tessera.yaml; None for a pod without one."""
    for volume in pod_of(workload).get("volumes", []):
        data = (named(objects, "ConfigMap", volume.get("configMap", {}).get("name")) or {}).get("data", {})
        if "tessera.yaml" in data:
            return parse_configuration(data["tessera.yaml"])
    return None


def seconds(duration):
    """Returns the seconds of a duration of tessera.yaml: 90s, 1m30s, 24h."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", str(duration))
    if "".join(number + unit for number, unit in parts) != str(duration):
        raise ValueError(f"{duration!r} is no duration")
    return sum(float(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit] for number, unit in parts)


def schema_errors(thing, version):
    """Why this is not an object of that Kubernetes version, fields that it does not know among it; empty where it is. The CRD of
    a LeaderWorkerSet leaves its pods to Kubernetes' own schema."""
    return list(schema_errors_of_text(json.dumps(thing), version))


@functools.cache
def schema_errors_of_text(text, version):
    """As schema_errors: releases have most objects in common."""
    thing = json.loads(text)
    group = thing["apiVersion"].split("/")[0]
    try:
        name = f"{thing['apiVersion'].replace('/', '-')}-{thing['kind']}.json"
        if "." in group and (not group.endswith(".k8s.io") or (ROOT / "tests/deploy/crds" / name).exists()):
            jsonschema.validate(thing, json.loads((ROOT / "tests/deploy/crds" / name).read_text()))
        else:
            kubernetes_validate.validate(thing, version, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        return [f"{title(thing)}: {'.'.join(str(part) for part in error.absolute_path)}: {error.message}"]
    except (kubernetes_validate.SchemaNotFoundError, FileNotFoundError) as error:
        return [f"{title(thing)}: there is no schema for it: {getattr(error, 'message', error)}"]
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {**part["spec"]["template"].get("metadata", {}), "name": thing["metadata"]["name"]},
             "spec": pod_of(part)} for part in (leader_and_worker(thing) if thing["kind"] == "LeaderWorkerSet" else [])]
    return [error for pod in pods for error in schema_errors(pod, version)]


def program():
    """The tessera that CTest names; the tests that need it are not registered without."""
    return os.environ["TESSERA"]
