"""The Helm chart: it renders the objects of the Kustomize overlays, refuses values that cannot work, and its values do
what they say."""

import json
import pathlib
import re
import tempfile
import unittest

import chart
import manifests
import rules
from manifests import named, pod_of


def server(objects):
    return pod_of(named(objects, "StatefulSet", "tessera"))["containers"][0]


def as_kustomize(objects):
    """Removes fields that only Helm adds: the managing tool, the chart's label, annotations that stand for Kustomize's hashes, and the
    digest in the name of a Job whose pods cannot be changed."""
    things = json.loads(json.dumps(objects))
    for thing in things:
        labels = thing["metadata"]["labels"]
        labels["app.kubernetes.io/managed-by"] = {"Helm": "kustomize"}[labels["app.kubernetes.io/managed-by"]]
        del labels["helm.sh/chart"]
        thing["metadata"].get("annotations", {}).pop("helm.sh/resource-policy", None)
        if thing["kind"] in ("StatefulSet", "LeaderWorkerSet"):
            server = manifests.leader_and_worker(thing)[0] if thing["kind"] == "LeaderWorkerSet" else thing
            inner = server["spec"]["template"]["metadata"]
            assert re.fullmatch("[0-9a-f]{64}", inner["annotations"].pop("checksum/config"))
            if not inner["annotations"]:
                del inner["annotations"]
        if thing["kind"] == "Job" and thing["metadata"]["name"].startswith("tessera-weights"):
            thing["metadata"]["name"] = re.sub("-[0-9a-f]{8}$", "", thing["metadata"]["name"])
    return manifests.comparable(things)


OVERLAYS = manifests.OVERLAYS + manifests.MANY_HOSTS

HOSTS = chart.arguments_of("many-hosts")
INFINIBAND = chart.arguments_of("many-hosts-infiniband")
INGRESS = ["--set", "ingress.enabled=true", "--set", "ingress.host=images.example"]
ROUTE = ["--set", "httpRoute.enabled=true", "--set", "httpRoute.host=images.example", "--set", "httpRoute.parentRefs[0].name=public"]
HUB = ["--set", "weights.enabled=true", "--set", "weights.repository=ORG/NAME", "--set", "weights.revision=v1.0"]
MANY = ["--set", "weights.accessMode=ReadWriteMany"]
WEIGHTS = ["--set", "weights.enabled=true", "--set", "weights.url=https://weights.example", "--set", "weights.list=list"]

