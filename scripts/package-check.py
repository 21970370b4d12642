#!/usr/bin/env python3
"""Makes the files of a release of a build, twice, and compares them. Unpacks the archive into trees of Debian 12 and 13 that hold
only the packages that every Debian has, and uses it there. Installs the package into a fresh tree of Debian 12, uses it as its
service would, removes and purges it, and checks what is left after each. Debian's packages come from its mirror.

    scripts/package-check.py [--files FOLDER | --keep FOLDER] BUILD
      --files      check these files, which scripts/release.sh made of the build
      --keep       leave the files that were made there

Needs root, for chroot and mounts, and mmdebstrap and lintian (scripts/setup.sh --checks).
"""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

DEADLINE = 300
# Files that belong to Debian's own tools and not to the package.
OTHERS = re.compile(r"^(var/(cache|log|lib/(apt|dpkg|ucf|pam|systemd))|run|tmp|proc|dev|etc/(ld\.so\.cache|passwd-|group-|shadow-|gshadow-|subuid|subgid))")


def fail(message):
    sys.exit(f"package-check.py: {message}")


def check(what, holds, detail=""):
    if not holds:
        fail(f"FAILED: {what}\n{detail}")
    print(f"  ok: {what}", flush=True)


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL, **options)


class Tree:
    def __init__(self, path, suite="bookworm", variant="minbase"):
        self.path = path
        run("mmdebstrap", f"--variant={variant}", "--quiet", suite, path)
        for name in ("etc/resolv.conf", "etc/hosts"):
            shutil.copy(f"/{name}", path / name)

    def command(self, text, user="root", network=True):
        """Runs a command in the tree, with this machine's processes and devices and, if `network`, its network."""
        inside = ["chroot", str(self.path)]
        if user != "root":
            inside += ["/usr/bin/setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs",
                       "--inh-caps=-all", "--bounding-set=-all"]
        inside += ["/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive",
                   *(f"{name}={os.environ[name]}" for name in os.environ if name.lower().endswith("_proxy")), "/bin/sh", "-c", text]
        mounts = f"mount --make-rprivate / && mount -t proc proc {self.path}/proc && mount --rbind /dev {self.path}/dev"
        mounts += "" if network else " && ip link set lo up"
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"]), "sh", "-c",
                f"{mounts} && exec {shlex.join(inside)}"]

    def run(self, text, **options):
        done = subprocess.run(self.command(text, **options), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=2 * DEADLINE)
        return done.returncode, done.stdout + done.stderr

    def must(self, text, **options):
        code, output = self.run(text, **options)
        if code != 0:
            fail(f"FAILED: {text}\n{output}")
        return output

    def files(self):
        found = set()
        for folder, folders, names in os.walk(self.path):
            for name in folders + names:
                path = os.path.relpath(os.path.join(folder, name), self.path)
                if not OTHERS.match(path):
                    found.add(path)
        return found


def make(build, version, place):
    print("Files of a release, twice", flush=True)
    root = pathlib.Path(__file__).resolve().parents[1]
    for out in (place, place.with_name("again")):
        run(root / "scripts/release.sh", version, "--no-cuda", "--build", build, "--out", out, stdout=subprocess.DEVNULL)
    sums, again = ((out / "SHA256SUMS").read_text() for out in (place, place.with_name("again")))
    check("both times they are the same to the byte", sums == again, f"{sums}\n{again}")
    shutil.rmtree(place.with_name("again"))


def check_package(package):
    done = subprocess.run(["lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", str(package)],
                          capture_output=True, text=True)
    check(f"the package has {package.stat().st_size / 1e6:.0f} MB, and lintian has nothing to say",
          done.returncode == 0 and not done.stdout, done.stdout + done.stderr)


def try_archive(archive, suite, build, work):
    """Uses the archive as an ordinary user in a tree without any package that is not essential."""
    print(f"The archive in a bare {suite}", flush=True)
    tree = Tree(work / suite, suite, "essential")
    folder = tree.path / "srv/somewhere else"
    folder.mkdir()
    run("tar", "-C", folder, "-xzf", archive)
    home = f"/srv/somewhere else/{archive.name.removesuffix('.tar.gz')}"
    program = shlex.quote(f"{home}/bin/tessera")
    outside = set(re.findall(r"(?m)^\t(\S+) => /(?!srv)", tree.must(
        f"cd {shlex.quote(home)} && for file in bin/tessera bin/tessera-picture-decoder lib/tessera/tessera-worker; do ldd $file; done")))
    libc = {f"lib{name}" for name in ("c.so.6", "m.so.6", "dl.so.2", "pthread.so.0", "resolv.so.2", "rt.so.1", "util.so.1")}
    check("of the system it loads only glibc", "libc.so.6" in outside and outside <= libc, outside)
    tree.must("install -d -o daemon -m 700 /tmp/work")
    make_picture = "generate 'red apple' --seed 1 --output"
    tree.must(f"cd /tmp/work && HOME=/tmp/work {program} {make_picture} apple.png", user="daemon", network=False)
    run(build / "bin/tessera", *shlex.split(make_picture), work / f"{suite}.png", stdout=subprocess.DEVNULL)
    check("it makes the picture that the build makes",
          (tree.path / "tmp/work/apple.png").read_bytes() == (work / f"{suite}.png").read_bytes())
    serve(tree, f"{program} serve", "HOME=/tmp/work", "/tmp/work", "daemon")
    shutil.rmtree(tree.path)


