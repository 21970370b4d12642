"""Checks that the program supports what the manifests use: configuration, options, probes, variables and shutdown."""

import http.client
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

import manifests
from manifests import KUBERNETES, ROOT, configuration_of, containers_of, named, of_kind, overlay_objects, pod_of, workloads
from rules import runs_tessera, texts_mounted
from server import Server, wait_until


def tessera(*arguments):
    return subprocess.run([manifests.program(), *arguments], capture_output=True, text=True, env={**os.environ, "HOME": "/nonexistent"})


def knows_batch():
    return re.search(r"^ +batch ", tessera("--help").stdout, re.MULTILINE) is not None


class ProgramTest(unittest.TestCase):
    def configuration_error(self, overlay):
        """Returns the program's error for the configuration of an overlay; None if it accepts it."""
        objects = overlay_objects(overlay)
        text = [thing["data"]["tessera.yaml"] for thing in of_kind(objects, "ConfigMap") if "tessera.yaml" in thing["data"]]
        if not text:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tessera.yaml"
            path.write_text(text[0])
            done = tessera("serve", "--config", str(path), "--print-config")
            return None if done.returncode == 0 else done.stdout + done.stderr

    def test_every_configuration_is_read(self):
        for overlay in manifests.OVERLAYS:
            with self.subTest(overlay=overlay):
                self.assertIsNone(self.configuration_error(overlay))

    def test_the_job_that_trains_begins_and_goes_on_with_one_command_line(self):
        objects = overlay_objects("train")
        text = next(thing["data"]["train.yaml"] for thing in objects if "train.yaml" in thing.get("data", {}))
        with tempfile.TemporaryDirectory() as folder:
            images = pathlib.Path(folder) / "images"
            images.mkdir()
            (images / "a.png").write_bytes(next((ROOT / "docs/images").glob("*.png")).read_bytes())
            (images / "a.txt").write_text("a picture")
            path = pathlib.Path(folder) / "train.yaml"
            path.write_text(text.replace("/train/", f"{folder}/"))
            arguments = pod_of(named(objects, "Job", "tessera-train"))["containers"][0]["args"]
            done = tessera(*(str(path) if word.endswith("train.yaml") else word for word in arguments), "--dry-run")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_key_that_the_program_does_not_know_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tessera.yaml"
            path.write_text((KUBERNETES / "base/server/tessera.yaml").read_text() + "drain_tme: 1s\n")
            done = tessera("serve", "--config", str(path), "--print-config")
        self.assertNotEqual(done.returncode, 0)

    def test_every_command_and_option_exists(self):
        checked = 0
        for overlay in manifests.OVERLAYS:
            for workload in workloads(overlay_objects(overlay)):
                for container in containers_of(workload):
                    if not runs_tessera(container) or (container["args"][0] == "batch" and not knows_batch()):
                        continue
                    command, *options = container["args"]
                    text = tessera(command, "--help").stdout
                    for option in (word for word in options if word.startswith("--")):
                        self.assertRegex(text, rf"(?m)(^|[ ,]){option}[ ,]", f"{command} {option}")
                        checked += 1
        self.assertGreater(checked, 0)

    def test_every_variable_is_read(self):
        others = {"HOME", "CUDA_CACHE_PATH", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_DEBUG"}
        script = (KUBERNETES / "base/weights/fill-weights.sh").read_text()
        sources = "".join(path.read_text() for folder in ("server", "client") for path in (ROOT / folder).rglob("*.cc"))
        for overlay in manifests.OVERLAYS:
            for workload in workloads(overlay_objects(overlay)):
                for container in containers_of(workload):
                    for variable in (entry["name"] for entry in container.get("env", [])):
                        known = variable in others or f'"{variable}"' in sources or variable in script
                        self.assertTrue(known, f"{overlay}: {variable}")

    def test_callers_of_grpc_reach_the_server_through_the_proxy_of_the_pod_alone(self):
        objects = overlay_objects("grpc")
        workload = named(objects, "StatefulSet", "tessera")
        proxy = pod_of(workload)["containers"][1]
        keys = tessera("keys", "me").stdout
        secret = re.search(r"sk-tessera-\S+", keys)[0]
        with tempfile.TemporaryDirectory() as folder, Server(configuration_of(objects, workload), keys.splitlines()[-1], "127.0.0.1") as server, socket.socket() as place:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "tls.key",
                            "-out", "tls.crt", "-subj", "/CN=images.example", "-addext", "subjectAltName=DNS:images.example"],
                           cwd=folder, check=True, capture_output=True)
            # A port that nginx shares with this socket, which keeps it from others and takes no connections.
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            place.bind(("127.0.0.1", 0))
            port = place.getsockname()[1]
            text = next(texts_mounted(objects, workload, proxy["command"][-1]))
            for old, new in ((" /tmp/", f" {folder}/"), (f"listen {proxy['ports'][0]['containerPort']} ", f"listen 127.0.0.1:{port} reuseport "), ("/etc/tessera/grpc-tls/", f"{folder}/"),
                             ("127.0.0.1:8081", f"127.0.0.1:{server.ports['grpc']}")):
                self.assertIn(old, text)
                text = text.replace(old, new)
            path = pathlib.Path(folder) / "nginx.conf"
            path.write_text(text)
            nginx = subprocess.Popen([ROOT / ".deps/nginx/usr/sbin/nginx", *proxy["command"][1:-1], str(path)], stderr=subprocess.PIPE, text=True)
            try:
                self.assertTrue(wait_until(lambda: nginx.poll() is not None or self.accepts(port)))
                self.assertIsNone(nginx.poll(), nginx.poll() is not None and nginx.stderr.read())
                self.assert_answers(folder, port, secret)
            finally:
                nginx.terminate()
                nginx.communicate(timeout=60)

    def accepts(self, port):
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", port)) == 0

    def assert_answers(self, folder, port, secret):
        def call(method, message=b"", key=secret, scheme="https"):
            """The status of HTTP and of gRPC, and the messages of the answer."""
            done = subprocess.run(
                ["curl", "-sS", "--http2", "--max-time", "60", "--cacert", f"{folder}/tls.crt", "--resolve", f"images.example:{port}:127.0.0.1",
                 "-H", "content-type: application/grpc", "-H", "te: trailers", "-H", f"authorization: Bearer {key}", "--data-binary", "@-",
                 "-D", f"{folder}/headers", f"{scheme}://images.example:{port}/{method}"],
                input=b"\0" + len(message).to_bytes(4, "big") + message, capture_output=True)
            headers = pathlib.Path(folder, "headers").read_text() if done.returncode == 0 else ""
            status = re.search(r"^HTTP/\S+ (\d+)", headers), re.search(r"(?m)^grpc-status: (\d+)", headers)
            messages, body = [], done.stdout
            while status[1] is not None and len(body) >= 5:
                size = int.from_bytes(body[1:5], "big")
                messages.append(body[5:5 + size])
                body = body[5 + size:]
            return *(int(found[1]) if found else None for found in status), messages

        status, grpc, models = call("tessera.v1.ImageService/ListModels")
        self.assertEqual((status, grpc), (200, 0))
        self.assertIn(b"emoji", models[0])
        prompt = b"red apple"
        image = b"\x12" + bytes([len(prompt)]) + prompt
        _, grpc, events = call("tessera.v1.ImageService/Generate", b"\x0a" + bytes([len(image)]) + image)
        self.assertEqual(grpc, 0)
        self.assertGreater(len(events), 2)
        self.assertIn(b"\x89PNG", b"".join(events))
        self.assertEqual(call("grpc.health.v1.Health/Check")[1:], (0, [b"\x08\x01"]))
        self.assertEqual(call("tessera.v1.ImageService/ListModels", key="sk-tessera-none")[1], 16)  # UNAUTHENTICATED
        self.assertEqual(call("grpc.reflection.v1.ServerReflection/ServerReflectionInfo")[0], 404)
        self.assertNotEqual(call("tessera.v1.ImageService/ListModels", scheme="http")[0], 200)

    def test_a_kubelet_and_prometheus_get_their_answers_by_the_pods_address(self):
        objects = overlay_objects("cpu")
        workload = named(objects, "StatefulSet", "tessera")
        container = pod_of(workload)["containers"][0]
        path_of_metrics = of_kind(overlay_objects("gpu"), "ServiceMonitor")[0]["spec"]["endpoints"][0]["path"]
        configuration = {**configuration_of(objects, workload), "hosts": ["images.example"]}
        with Server(configuration, "", "0.0.0.0") as server:
            def get(path):
                connection = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], timeout=60)
                connection.request("GET", path, headers={"Host": "10.244.1.7:9090"})
                answer = connection.getresponse()
                text = answer.read().decode()
                connection.close()
                return answer.status, text

            self.assertEqual(get(container["startupProbe"]["httpGet"]["path"])[0], 200)
            self.assertEqual(get(container["livenessProbe"]["httpGet"]["path"])[0], 200)
            self.assertTrue(wait_until(lambda: get(container["readinessProbe"]["httpGet"]["path"])[0] == 200))
            status, metrics = get(path_of_metrics)
            self.assertEqual(status, 200)
            for scaled in of_kind(overlay_objects("shared-queue"), "ScaledObject"):
                series = scaled["spec"]["triggers"][0]["metadata"]["query"].removeprefix("max(").removesuffix(")")
                self.assertIn(f"\n{series} ", metrics)
            self.assertEqual(server.end(pod_of(workload)["terminationGracePeriodSeconds"]), 0)


if __name__ == "__main__":
    unittest.main()
