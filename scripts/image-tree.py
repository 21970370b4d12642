#!/usr/bin/env python3
"""Builds the file tree of the CPU image by the steps of deploy/docker/Dockerfile.cpu, without a container engine and
without pulling an image, and runs the demo and the server in it as a container would: not as root, without capabilities,
with a read-only root and no network. Debian's packages come from its mirror, LibTorch from Python's package index.

    scripts/image-tree.py [--installed BUILD] [--keep FOLDER]
      --installed  leave the build stage out and take what that build folder installs: minutes in place of an hour
      --keep       leave the tree there

Needs root, for chroot and mounts, and mmdebstrap (scripts/setup.sh --checks).
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "deploy/docker/Dockerfile.cpu"
MOST_BYTES = 900_000_000
DEADLINE = 300


def fail(message):
    sys.exit(f"image-tree.py: {message}")


def say(message):
    print(message, flush=True)


def instructions(path):
    """Yields (instruction, its text) for a Dockerfile."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if line.strip():
            name, text = line.split(None, 1)
            yield name, text


class Stage:
    """A stage of the Dockerfile: its file tree, and its settings for the process that runs in it."""

    def __init__(self, tree):
        self.tree, self.arguments = tree, {}
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.folder, self.user, self.volume = "/", "0:0", None
        self.entry, self.command, self.health, self.stop_signal = [], [], [], "SIGTERM"

    def at(self, path):
        return self.tree / path.lstrip("/")

    def run(self, command):
        """Runs a command as root in the tree, with this machine's network for downloads."""
        mounts = "mount --make-rprivate / && mount -t proc proc {0}/proc && mount --rbind /dev {0}/dev".format(
            shlex.quote(str(self.tree)))
        environment = {**{name: os.environ[name] for name in os.environ if name.lower().endswith("_proxy")},
                       **self.arguments, **self.environment}
        entered = ["env", "-i", *[f"{name}={value}" for name, value in environment.items()], "/bin/sh", "-c",
                   f"cd {shlex.quote(self.folder)} && {command}"]
        subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
                        f"{mounts} && exec chroot {shlex.quote(str(self.tree))} {shlex.join(entered)}"],
                       check=True, stdin=subprocess.DEVNULL)

    def copy(self, text, stages):
        words = shlex.split(text)
        source = ROOT
        ignored = {line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"}
        if words[0].startswith("--from="):
            source, ignored = stages[words.pop(0).removeprefix("--from=")].tree, set()
        if words[0].startswith("--"):
            fail(f"COPY {text}: an option that this script does not know")
        *names, to = words
        target = pathlib.Path(os.path.join(self.folder, to))
        for name in names:
            origin = source / name.lstrip("/")
            place = self.at(str(target))
            if origin.is_dir():
                shutil.copytree(origin, place, symlinks=True, dirs_exist_ok=True,
                                ignore=lambda folder, found, top=source: {
                                    each for each in found if each == "__pycache__" or
                                    pathlib.Path(folder) == top and any(
                                        pathlib.PurePath(each).match(pattern) for pattern in ignored)})
            else:
                if to.endswith("/"):
                    place = place / origin.name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, place)

    def do(self, name, text, stages):
        text = re.sub(r"\$\{(\w+)\}", lambda found: self.arguments.get(found[1], found[0]), text) if name != "RUN" else text
        if name == "RUN":
            self.run(text)
        elif name == "COPY":
            self.copy(text, stages)
        elif name == "ARG":
            argument, _, value = text.partition("=")
            self.arguments.setdefault(argument, value)
        elif name == "ENV":
            self.environment |= dict(word.split("=", 1) for word in shlex.split(text))
        elif name == "WORKDIR":
            self.folder = text
            self.at(text).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            self.user = text
        elif name == "VOLUME":
            self.volume = text
        elif name == "STOPSIGNAL":
            self.stop_signal = text
        elif name == "ENTRYPOINT":
            self.entry = json.loads(text)
        elif name == "CMD":
            self.command = json.loads(text)
        elif name == "HEALTHCHECK":
            self.health = json.loads(text.partition(" CMD ")[2])
        elif name not in ("LABEL", "EXPOSE"):
            fail(f"{name}: an instruction that this script does not know")


