"""Compares the images and the compose file with the programs, the configuration and each other. No container
engine is needed; scripts/image-tree.py builds the image's tree and runs it.

    container_files_test.py TESSERA BUILD     from the repository's root
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "server"))
import fake_server  # noqa: E402

DOCKER = pathlib.Path("deploy/docker")
DOCKERFILES = {kind: (DOCKER / f"Dockerfile.{kind}").read_text() for kind in ("cpu", "cuda")}
COMPOSE = {name: yaml.safe_load((DOCKER / name).read_text()) for name in ("compose.yaml", "compose.cuda.yaml", "compose.grpc.yaml")}
CONFIGS = {name: yaml.safe_load((DOCKER / name).read_text()) for name in ("tessera.yaml", "anonymous.yaml", "grpc.yaml")}


def last_stage(text):
    return text[text.rindex("\nFROM "):]


def instruction(text, name):
    return re.findall(rf"^{name} (.*)$", re.sub(r"\\\n *", "", last_stage(text)), re.M)


def seconds(text):
    return sum(int(n) * {"h": 3600, "m": 60, "s": 1}[unit] for n, unit in re.findall(r"(\d+)([hms])", text))


def packages(name):
    return {line for line in (DOCKER / name).read_text().splitlines() if line and line[0] != "#"}


class PackagesTest(unittest.TestCase):
    # Packages in addition to those of the programs' libraries and to those of every Debian.
    OTHERS = {"ca-certificates", "tini"}
    BASE = {"libc6", "libgcc-s1"}

    def needed(self):
        programs = [f"{BUILD}/bin/{name}" for name in ("tessera", "tessera-fake-worker", "tessera-picture-decoder", "tessera-worker")]
        listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True)
        files = {path for path in re.findall(r"=> (/\S+)", listed.stdout) if "/.deps/" not in path}
        # Packages name their files with or without the /usr in front; the other names belong to none.
        names = {name for file in files for name in (file, os.path.realpath(file), os.path.realpath(file).removeprefix("/usr"))}
        owners = subprocess.run(["dpkg-query", "-S", *sorted(names)], capture_output=True, text=True).stdout
        return {line.split(":")[0] for line in owners.splitlines()}

    def test_the_list_names_what_the_programs_libraries_come_from_and_no_more(self):
        listed = packages("packages.txt")
        self.assertEqual(listed - self.OTHERS, self.needed() - self.BASE)
        self.assertLessEqual(self.OTHERS, listed)


class OpenedLibrariesTest(unittest.TestCase):
    """Libraries that NCCL opens by name while it runs, which `ldd` does not list."""

    # The names in libnccl.so.2 of nvidia-nccl-cu13 2.28.9.
    NAMED = {"libc.so.6", "libcuda.so", "libcuda.so.1", "libdl.so.2", "libgcc_s.so.1", "libgdrapi.so", "libgdrapi.so.2",
             "libibverbs.so", "libibverbs.so.1", "libm.so.6", "libmlx5.so", "libmlx5.so.1", "libnccl-net.so", "libnccl.so.2",
             "libnvidia-ml.so.1", "libpthread.so.0", "librt.so.1", "libstdc++.so.6"}
    # The packages of Debian 12 that have those which are opened and neither the driver's nor optional.
    PROVIDED = {"libibverbs1": {"libibverbs.so.1"}, "ibverbs-providers": {"libmlx5.so.1"}}
    OPTIONAL = {"libgdrapi.so", "libgdrapi.so.2", "libnccl-net.so"}
    DRIVER = {"libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"}

    def states(self, library, installed):
        """(exit code, state of each name), as the CUDA image's build sees them."""
        listed = subprocess.run([DOCKER / "opened-libraries.sh", library], input=installed, capture_output=True, text=True)
        self.assertEqual(listed.stderr, "")
        return listed.returncode, dict(line.split() for line in listed.stdout.splitlines())

    def library(self, folder, names=NAMED):
        """Writes a file with the names in it, between bytes that are not text, as in a library."""
        path = pathlib.Path(folder, "libnccl.so.2")
        path.write_bytes(b"\x7fELF\xff\0" + b"\0\xfe0.0".join(name.encode() for name in sorted(names)) + b"\0%s-%s.so\0")
        return path

    @staticmethod
    def installed(names):
        return "".join(f"\t{name} (libc6,x86-64) => /lib/x86_64-linux-gnu/{name}\n" for name in sorted(names))

    def test_the_cuda_image_has_what_nccl_opens(self):
        self.assertEqual(packages("packages-cuda.txt"), set(self.PROVIDED))
        loaded = {"libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1", "libstdc++.so.6"}
        with tempfile.TemporaryDirectory() as folder:
            library = self.library(folder)
            code, states = self.states(library, self.installed(loaded.union(*self.PROVIDED.values())))
            self.assertEqual(code, 0, states)
            self.assertEqual(set(states), self.NAMED - {"libnccl.so.2"})
            for state, names in (("optional", self.OPTIONAL), ("driver", self.DRIVER)):
                self.assertEqual({name for name, found in states.items() if found == state}, names)
            for package, provided in self.PROVIDED.items():
                others = set().union(*(names for name, names in self.PROVIDED.items() if name != package))
                code, states = self.states(library, self.installed(loaded | others))
                self.assertEqual(code, 1, package)
                self.assertLessEqual(provided, {name for name, found in states.items() if found == "MISSING"})

    def test_a_library_that_a_later_nccl_opens_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            code, states = self.states(self.library(folder, {"libc.so.6", "libnewfabric.so.2"}), self.installed({"libc.so.6"}))
            self.assertEqual((code, states), (1, {"libc.so.6": "installed", "libnewfabric.so.2": "MISSING"}))

    def test_the_build_of_the_cuda_image_asks_the_nccl_in_it(self):
        run = [line for line in instruction(DOCKERFILES["cuda"], "RUN") if "opened-libraries.sh" in line]
        self.assertEqual(run, ["ldconfig -p | /usr/local/share/tessera/opened-libraries.sh "
                               "/opt/tessera/lib/libtorch/nvidia/nccl/lib/libnccl.so.2"])