REFUSED = [
    ("two servers with an embedded queue each", ["--set", "replicas=2"], "postgresql"),
    ("KEDA with an embedded queue", ["--set", "autoscaling.keda.enabled=true"], "postgresql"),
    ("a password in the DSN", ["--set", "postgresql.dsn=host=db password=secret"], "postgresql.dsn"),
    ("a password in the DSN's URL", ["--set", "postgresql.dsn=postgresql://me:secret@db/tessera"], "postgresql.dsn"),
    ("no server at all", ["--set", "replicas=0"], "replicas"),
    ("a misspelt value", ["--set", "replica=1"], "replica"),
    ("a misspelt value of a group", ["--set", "image.pullpolicy=Always"], "image"),
    ("the tag latest", ["--set", "image.tag=latest"], "image.tag"),
    ("a digest that is none", ["--set", "image.digest=sha256:12"], "image.digest"),
    ("a port of the chart's own", ["--set", "config.listen.http.port=80"], "config"),
    ("a separate queue", ["--set", "config.data_folder=/tmp"], "config"),
    ("memory without a unit", ["--set", "resources.memory=4"], "resources.memory"),
    ("a GPU that is no resource", ["--set", "gpu.resourceName=mig-3g.40gb"], "gpu.resourceName"),
    ("weights without a list", ["--set", "weights.enabled=true", "--set", "weights.url=https://weights.example"], "weights.list"),
    ("weights over plain HTTP", ["--set", "weights.url=http://weights.example"], "weights.url"),
    ("weights of the hub and of a list", [*WEIGHTS, "--set", "weights.repository=ORG/NAME"], "weights.url"),
    ("a repository that is no name", ["--set", "weights.repository=https://huggingface.co/ORG/NAME"], "weights.repository"),
    ("a revision that a shell would read", ["--set", "weights.revision=a b"], "weights.revision"),
    ("a misspelt key of a group", ["config: {groups: [{model: emoji, device: [cpu]}]}"], "device"),
    ("no group", ["config: {groups: []}"], "config.groups"),
    ("a group without a model", ["config: {groups: [{name: emoji}]}"], "model"),
    ("a dtype that there is not", ["config: {groups: [{model: emoji, dtype: fp16}]}"], "dtype"),
    ("an ingress of no host", ["--set", "ingress.enabled=true"], "ingress.host"),
    ("an ingress and a route", [*INGRESS, *ROUTE], "httpRoute.enabled"),
    ("an ingress to no server", [*INGRESS, "--set", "server.enabled=false"], "server.enabled"),
    ("a route of no gateway", ["--set", "httpRoute.enabled=true", "--set", "httpRoute.host=images.example"], "httpRoute.parentRefs"),
    ("a mount without a path", ["extraVolumeMounts: [{name: adapters}]"], "extraVolumeMounts"),
    ("a batch without prompts", ["--set", "batch.enabled=true"], "batch"),
    ("training without a configuration", ["--set", "train.enabled=true"], "train"),
    ("training that is killed while it writes", ["--set", "train.graceSeconds=5"], "train.graceSeconds"),
    ("a batch of no shard", ["--set", "batch.shards=0"], "batch.shards"),
    ("weights that several hosts cannot read", [*HOSTS, *WEIGHTS], "weights.accessMode"),
    ("a server and its nodes without nodes", [*HOSTS, "--set", "hosts.size=1"], "hosts.size"),
    ("nodes without a server", [*HOSTS, "--set", "server.enabled=false"], "server.enabled"),
    ("several sets of hosts", [*HOSTS, "--set", "replicas=2", "--set", "postgresql.enabled=true"], "replicas"),
    ("KEDA with a set of hosts", [*HOSTS, "--set", "autoscaling.keda.enabled=true", "--set", "postgresql.enabled=true"], "autoscaling.keda"),
    ("nodes that give up before a name can be resolved", [*HOSTS, "--set", "hosts.joinTimeoutSeconds=30"], "hosts.joinTimeoutSeconds"),
    ("GPUs of several hosts without InfiniBand", [*HOSTS, "--set", "gpu.count=8"], "infiniband"),
    ("InfiniBand in one pod", ["--set", "gpu.count=8", "--set", "infiniband.enabled=true"], "hosts"),
    ("InfiniBand without GPUs", [*HOSTS, "--set", "infiniband.enabled=true"], "gpu.count"),
    ("an adapter that is no resource", ["--set", "infiniband.resourceName=hca"], "infiniband.resourceName"),
    ("ranks of several hosts that meet inside the pod", ["--set", "infiniband.interface=lo"], "infiniband.interface"),
    ("a line of GIDs that there is not", [*INFINIBAND, "--set", "infiniband.gidIndex=-2"], "infiniband.gidIndex"),
    ("less than no adapter for each GPU", [*INFINIBAND, "--set", "infiniband.countPerGpu=-1"], "infiniband.countPerGpu"),
    ("a network that no object can name", [*INFINIBAND, "infiniband: {networks: [Rail_0]}"], "infiniband.networks"),
    ("networks of adapters that are not asked for", ["infiniband: {networks: [rail-0]}"], "infiniband.enabled"),
    ("a listener for nodes without nodes", ["--set", "config.nodes.lost_after=9s"], "hosts"),
    ("another port for nodes", [*HOSTS, "--set", "config.nodes.listen.port=8083"], "config.nodes"),
]