def build(work, installed):
    base = work / "base"
    say("Base: Debian 12 from its mirror")
    subprocess.run(["mmdebstrap", "--variant=minbase", "--quiet", "bookworm", base], check=True, stdin=subprocess.DEVNULL)
    for name in ("etc/resolv.conf", "etc/hosts"):
        shutil.copy(f"/{name}", base / name)
    stages, stage, skipped = {}, None, False
    for name, text in instructions(DOCKERFILE):
        if name == "FROM":
            words = text.split()
            if words[0] != "${BASE}":
                fail(f"FROM {text}: it is not Debian")
            title = words[2] if len(words) == 3 else "image"
            say(f"Stage {title}")
            tree = work / title
            subprocess.run(["cp", "-a", "--reflink=auto", base, tree], check=True)
            stage = stages[title] = Stage(tree)
            skipped = bool(installed) and title == "build"
        elif stage is None:
            continue  # ARG BASE; our own base replaces it
        elif not skipped:
            say(f"  {name} {text[:100]}")
            stage.do(name, text, stages)
        elif "install.sh" in text:
            say(f"  {text} (of {installed})")
            program, _, prefix = text.split()[:3]
            subprocess.run([ROOT / program, installed, stage.at(prefix)], check=True)
    for name in ("etc/resolv.conf", "etc/hosts"):  # an engine adds these to each container
        (stages["image"].tree / name).write_text("")
    shutil.rmtree(base)
    shutil.rmtree(stages["build"].tree)
    return stages["image"]