class DockerfileTest(unittest.TestCase):
    def test_an_image_runs_as_a_user_by_number_who_is_not_root(self):
        for kind, text in DOCKERFILES.items():
            self.assertEqual(instruction(text, "USER"), ["10001:10001"], kind)

    def test_nothing_is_built_on_whatever_is_latest(self):
        for kind, text in DOCKERFILES.items():
            self.assertEqual(set(re.findall(r"^FROM (\S+)", text, re.M)), {"${BASE}"}, kind)
            self.assertRegex(text, r"(?m)^ARG BASE=[\w/.]+:(?!latest)[\w.-]+$")
        for file in COMPOSE.values():
            for name, service in file["services"].items():
                # A file on top of another leaves the image to it.
                image = service.get("image", COMPOSE["compose.yaml"]["services"].get(name, {}).get("image"))
                self.assertRegex(image, r":(?!latest)[\w.-]+$")

    def test_both_images_run_alike(self):
        cpu, cuda = (last_stage(DOCKERFILES[kind]) for kind in ("cpu", "cuda"))
        for only in (r" \\\n    NVIDIA_\w+=\S+", r" deploy/docker/packages-cuda\.txt",
                     r"# What NCCL opens.*\nCOPY deploy/docker/opened-libraries\.sh .*\nRUN .*opened-libraries\.sh .*\n"):
            cuda, count = re.subn(only, "", cuda)
            self.assertTrue(count, only)
        self.assertEqual(cpu.replace("Tessera, CPU", "Tessera, CUDA"), cuda)

    def test_what_is_copied_is_there(self):
        for text in DOCKERFILES.values():
            for copied in instruction(text, "COPY"):
                if not copied.startswith("--from="):
                    for source in copied.split()[:-1]:
                        self.assertTrue(pathlib.Path(source).exists(), source)
            for script in re.findall(r"^RUN ((?:scripts|deploy)/\S+)", text, re.M):
                self.assertTrue(os.access(script, os.X_OK), script)

    def test_the_cuda_image_has_cuda_compat_where_tessera_and_nothing_else_looks_for_it(self):
        text = DOCKERFILES["cuda"]
        release = re.search(r"ENV CUDA_HOME=/usr/local/cuda-(\S+)", text)[1]
        self.assertIn(f"cuda-compat-{release.replace('.', '-')}", re.search(r"apt-get install .*cuda-minimal-build.*", text)[0].split())
        self.assertIn(f"RUN cp -a /usr/local/cuda-{release}/compat /opt/tessera/lib/cuda-compat ", text)
        self.assertIn('"lib/cuda-compat"', pathlib.Path("control/host/cuda_compat.cc").read_text())
        self.assertNotIn("compat", last_stage(text), "NVIDIA's container toolkit would use it on every card")

    def test_cuda_libraries_are_those_that_libtorch_names(self):
        metadata = pathlib.Path(".deps/libtorch", f"torch-{self.torch()}.dist-info", "METADATA")
        named = {requirement for requirement in re.findall(r"^Requires-Dist: ([^;\n]+==[^;\n]+);", metadata.read_text(), re.M)
                 if requirement.startswith(("nvidia-", "cuda-toolkit"))}
        installed = re.search(r"--target /cuda(.*?)\n(?!  )", DOCKERFILES["cuda"], re.S)[1]
        self.assertEqual(named, set(re.sub(r'[\\"]', " ", installed).split()))
        self.assertIn(f"torch {self.torch()}", DOCKERFILES["cuda"])

    @staticmethod
    def torch():
        return re.search(r"^torch==(\S+)", pathlib.Path("scripts/libtorch-requirements.txt").read_text(), re.M)[1]


