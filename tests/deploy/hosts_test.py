"""The LeaderWorkerSets of deploy/kubernetes/many-hosts and many-hosts-infiniband and those of the Helm chart: valid to
Kubernetes, our rules and the program, and their parts fit each other; planted mistakes are noticed."""

import copy
import pathlib
import re
import subprocess
import tempfile
import unittest

import chart
import manifests
import rules
from manifests import configuration_of, leader_and_worker, named, pod_of


INFINIBAND = "many-hosts-infiniband"
# Values of the chart for more hosts than an overlay has, or more devices on each.
MORE = {
    "many-hosts": """
hosts: {size: 4, cpuRanks: 2}
config:
  nodes: {lost_after: 9s}
  groups:
    - {model: emoji, name: four, layout: "cfg=2,ulysses=2", devices: ["node-1/cpu:0", "node-1/cpu:1", "node-2/cpu:0", "node-2/cpu:1"]}
    - {model: emoji, name: two, layout: cfg=2, devices: ["node-3/cpu:0", "node-3/cpu:1"]}
""",
    INFINIBAND: """
hosts: {size: 3}
gpu: {count: 2}
infiniband: {resourceName: rdma/roce, count: 2, adapters: "=mlx5_0,mlx5_1", interface: net1}
config:
  groups:
    - {model: /models/model, layout: pipe=3, devices: ["cuda:0", "node-1/cuda:0", "node-2/cuda:0"]}
    - {model: /models/model, name: other, layout: pipe=3, devices: ["cuda:1", "node-1/cuda:1", "node-2/cuda:1"]}
""",
}


def objects(folder="many-hosts"):
    return manifests.overlay_objects(folder)


def sets():
    """Every LeaderWorkerSet that an operator can have of us, by what makes it."""
    for name in manifests.MANY_HOSTS:
        yield f"deploy/kubernetes/{name}", objects(name)
        yield f"the chart with {name}.yaml", chart.render(*chart.arguments_of(name))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as more:
            more.write(MORE[name])
            more.flush()
            yield f"the chart with {name}.yaml and more hosts", chart.render(*chart.arguments_of(name), "--values", more.name)


def set_of(things):
    return named(things, "LeaderWorkerSet", "tessera-hosts")


def options_of(container):
    return dict(argument.removeprefix("--").split("=", 1) for argument in container["args"] if argument.startswith("--"))


def problems(things):
    """Returns the reasons why nodes cannot join or groups cannot use their nodes."""
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
    devices = [device.split("/") for group in configuration["groups"] for device in group["devices"] if "/" in device]
    if {name for name, _ in devices} != there:
        yield f"the groups name {sorted({name for name, _ in devices})}, and there are {sorted(there)}"
    offered = [f"cpu:{number}" for number in range(int(options["devices"][4:]))] if options["devices"].startswith("cpu:") else (
        options["devices"].split(","))
    if {device for _, device in devices} != set(offered):
        yield f"the groups name {sorted({device for _, device in devices})} of a node, which offers {offered}"
    if any(rules.rdma_of(pod_of(part)["containers"][0]) for part in (leader, worker)):
        yield from infiniband_problems(things, leader, worker)
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


def infiniband_problems(things, *parts):
    """Returns the reasons why ranks on GPUs of two hosts cannot reach each other, in addition to `rules` for each pod."""
    resources = [pod_of(part)["containers"][0]["resources"]["limits"] for part in parts]
    if resources[0] != resources[1]:
        yield f"the hosts have other devices than each other: {resources}"
    for part in parts:
        for other in parts:
            for policy in manifests.of_kind(things, "NetworkPolicy"):
                if not rules.selects(policy["spec"]["podSelector"].get("matchLabels"), rules.pod_labels(part)):
                    continue
                for direction, peers in (("ingress", "from"), ("egress", "to")):
                    if not any("ports" not in way and any(admits(peer, rules.pod_labels(other)) for peer in way.get(peers, []))
                               for way in policy["spec"][direction]):
                        yield f"{policy['metadata']['name']} allows no {direction} at NCCL's ports"


def admits(peer, labels):
    expressions = peer.get("podSelector", {}).get("matchExpressions", [])
    return bool(expressions) and all(e["operator"] == "In" and labels.get(e["key"]) in e["values"] for e in expressions)


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


def containers(things):
    return [template(things)[f"{which}Template"]["spec"]["containers"][0] for which in ("leader", "worker")]


def variable(things, name, value):
    for entry in containers(things)[1]["env"]:
        if entry["name"] == name:
            entry["value"] = value


def close(things, name, direction):
    policy = named(things, "NetworkPolicy", name)["spec"]
    policy[direction] = [way for way in policy[direction] if "ports" in way]