class Container:
    """A process in the image's tree, in separate namespaces. Its only network is the loopback."""

    MOUNTS = r"""
set -e
mount --make-rprivate /
mount --bind "$tree" "$tree"
mount -o remount,ro,bind "$tree"
mount -t proc -o ro,nosuid,nodev,noexec proc "$tree/proc"
mount -t tmpfs -o mode=755 tmpfs "$tree/dev"
for device in null zero full random urandom; do
  touch "$tree/dev/$device"
  mount --bind "/dev/$device" "$tree/dev/$device"
done
ln -s /proc/self/fd "$tree/dev/fd"
mkdir "$tree/dev/shm"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$tree/dev/shm"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$tree/tmp"
mount -t tmpfs -o mode=755 tmpfs "$tree/run"
mount --bind "$data" "$tree$volume"
if [ -n "$secrets" ]; then
  mkdir "$tree/run/secrets"
  mount --bind "$secrets" "$tree/run/secrets"
fi
mount -o remount,ro "$tree/run"
mount -o remount,ro "$tree/dev"
ip link set lo up
"""

    def __init__(self, image, data, command, secrets="", entry=None):
        user, group = image.user.split(":")
        inside = ["chroot", str(image.tree), "/usr/bin/setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups",
                  "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "/usr/bin/env", "-i",
                  *[f"{name}={value}" for name, value in image.environment.items()], "/bin/sh", "-c",
                  f'cd {shlex.quote(image.folder)} && exec "$@"', "sh", *(image.entry if entry is None else entry), *command]
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-c",
             f"{self.MOUNTS}\nexec {shlex.join(inside)}"],
            env={"PATH": os.environ["PATH"], "tree": str(image.tree), "data": str(data), "volume": image.volume,
                 "secrets": str(secrets)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def first(self):
        """The process that has id 1 inside."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while not (found := children.read_text().split()):
            if self.process.poll() is not None:
                fail(f"the container ended: {self.process.communicate()[0]}")
            time.sleep(0.01)
        return found[0]

    def exec(self, command, image):
        """Runs a command inside, as `docker exec` would, and returns its exit code."""
        user, group = image.user.split(":")
        return subprocess.run(["nsenter", "--all", "--root", f"--target={self.first()}", "/usr/bin/setpriv",
                               f"--reuid={user}", f"--regid={group}", "--clear-groups", *command],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60).returncode

    def call(self, url, *options):
        """Calls the URL from inside the container's network with this machine's curl; returns the status and the body."""
        done = subprocess.run(["nsenter", "--net", f"--target={self.first()}", "curl", "-s", "--max-time", "120", "-w",
                               "\n%{http_code}", *options, url], capture_output=True, text=True, timeout=180)
        body, _, status = done.stdout.rpartition("\n")
        return int(status or 0), body

    def end(self, name="SIGKILL"):
        if name == "SIGKILL":
            self.process.kill()
        else:
            os.kill(int(self.first()), getattr(signal, name))
        output, _ = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, output


def check(what, holds, detail=""):
    if not holds:
        fail(f"FAILED: {what}\n{detail}")
    say(f"  ok: {what}")


def size_of(tree):
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(tree) for name in names)


def foreign(tree, uid):
    """Yields the paths that the user with this id could change if the root were not read-only."""
    for folder, folders, names in os.walk(tree):
        for name in folders + names:
            path = pathlib.Path(folder, name)
            state = path.lstat()
            if (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)) and (state.st_uid == uid or state.st_mode & 0o002):
                yield "/" + str(path.relative_to(tree))


def try_it(image, work):
    bytes_in_all = size_of(image.tree)
    check(f"{bytes_in_all / 1e6:.0f} MB are less than {MOST_BYTES / 1e6:.0f}", bytes_in_all < MOST_BYTES)
    uid = int(image.user.split(":")[0])
    check("its user is not root", uid > 0)
    writable = set(foreign(image.tree, uid)) - {"/tmp", "/var/tmp", "/run/lock", "/dev/shm", image.volume}
    check("nothing of it but the volume belongs to its user", not writable, writable)

    data = work / "data"
    data.mkdir(mode=0o750)
    os.chown(data, uid, uid)

    def wait(container):
        return container.process.communicate(timeout=DEADLINE)[0], container.process.returncode

    output, code = wait(Container(image, data, ["-c", "touch /opt/tessera/x /etc/x"], entry=["/bin/sh"]))
    check("its root is read-only", output.count("Read-only file system") == 2, output)
    output, code = wait(Container(image, data, ["generate", "red apple", "--seed", "1", "--output", "apple.png"]))
    check("the demo makes a picture", code == 0 and (data / "apple.png").read_bytes()[:4] == b"\x89PNG", output)
    output, code = wait(Container(image, data, image.command))
    check("without keys the server does not start, and says why", code != 0 and "API keys" in output, output)

    output, code = wait(Container(image, data, ["keys", "me"]))
    secret = re.search(r"sk-tessera-\S+", output)[0]
    secrets = work / "secrets"
    secrets.mkdir()
    (secrets / "tessera-keys").write_text(output.strip().splitlines()[-1].strip() + "\n")
    os.chmod(secrets / "tessera-keys", 0o644)
    server = Container(image, data, image.command, secrets)
    try:
        deadline = time.monotonic() + DEADLINE
        while server.exec(image.health, image) != 0:
            if server.process.poll() is not None or time.monotonic() > deadline:
                fail(f"FAILED: the server is healthy\n{server.end()[1]}")
            time.sleep(0.2)
        check("the server becomes healthy by the image's own health check", True)
        check("its process 1 is not the server", "tini" in pathlib.Path(f"/proc/{server.first()}/comm").read_text())
        body = ["-H", "Content-Type: application/json", "-d", '{"prompt": "red apple", "seed": 1}']
        status, answer = server.call("http://localhost:8080/v1/images/generations", "-H", f"Authorization: Bearer {secret}", *body)
        check("a call with a key gets its image", status == 200 and "b64_json" in answer, answer[:300])
        check("a call without one does not", server.call("http://localhost:8080/v1/images/generations", *body)[0] == 401)
        check("the admin listener has metrics", "tessera_images_total" in server.call("http://localhost:9090/metrics")[1])
        code, output = server.end(image.stop_signal)
        check(f"{image.stop_signal} ends it in order", code == 0, f"{code}: {output}")
        check("its log is lines of JSON", all(json.loads(line) for line in output.splitlines()), output)
    finally:
        if server.process.poll() is None:
            server.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--installed", metavar="BUILD")
    parser.add_argument("--keep", metavar="FOLDER", type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        fail("it needs root: sudo scripts/image-tree.py")
    for tool in ("mmdebstrap", "unshare", "nsenter", "ip", "curl"):
        if not shutil.which(tool):
            fail(f"{tool} is missing: scripts/setup.sh --checks installs it")
    work = pathlib.Path(tempfile.mkdtemp(prefix="tessera-image-"))
    try:
        image = build(work, options.installed and str(pathlib.Path(options.installed).resolve()))
        say("Checks")
        try_it(image, work)
        if options.keep:
            shutil.move(image.tree, options.keep)
    finally:
        shutil.rmtree(work)
    say("The image's tree is built and serves")


if __name__ == "__main__":
    main()