class ConfigurationTest(unittest.TestCase):
    def test_the_server_reads_them(self):
        for name in CONFIGS:
            printed = subprocess.run([TESSERA, "serve", "--print-config", "--config", DOCKER / name],
                                     capture_output=True, text=True)
            self.assertEqual(printed.returncode, 0, printed.stderr)
            self.assertEqual(yaml.safe_load(printed.stdout)["listen"]["admin"], CONFIGS[name]["listen"]["admin"])

    def test_they_differ_in_who_may_call_alone(self):
        with_keys, anonymous = dict(CONFIGS["tessera.yaml"]), dict(CONFIGS["anonymous.yaml"])
        self.assertTrue(anonymous.pop("allow_anonymous"))
        self.assertTrue(with_keys.pop("keys_file"))
        self.assertEqual(with_keys, anonymous)

    def test_that_with_grpc_differs_in_the_listener_on_loopback_alone(self):
        usual, grpc = (json.loads(json.dumps(CONFIGS[name])) for name in ("tessera.yaml", "grpc.yaml"))
        self.assertEqual((usual["listen"].pop("grpc"), grpc["listen"].pop("grpc")), (False, {"address": "127.0.0.1", "port": 8081}))
        self.assertEqual(usual, grpc)

    def test_they_agree_with_the_images(self):
        for config in CONFIGS.values():
            for text in DOCKERFILES.values():
                self.assertTrue(config["data_folder"].startswith(instruction(text, "VOLUME")[0] + "/"))
                ports = [str(config["listen"][name]["port"]) for name in ("http", "admin")]
                self.assertEqual(instruction(text, "EXPOSE"), [" ".join(ports)])
                self.assertIn("/etc/tessera/tessera.yaml", instruction(text, "CMD")[-1])


