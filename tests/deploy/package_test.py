"""The files of a release (scripts/release.sh), but for LibTorch: what is in them, and that they are the same each time; of the
Debian package also what it says about itself, lintian, and its service for systemd. scripts/package-check.py installs the whole.

    package_test.py TESSERA BUILD     from the repository's root
"""
import filecmp
import gzip
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import unittest

import yaml

DEADLINE = 300


def run(*command, timeout=DEADLINE, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} ends with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def setUpModule():
    global VERSION, place, made, package, tree
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    place = pathlib.Path(folder.name)
    made = place / "made"
    VERSION = run(TESSERA, "--version").split()[1]
    run("scripts/release.sh", VERSION, "--build", BUILD, "--no-cuda", "--out", made, timeout=3 * DEADLINE,
        env={**os.environ, "TESSERA_PACKAGE_LIBTORCH": "0"})
    package, = made.glob("*.deb")
    tree = place / "tree"
    run("dpkg-deb", "--extract", package, tree)


def seconds(text):
    return sum(int(n) * {"h": 3600, "m": 60, "s": 1}[unit] for n, unit in re.findall(r"(\d+)([hms])", text))


def field(name):
    return run("dpkg-deb", "--field", package, name).strip()


class ReleaseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.name = f"tessera-{VERSION}-linux-x86_64"
        cls.archive, cls.sdk = made / f"{cls.name}.tar.gz", made / f"tessera-sdk-{VERSION}-linux-x86_64.tar.gz"
        cls.bill = made / f"tessera-{VERSION}.spdx.json"
        cls.unpacked = place / "elsewhere"
        with tarfile.open(cls.archive) as archive:
            archive.extractall(cls.unpacked)
        cls.folder = cls.unpacked / cls.name

    def validate(self, bill):
        text = ("import sys; from spdx_tools.spdx.parser.parse_anything import parse_file as parse; "
                "from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document as validate; "
                "print([found.validation_message for found in validate(parse(sys.argv[1]))])")
        return run(PYTHON, "-c", text, bill).strip()

    def test_it_has_every_file_and_their_checksums(self):
        names = {package.name, self.archive.name, self.sdk.name, self.bill.name, "NOTES.md"}
        self.assertEqual({file.name for file in made.iterdir()}, names | {"SHA256SUMS"})
        checked = run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=made)
        self.assertEqual({line.split(":")[0] for line in checked.splitlines()}, names)

    def test_its_notes_are_this_versions_part_of_the_changelog(self):
        notes = (made / "NOTES.md").read_text()
        self.assertIn(f"## {VERSION}\n\n{notes}", pathlib.Path("CHANGELOG.md").read_text())
        self.assertNotIn("\n## ", notes)

    def test_the_same_build_gives_the_same_archive(self):
        when = run("git", "log", "-1", "--format=%ct").strip()
        run("scripts/bundle.sh", "--build", BUILD, "--out", place / "again",
            env={**os.environ, "TESSERA_PACKAGE_LIBTORCH": "0", "SOURCE_DATE_EPOCH": when, "TZ": "Asia/Tokyo"})
        self.assertTrue(filecmp.cmp(place / "again" / self.archive.name, self.archive, shallow=False))

    def test_a_file_that_differs_gives_another_archive(self):
        for text in ("one", "two"):
            (place / "pack").mkdir(exist_ok=True)
            (place / "pack/file").write_text(text)
            run("scripts/reproducible-tar.sh", place, "pack", place / f"{text}.tar.gz", "0")
        self.assertNotEqual((place / "one.tar.gz").read_bytes(), (place / "two.tar.gz").read_bytes())

    def test_its_archives_say_nothing_of_the_machine_that_made_them(self):
        when = int(run("git", "log", "-1", "--format=%ct"))
        for file in (self.archive, self.sdk):
            with tarfile.open(file) as archive:
                members = archive.getmembers()
            self.assertEqual([member.name for member in members], sorted(member.name for member in members))
            self.assertEqual({member.name.split("/")[0] for member in members}, {file.name.removesuffix(".tar.gz")})
            self.assertEqual({(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in members},
                             {(0, 0, "", "", when)})
            self.assertLessEqual({member.mode for member in members if not member.issym()}, {0o755, 0o644})
            self.assertFalse([member.name for member in members if member.issym() and member.linkname.startswith("/")])
            self.assertEqual(file.read_bytes()[4:8], bytes(4), "gzip's own time")
            self.assertFalse(str(BUILD).encode() in gzip.decompress(file.read_bytes()), f"{file.name} names the build folder")

    def test_its_programs_find_all_libraries_but_the_systems_c_library_next_to_them(self):
        program = self.folder / "bin/tessera"
        self.assertEqual(run("env", "-i", program, "--version").split()[1], VERSION)
        for line in run("env", "-i", "/usr/bin/ldd", program).splitlines():
            name, _, path = line.strip().partition(" => ")
            if path and not path.startswith(str(self.unpacked)):
                self.assertRegex(name, r"^lib(c|m|dl|pthread|resolv|rt)\.so\.")

    def test_the_example_of_the_sdk_is_configured_as_its_readme_says(self):
        with tarfile.open(self.sdk) as archive:
            archive.extractall(place)
        folder = place / self.sdk.name.removesuffix(".tar.gz")
        line, = re.findall(r"(?m)^  (cmake .*)$", (folder / "README.txt").read_text())
        run("bash", "-c", line, cwd=folder)
        self.assertIn(str(folder / "lib/cmake/Tessera"), (folder / "build/CMakeCache.txt").read_text())

    def test_its_bill_of_materials_is_valid_and_names_what_the_archive_carries(self):
        self.assertEqual(self.validate(self.bill), "[]")
        bill = json.loads(self.bill.read_text())
        listed = {(entry["name"], entry["versionInfo"]): entry for entry in bill["packages"]}
        carried = [tuple(line.split()) for line in (self.folder / "share/doc/tessera/packages.txt").read_text().splitlines()]
        self.assertGreater(len(carried), 30)
        contained = {entry["relatedSpdxElement"] for entry in bill["relationships"] if entry["relationshipType"] == "CONTAINS"}
        texts = {entry["licenseId"] for entry in bill["hasExtractedLicensingInfos"]}
        for key in carried:
            self.assertIn(listed[key]["SPDXID"], contained, key)
            self.assertIn(listed[key]["licenseDeclared"], texts, key)
        pins = re.findall(r"(?m)^(\S+)==(\S+) --hash=sha256:(\S+)$", pathlib.Path("scripts/libtorch-requirements.txt").read_text())
        for name, version, digest in pins:
            self.assertEqual(listed[name, version]["checksums"][0]["checksumValue"], digest)

    def test_every_library_of_the_archive_comes_from_a_package_that_is_listed(self):
        packages = [line.split()[0] for line in (self.folder / "share/doc/tessera/packages.txt").read_text().splitlines()]
        installed = {pathlib.Path(path).name for path in run("dpkg-query", "-L", *(f"{name}:amd64" for name in packages)).splitlines()}
        self.assertLessEqual({library.name for library in (self.folder / "lib").iterdir()}, installed)

    def test_a_bill_that_is_not_valid_is_noticed(self):
        bill = json.loads(self.bill.read_text())
        bill["packages"][0]["downloadLocation"] = "here"
        (place / "bad.spdx.json").write_text(json.dumps(bill))
        self.assertNotEqual(self.validate(place / "bad.spdx.json"), "[]")

    def test_a_version_that_is_not_the_projects_is_refused(self):
        for version, reason in (("9.9.9", f"CMakeLists.txt says {VERSION}"), ("1.0", "three numbers")):
            done = subprocess.run(["scripts/release.sh", version], capture_output=True, text=True, timeout=DEADLINE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(reason, done.stderr)


class WorkflowTest(unittest.TestCase):
    """The workflow for a forge cannot run here; this is what can be known of it without one."""

    FILE = pathlib.Path(".github/workflows/release.yml")

    def check(self, text):
        file = place / "workflow.yml"
        file.write_text(text)
        return subprocess.run([PYTHON, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", file],
                              capture_output=True, text=True, timeout=DEADLINE)

    def test_it_follows_the_forges_schema(self):
        done = self.check(self.FILE.read_text())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_key_that_the_forge_does_not_know_is_noticed(self):
        self.assertIn("runs_on", self.check(self.FILE.read_text().replace("runs-on", "runs_on", 1)).stdout)

    def test_its_commands_are_valid_and_name_what_is_there(self):
        workflow = yaml.safe_load(self.FILE.read_text())
        commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
        for command in commands:
            run("bash", "-n", "-c", command)
        text = "\n".join(commands)
        self.assertTrue(os.access(re.search(r"scripts/\S+\.sh", text)[0], os.X_OK))
        for kind in workflow["jobs"]["images"]["strategy"]["matrix"]["kind"]:
            self.assertTrue(pathlib.Path(f"deploy/docker/Dockerfile.{kind}").exists())
        published = shlex.split(re.search(r"gh release create.*", text.replace("\\\n", ""), re.DOTALL)[0])
        patterns = [word for word in published if word.startswith("release/")]
        for file in made.iterdir():
            self.assertTrue(any(pathlib.PurePath("release", file.name).match(pattern) for pattern in patterns), file.name)


class ControlTest(unittest.TestCase):
    def test_it_is_the_version_of_the_program_under_debians_usual_name(self):
        self.assertEqual(package.name, f"tessera_{VERSION}_amd64.deb")
        self.assertEqual((field("Package"), field("Version"), field("Architecture")), ("tessera", VERSION, "amd64"))

    def test_it_depends_on_what_the_libraries_of_its_programs_come_from(self):
        depends = {entry.split()[0] for entry in field("Depends").split(", ")}
        image = {line for line in pathlib.Path("deploy/docker/packages.txt").read_text().splitlines() if line and line[0] != "#"}
        listed = run("ldd", tree / "usr/bin/tessera")
        for name in ("libgrpc++", "libsqlite3-0", "libssl3", "libicu72"):
            self.assertTrue(any(entry.startswith(name) for entry in depends), depends)
        self.assertIn("libsqlite3", listed)
        self.assertLessEqual(depends - {"adduser", "libc6", "libgcc-s1"}, image)
        self.assertIn("adduser", depends, "the postinst calls it")

    def test_its_configuration_is_a_conffile_and_all_files_below_etc_are(self):
        conffiles = run("dpkg-deb", "--info", package, "conffiles").split()
        self.assertEqual(conffiles, [f"/{file.relative_to(tree)}" for file in (tree / "etc").rglob("*") if file.is_file()])

    def test_lintian_has_nothing_to_say(self):
        done = subprocess.run(["lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", str(package)],
                              capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)


class ContentsTest(unittest.TestCase):
    def test_the_program_runs_through_its_link_and_has_a_manual_page_for_each_command(self):
        text = run(tree / "usr/bin/tessera", "--help")
        commands = re.findall(r"(?m)^  ([a-z]+) ", text.partition("Subcommands:")[2])
        self.assertGreater(len(commands), 10)
        self.assertEqual({page.name for page in (tree / "usr/share/man/man1").iterdir()},
                         {"tessera.1.gz", *(f"tessera-{command}.1.gz" for command in commands)})

    def test_the_shells_find_their_completions_where_debian_has_them(self):
        for file in ("bash-completion/completions/tessera", "zsh/vendor-completions/_tessera", "fish/vendor_completions.d/tessera.fish"):
            self.assertIn("generate", (tree / "usr/share" / file).read_text(), file)

    def test_the_configuration_is_read_stays_on_loopback_and_keeps_its_data_in_the_state_folder(self):
        printed = yaml.safe_load(run(tree / "usr/bin/tessera", "serve", "--print-config", "--config", tree / "etc/tessera/tessera.yaml"))
        self.assertEqual({listener["address"] for listener in printed["listen"].values()}, {"127.0.0.1"})
        self.assertTrue(printed["data_folder"].startswith("/var/lib/tessera/"))

    def test_nothing_is_writable_by_others_and_nothing_lies_outside_the_usual_folders(self):
        self.assertEqual({entry.name for entry in tree.iterdir()}, {"etc", "lib", "usr"})
        for line in run("dpkg-deb", "--contents", package).splitlines():
            mode, owner = line.split()[:2]
            self.assertEqual(owner, "root/root", line)
            self.assertTrue(mode.startswith("l") or mode[8] == "-", line)


class ServiceTest(unittest.TestCase):
    def unit(self, change=lambda text: text):
        # systemd-analyze looks for the program where the unit says.
        text = (tree / "lib/systemd/system/tessera.service").read_text().replace("/usr/bin/tessera", str(tree / "usr/bin/tessera"))
        file = place / "unit/tessera.service"
        file.parent.mkdir(exist_ok=True)
        file.write_text(change(text))
        return file

    def verify(self, unit):
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=DEADLINE)
        return done.returncode, done.stdout + done.stderr

    def exposure_is_at_most(self, tenths, unit):
        return subprocess.run(["systemd-analyze", "security", "--offline=true", f"--threshold={tenths}", str(unit)],
                              capture_output=True, text=True, timeout=DEADLINE).returncode == 0

    def test_systemd_has_nothing_to_say_about_the_unit(self):
        self.assertEqual(self.verify(self.unit()), (0, ""))

    def test_a_directive_that_systemd_does_not_know_is_noticed(self):
        self.assertIn("ProtectHomes", self.verify(self.unit(lambda text: text.replace("ProtectHome=", "ProtectHomes=")))[1])

    def test_its_exposure_is_low(self):
        self.assertTrue(self.exposure_is_at_most(20, self.unit()))

    def test_an_exposure_that_is_not_low_is_noticed(self):
        self.assertFalse(self.exposure_is_at_most(20, self.unit(lambda text: re.sub(r"(?m)^(Capability|Protect|Restrict).*\n", "", text))))

    def test_it_serves_the_packages_configuration_as_a_user_of_its_own_and_stops_later_than_the_server_drains(self):
        text = self.unit().read_text()
        self.assertIn("User=tessera\n", text)
        self.assertIn("--config /etc/tessera/tessera.yaml\n", text)
        configuration = yaml.safe_load(run(TESSERA, "serve", "--print-config", "--config", tree / "etc/tessera/tessera.yaml"))
        stop = int(re.search(r"TimeoutStopSec=(\d+)", text)[1])
        self.assertGreater(stop, seconds(configuration["drain_time"]) + 15)

    def test_the_unit_of_the_documents_says_the_same(self):
        shown = pathlib.Path("docs/serve.md").read_text()
        text = self.unit().read_text()
        for line in re.findall(r"(?m)^    ((?:Restart|KillMode|TimeoutStopSec|LimitNOFILE)=.*)$", shown):
            self.assertIn(f"{line}\n", text)


class InstallPageTest(unittest.TestCase):
    """docs/install.md: scripts/package-check.py installs what its commands install."""

    PAGE = pathlib.Path("docs/install.md").read_text()

    def test_the_files_it_lists_and_uses_are_those_of_a_release(self):
        cuda = f"tessera-{VERSION}-linux-x86_64-cuda.tar.gz"  # of a build with the plug-in
        listed = set(re.findall(r"`([^`]*)`", "\n".join(re.findall(r"(?m)^\| (`[^|]*`) \|", self.PAGE))))
        self.assertEqual(listed, {file.name for file in made.iterdir()} | {cuda})
        for used in re.findall(r"dist/[0-9.]+/(\S+)", self.PAGE):
            self.assertIn(used, listed)

    def test_its_commands_are_known_and_valid(self):
        commands = re.findall(r"(?m)^    (\S.*)$", self.PAGE)
        for command in commands:
            run("bash", "-n", "-c", command)
            first = command.split()[0]
            self.assertTrue(first in {"export", "cd", "sudo", "tar", "python3", "cmake"} or os.access(first, os.X_OK) or
                            first == f"tessera-{VERSION}-linux-x86_64/bin/tessera", f"{command!r} is shown and not checked")
        self.assertIn(f"scripts/release.sh {VERSION}", commands)
        self.assertIn(re.search(r"torch==[0-9.]+", pathlib.Path("scripts/libtorch-requirements.txt").read_text())[0], self.PAGE)

    def test_the_readme_is_narrow_and_neither_shows_a_file_that_is_not_public(self):
        readme = pathlib.Path("README.md").read_text()
        self.assertEqual([line for line in readme.splitlines() if len(line) > 100], [])
        for page in (readme, self.PAGE):
            self.assertNotRegex(page, r"releases/download|ghcr\.io|docker pull|apt-get install tessera")
            self.assertIn("Nothing is published yet", page)


class DocumentTest(unittest.TestCase):
    PAGE = pathlib.Path("docs/deploy-debian.md").read_text()

    def test_the_commands_it_shows_exist_and_name_what_is_there(self):
        shown = re.findall(r"(?m)^    (\(?\w[^\n]*)$", self.PAGE)
        programs = {"scripts/setup.sh", "(cd", "sudo", "systemctl", "curl", "tessera", "[Service]"}
        for line in shown:
            self.assertTrue(line.split()[0] in programs or re.match(r"\w+=", line), f"{line!r} is shown and not checked")
            if line.startswith("scripts/"):
                self.assertTrue(os.access(line.split()[0], os.X_OK))
            if "tessera doctor" in line or line.startswith("tessera keys"):
                run(TESSERA, line.split("tessera ")[1].split()[0], "--help")
            for path in re.findall(r"/etc/tessera/tessera\.yaml", line):
                self.assertTrue((tree / path.lstrip("/")).exists(), path)
        self.assertIn("(cd build/release && cpack -G DEB)", shown)

    def test_the_settings_it_shows_are_those_of_the_unit(self):
        unit = (tree / "lib/systemd/system/tessera.service").read_text()
        for setting in re.findall(r"(?m)^    (\w+)=\S+$", self.PAGE):
            self.assertRegex(unit, rf"(?m)^{setting}=yes$")

    def test_the_places_it_names_are_in_the_package(self):
        for path in re.findall(r"(?m)^\| `(/(?:etc|usr)/[^`]*)`", self.PAGE):
            self.assertTrue((tree / path.lstrip("/")).exists(), path)


if __name__ == "__main__":
    TESSERA, BUILD = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    PYTHON = pathlib.Path(".deps/deploy-tests/bin/python").absolute()
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
