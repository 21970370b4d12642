"""Rules for every set of objects in addition to the schemas. A rule is a function from objects to sentences about what
is wrong; RULES has them all."""

import json
import re

import yaml

from manifests import configuration_of, containers_of, leader_and_worker, named, of_kind, pod_of, seconds, title, workloads

LABELS = ["name", "instance", "component", "version", "managed-by"]
CHECKPOINT_GRACE = 60  # least seconds for a step and a checkpoint
EXIT_GRACE = 15  # seconds that the server has after drain_time

RULES = []


def rule(function):
    RULES.append(function)
    return function


def servers(objects):
    return [thing for thing in workloads(objects) if configuration_of(objects, thing) is not None]


def bytes_of(quantity):
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|)", str(quantity)).groups()
    return int(number) * 1024 ** ["", "Ki", "Mi", "Gi", "Ti"].index(unit)


def labels_of(thing):
    return thing["metadata"].get("labels", {})


def pod_labels(workload):
    return workload["spec"]["template"]["metadata"].get("labels", {})


def selects(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


def volume_of(workload, name):
    return next(volume for volume in pod_of(workload)["volumes"] if volume["name"] == name)


def texts_mounted(objects, workload, path):
    """The file of that path in the workload's containers, of ConfigMaps."""
    folder, name = path.rsplit("/", 1)
    for container in containers_of(workload):
        for mount in container.get("volumeMounts", []):
            if mount["mountPath"] == folder:
                yield named(objects, "ConfigMap", volume_of(workload, mount["name"])["configMap"]["name"])["data"][name]


def runs_tessera(container):
    """Whether the image's entry point runs, which reaps the processes that a killed server leaves."""
    return "command" not in container


def rdma_of(container):
    """The resources of its InfiniBand adapters."""
    return [name for name in container.get("resources", {}).get("limits", {}) if name.startswith("rdma/")]


def port_names(workload):
    return {port["name"]: port["containerPort"] for container in containers_of(workload) for port in container.get("ports", [])}


@rule
def every_object_has_the_usual_labels(objects):
    for thing in objects:
        for label in LABELS:
            if f"app.kubernetes.io/{label}" not in labels_of(thing):
                yield f"{title(thing)} lacks the label app.kubernetes.io/{label}"


@rule
def servers_are_probed(objects):
    for workload in servers(objects):
        for container in filter(runs_tessera, pod_of(workload)["containers"]):
            for probe, path in [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]:
                get = container.get(probe, {}).get("httpGet", {})
                if (get.get("path"), get.get("port")) != (path, "admin"):
                    yield f"{title(workload)}: the {probe} of {container['name']} does not ask the admin port for {path}"


@rule
def servers_are_examined_first(objects):
    """The last init container is `tessera doctor` with all that the server has."""
    for workload in servers(objects):
        server = pod_of(workload)["containers"][0]
        doctor = ([{}] + pod_of(workload).get("initContainers", []))[-1]
        if doctor.get("args") != ["doctor", *server["args"][1:]]:
            yield f"{title(workload)} does not end its init containers with a doctor that reads the server's configuration"
            continue
        for key in ("image", "env", "resources", "securityContext", "volumeMounts"):
            ours, its = (sorted(map(json.dumps, value)) if isinstance(value, list) else value for value in (server[key], doctor.get(key, [])))
            if ours != its:
                yield f"{title(workload)}: the doctor has another {key} than the server"


@rule
def one_pod_mounts_a_volume_of_one_node(objects):
    """Of two pods on two nodes the second would wait for ever for a volume that is ReadWriteOnce."""
    most = [(workload, most_pods(objects, workload)) for workload in of_kind(objects, "StatefulSet", "Deployment", "DaemonSet", "Job")]
    for group in of_kind(objects, "LeaderWorkerSet"):
        replicas, size = group["spec"]["replicas"], group["spec"]["leaderWorkerTemplate"]["size"]
        most += zip(leader_and_worker(group), (replicas, replicas * (size - 1)))
    for claim in of_kind(objects, "PersistentVolumeClaim"):
        pods = sum(number for workload, number in most if any(
            volume.get("persistentVolumeClaim", {}).get("claimName") == claim["metadata"]["name"]
            for volume in pod_of(workload).get("volumes", [])))
        if pods > 1 and claim["spec"]["accessModes"] != ["ReadWriteMany"]:
            yield f"{title(claim)} is {claim['spec']['accessModes']}, and {pods} pods mount it"


def most_pods(objects, workload):
    """How many pods of the workload there are at most at one time."""
    spec = workload["spec"]
    if workload["kind"] == "Job":
        return min(spec.get("completions", 1), spec.get("parallelism", 1))
    scaled = [s["spec"]["maxReplicaCount"] for s in of_kind(objects, "ScaledObject")
              if s["spec"]["scaleTargetRef"]["name"] == workload["metadata"]["name"]]
    return scaled[0] if scaled else spec.get("replicas", 1)


@rule
def requests_are_limits(objects):
    for workload in workloads(objects):
        for container in containers_of(workload):
            resources = container.get("resources", {})
            limits = resources.get("limits", {})
            if not {"cpu", "memory"} <= limits.keys() or limits != resources.get("requests"):
                yield f"{title(workload)}: {container['name']} has no limits of cpu and memory, or other requests than limits"


@rule
def grace_is_stop_drain_and_exit(objects):
    for workload in servers(objects):
        container = pod_of(workload)["containers"][0]
        command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
        if command[:1] != ["sleep"]:
            yield f"{title(workload)} has no preStop that waits for proxies"
            continue
        drain = seconds(configuration_of(objects, workload).get("drain_time", "60s"))
        needed = int(command[1]) + drain + EXIT_GRACE
        if pod_of(workload).get("terminationGracePeriodSeconds") != needed:
            yield f"{title(workload)}: the grace period is not {needed:g} s, preStop + drain_time + {EXIT_GRACE} s"


@rule
def selectors_are_labels(objects):
    pods = [pod_labels(workload) for workload in workloads(objects)]
    for workload in of_kind(objects, "StatefulSet", "Deployment"):
        if not selects(workload["spec"]["selector"]["matchLabels"], pod_labels(workload)):
            yield f"{title(workload)} does not select its own pods"
    for service in of_kind(objects, "Service"):
        if not any(selects(service["spec"].get("selector"), labels) for labels in pods):
            yield f"{title(service)} selects no pod"
    for budget in of_kind(objects, "PodDisruptionBudget"):
        if not any(selects(budget["spec"]["selector"].get("matchLabels"), labels) for labels in pods):
            yield f"{title(budget)} selects no pod"
    for policy in of_kind(objects, "NetworkPolicy"):
        if not any(selects(policy["spec"]["podSelector"].get("matchLabels"), labels) for labels in pods):
            yield f"{title(policy)} selects no pod"
    services = of_kind(objects, "Service")
    for monitor in of_kind(objects, "ServiceMonitor"):
        found = [s for s in services if selects(monitor["spec"]["selector"].get("matchLabels"), labels_of(s))]
        if len(found) != 1:
            yield f"{title(monitor)} selects {len(found)} services and not one: pods would be counted more often, or never"
            continue
        for endpoint in monitor["spec"]["endpoints"]:
            if endpoint.get("port") not in [port["name"] for port in found[0]["spec"]["ports"]]:
                yield f"{title(monitor)} reads the port {endpoint.get('port')}, which {title(found[0])} lacks"


@rule
def every_pod_has_a_network_policy(objects):
    for workload in workloads(objects):
        policies = [p for p in of_kind(objects, "NetworkPolicy")
                    if selects(p["spec"]["podSelector"].get("matchLabels"), pod_labels(workload))]
        if not any({"Ingress", "Egress"} <= set(policy["spec"].get("policyTypes", [])) for policy in policies):
            yield f"{title(workload)} has no network policy for both directions"


@rule
def what_computes_has_shared_memory(objects):
    for workload in workloads(objects):
        volumes = {volume["name"]: volume for volume in pod_of(workload).get("volumes", [])}
        for container in pod_of(workload)["containers"]:
            if not runs_tessera(container):
                continue
            mounts = [m["name"] for m in container.get("volumeMounts", []) if m["mountPath"] == "/dev/shm"]
            shared = volumes.get(mounts[0], {}).get("emptyDir", {}) if mounts else {}
            if shared.get("medium") != "Memory" or "sizeLimit" not in shared:
                yield f"{title(workload)}: /dev/shm of {container['name']} is not memory of a given size"
            elif bytes_of(shared["sizeLimit"]) > bytes_of(container["resources"]["limits"]["memory"]) / 2:
                yield f"{title(workload)}: /dev/shm of {container['name']} takes more than half of its memory"


@rule
def pods_are_restricted(objects):
    """The "restricted" of Pod Security Standards, and a read-only root, too. Only containers with an InfiniBand adapter
    may pin memory for it."""
    for workload in workloads(objects):
        pod = pod_of(workload).get("securityContext", {})
        if pod.get("runAsNonRoot") is not True or not pod.get("runAsUser"):
            yield f"{title(workload)} may run as root"
        if pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{title(workload)} has no seccomp profile"
        if any(pod_of(workload).get(key) for key in ["hostNetwork", "hostPID", "hostIPC"]):
            yield f"{title(workload)} shares a namespace with its node"
        for volume in pod_of(workload).get("volumes", []):
            if "hostPath" in volume:
                yield f"{title(workload)} mounts a folder of its node"
        for container in containers_of(workload):
            context = container.get("securityContext", {})
            if context.get("readOnlyRootFilesystem") is not True:
                yield f"{title(workload)}: {container['name']} can write to its root"
            if (context.get("allowPrivilegeEscalation") is not False or context.get("privileged") or
                    context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False or
                    context.get("capabilities") != {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if rdma_of(container) else {})}):
                yield f"{title(workload)}: {container['name']} is not restricted"