class HealthTest(unittest.TestCase):
    def health(self, *arguments):
        return subprocess.run([DOCKER / "health.sh", *map(str, arguments)], timeout=60).returncode

    def assert_healthy(self, path, port):
        # As for Docker, one check that had to wait for seconds does not count.
        self.assertTrue(any(self.health(path, port) == 0 for _ in range(10)), path)

    def test_it_is_what_the_server_says(self):
        server = fake_server.Server(TESSERA)
        try:
            admin = server.ports["admin"]
            self.assert_healthy("/readyz", admin)
            self.assert_healthy("/livez", admin)
            self.assertEqual(self.health("/nowhere", admin), 1)
        finally:
            server.stop()
        self.assertEqual(self.health("/readyz", admin), 1, "the server has ended")

    def test_a_server_that_is_not_ready_is_not_healthy(self):
        server = fake_server.Server(TESSERA, script="load=error", becomes_ready=False)
        try:
            self.assertEqual(self.health("/readyz", server.ports["admin"]), 1)
            self.assert_healthy("/livez", server.ports["admin"])
        finally:
            server.stop()

    def test_what_listens_and_says_nothing_is_not_healthy(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.assertEqual(self.health("/readyz", silent.getsockname()[1]), 1)


class ComposeTest(unittest.TestCase):
    def test_files_that_are_mounted_are_there(self):
        for service in COMPOSE["compose.yaml"]["services"].values():
            for volume in service.get("volumes", ()):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((DOCKER / source).exists(), source)
                else:
                    self.assertIn(source, COMPOSE["compose.yaml"]["volumes"])

    def test_the_server_has_no_more_than_it_needs(self):
        server = COMPOSE["compose.yaml"]["services"]["tessera"]
        self.assertTrue(server["read_only"])
        self.assertEqual(server["cap_drop"], ["ALL"])
        self.assertEqual(server["security_opt"], ["no-new-privileges:true"])
        self.assertTrue(server["cpus"] and server["mem_limit"] and server["pids_limit"])
        self.assertTrue(any(place.startswith("/tmp:") for place in server["tmpfs"]), "for the workers' sockets")
        self.assertIn(f"tessera:{instruction(DOCKERFILES['cpu'], 'VOLUME')[0]}", server["volumes"])
        for service in COMPOSE["compose.yaml"]["services"].values():
            for port in service["ports"]:
                self.assertTrue(port.startswith("127.0.0.1:"), port)

    def test_it_stops_later_than_the_server_drains(self):
        defaults = yaml.safe_load(subprocess.run([TESSERA, "serve", "--print-config"], capture_output=True, text=True,
                                                 check=True).stdout)
        grace = COMPOSE["compose.yaml"]["services"]["tessera"]["stop_grace_period"]
        self.assertGreaterEqual(seconds(grace), seconds(defaults["drain_time"]) + 15)

    def test_keys_prometheus_and_grafana_find_each_other(self):
        services = COMPOSE["compose.yaml"]["services"]
        config = CONFIGS["tessera.yaml"]
        targets = {secret["target"] for secret in services["tessera"]["secrets"]}
        self.assertEqual({f"/run/secrets/{target}" for target in targets}, {config["keys_file"]})
        scraped = yaml.safe_load(pathlib.Path("deploy/monitoring/prometheus.yml").read_text())["scrape_configs"]
        self.assertEqual(scraped[0]["static_configs"][0]["targets"], [f"tessera:{config['listen']['admin']['port']}"])
        provisioning = pathlib.Path("deploy/monitoring/grafana/provisioning")
        source = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"][0]
        self.assertEqual(source["url"], "http://prometheus:9090")
        folder = yaml.safe_load((provisioning / "dashboards/tessera.yaml").read_text())["providers"][0]["options"]["path"]
        self.assertIn(f"../monitoring/grafana/dashboards:{folder}:ro", services["grafana"]["volumes"])
        self.assertEqual(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"],
                         f"{folder}/tessera.json")

    def test_the_cuda_file_changes_services_that_there_are(self):
        more = COMPOSE["compose.cuda.yaml"]["services"]
        self.assertLessEqual(set(more), set(COMPOSE["compose.yaml"]["services"]))
        self.assertEqual(more["tessera"]["image"], "tessera:cuda")


    def test_the_grpc_file_puts_a_proxy_in_front_that_alone_reaches_the_server(self):
        more = COMPOSE["compose.grpc.yaml"]["services"]
        server, proxy = more["tessera"], more["grpc"]
        mounted = dict(volume.split(":")[1::-1] for volume in [*server["volumes"], *proxy["volumes"]])
        self.assertEqual(CONFIGS[pathlib.Path(mounted[server["command"][-1]]).name], CONFIGS["grpc.yaml"])
        text = (DOCKER / mounted[proxy["command"][-1]]).read_text()
        for file in re.findall(r"ssl_certificate(?:_key)? (\S+);", text):
            self.assertIn(file, mounted)
        place = CONFIGS["grpc.yaml"]["listen"]["grpc"]
        self.assertEqual(set(re.findall(r"grpc_pass grpc://(\S+);", text)), {f"{place['address']}:{place['port']}"})
        self.assertEqual((server["ports"], proxy["network_mode"], "ports" in proxy),
                         ([f"{port}:{port}" for port in re.findall(r"listen (\d+) ssl", text)], "service:tessera", False))
        self.assertEqual((proxy["read_only"], proxy["cap_drop"], proxy["security_opt"]), (True, ["ALL"], ["no-new-privileges:true"]))


class DocumentTest(unittest.TestCase):
    """docs/deploy-containers.md. Its commands of `tessera` and `curl` are run by tests/documents/run_commands.sh."""

    TEXT = pathlib.Path("docs/deploy-containers.md").read_text()
    # Options of `docker build`, `run` and `compose` that the page uses, and whether an argument follows.
    OPTIONS = {"build": {"-f": 1, "-t": 1}, "up": {"--detach": 0, "--build": 0, "--wait": 0},
               "run": {"--detach": 0, "--rm": 0, "--name": 1, "--read-only": 0, "--tmpfs": 1, "--publish": 1, "--volume": 1}}

    def commands(self):
        """(folder, words after `docker`) of each command, with the folder that a `cd` before it leads to."""
        folder = "."
        for line in re.findall(r"^    (\S.*)$", self.TEXT, re.M):
            words = shlex.split(line)
            if words[0] == "cd":
                folder = words[1]
            elif "docker" in words:
                yield folder, words[words.index("docker") + 1:]

    def arguments(self, command, words):
        """Returns the words after the options."""
        values = {}
        while words and words[0].startswith("-"):
            self.assertIn(words[0], self.OPTIONS[command], command)
            takes = self.OPTIONS[command][words[0]]
            values[words[0]] = words[1] if takes else True
            words = words[1 + takes:]
        return values, words

    def test_it_builds_the_images_that_compose_builds(self):
        built = {}
        for _, (command, *words) in self.commands():
            if command == "build":
                options, context = self.arguments(command, words)
                self.assertEqual(context, ["."])
                built[options["-t"]] = options["-f"]
        composed = [file["services"]["tessera"] for file in COMPOSE.values() if "build" in file["services"]["tessera"]]
        self.assertEqual(built, {service["image"]: service["build"]["dockerfile"] for service in composed})

    def test_it_runs_commands_that_there_are_with_files_that_the_image_holds(self):
        commands = subprocess.run([TESSERA, "--help"], capture_output=True, text=True).stdout
        runs = [words for _, (command, *words) in self.commands() if command == "run"]
        self.assertEqual(len(runs), 2)
        for words in runs:
            options, (image, command, *rest) = self.arguments("run", words)
            self.assertEqual((image, options["--tmpfs"]), ("tessera:cpu", "/tmp"))
            self.assertRegex(commands, rf"(?m)^  {command} ")
            for file in rest:
                if file.startswith("/etc/tessera/"):
                    self.assertIn(file.removeprefix("/etc/tessera/"), CONFIGS)

    def test_its_compose_commands_name_files_that_there_are(self):
        count = 0
        for folder, (command, *words) in self.commands():
            if command != "compose":
                continue
            while words[0] == "--file":
                self.assertTrue(pathlib.Path(folder, words[1]).exists(), words[1])
                words = words[2:]
            self.assertEqual(self.arguments("up", words[1:])[1], [])
            self.assertTrue(pathlib.Path(folder, "compose.yaml").exists())
            count += 1
        self.assertEqual(count, 3)

    def test_it_names_every_alert(self):
        rules = pathlib.Path("deploy/monitoring/alerts.yml").read_text()
        self.assertEqual(set(re.findall(r"- alert: (\w+)", rules)), set(re.findall(r"`(Tessera\w+)`", self.TEXT)))


class InstallTest(unittest.TestCase):
    def test_the_images_tree_makes_a_picture_with_no_more_of_libtorch_than_the_worker_loads(self):
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            tree = pathlib.Path(folder, "opt/tessera")
            subprocess.run([DOCKER / "install.sh", BUILD, tree], check=True)
            libraries = {path.name for path in (tree / "lib/libtorch").rglob("*.so*")}
            self.assertIn("libtorch_cpu.so", libraries)
            self.assertFalse({name for name in libraries if re.match(r"libtorch_(cuda|python)", name)}, libraries)
            size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
            self.assertLess(size, 650_000_000, "Debian and its packages take the other 250 MB")
            moved = pathlib.Path(folder, "elsewhere")
            shutil.move(tree, moved)
            made = subprocess.run([moved / "bin/tessera", "generate", "red apple", "--steps", "2", "--output", "apple.png"],
                                  cwd=folder, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertEqual(pathlib.Path(folder, "apple.png").read_bytes()[:4], b"\x89PNG")


if __name__ == "__main__":
    BUILD = os.path.abspath(sys.argv.pop(2))
    TESSERA = os.path.abspath(sys.argv.pop(1))
    unittest.main()
