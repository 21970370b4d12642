"""The Kustomize overlays: what they render is valid to Kubernetes and to our own rules; planted mistakes are not."""

import copy
import re
import unittest

import manifests
import rules
from manifests import named, overlay_objects, pod_of


def container(objects, kind, name):
    return pod_of(named(objects, kind, name))["containers"][0]


def server(objects):
    return container(objects, "StatefulSet", "tessera")


def change(objects, kind, name, **fields):
    named(objects, kind, name)["spec"].update(fields)


def remove_shm(objects):
    pod = pod_of(named(objects, "StatefulSet", "tessera"))
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "shm"]
    server(objects)["volumeMounts"] = [mount for mount in server(objects)["volumeMounts"] if mount["name"] != "shm"]


def reorder_failures(objects):
    named(objects, "Job", "tessera-batch")["spec"]["podFailurePolicy"]["rules"].reverse()


def rename_label(objects):
    named(objects, "StatefulSet", "tessera")["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] = "other"


def configuration(objects, old, new):
    for thing in objects:
        if "tessera.yaml" in thing.get("data", {}):
            assert old in thing["data"]["tessera.yaml"], old
            thing["data"]["tessera.yaml"] = thing["data"]["tessera.yaml"].replace(old, new)


def train_configuration(objects, old, new):
    for thing in objects:
        if "train.yaml" in thing.get("data", {}):
            thing["data"]["train.yaml"] = thing["data"]["train.yaml"].replace(old, new)


# Mistakes, the overlay that has each, and the rule that must find it; "schema" stands for the schemas of Kubernetes.
PLANTED = [
    ("a field of the wrong level", "cpu", lambda o: server(o).update(runtimeClassName="nvidia"), "schema"),
    ("a number that is a text", "cpu", lambda o: change(o, "StatefulSet", "tessera", replicas="1"), "schema"),
    ("a Service's port without a number", "cpu",
     lambda o: named(o, "Service", "tessera")["spec"]["ports"][0].pop("port"), "schema"),
    ("a threshold of KEDA that is a number", "shared-queue",
     lambda o: named(o, "ScaledObject", "tessera")["spec"]["triggers"][0]["metadata"].update(threshold=120), "schema"),
    ("an endpoint of a ServiceMonitor with a misspelt field", "gpu",
     lambda o: named(o, "ServiceMonitor", "tessera")["spec"]["endpoints"][0].update(intervall="15s"), "schema"),
    ("no readiness probe", "cpu", lambda o: server(o).pop("readinessProbe"), "servers_are_probed"),
    ("a probe of a path that does not exist", "cpu",
     lambda o: server(o)["livenessProbe"]["httpGet"].update(path="/healthz"), "servers_are_probed"),
    ("no doctor", "cpu", lambda o: pod_of(named(o, "StatefulSet", "tessera")).pop("initContainers"), "servers_are_examined_first"),
    ("a doctor before the weights are there", "gpu",
     lambda o: pod_of(named(o, "StatefulSet", "tessera"))["initContainers"].reverse(), "servers_are_examined_first"),
    ("a doctor without the server's GPUs", "gpu",
     lambda o: [pod_of(named(o, "StatefulSet", "tessera"))["initContainers"][-1]["resources"][which].pop("nvidia.com/gpu")
                for which in ("requests", "limits")], "servers_are_examined_first"),
    ("a Job and a server with a volume of one node", "gpu",
     lambda o: o.append(named(overlay_objects("many-hosts-infiniband"), "Job", "tessera-weights")),
     "one_pod_mounts_a_volume_of_one_node"),
    ("shards with a volume of one node", "batch",
     lambda o: change(o, "PersistentVolumeClaim", "tessera-batch", accessModes=["ReadWriteOnce"]), "one_pod_mounts_a_volume_of_one_node"),
    ("servers that KEDA adds, with a volume of one node", "shared-queue",
     lambda o: change(o, "PersistentVolumeClaim", "tessera-shared", accessModes=["ReadWriteOnce"]), "one_pod_mounts_a_volume_of_one_node"),
    ("limits above requests", "cpu", lambda o: server(o)["resources"]["limits"].update(memory="8Gi"), "requests_are_limits"),
    ("an init container without limits", "gpu",
     lambda o: pod_of(named(o, "StatefulSet", "tessera"))["initContainers"][0].pop("resources"), "requests_are_limits"),
    ("a longer drain_time in the configuration alone", "cpu",
     lambda o: configuration(o, "drain_time: 60s", "drain_time: 5m"), "grace_is_stop_drain_and_exit"),
    ("no preStop", "cpu", lambda o: server(o).pop("lifecycle"), "grace_is_stop_drain_and_exit"),
    ("a label of the pods that no selector has", "cpu", rename_label, "selectors_are_labels"),
    ("a ServiceMonitor that reads both Services", "gpu",
     lambda o: named(o, "ServiceMonitor", "tessera")["spec"]["selector"]["matchLabels"].pop("app.kubernetes.io/component"),
     "selectors_are_labels"),
    ("no /dev/shm", "gpu", remove_shm, "what_computes_has_shared_memory"),
    ("a /dev/shm on the disk", "gpu",
     lambda o: [v for v in pod_of(named(o, "StatefulSet", "tessera"))["volumes"] if v["name"] == "shm"][0]["emptyDir"].pop("medium"),
     "what_computes_has_shared_memory"),
    ("a user who is root", "cpu",
     lambda o: pod_of(named(o, "StatefulSet", "tessera"))["securityContext"].update(runAsUser=0), "pods_are_restricted"),
    ("a root that can be written", "batch",
     lambda o: container(o, "Job", "tessera-batch")["securityContext"].update(readOnlyRootFilesystem=False), "pods_are_restricted"),
    ("a folder of the node", "cpu",
     lambda o: pod_of(named(o, "StatefulSet", "tessera"))["volumes"][2].update(hostPath={"path": "/tmp"}), "pods_are_restricted"),
    ("the tag latest", "cpu", lambda o: server(o).update(image="tessera:latest"), "images_are_pinned"),
    ("no tag, and a registry with a port", "cpu", lambda o: server(o).update(image="registry:5000/tessera"), "images_are_pinned"),
    ("a token in the pod", "cpu",
     lambda o: pod_of(named(o, "StatefulSet", "tessera")).pop("automountServiceAccountToken"), "accounts_have_no_token"),
    ("an account that gives tokens", "cpu",
     lambda o: named(o, "ServiceAccount", "tessera").pop("automountServiceAccountToken"), "accounts_have_no_token"),
    ("a claim that does not exist", "gpu", lambda o: o.remove(named(o, "PersistentVolumeClaim", "tessera-weights")),
     "what_is_referred_to_is_there"),
    ("a volume that is not mounted", "cpu",
     lambda o: pod_of(named(o, "StatefulSet", "tessera"))["volumes"].append({"name": "cache", "emptyDir": {}}),
     "what_is_referred_to_is_there"),
    ("another port in the configuration", "cpu", lambda o: configuration(o, "port: 8080", "port: 8000"), "the_configuration_fits_the_pod"),
    ("a listener on loopback", "cpu",
     lambda o: configuration(o, "admin: {address: 0.0.0.0", "admin: {address: 127.0.0.1"), "the_configuration_fits_the_pod"),
    ("gRPC past its proxy", "grpc", lambda o: configuration(o, "127.0.0.1, port: 8081", "0.0.0.0, port: 8081"), "the_configuration_fits_the_pod"),
    ("a proxy of no gRPC", "grpc", lambda o: configuration(o, "{address: 127.0.0.1, port: 8081}", "off"), "the_configuration_fits_the_pod"),
    ("a proxy to another port", "grpc", lambda o: configuration(o, "port: 8081", "port: 8085"), "the_configuration_fits_the_pod"),
    ("gRPC without a proxy", "grpc", lambda o: pod_of(named(o, "StatefulSet", "tessera"))["containers"].pop(), "the_configuration_fits_the_pod"),
    ("a queue in the container's own files", "cpu",
     lambda o: configuration(o, "data_folder: /var/lib/tessera/data", "data_folder: /srv/data"), "the_configuration_fits_the_pod"),
    ("fewer GPUs than the group has devices", "gpu",
     lambda o: [server(o)["resources"][which].update({"nvidia.com/gpu": "4"}) for which in ("requests", "limits")],
     "groups_have_the_gpus_of_the_pod"),
    ("NCCL over the node's networks", "gpu",
     lambda o: server(o).update(env=[v for v in server(o)["env"] if v["name"] != "NCCL_SOCKET_IFNAME"]),
     "ranks_on_gpus_meet_inside_the_pod"),
    ("two servers with separate queues", "cpu", lambda o: change(o, "StatefulSet", "tessera", replicas=2),
     "only_a_shared_queue_has_several_servers"),
    ("KEDA without PostgreSQL", "shared-queue", lambda o: configuration(o, "store:", "stores:"),
     "only_a_shared_queue_has_several_servers"),
    ("a sum over front ends that all report the same queue", "shared-queue",
     lambda o: named(o, "ScaledObject", "tessera")["spec"]["triggers"][0]["metadata"].update(
         query='sum(tessera_queued_device_seconds{model="emoji"})'), "scaling_follows_the_shared_queue"),
    ("a model that no server has", "shared-queue", lambda o: configuration(o, "model: emoji", "model: other"),
     "scaling_follows_the_shared_queue"),
    ("KEDA down to no server", "shared-queue", lambda o: change(o, "ScaledObject", "tessera", minReplicaCount=0),
     "scaling_follows_the_shared_queue"),
    ("a budget that a single server can never meet", "cpu",
     lambda o: named(o, "PodDisruptionBudget", "tessera")["spec"].update(maxUnavailable=0), "servers_are_drained_one_at_a_time"),
    ("no network policy", "batch", lambda o: o.remove(named(o, "NetworkPolicy", "tessera-batch")),
     "every_pod_has_a_network_policy"),
    ("more pods than shards", "batch", lambda o: change(o, "Job", "tessera-batch", completions=9), "shards_are_all_done"),
    ("shards without a common seed", "batch", lambda o: container(o, "Job", "tessera-batch")["args"].remove("--seed"),
     "shards_are_all_done"),
    ("failures judged in another order", "batch", reorder_failures, "shards_are_all_done"),
    ("a batch that restarts in place", "batch",
     lambda o: pod_of(named(o, "Job", "tessera-batch")).update(restartPolicy="OnFailure"), "shards_are_all_done"),
    ("training that starts again in every pod", "train", lambda o: container(o, "Job", "tessera-train")["args"].remove("--resume"),
     "training_goes_on"),
    ("a pod of training before the last one has ended", "train",
     lambda o: change(o, "Job", "tessera-train", podReplacementPolicy="TerminatingOrFailed"), "training_goes_on"),
    ("training that is killed while it writes", "train",
     lambda o: pod_of(named(o, "Job", "tessera-train")).update(terminationGracePeriodSeconds=30), "training_goes_on"),
    ("an end by request that counts as a failure", "train",
     lambda o: named(o, "Job", "tessera-train")["spec"]["podFailurePolicy"]["rules"].pop(1), "training_goes_on"),
    ("what is trained in the container's own files", "train", lambda o: train_configuration(o, "/train/output", "/tmp/output"),
     "training_goes_on"),
    ("an object without its labels", "cpu", lambda o: named(o, "Service", "tessera")["metadata"].pop("labels"),
     "every_object_has_the_usual_labels"),
]


def found(objects, before):
    """The rules that notice something, "schema" among them, of objects that were valid before."""
    noticed = {name for name, _ in rules.violations(objects)}
    if any(manifests.schema_errors(thing, manifests.KUBERNETES_VERSIONS[-1]) for thing in objects if thing not in before):
        noticed.add("schema")
    return noticed


class ManifestsTest(unittest.TestCase):
    def test_every_object_is_valid_to_the_oldest_and_the_newest_kubernetes(self):
        for overlay in manifests.OVERLAYS:
            objects = overlay_objects(overlay)
            self.assertTrue(objects)
            for version in manifests.KUBERNETES_VERSIONS:
                for thing in objects:
                    with self.subTest(overlay=overlay, version=version, thing=manifests.title(thing)):
                        self.assertEqual(manifests.schema_errors(thing, version), [])

    def test_every_object_keeps_our_rules(self):
        for overlay in manifests.OVERLAYS:
            with self.subTest(overlay=overlay):
                self.assertEqual(rules.violations(overlay_objects(overlay)), [])

    def test_every_planted_mistake_is_noticed_by_its_rule(self):
        for mistake, overlay, plant, by in PLANTED:
            with self.subTest(mistake=mistake):
                objects = overlay_objects(overlay)
                before = copy.deepcopy(objects)
                plant(objects)
                self.assertNotEqual(objects, before, "nothing was planted")
                self.assertIn(by, found(objects, before))

    def test_every_rule_has_a_planted_mistake(self):
        self.assertEqual({function.__name__ for function in rules.RULES} | {"schema"}, {by for _, _, _, by in PLANTED})

    def test_a_cluster_without_nvidias_operator_takes_its_file_out(self):
        things = manifests.edited("overlays/gpu", lambda text: re.sub(r"  - path: nvidia-operator.yaml.*\n", "", text))
        self.assertEqual(rules.violations(things), [])
        for objects, there in ((things, False), (manifests.overlay_objects("gpu"), True)):
            pod = pod_of(named(objects, "StatefulSet", "tessera"))
            self.assertEqual(["runtimeClassName" in pod, "nodeSelector" in pod], [there, there])

    def test_every_base_and_option_is_part_of_an_overlay(self):
        text = "".join(path.read_text() for path in manifests.KUBERNETES.rglob("kustomization.yaml"))
        for folder in [*manifests.KUBERNETES.glob("base/*"), *manifests.KUBERNETES.glob("optional/*")]:
            self.assertRegex(text, rf"- (\.\./)+({folder.parent.name}/)?{folder.name}\n")

    def test_the_oldest_and_the_newest_kubectl_render_the_same(self):
        for overlay in manifests.OVERLAYS:
            with self.subTest(overlay=overlay):
                objects = manifests.kustomize(manifests.KUBERNETES / "overlays" / overlay, manifests.OLDEST_PROGRAMS)
                self.assertEqual(manifests.comparable(objects), manifests.comparable(overlay_objects(overlay)))

    def test_the_version_is_the_programs(self):
        version = re.search(r"project\(tessera VERSION ([0-9.]+)", (manifests.ROOT / "CMakeLists.txt").read_text())[1]
        for overlay in manifests.OVERLAYS:
            for thing in overlay_objects(overlay):
                self.assertEqual(thing["metadata"]["labels"]["app.kubernetes.io/version"], version, manifests.title(thing))
            for workload in manifests.workloads(overlay_objects(overlay)):
                for image in (c["image"] for c in manifests.containers_of(workload)):
                    self.assertTrue(not image.startswith("tessera") or re.fullmatch(rf"tessera:{version}(-cuda)?", image), image)


if __name__ == "__main__":
    unittest.main()