# Mistakes that the schema cannot find, of devices and of volumes, and the names in the error.
REFUSED_BY_TEMPLATES = [
    ("a device of a node without nodes", ["config: {groups: [{model: emoji, devices: [node-1/cpu:0]}]}"], ["node-1/cpu:0", "hosts.enabled"]),
    ("a node beyond the last", [*HOSTS, "config: {groups: [{model: emoji, devices: [node-2/cpu:0]}]}"], ["node-2/cpu:0", "node-1"]),
    ("a node of another name", [*HOSTS, "config: {groups: [{model: emoji, devices: [node-a/cpu:0]}]}"], ["node-a/cpu:0", "node-1"]),
    ("a device that a node does not lend", [*HOSTS, "config: {groups: [{model: emoji, devices: [node-1/cpu:1]}]}"], ["node-1/cpu:1", "cpu:0"]),
    ("a GPU that a node does not have", [*INFINIBAND, "--set", "gpu.count=7"], ["node-1/cuda:7", "cuda:6"]),
    ("GPUs that no group uses", ["--set", "gpu.count=8"], ["gpu.count is 8", "cuda:0"]),
    ("more GPUs than groups use", [*chart.arguments_of("gpu"), "--set", "gpu.count=9"], ["gpu.count is 9", "cuda:8"]),
    ("fewer GPUs than groups use", [*chart.arguments_of("gpu"), "--set", "gpu.count=4"], ["cuda:4", "gpu.count 4", "cuda:3"]),
    ("GPUs of groups alone", ["config: {groups: [{model: emoji, devices: ['cuda:0']}]}"], ["cuda:0", "set gpu.count"]),
    ("two servers with weights of one node", [*HUB, "--set", "postgresql.enabled=true", "--set", "replicas=2"], ["weights.accessMode", "2 pods"]),
    ("servers of KEDA with weights of one node",
     [*HUB, "--set", "postgresql.enabled=true", "--set", "autoscaling.keda.enabled=true"], ["weights.accessMode", "4 pods"]),
    ("a server and a run with weights of one node", [*WEIGHTS, *chart.FILES["train"], "--set", "train.enabled=true"], ["2 pods"]),
    ("shards with weights of one node", [*chart.arguments_of("batch"), *WEIGHTS], ["weights.accessMode", "4 pods"]),
    ("shards with images of one node", [*chart.arguments_of("batch"), "--set", "batch.accessMode=ReadWriteOnce"], ["batch.accessMode", "4 pods"]),
    ("a node of no group", [*HOSTS, "--set", "hosts.size=4"], ["node-2, node-3", "hosts.size 4"]),
]

# Values, and what they do to the server's StatefulSet, its pod and its container.
DONE = [
    (["--set", "image.repository=registry:5000/tessera"], lambda s, p, c: c["image"] == "registry:5000/tessera:0.1.0"),
    (["--set", "image.tag=0.1.0-cuda"], lambda s, p, c: c["image"] == "tessera:0.1.0-cuda"),
    (["--set", f"image.digest=sha256:{'a' * 64}"], lambda s, p, c: c["image"] == f"tessera@sha256:{'a' * 64}"),
    (["--set", "image.pullPolicy=Always"], lambda s, p, c: c["imagePullPolicy"] == "Always"),
    (["imagePullSecrets: [{name: registry}]"], lambda s, p, c: p["imagePullSecrets"] == [{"name": "registry"}]),
    (["nodeSelector: {disk: fast}"], lambda s, p, c: p["nodeSelector"] == {"disk": "fast"}),
    (["tolerations: [{key: gpu, operator: Exists}]"], lambda s, p, c: p["tolerations"] == [{"key": "gpu", "operator": "Exists"}]),
    (["affinity: {nodeAffinity: {}}"], lambda s, p, c: p["affinity"] == {"nodeAffinity": {}}),
    (["--set", "runtimeClassName=nvidia"], lambda s, p, c: p["runtimeClassName"] == "nvidia"),
    (["--set", "priorityClassName=high"], lambda s, p, c: p["priorityClassName"] == "high"),
    (["extraEnv: [{name: NCCL_DEBUG, value: INFO}]"], lambda s, p, c: {"name": "NCCL_DEBUG", "value": "INFO"} in c["env"]),
    (["podAnnotations: {a/b: c}"], lambda s, p, c: s["spec"]["template"]["metadata"]["annotations"]["a/b"] == "c"),
    (["--set", "existingSecret=others"], lambda s, p, c: {"secretName": "others", "defaultMode": 288} in [v.get("secret") for v in p["volumes"]]),
    (["--set", "preStopSeconds=20", "--set", "drainSeconds=300"], lambda s, p, c: p["terminationGracePeriodSeconds"] == 335),
    (["--set", "shm.size=2Gi"], lambda s, p, c: {"medium": "Memory", "sizeLimit": "2Gi"} in [v.get("emptyDir") for v in p["volumes"]]),
    (["--set", "persistence.storageClassName=fast", "--set", "persistence.size=1Ti"],
     lambda s, p, c: s["spec"]["volumeClaimTemplates"][0]["spec"] == {
         "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Ti"}}}),
    (["--set", "postgresql.enabled=true", "--set", "replicas=3"], lambda s, p, c: s["spec"]["replicas"] == 3),
    (["gpu: {count: 2, resourceName: nvidia.com/mig-3g.40gb}", "config: {groups: [{model: emoji, devices: ['cuda:0', 'cuda:1']}]}"],
     lambda s, p, c: c["resources"]["limits"]["nvidia.com/mig-3g.40gb"] == "2"),
]


