"""Runs every command of docs/deploy-kubernetes.md, in order, in a copy of deploy/: kubectl and helm talk to an API that
validates what it gets; `kubectl port-forward` leads to a real server with the objects that the commands created."""

import base64
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import manifests
from fake_cluster import FakeCluster
from server import Server

PAGE = manifests.ROOT / "docs/deploy-kubernetes.md"
WORDS = ("tessera", "kubectl", "helm", "curl", "tail", "cd")


def commands():
    lines = [line[4:] for line in PAGE.read_text().splitlines() if line.startswith("    ")]
    for line in lines:
        assert line.split()[0] in WORDS, f"{line!r} is shown and not run"
    return lines


class DocumentsTest(unittest.TestCase):
    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.stack = stack
        self.cluster = stack.enter_context(FakeCluster())
        # Helm adopts no object that kubectl has made, so the page's commands for it are for a cluster without them.
        self.helm_cluster = stack.enter_context(FakeCluster())
        self.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shutil.copytree(manifests.ROOT / "deploy", self.folder / "deploy", symlinks=True)
        programs = self.folder / "bin"
        programs.mkdir()
        for name in ("kubectl", "helm"):
            (programs / name).symlink_to(manifests.program_of(name))
        (programs / "tessera").symlink_to(pathlib.Path(manifests.program()).resolve())
        for name, cluster in (("kubeconfig", self.cluster), ("helm-kubeconfig", self.helm_cluster)):
            (self.folder / name).write_text(cluster.kubeconfig())
        for name in ("token", "ca.crt", "password"):  # the reader's
            (self.folder / name).write_text(f"{name} of the source")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "tls.key", "-out",
                        "tls.crt", "-subj", "/CN=images.example"], cwd=self.folder, check=True, capture_output=True)
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(self.folder),
                            "KUBECONFIG": str(self.folder / "kubeconfig")}
        self.server = None

    def port_forward(self, service, port):
        """The server of the cluster: its configuration and its keys are what the commands made."""
        target = self.cluster.objects[("Service", service)]["spec"]
        self.assertIn(port, [entry["port"] for entry in target["ports"]])
        workload = self.cluster.objects[("StatefulSet", "tessera")]
        objects = list(self.cluster.objects.values())
        secrets = [volume["secret"]["secretName"] for volume in manifests.pod_of(workload)["volumes"] if "secret" in volume]
        keys = base64.b64decode(self.cluster.objects[("Secret", secrets[0])]["data"]["keys.txt"]).decode()
        configuration = manifests.configuration_of(objects, workload)
        self.server = self.stack.enter_context(Server(configuration, keys, "127.0.0.1"))

    def run_command(self, line):
        forward = re.fullmatch(r"kubectl port-forward service/(\S+) (\d+):(\d+) &", line)
        if forward is not None:
            return self.port_forward(forward[1], int(forward[3]))
        model = manifests.ROOT / "tests/golden/pipelines/flux_dev"
        line = line.replace("PATH/TO/MODEL", str(model)).replace("/tmp/", f"{self.folder}/").replace("curl -s ", "curl -sS --fail ")
        if self.server is not None:
            line = line.replace("localhost:8080", f"localhost:{self.server.ports['http']}")
        environment = dict(self.environment)
        if line.startswith("helm "):
            environment["KUBECONFIG"] = str(self.folder / "helm-kubeconfig")
        done = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=self.folder, env=environment, capture_output=True,
                              text=True, timeout=300)
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}\n{done.stderr}")
        if line.endswith(".png"):
            self.assertEqual((self.folder / line.split()[-1]).read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        return None

    def test_every_command_of_the_page_runs(self):
        shown = commands()
        self.assertGreater(len(shown), 10)
        for line in shown:
            print(line, flush=True)
            self.run_command(line)
        seen = self.cluster.seen
        self.assertIn(("StatefulSet", "tessera"), self.helm_cluster.seen)
        self.assertIn(("LeaderWorkerSet", "tessera-hosts"), self.helm_cluster.seen)
        for overlay in [*manifests.OVERLAYS, *manifests.MANY_HOSTS]:
            for thing in manifests.overlay_objects(overlay):
                self.assertIn((thing["kind"], thing["metadata"]["name"]), seen, overlay)
            for workload in manifests.workloads(manifests.overlay_objects(overlay)):
                for volume in manifests.pod_of(workload)["volumes"]:
                    secret = volume.get("secret", {}).get("secretName")
                    self.assertTrue(secret is None or ("Secret", secret) in seen, f"no command makes the Secret {secret}")
        self.assertNotIn(("StatefulSet", "tessera"), self.cluster.objects, "the page ends with everything removed")

    def test_what_the_page_says_is_there(self):
        text = PAGE.read_text()
        for path in re.findall(r"`((?:deploy/|overlays/)[^`…]*)`", text):
            base = manifests.KUBERNETES if path.startswith("overlays/") else manifests.ROOT
            self.assertTrue((base / path).exists(), path)
        for kind, name in re.findall(r"^\| ([A-Z]\w+) `([a-z-]+?)(?:-…)?`", text, re.MULTILINE):
            found = [thing for thing in manifests.overlay_objects("gpu") if thing["kind"] == kind and
                     re.fullmatch(f"{name}(-[a-z0-9]{{10}})?", thing["metadata"]["name"])]
            self.assertEqual(len(found), 1, f"{kind} {name}")

    def test_an_object_that_is_not_valid_is_refused_by_the_api_that_stands_in(self):
        text = '{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"port": 1}}'
        done = subprocess.run(["kubectl", "apply", "-f", "-"], input=text, env=self.environment, capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("port", done.stderr)


if __name__ == "__main__":
    unittest.main()
