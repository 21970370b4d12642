"""Serves the part of Kubernetes' API that kubectl and helm need to create, apply, watch and delete the objects of deploy/.

Every object is validated strictly before it is stored, as the API server does it. There are no controllers: a workload is
ready as soon as it exists.
"""

import base64
import http.server
import json
import threading
import urllib.parse
import uuid

import yaml

import manifests

KINDS = {
    "Secret": ("v1", "secrets"),
    "ConfigMap": ("v1", "configmaps"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "Job": ("batch/v1", "jobs"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Ingress": ("networking.k8s.io/v1", "ingresses"),
    "ServiceMonitor": ("monitoring.coreos.com/v1", "servicemonitors"),
    "ScaledObject": ("keda.sh/v1alpha1", "scaledobjects"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
}

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def protobuf_fields(data):
    """Returns the values of a message by their field numbers, each as a list."""
    fields, position = {}, 0

    def number():
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(data):
        tag = number()
        value = number()
        if tag & 7 == 2:
            value, position = data[position:position + value], position + value
        elif tag & 7 != 0:
            raise ValueError(f"wire type {tag & 7}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def protobuf_map(entries):
    return {fields[1][0].decode(): fields.get(2, [b""])[0] for fields in map(protobuf_fields, entries)}


def secret_of(data):
    """The Secret in a body of protobuf, as kubectl and helm create it; the numbers are those of Kubernetes' generated.proto."""
    unknown = protobuf_fields(data.removeprefix(b"k8s\0"))
    kind = protobuf_fields(unknown[1][0])[2][0].decode()
    if kind != "Secret":
        raise ValueError(f"a {kind} in protobuf")
    secret = protobuf_fields(unknown[2][0])
    metadata = protobuf_fields(secret[1][0])
    return {"apiVersion": "v1", "kind": kind, "type": secret.get(3, [b"Opaque"])[0].decode() or "Opaque",
            "metadata": {"name": metadata[1][0].decode(),
                         "labels": {key: value.decode() for key, value in protobuf_map(metadata.get(11, [])).items()}},
            "data": {key: base64.b64encode(value).decode() for key, value in protobuf_map(secret.get(2, [])).items()}}


def merge(under, over):
    """A merge patch, which is what a strategic one is for fields that are no lists."""
    for key, value in over.items():
        if value is None:
            under.pop(key, None)
        elif isinstance(value, dict) and isinstance(under.get(key), dict):
            merge(under[key], value)
        else:
            under[key] = value


def complete(thing):
    """Adds the fields that a cluster and its controllers would set."""
    metadata = thing["metadata"]
    metadata.setdefault("namespace", "default")
    metadata.setdefault("uid", str(uuid.uuid4()))
    metadata["creationTimestamp"] = metadata.get("creationTimestamp") or "2024-01-01T00:00:00Z"
    metadata["generation"] = metadata.get("generation", 0) + 1
    metadata["resourceVersion"] = str(metadata["generation"])
    if thing["kind"] == "StatefulSet":
        replicas = thing["spec"].setdefault("replicas", 1)
        thing["spec"].setdefault("updateStrategy", {"type": "RollingUpdate"})
        thing["status"] = {"observedGeneration": metadata["generation"], "replicas": replicas, "readyReplicas": replicas,
                           "currentReplicas": replicas, "updatedReplicas": replicas, "currentRevision": "1", "updateRevision": "1"}
    if thing["kind"] == "Job":
        thing["status"] = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    return thing


def errors(thing):
    plain = {key: value for key, value in thing.items() if key != "status"}
    return manifests.schema_errors(plain, manifests.KUBERNETES_VERSIONS[-1])


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, content, status=200, kind="application/json"):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status, reason, message):
        self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": status}, status)

    def discovery(self, path):
        groups = sorted({version for version, _ in KINDS.values() if "/" in version})
        if path == "/version":
            return {"major": "1", "minor": "29", "gitVersion": "v1.29.0"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            names = [{"groupVersion": version, "version": version.split("/")[1]} for version in groups]
            return {"kind": "APIGroupList", "apiVersion": "v1",
                    "groups": [{"name": n["groupVersion"].split("/")[0], "versions": [n], "preferredVersion": n} for n in names]}
        version = path.removeprefix("/apis/").removeprefix("/api/")
        kinds = [(kind, plural) for kind, (of, plural) in KINDS.items() if of == version]
        if not kinds:
            return None
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
                "resources": [{"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": verbs}
                              for kind, plural in kinds]}

    def place(self):
        """Kind and perhaps name of a path, and its query."""
        path, _, query = self.path.partition("?")
        parts = path.strip("/").split("/")
        version, rest = ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        rest = rest[2:] if rest[:1] == ["namespaces"] else rest
        kinds = [kind for kind, (of, plural) in KINDS.items() if rest and (of, plural) == (version, rest[0])]
        return (kinds[0] if kinds else None), (rest[1] if len(rest) > 1 else None), query

    def body(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"
        return secret_of(data) if data.startswith(b"k8s\0") else yaml.safe_load(data)

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path == "/openapi/v2":  # an empty document, after which kubectl leaves the validation to the server
            return self.answer(b"", kind="application/octet-stream")
        found = self.discovery(path)
        if found is not None:
            return self.answer(found)
        kind, name, query = self.place()
        if kind is None:
            return self.fail(404, "NotFound", f"{path} is not there")
        if name is not None:
            thing = self.server.objects.get((kind, name))
            return self.answer(thing) if thing else self.fail(404, "NotFound", f'{KINDS[kind][1]} "{name}" not found')
        if "watch=" in query:  # nothing changes by itself
            return self.answer(b"")
        asked = urllib.parse.parse_qs(query)
        field = asked.get("fieldSelector", [""])[0]
        labels = [label.split("=") for label in asked.get("labelSelector", [""])[0].split(",") if label]
        items = [thing for (of, called), thing in sorted(self.server.objects.items())
                 if of == kind and field in ("", f"metadata.name={called}") and
                 all(thing["metadata"].get("labels", {}).get(key) == value for key, value in labels)]
        return self.answer({"kind": f"{kind}List", "apiVersion": KINDS[kind][0], "metadata": {"resourceVersion": "1"}, "items": items})

    def store(self, thing, status):
        wrong = errors(thing)
        if wrong:
            return self.fail(400, "BadRequest", "; ".join(wrong))
        key = (thing["kind"], thing["metadata"]["name"])
        self.server.objects[key] = complete(thing)
        self.server.seen[key] = thing
        return self.answer(thing, status)

    def do_POST(self):
        thing = self.body()
        if (thing["kind"], thing["metadata"]["name"]) in self.server.objects:
            return self.fail(409, "AlreadyExists", f"{manifests.title(thing)} already exists")
        return self.store(thing, 201)

    def do_PATCH(self):
        kind, name, _ = self.place()
        thing = self.server.objects.get((kind, name))
        patch = self.body()
        if self.headers["Content-Type"] == "application/apply-patch+yaml":  # Helm's: the whole object
            return self.store(patch, 201 if thing is None else 200)
        if thing is None:
            return self.fail(404, "NotFound", f"{name} is not there")
        if kind == "Job" and "template" in patch.get("spec", {}):
            return self.fail(400, "BadRequest", "spec.template: field is immutable")
        applied = patch.get("metadata", {}).get("annotations", {}).get(LAST_APPLIED)
        if applied is None:
            thing = json.loads(json.dumps(thing))
            merge(thing, patch)
        else:
            # The object that `kubectl apply` wants to have, which is simpler to store than to apply its patches of lists.
            kept = {key: value for key, value in thing["metadata"].items() if key not in ("labels", "annotations")}
            thing = json.loads(applied)
            thing["metadata"].update(kept)
            thing["metadata"].setdefault("annotations", {})[LAST_APPLIED] = applied
        return self.store(thing, 200)

    def do_PUT(self):
        return self.store(self.body(), 200)

    def do_DELETE(self):
        self.body()
        kind, name, _ = self.place()
        thing = self.server.objects.pop((kind, name), None)
        if thing is None:
            return self.fail(404, "NotFound", f'{KINDS[kind][1]} "{name}" not found')
        return self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": {"name": name, "uid": thing["metadata"]["uid"]}})

    def log_message(self, *_):
        pass


class FakeCluster:
    """Serves until its `with` ends. `objects` is what is there by kind and name, `seen` also what was deleted."""

    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.objects, self.server.seen = {}, {}
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def objects(self):
        return self.server.objects

    @property
    def seen(self):
        return self.server.seen

    def kubeconfig(self):
        return json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
        })