# Values in addition to many-hosts-infiniband.yaml, and their effect on the containers and the pods of a server and of a node.
DONE_ON_EVERY_HOST = [
    (["--set", "hosts.existingSecret=others"], lambda c, p: {"secretName": "others", "defaultMode": 288} in [v.get("secret") for v in p["volumes"]]),
    (["--set", "infiniband.interface=net1"], lambda c, p: {"name": "NCCL_SOCKET_IFNAME", "value": "net1"} in c["env"]),
    (["--set", "infiniband.adapters==mlx5_0"], lambda c, p: {"name": "NCCL_IB_HCA", "value": "=mlx5_0"} in c["env"]),
    (["--set", "infiniband.resourceName=rdma/roce", "--set", "infiniband.count=2"], lambda c, p: c["resources"]["limits"].get("rdma/roce") == "2"),
    (["--set", "infiniband.countPerGpu=1"], lambda c, p: c["resources"]["limits"]["rdma/hca"] == c["resources"]["requests"]["rdma/hca"] == "8"),
    (["--set", "infiniband.countPerGpu=2", "--set", "infiniband.count=3", "--set", "infiniband.resourceName=rdma/ib"],
     lambda c, p: c["resources"]["limits"].get("rdma/ib") == "16"),
    (["--set", "infiniband.count=4"], lambda c, p: c["resources"]["limits"]["rdma/hca"] == "4"),
    (["--set", "infiniband.gidIndex=3"], lambda c, p: {"name": "NCCL_IB_GID_INDEX", "value": "3"} in c["env"]),
    (["--set", "infiniband.gidIndex=0"], lambda c, p: {"name": "NCCL_IB_GID_INDEX", "value": "0"} in c["env"]),
    (["--set", "gpu.nvls=false"], lambda c, p: {"name": "NCCL_NVLS_ENABLE", "value": "0"} in c["env"]),
    (["--set", "runtimeClassName="], lambda c, p: "runtimeClassName" not in p),
    (["extraEnv: [{name: NCCL_IB_GID_INDEX, value: '3'}]"], lambda c, p: {"name": "NCCL_IB_GID_INDEX", "value": "3"} in c["env"]),
    (["--set", "priorityClassName=high"], lambda c, p: p.get("priorityClassName") == "high"),
    (["--set", "image.tag=0.1.1-cuda"], lambda c, p: c["image"] == p["initContainers"][0]["image"] == "tessera:0.1.1-cuda"),
]