@rule
def images_are_pinned(objects):
    for workload in workloads(objects):
        for container in containers_of(workload):
            if not re.search(r"(@sha256:[0-9a-f]{64}|:(?!latest$)[A-Za-z0-9_][A-Za-z0-9._-]*)$", container["image"]):
                yield f"{title(workload)}: the image {container['image']} has no specific tag"


@rule
def accounts_have_no_token(objects):
    for account in of_kind(objects, "ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"{title(account)} gives its pods a token"
    for workload in workloads(objects):
        pod = pod_of(workload)
        if pod.get("automountServiceAccountToken") is not False or "serviceAccountName" not in pod:
            yield f"{title(workload)} has an account with a token"
        if pod.get("enableServiceLinks") is not False:
            yield f"{title(workload)} gets environment variables for the namespace's services"


@rule
def what_is_referred_to_is_there(objects):
    """Secrets are the operator's own; everything else is rendered with what refers to it."""
    for workload in workloads(objects):
        pod = pod_of(workload)
        wanted = [("ServiceAccount", pod.get("serviceAccountName"))]
        if workload["kind"] == "StatefulSet":
            wanted.append(("Service", workload["spec"]["serviceName"]))
        for volume in pod.get("volumes", []):
            if "configMap" in volume:
                wanted.append(("ConfigMap", volume["configMap"]["name"]))
            if "persistentVolumeClaim" in volume:
                wanted.append(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
        for kind, name in wanted:
            if named(objects, kind, name) is None:
                yield f"{title(workload)} needs {kind}/{name}, which is not there"
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        mounted = set()
        for container in containers_of(workload):
            mounted |= {mount["name"] for mount in container.get("volumeMounts", [])}
            # A file that is mounted by itself keeps its first content for ever.
            if any("subPath" in mount for mount in container.get("volumeMounts", [])):
                yield f"{title(workload)}: {container['name']} mounts a subPath"
        if volumes != mounted:
            yield f"{title(workload)}: volumes and mounts differ: {sorted(volumes ^ mounted)}"
    for scaled in of_kind(objects, "ScaledObject"):
        target = scaled["spec"]["scaleTargetRef"]
        if named(objects, target["kind"], target["name"]) is None:
            yield f"{title(scaled)} scales {target['kind']}/{target['name']}, which is not there"


@rule
def the_configuration_fits_the_pod(objects):
    for workload in servers(objects):
        configuration = configuration_of(objects, workload)
        places = {**configuration["listen"], **{name: nodes["listen"] for name, nodes in configuration.items() if name == "nodes"}}
        listens = {name: place["port"] for name, place in places.items() if place != "off"}
        proxied = listens.pop("grpc", None)
        proxies = [container for container in pod_of(workload)["containers"] if container["name"] == "grpc"]
        ports = {name: port for name, port in port_names(workload).items() if not proxies or name != "grpc"}
        if (proxied is not None) != bool(proxies):
            yield f"{title(workload)}: gRPC is on in the configuration or in the pod alone"
        for proxy in proxies:
            yield from proxy_problems(objects, workload, proxy, places["grpc"])
        if listens != ports:
            yield f"{title(workload)}: it listens on {listens}, and the pod's ports are {ports}"
        for name, place in places.items():
            if isinstance(place, dict) and name != "grpc" and place.get("address") not in ("0.0.0.0", "::"):
                yield f"{title(workload)}: {name} listens on {place.get('address')}, which nothing outside the pod reaches"
        container = pod_of(workload)["containers"][0]
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        for key, read_only in [("keys_file", True), ("data_folder", False)]:
            if key not in configuration:
                continue
            place = [path for path in mounts if configuration[key].startswith(path + "/")]
            if not place or mounts[place[0]].get("readOnly", False) is not read_only:
                yield f"{title(workload)}: {key} {configuration[key]} is not on a volume of the pod that is right for it"
        for service in of_kind(objects, "Service"):
            if not selects(service["spec"].get("selector"), pod_labels(workload)):
                continue
            for port in service["spec"]["ports"]:
                if port["targetPort"] not in port_names(workload):
                    yield f"{title(service)} leads to the port {port['targetPort']}, which the pod lacks"


def proxy_problems(objects, workload, proxy, place):
    """Why callers do not reach gRPC through the proxy, or reach it past the proxy."""
    text = next(texts_mounted(objects, workload, proxy["command"][-1]))
    if place == "off" or place["address"] != "127.0.0.1":
        yield f"{title(workload)}: gRPC listens on {place}, and not for its proxy alone"
    elif set(re.findall(r"grpc_pass grpc://([0-9.:]+);", text)) != {f"{place['address']}:{place['port']}"}:
        yield f"{title(workload)}: the proxy passes gRPC to another address than {place}"
    if re.findall(r"listen (\d+) ssl http2;", text) != [str(proxy["ports"][0]["containerPort"])]:
        yield f"{title(workload)}: the proxy listens on other ports than the pod's, or without TLS"


@rule
def groups_have_the_gpus_of_the_pod(objects):
    for workload in servers(objects):
        limits = pod_of(workload)["containers"][0]["resources"]["limits"]
        gpus = sum(int(count) for name, count in limits.items() if "/" in name and not name.startswith("rdma/"))
        devices = set()
        for group in configuration_of(objects, workload).get("groups", []):
            devices |= {device for device in group.get("devices", []) if device.startswith("cuda")}
        if devices != {f"cuda:{number}" for number in range(gpus)}:
            yield f"{title(workload)} has {gpus} GPUs, and its groups use {sorted(devices)}"


@rule
def ranks_on_gpus_meet_inside_the_pod(objects):
    """NCCL by itself takes the first network interface, which a policy may block, and a node's InfiniBand, which needs rights.
    A pod that has those rights says which adapters and which interface."""
    for workload in workloads(objects):
        for container in pod_of(workload)["containers"]:
            if not runs_tessera(container) or not any("/" in name for name in container["resources"]["limits"]):
                continue
            variables = {entry["name"]: entry.get("value") for entry in container.get("env", [])}
            if rdma_of(container):
                if (not variables.get("NCCL_IB_HCA") or variables.get("NCCL_IB_DISABLE", "0") != "0" or
                        variables.get("NCCL_SOCKET_IFNAME", "lo") == "lo"):
                    yield f"{title(workload)}: NCCL of {container['name']} does not look for its peers over InfiniBand"
            elif (variables.get("NCCL_SOCKET_IFNAME"), variables.get("NCCL_IB_DISABLE")) != ("lo", "1"):
                yield f"{title(workload)}: NCCL of {container['name']} looks for the other ranks outside the pod"


@rule
def only_a_shared_queue_has_several_servers(objects):
    for workload in servers(objects):
        shared = "store" in configuration_of(objects, workload)
        scaled = [s for s in of_kind(objects, "ScaledObject") if s["spec"]["scaleTargetRef"]["name"] == workload["metadata"]["name"]]
        replicas = workload["spec"].get("replicas")
        if not shared and (scaled or replicas != 1):
            yield f"{title(workload)}: a queue that is embedded in one server allows one replica and no ScaledObject"
        if scaled and replicas is not None:
            yield f"{title(workload)} says how many replicas there are, against {title(scaled[0])}"


@rule
def scaling_follows_the_shared_queue(objects):
    for scaled in of_kind(objects, "ScaledObject"):
        target = named(objects, "StatefulSet", scaled["spec"]["scaleTargetRef"]["name"])
        groups = configuration_of(objects, target).get("groups", []) if target else []
        models = {group.get("name", group["model"].rsplit("/", 1)[-1]) for group in groups}
        if scaled["spec"].get("minReplicaCount") != 1:
            yield f"{title(scaled)}: without a server the queue is not reported, so the minimum is 1"
        for trigger in scaled["spec"]["triggers"]:
            query = re.fullmatch(r'max\(tessera_queued_device_seconds\{model="([^"]+)"\}\)', trigger["metadata"]["query"])
            if query is None or query[1] not in models:
                yield f"{title(scaled)}: {trigger['metadata']['query']} is not the greatest of a model's queue"


@rule
def servers_are_drained_one_at_a_time(objects):
    for workload in servers(objects):
        budgets = [b for b in of_kind(objects, "PodDisruptionBudget")
                   if selects(b["spec"]["selector"].get("matchLabels"), pod_labels(workload))]
        if [(b["spec"].get("maxUnavailable"), b["spec"].get("minAvailable")) for b in budgets] != [(1, None)]:
            yield f"{title(workload)} has no disruption budget with maxUnavailable: 1"


@rule
def shards_are_all_done(objects):
    for job in of_kind(objects, "Job"):
        spec = job["spec"]
        if pod_of(job).get("restartPolicy") != "Never":
            yield f"{title(job)} restarts in place: its exit codes would never be judged"
        shards = [args[args.index("--shard") + 1] for args in (c.get("args", []) for c in containers_of(job)) if "--shard" in args]
        if not shards:
            continue
        if spec.get("completionMode") != "Indexed" or shards != [f"$(JOB_COMPLETION_INDEX)/{spec.get('completions')}"]:
            yield f"{title(job)} has {spec.get('completions')} pods for the shards {shards}"
        if not all("--seed" in args for args in (c.get("args", []) for c in containers_of(job)) if "--shard" in args):
            yield f"{title(job)}: its shards draw the run's seed each for itself"
        judged = [(r["action"], r.get("onExitCodes", {}).get("values"), [c["type"] for c in r.get("onPodConditions", [])])
                  for r in spec.get("podFailurePolicy", {}).get("rules", [])]
        if judged != [("Ignore", None, ["DisruptionTarget"]), ("FailJob", [2, 3], []), ("FailIndex", [9], [])]:
            yield f"{title(job)} judges its pods' failures as {judged}"
        if "backoffLimitPerIndex" not in spec:
            yield f"{title(job)}: one shard's failures count against all of them"


@rule
def training_goes_on(objects):
    for job in of_kind(objects, "Job"):
        for args in (c["args"] for c in containers_of(job) if runs_tessera(c) and c["args"][0] == "train"):
            spec = job["spec"]
            if "--resume" not in args or args[args.index("--resume") + 1] != "latest":
                yield f"{title(job)} starts again in every pod"
            if (spec.get("completions"), spec.get("parallelism"), spec.get("podReplacementPolicy")) != (1, 1, "Failed"):
                yield f"{title(job)}: two pods may write into one run"
            if pod_of(job).get("terminationGracePeriodSeconds", 30) < CHECKPOINT_GRACE:
                yield f"{title(job)} has less than {CHECKPOINT_GRACE} s for its last checkpoint"
            judged = [(r["action"], r.get("onExitCodes", {}).get("values"), [c["type"] for c in r.get("onPodConditions", [])])
                      for r in spec.get("podFailurePolicy", {}).get("rules", [])]
            if judged != [("Ignore", None, ["DisruptionTarget"]), ("Ignore", [130], []), ("FailJob", [2, 3], [])]:
                yield f"{title(job)} judges its pods' failures as {judged}"
            for text in texts_mounted(objects, job, args[1]):
                config = yaml.safe_load(text)
                places = [config["output"], *(dataset["folder_path"] for dataset in config["datasets"])]
                volumes = [m["mountPath"] for c in containers_of(job) for m in c["volumeMounts"]
                           if volume_of(job, m["name"]).get("persistentVolumeClaim") and not m.get("readOnly")]
                for place in places:
                    if not any(place.startswith(volume + "/") for volume in volumes):
                        yield f"{title(job)}: {place} is not on a volume that stays"


def violations(objects):
    """Pairs of a rule's name and a sentence."""
    return [(function.__name__, sentence) for function in RULES for sentence in function(objects)]