def unit_settings(tree):
    text = (tree.path / "lib/systemd/system/tessera.service").read_text()
    values = dict(re.findall(r"(?m)^(ExecStart|Environment|WorkingDirectory)=(.*)$", text))
    return values["ExecStart"], values["Environment"], values["WorkingDirectory"]


def serve_as_unit(tree):
    """Runs the unit's command as its user, as systemd would."""
    program, environment, folder = unit_settings(tree)
    tree.must(f"install -d -o tessera -g tessera -m 750 {folder}")
    tree.must("install -d -o tessera -g tessera -m 700 /run/tessera")
    serve(tree, program, environment, folder, "tessera")
    state = tree.path / folder.lstrip("/") / "data"
    check("queue and pictures are their owner's alone", state.stat().st_mode & 0o077 == 0)


def serve(tree, program, environment, folder, user):
    """Runs the command; requests a picture over the loopback; ends it by SIGTERM."""
    server = subprocess.Popen(tree.command(f"cd {folder} && umask 077 && exec env {environment} {program}", user=user, network=False),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        children = pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children")
        deadline = time.monotonic() + DEADLINE

        def call(path, *options):
            first = children.read_text().split()
            if not first or server.poll() is not None:
                return ""
            return subprocess.run(["nsenter", "--net", f"--target={first[0]}", "curl", "-s", "--max-time", "120", *options,
                                   f"http://localhost:8080{path}"], capture_output=True, text=True, timeout=180).stdout

        while "ok" not in call("/readyz"):
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                fail(f"FAILED: the service becomes ready\n{server.communicate()[0]}")
            time.sleep(0.2)
        answer = call("/v1/images/generations", "-H", "Content-Type: application/json", "-d", '{"prompt": "red apple", "seed": 1}')
        check(f"started by {user}, it serves a picture", "b64_json" in answer, answer[:300])
        os.kill(int(children.read_text().split()[0]), 15)
        output, _ = server.communicate(timeout=DEADLINE)
        check("SIGTERM ends it in order", server.returncode == 0, output)
    finally:
        if server.poll() is None:
            server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--files", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("--keep", metavar="FOLDER", type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        fail("it needs root: sudo scripts/package-check.py")
    for tool in ("mmdebstrap", "lintian", "curl", "ip"):
        if not shutil.which(tool):
            fail(f"{tool} is missing: scripts/setup.sh --checks installs it")
    work = pathlib.Path(tempfile.mkdtemp(prefix="tessera-package-"))
    try:
        build = options.build.resolve()
        version = re.search(r"(?m)^CMAKE_PROJECT_VERSION:STATIC=(.*)$", (build / "CMakeCache.txt").read_text())[1]
        files = options.files or work / "made"
        if not options.files:
            make(build, version, files)
        if options.keep:
            shutil.copytree(files, options.keep, dirs_exist_ok=True)
        for suite in ("bookworm", "trixie"):
            try_archive(files / f"tessera-{version}-linux-x86_64.tar.gz", suite, build, work)
        package = files / f"tessera_{version}_amd64.deb"
        check_package(package)
        print("Debian 12 from its mirror", flush=True)
        tree = Tree(work / "tree")
        tree.must("apt-get update")
        # Dependencies are installed first, so that only the package's own files are counted.
        depends = run("dpkg-deb", "--field", package, "Depends", capture_output=True, text=True).stdout
        tree.must(f"apt-get install -y --no-install-recommends {' '.join(re.findall(r'(?:^|, )([^ ,]+)', depends.strip()))}")
        before = tree.files()
        accounts = (tree.path / "etc/passwd").read_text()
        shutil.copy(package, tree.path / "tmp/tessera.deb")
        install = "dpkg --install /tmp/tessera.deb"

        print("Checks", flush=True)
        tree.must(install)
        check("it is installed, with its account", "\ntessera:" in (tree.path / "etc/passwd").read_text())
        check("the account cannot log in", re.search(r"(?m)^tessera:.*:/usr/sbin/nologin$", (tree.path / "etc/passwd").read_text()))
        tree.must("cd /tmp && tessera generate 'red apple' --seed 1 --output pictures/apple.png")
        check("the command line makes a picture", (tree.path / "tmp/pictures/apple.png").read_bytes()[:4] == b"\x89PNG")
        serve_as_unit(tree)

        (tree.path / "etc/tessera/tessera.yaml").write_text((tree.path / "etc/tessera/tessera.yaml").read_text() + "# ours\n")
        tree.must(f"{install} 2>&1 && dpkg --verify tessera || true")
        check("installing it again keeps the configuration that was changed",
              (tree.path / "etc/tessera/tessera.yaml").read_text().endswith("# ours\n"))
        tree.must("dpkg --remove tessera")
        check("removed, its programs are gone", not (tree.path / "usr/bin/tessera").is_symlink() and not (tree.path / "usr/lib/tessera").exists())
        check("removed, queue, pictures and configuration are there",
              any((tree.path / "var/lib/tessera/data").iterdir()) and (tree.path / "etc/tessera/tessera.yaml").exists())
        tree.must(install)
        serve_as_unit(tree)
        tree.must("dpkg --purge tessera")
        left = tree.files() - before
        check("purged, nothing is left", not left, "\n".join(sorted(left)))
        check("purged, its account is gone", (tree.path / "etc/passwd").read_text() == accounts)
    finally:
        shutil.rmtree(work)
    print("The archive runs on Debian 12 and 13, and the package installs, serves and leaves")


if __name__ == "__main__":
    main()