PLANTED_INFINIBAND = [
    ("memory that cannot be pinned", lambda o: containers(o)[0]["securityContext"]["capabilities"].pop("add")),
    ("more rights than that", lambda o: containers(o)[1]["securityContext"]["capabilities"]["add"].append("SYS_ADMIN")),
    ("an adapter on one host", lambda o: [containers(o)[1]["resources"][kind].pop("rdma/hca") for kind in ("limits", "requests")]),
    ("no name of an adapter", lambda o: variable(o, "NCCL_IB_HCA", "")),
    ("ranks that meet inside the pod", lambda o: variable(o, "NCCL_SOCKET_IFNAME", "lo")),
    ("a node that no pod may reach", lambda o: close(o, "tessera-node", "ingress")),
    ("a server that may reach no pod", lambda o: close(o, "tessera", "egress")),
    ("fewer GPUs than groups name", lambda o: argument(o, ",cuda:7", "")),
]


class HostsTest(unittest.TestCase):
    def test_every_object_is_valid_and_keeps_our_rules(self):
        for name, things in sets():
            with self.subTest(name=name):
                for version in manifests.KUBERNETES_VERSIONS:
                    self.assertEqual([error for thing in things for error in manifests.schema_errors(thing, version)], [])
                self.assertEqual(rules.violations(things), [])

    def test_a_field_that_a_pod_of_the_set_does_not_have_is_noticed(self):
        things = objects()
        template(things)["workerTemplate"]["spec"]["containers"][0]["argumets"] = []
        self.assertIn("argumets", " ".join(manifests.schema_errors(set_of(things), manifests.KUBERNETES_VERSIONS[0])))

    def test_its_parts_fit_each_other(self):
        for name, things in sets():
            with self.subTest(name=name):
                self.assertEqual(list(problems(things)), [])

    def test_every_gpu_has_an_adapter_of_its_own_on_rails(self):
        things = manifests.kustomize(manifests.KUBERNETES / "many-hosts-rails")
        self.assertEqual((rules.violations(things), list(problems(things))), ([], []))
        for part in leader_and_worker(set_of(things)):
            container = pod_of(part)["containers"][0]
            self.assertEqual([container["resources"][kind]["rdma/hca"] for kind in ("requests", "limits")], ["8", "8"])
            self.assertIn({"name": "NCCL_IB_GID_INDEX", "value": "3"}, container["env"])
            networks = part["spec"]["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]
            self.assertEqual(len(networks.split(",")), 8)
        by_values = chart.render(*chart.arguments_of(INFINIBAND), "--set", "infiniband.countPerGpu=1", "--set", "infiniband.gidIndex=3")
        self.assertEqual([pod_of(part)["containers"][0]["resources"] for part in leader_and_worker(set_of(by_values))],
                         [pod_of(part)["containers"][0]["resources"] for part in leader_and_worker(set_of(things))])

    def test_a_cluster_without_nvidias_operator_takes_its_file_out(self):
        things = manifests.edited(INFINIBAND, lambda text: re.sub(r"  - path: nvidia-operator.*\n", "", text))
        self.assertEqual((rules.violations(things), list(problems(things))), ([], []))
        for before, part in zip(leader_and_worker(set_of(objects(INFINIBAND))), leader_and_worker(set_of(things))):
            self.assertFalse({"runtimeClassName", "nodeSelector"} & set(pod_of(part)))
            self.assertLessEqual({"runtimeClassName", "nodeSelector"}, set(pod_of(before)))
        self.assertNotIn("nodeSelector", pod_of(named(things, "Job", "tessera-weights")))
        self.assertIn("nodeSelector", pod_of(named(objects(INFINIBAND), "Job", "tessera-weights")))

    def test_a_volume_of_one_node_for_several_hosts_is_noticed(self):
        things = objects(INFINIBAND)
        named(things, "PersistentVolumeClaim", "tessera-weights")["spec"]["accessModes"] = ["ReadWriteOnce"]
        self.assertIn("one_pod_mounts_a_volume_of_one_node", [name for name, _ in rules.violations(things)])

    def test_planted_mistakes_are_noticed(self):
        planted = [(folder, *entry) for folder in manifests.MANY_HOSTS for entry in PLANTED]
        planted += [(INFINIBAND, *entry) for entry in PLANTED_INFINIBAND]
        for folder, mistake, plant in planted:
            with self.subTest(folder=folder, mistake=mistake):
                things = objects(folder)
                before = copy.deepcopy(things)
                plant(things)
                self.assertNotEqual(things, before, "nothing was planted")
                self.assertNotEqual([*problems(things), *rules.violations(things)], [])

    def test_the_program_takes_the_configuration_and_the_nodes_options(self):
        for name, things in sets():
            with self.subTest(name=name):
                self.assert_taken(things)

    def assert_taken(self, things):
        text = next(thing["data"]["tessera.yaml"] for thing in things if "tessera.yaml" in thing.get("data", {}))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tessera.yaml"
            path.write_text(text)
            done = subprocess.run([manifests.program(), "serve", "--config", str(path), "--print-config"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("node-1/", done.stdout)
        helped = subprocess.run([manifests.program(), "node", "--help"], capture_output=True, text=True, check=True).stdout
        for option in options_of(pod_of(leader_and_worker(set_of(things))[1])["containers"][0]):
            self.assertIsNotNone(re.search(rf"--{option}\b", helped), option)


if __name__ == "__main__":
    unittest.main()
