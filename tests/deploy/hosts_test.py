"""The LeaderWorkerSet of deploy/kubernetes/many-hosts: valid to Kubernetes, our rules and the program, and its parts fit
each other; planted mistakes are noticed."""

import copy
import functools
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

import kubernetes_validate

import manifests
import rules
from manifests import configuration_of, leader_and_worker, named, pod_of


@functools.cache
def rendered():
    return json.dumps(manifests.kustomize(manifests.KUBERNETES / "many-hosts"))


def objects():
    return json.loads(rendered())


def set_of(things):
    return named(things, "LeaderWorkerSet", "tessera-hosts")


def options_of(container):
    return dict(argument.removeprefix("--").split("=", 1) for argument in container["args"] if argument.startswith("--"))


def problems(things):
    """What keeps the nodes from joining, or the groups from their nodes."""
    spec = set_of(things)["spec"]
    leader, worker = leader_and_worker(set_of(things))
    configuration = configuration_of(things, leader)
    node = pod_of(worker)["containers"][0]
    options = options_of(node)
    if node["args"][0] != "node" or options["join"] != f"$(LWS_LEADER_ADDRESS):{configuration['nodes']['listen']['port']}":
        yield f"nodes join {options['join']}"
    if options["name"] != "node-$(LWS_WORKER_INDEX)":
        yield f"nodes are called {options['name']}"
    there = {f"node-{index}" for index in range(1, spec["leaderWorkerTemplate"]["size"])}
    wanted = {device.split("/")[0] for group in configuration["groups"] for device in group["devices"] if "/" in device}
    if wanted != there:
        yield f"the groups name {sorted(wanted)}, and there are {sorted(there)}"
    if spec["startupPolicy"] != "LeaderCreated" or spec["leaderWorkerTemplate"]["restartPolicy"] != "RecreateGroupOnPodRestart":
        yield "the set starts or restarts its pods otherwise"
    if int(options["join-timeout"]) < 90:
        yield "nodes give up before the leader's name can be resolved"
    for part, files in [(leader, [configuration["nodes"][key] for key in ("certificate_chain", "private_key", "authority",
                                                                        "token_file")]),
                        (worker, [options["tls-dir"] + "/ca.crt", options["token-file"]])]:
        secret = next(v for v in pod_of(part)["volumes"] if v.get("secret", {}).get("secretName") == "tessera-nodes")
        place = next(m["mountPath"] for m in pod_of(part)["containers"][0]["volumeMounts"] if m["name"] == secret["name"])
        for file in files:
            if not file.startswith(place + "/"):
                yield f"{file} is not in the secret's folder"


def template(things):
    return set_of(things)["spec"]["leaderWorkerTemplate"]


def argument(things, old, new):
    container = template(things)["workerTemplate"]["spec"]["containers"][0]
    container["args"] = [text.replace(old, new) for text in container["args"]]


PLANTED = [
    ("too few nodes", lambda o: template(o).update(size=1)),
    ("more nodes than groups name", lambda o: template(o).update(size=3)),
    ("pods that restart by themselves", lambda o: template(o).update(restartPolicy="None")),
    ("nodes that wait for a server that waits for them", lambda o: set_of(o)["spec"].update(startupPolicy="LeaderReady")),
    ("another port", lambda o: argument(o, ":8082", ":8083")),
    ("one name for all nodes", lambda o: argument(o, "$(LWS_WORKER_INDEX)", "1")),
    ("no time for names", lambda o: argument(o, "--join-timeout=600", "--join-timeout=30")),
    ("a token of nowhere", lambda o: argument(o, "/etc/tessera/nodes/token", "/tmp/token")),
]


class HostsTest(unittest.TestCase):
    def test_every_object_is_valid_and_keeps_our_rules(self):
        things = objects()
        for version in (manifests.OLDEST_KUBERNETES, kubernetes_validate.latest_version()):
            for thing in things:
                self.assertEqual(manifests.schema_errors(thing, version), [])
            for part in leader_and_worker(set_of(things)):
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tessera"}, "spec": pod_of(part)}
                self.assertEqual(manifests.schema_errors(pod, version), [])
        self.assertEqual(rules.violations(things), [])

    def test_its_parts_fit_each_other_and_planted_mistakes_are_noticed(self):
        self.assertEqual(list(problems(objects())), [])
        for mistake, plant in PLANTED:
            with self.subTest(mistake=mistake):
                things = objects()
                before = copy.deepcopy(things)
                plant(things)
                self.assertNotEqual(things, before, "nothing was planted")
                self.assertNotEqual(list(problems(things)), [])

    def test_the_program_takes_the_configuration_and_the_nodes_options(self):
        things = objects()
        text = next(thing["data"]["tessera.yaml"] for thing in things if thing["kind"] == "ConfigMap")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tessera.yaml"
            path.write_text(text)
            done = subprocess.run([manifests.program(), "serve", "--config", str(path), "--print-config"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("node-1/cpu:0", done.stdout)
        helped = subprocess.run([manifests.program(), "node", "--help"], capture_output=True, text=True, check=True).stdout
        for option in options_of(pod_of(leader_and_worker(set_of(things))[1])["containers"][0]):
            self.assertIsNotNone(re.search(rf"--{option}\b", helped), option)


if __name__ == "__main__":
    unittest.main()