class ChartTest(unittest.TestCase):
    maxDiff = None

    def arguments(self, texts):
        """Returns the options of a list in which some have YAML values."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        out = []
        for number, text in enumerate(texts):
            if re.match("[a-zA-Z]+: ", text):
                path = pathlib.Path(folder.name) / f"values-{number}.yaml"
                path.write_text(text)
                out += ["--values", str(path)]
            else:
                out.append(text)
        return out

    def assertValid(self, objects):
        for version in manifests.KUBERNETES_VERSIONS:
            self.assertEqual([error for thing in objects for error in manifests.schema_errors(thing, version)], [])
        self.assertEqual(rules.violations(objects), [])

    def test_every_overlay_is_rendered_object_by_object(self):
        self.assertEqual(sorted(path.stem for path in chart.VALUES.glob("*.yaml")), sorted(OVERLAYS))
        for overlay in OVERLAYS:
            rendered = as_kustomize(chart.render(*chart.arguments_of(overlay)))
            wanted = manifests.comparable(manifests.overlay_objects(overlay))
            self.assertEqual(sorted(rendered), sorted(wanted), overlay)
            for name, thing in wanted.items():
                with self.subTest(overlay=overlay, thing=name):
                    self.assertEqual(rendered[name], thing)

    def test_every_overlay_is_valid_under_another_release_name(self):
        for overlay in OVERLAYS:
            with self.subTest(overlay=overlay):
                objects = chart.render(*chart.arguments_of(overlay), release="night-1")
                self.assertValid(objects)
                for thing in objects:
                    self.assertTrue(thing["metadata"]["name"].startswith("night-1-tessera"), thing["metadata"]["name"])

    def test_the_oldest_and_the_newest_helm_render_the_same(self):
        for overlay in OVERLAYS:
            with self.subTest(overlay=overlay):
                oldest, newest = (chart.run(*chart.arguments_of(overlay), version=version).stdout
                                  for version in (manifests.OLDEST_PROGRAMS, manifests.NEWEST_PROGRAMS))
                self.assertIn("kind: ", newest)
                self.assertEqual(oldest, newest)

    def test_another_object_than_the_overlays_is_noticed(self):
        wanted = manifests.comparable(manifests.overlay_objects("cpu"))
        for values in (["--set", "drainSeconds=61"], ["--set", "networkPolicy.enabled=false"], ["--set", "metrics.serviceMonitor.enabled=true"],
                       ["--set", "config.log_level=debug"], ["--set", "shm.size=2Gi"]):
            self.assertNotEqual(as_kustomize(chart.render(*chart.arguments_of("cpu"), *values)), wanted, values)

    def test_a_batch_on_gpus_with_weights_of_its_own_is_valid(self):
        objects = chart.render(*chart.arguments_of("gpu"), *MANY, "--set", "server.enabled=false", "--set", "batch.enabled=true", "--set",
                               "batch.input=prompts.jsonl", *self.arguments(["batch: {args: [--model, /models/model]}"]))
        self.assertValid(objects)
        pod = pod_of(named(objects, "Job", "tessera-batch"))
        self.assertEqual(pod["containers"][0]["args"][:2], ["batch", "/batch/prompts.jsonl"])
        self.assertEqual(pod["containers"][0]["args"][-2:], ["--model", "/models/model"])
        self.assertEqual(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], "8")
        self.assertIn(".complete", pod["initContainers"][0]["command"][-1])

    def test_training_on_gpus_with_weights_of_its_own_is_valid(self):
        objects = chart.render(*chart.arguments_of("gpu"), *chart.FILES["train"], "--set", "server.enabled=false", "--set",
                               "train.enabled=true", "--set", "train.graceSeconds=900",
                               *self.arguments(["train: {args: [--device, cuda]}"]))
        self.assertValid(objects)
        pod = pod_of(named(objects, "Job", "tessera-train"))
        self.assertEqual(pod["containers"][0]["args"][2:], ["--resume", "latest", "--device", "cuda"])
        self.assertEqual(pod["terminationGracePeriodSeconds"], 900)
        self.assertEqual(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], "8")
        self.assertEqual(pod["initContainers"][0]["command"][-1], "/etc/tessera/weights/fill-weights.sh")
        self.assertEqual([job["metadata"]["name"] for job in manifests.of_kind(objects, "Job")], ["tessera-train"])

    def test_without_network_policies_that_alone_is_against_our_rules(self):
        objects = chart.render("--set", "networkPolicy.enabled=false")
        self.assertEqual([name for name, _ in rules.violations(objects)], ["every_pod_has_a_network_policy"])

    def test_every_value_does_what_it_says(self):
        for values, holds in DONE:
            with self.subTest(values=values):
                arguments = self.arguments(values)
                objects = chart.render(*arguments)
                workload = named(objects, "StatefulSet", "tessera")
                self.assertTrue(holds(workload, pod_of(workload), server(objects)))
                self.assertFalse(self.holds_by_default(holds), "it is so without the value")
                self.assertEqual(rules.violations(objects), [])

    def holds_by_default(self, holds):
        workload = named(chart.render(), "StatefulSet", "tessera")
        try:
            return holds(workload, pod_of(workload), pod_of(workload)["containers"][0])
        except KeyError:
            return False

    def test_values_that_cannot_work_are_refused(self):
        for mistake, values, place in REFUSED:
            with self.subTest(mistake=mistake):
                error = chart.check_values(*self.arguments(values))
                self.assertIsNotNone(error)
                self.assertIn(place, error)

    def test_devices_that_are_not_there_and_volumes_of_one_node_for_several_pods_are_refused(self):
        for mistake, values, names in REFUSED_BY_TEMPLATES:
            with self.subTest(mistake=mistake):
                done = chart.run(*self.arguments(values))
                self.assertNotEqual(done.returncode, 0)
                for name in names:
                    self.assertIn(name, done.stderr)

    def test_every_value_of_several_hosts_does_what_it_says(self):
        def pods(*arguments):
            return [pod_of(part) for part in manifests.leader_and_worker(
                named(chart.render(*INFINIBAND, *arguments), "LeaderWorkerSet", "tessera-hosts"))]

        for values, holds in DONE_ON_EVERY_HOST:
            with self.subTest(values=values):
                self.assertEqual([holds(pod["containers"][0], pod) for pod in pods(*self.arguments(values))], [True, True])
                self.assertEqual([holds(pod["containers"][0], pod) for pod in pods()], [False, False], "it is so without the value")

    def test_annotations_are_those_of_the_server_and_of_its_nodes(self):
        template = named(chart.render(*HOSTS, *self.arguments(["podAnnotations: {a/b: c}"])), "LeaderWorkerSet",
                         "tessera-hosts")["spec"]["leaderWorkerTemplate"]
        self.assertEqual([template[f"{which}Template"]["metadata"]["annotations"]["a/b"] for which in ("leader", "worker")], ["c", "c"])

    def test_secondary_networks_are_those_of_every_host(self):
        key = "k8s.v1.cni.cncf.io/networks"
        arguments = self.arguments(["infiniband: {networks: [rail-0, fabric/rail-1]}", "podAnnotations: {a/b: c}"])
        template = named(chart.render(*INFINIBAND, *arguments), "LeaderWorkerSet", "tessera-hosts")["spec"]["leaderWorkerTemplate"]
        for which in ("leader", "worker"):
            annotations = template[f"{which}Template"]["metadata"]["annotations"]
            self.assertEqual((annotations[key], annotations["a/b"]), ("rail-0,fabric/rail-1", "c"))
        twice = chart.run(*INFINIBAND, *self.arguments(["infiniband: {networks: [rail-0]}", f"podAnnotations: {{{key}: other}}"]))
        self.assertNotEqual(twice.returncode, 0)
        self.assertIn("infiniband.networks", twice.stderr)

    def test_a_cluster_without_nvidias_operator_needs_neither_its_runtime_class_nor_its_labels(self):
        """Helm adds maps of several files up, so that an example's node selector can only be left out of the file."""
        values = (manifests.ROOT / "deploy/helm/values/many-hosts-infiniband.yaml").read_text()
        values = re.sub(r"runtimeClassName: nvidia\nnodeSelector:\n  nvidia.com/gpu.present: .*\n", "", values)
        self.assertNotIn("gpu.present", values)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(values)
            file.flush()
            arguments = [file.name if argument.endswith("many-hosts-infiniband.yaml") else argument for argument in INFINIBAND]
            for part in manifests.leader_and_worker(named(chart.render(*arguments), "LeaderWorkerSet", "tessera-hosts")):
                self.assertFalse({"runtimeClassName", "nodeSelector"} & set(pod_of(part)))
                names = {entry["name"] for entry in pod_of(part)["containers"][0]["env"]}
                self.assertFalse({"NCCL_IB_GID_INDEX", "NCCL_NVLS_ENABLE"} & names, "NCCL decides where nothing is said")

    def test_how_long_a_node_may_be_silent_is_the_operators(self):
        nodes = manifests.parse_configuration(named(chart.render(*HOSTS, "--set", "config.nodes.lost_after=9s"), "ConfigMap",
                                                    "tessera-config")["data"]["tessera.yaml"])["nodes"]
        self.assertEqual((nodes["lost_after"], nodes["listen"]["port"]), ("9s", 8082))

    def test_several_hosts_may_have_their_queue_in_postgresql(self):
        objects = chart.render(*INFINIBAND, "--set", "postgresql.enabled=true")
        self.assertValid(objects)
        egress = named(objects, "NetworkPolicy", "tessera")["spec"]["egress"]
        self.assertEqual([sorted(way) for way in egress], [["ports"], ["ports"], ["to"]])

    def test_a_batch_with_several_hosts_meets_inside_its_pod(self):
        objects = chart.render(*INFINIBAND, "--set", "batch.enabled=true", "--set", "batch.input=prompts.jsonl")
        self.assertValid(objects)
        self.assertNotIn("rdma/hca", pod_of(named(objects, "Job", "tessera-batch"))["containers"][0]["resources"]["limits"])

    def test_several_servers_and_keda_are_valid_with_postgresql(self):
        shared = ["--set", "postgresql.enabled=true"]
        self.assertIsNone(chart.check_values(*shared, "--set", "replicas=2"))
        self.assertIsNone(chart.check_values(*shared, "--set", "autoscaling.keda.enabled=true"))
        self.assertIsNone(chart.check_values())

    def test_another_configuration_makes_other_pods(self):
        def checksum(*arguments):
            workload = named(chart.render(*arguments), "StatefulSet", "tessera")
            return workload["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

        self.assertEqual(checksum(), checksum())
        self.assertNotEqual(checksum(), checksum("--set", "config.log_level=debug"))

    def test_another_list_of_weights_makes_another_job(self):
        def job(*arguments):
            return manifests.of_kind(chart.render(*chart.arguments_of("gpu"), *MANY, *arguments), "Job")[0]["metadata"]["name"]

        self.assertEqual(job(), job())
        self.assertNotEqual(job(), job("--set-literal", "weights.list=other"))

    def test_another_list_of_weights_makes_another_pod_that_fetches_them(self):
        def checksum(*arguments):
            workload = named(chart.render(*chart.arguments_of("gpu"), *arguments), "StatefulSet", "tessera")
            return workload["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

        self.assertNotEqual(checksum(), checksum("--set-literal", "weights.list=other"))

    def test_one_pod_pulls_a_model_of_the_hub_itself(self):
        objects = chart.render(*HUB, "--set", "weights.existingSecret=hub")
        self.assertValid(objects)
        pod = pod_of(named(objects, "StatefulSet", "tessera"))
        pull, doctor = pod["initContainers"]
        self.assertEqual((pull["image"], pull["args"]), ("tessera:0.1.0", ["pull", "ORG/NAME", "--revision", "v1.0"]))
        token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}}
        self.assertIn(token, pull["env"])
        self.assertNotIn("HF_TOKEN", json.dumps([doctor, pod["containers"]]))
        for container in (pull, doctor, pod["containers"][0]):
            self.assertIn({"name": "HF_HOME", "value": "/models/huggingface"}, container["env"])
            mount = next(mount for mount in container["volumeMounts"] if mount["name"] == "weights")
            self.assertEqual((mount["mountPath"], mount.get("readOnly", False)), ("/models", container is not pull))
        ports = [port["port"] for way in named(objects, "NetworkPolicy", "tessera")["spec"]["egress"] for port in way["ports"]]
        self.assertEqual(ports, [53, 53, 443])
        self.assertEqual(manifests.of_kind(objects, "Job"), [])

    def test_a_job_pulls_a_model_of_the_hub_for_several_pods_where_they_run(self):
        objects = chart.render(*HUB, *MANY, *self.arguments(["nodeSelector: {disk: fast}", "tolerations: [{operator: Exists}]"]))
        self.assertValid(objects)
        job = manifests.of_kind(objects, "Job")[0]
        pod = pod_of(named(objects, "StatefulSet", "tessera"))
        command = pod_of(job)["containers"][0]["command"][-1]
        self.assertIn("tessera pull ORG/NAME --revision v1.0 && ", command)
        self.assertIn(f"[ -e {command.rsplit('>', 1)[1]} ]", pod["initContainers"][0]["command"][-1])
        self.assertEqual([pod_of(job)[key] for key in ("nodeSelector", "tolerations")], [pod[key] for key in ("nodeSelector", "tolerations")])
        self.assertEqual(named(objects, "NetworkPolicy", "tessera")["spec"]["egress"], [])

    def test_more_volumes_are_those_of_every_pod_that_computes(self):
        values = self.arguments(["extraVolumes: [{name: adapters, persistentVolumeClaim: {claimName: a}}, {name: tls, secret: {secretName: t}}]",
                                 "extraVolumeMounts: [{name: adapters, mountPath: /adapters}, {name: tls, mountPath: /tls, readOnly: true}]"])
        objects = chart.render(*INFINIBAND, *MANY, *values, "--set", "batch.enabled=true", "--set", "batch.input=prompts.jsonl")
        objects += chart.render(*values, *chart.arguments_of("train"))
        objects += chart.render(*values)
        pods = [part for part in manifests.workloads(objects) if "weights" not in part["metadata"]["name"]]
        self.assertEqual(len(pods), 5)
        for part in pods:
            self.assertIn({"name": "adapters", "persistentVolumeClaim": {"claimName": "a"}}, pod_of(part)["volumes"])
            self.assertIn({"name": "tls", "mountPath": "/tls", "readOnly": True}, pod_of(part)["containers"][0]["volumeMounts"])
        for part in (part for part in pods if part["kind"] == "StatefulSet"):
            self.assertEqual([name for name, _ in rules.violations([part, *objects]) if name == "servers_are_examined_first"], [])

    def test_callers_outside_reach_it_by_an_ingress_that_does_not_buffer(self):
        objects = chart.render(*INGRESS, "--set", "ingress.className=nginx", *self.arguments(["ingress: {annotations: {a/b: c}}"]))
        self.assertValid(objects)
        ingress = named(objects, "Ingress", "tessera")
        annotations = ingress["metadata"]["annotations"]
        self.assertEqual((annotations["nginx.ingress.kubernetes.io/proxy-buffering"], annotations["a/b"]), ("off", "c"))
        self.assertEqual(ingress["spec"]["tls"], [{"hosts": ["images.example"], "secretName": "tessera-tls"}])
        self.assert_reached_from(objects, "ingress-nginx")

    def test_callers_outside_reach_it_by_a_gateway_without_a_timeout(self):
        objects = chart.render(*ROUTE)
        self.assertValid(objects)
        route = named(objects, "HTTPRoute", "tessera")["spec"]
        self.assertEqual((route["hostnames"], route["rules"][0]["timeouts"]), (["images.example"], {"request": "0s", "backendRequest": "0s"}))
        self.assertEqual(route["rules"][0]["backendRefs"], [{"name": "tessera", "port": 8080}])
        self.assert_reached_from(objects, "gateways")

    def assert_reached_from(self, objects, namespace):
        peers = named(objects, "NetworkPolicy", "tessera")["spec"]["ingress"][0]["from"]
        self.assertIn({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}, peers)
        configuration = manifests.parse_configuration(named(objects, "ConfigMap", "tessera-config")["data"]["tessera.yaml"])
        self.assertEqual(configuration["public_url"], "https://images.example")

    def test_the_keys_of_a_group_are_the_programs(self):
        schema = json.loads((chart.CHART / "values.schema.json").read_text())["definitions"]["group"]["properties"]
        keys = re.findall(r"^\| `groups\[\]\.(\w+)` \|", (manifests.ROOT / "docs/serve.md").read_text(), re.MULTILINE)
        self.assertEqual(sorted(schema), sorted(keys))

    def test_every_value_has_a_comment_and_is_in_the_schema(self):
        lines = (chart.CHART / "values.yaml").read_text().splitlines()
        for number, line in enumerate(lines):
            if not re.match(r" {0,8}[A-Za-z]+: ", line):
                continue
            above = number
            while lines[above].strip() and not lines[above].lstrip().startswith("#"):
                above -= 1
            self.assertTrue(lines[above].strip(), f"{line!r} has no comment")

        def check(values, schema, place):
            for key, value in values.items():
                self.assertIn(key, schema["properties"], f"{place}.{key}")
                inner = schema["properties"][key]
                if isinstance(value, dict) and "properties" in inner:
                    check(value, inner, f"{place}.{key}")

        check(manifests.yaml.safe_load("\n".join(lines)), json.loads((chart.CHART / "values.schema.json").read_text()), "values")

    def test_notes_name_what_was_rendered(self):
        for overlay in OVERLAYS:
            shown = chart.notes(*chart.arguments_of(overlay), release="night-1")
            objects = chart.render(*chart.arguments_of(overlay), release="night-1")
            for kind, name in re.findall(r"(?:kubectl [a-z -]+ )(statefulset/|leaderworkerset/|service/|job )([a-z0-9-]+)", shown):
                kind = {"statefulset/": "StatefulSet", "leaderworkerset/": "LeaderWorkerSet", "service/": "Service", "job ": "Job"}[kind]
                self.assertIsNotNone(named(objects, kind, name), f"{overlay}: {kind} {name}")
            self.assertIn("kubectl", shown)


if __name__ == "__main__":
    unittest.main()
