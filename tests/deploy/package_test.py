"""The Debian package, but for LibTorch: what is in it, what it says about itself, lintian, its service for systemd.
scripts/package-check.py installs the whole of it.

    package_test.py TESSERA BUILD     from the repository's root
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

DEADLINE = 300


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=DEADLINE, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} ends with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def setUpModule():
    global place, package, tree
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    place = pathlib.Path(folder.name)
    run("cpack", "-G", "DEB", "-B", place / "made", cwd=BUILD, env={**os.environ, "TESSERA_PACKAGE_LIBTORCH": "0"})
    package, = (place / "made").glob("*.deb")
    tree = place / "tree"
    run("dpkg-deb", "--extract", package, tree)


def seconds(text):
    return sum(int(n) * {"h": 3600, "m": 60, "s": 1}[unit] for n, unit in re.findall(r"(\d+)([hms])", text))


def field(name):
    return run("dpkg-deb", "--field", package, name).strip()


class ControlTest(unittest.TestCase):
    def test_it_is_the_version_of_the_program_under_debians_usual_name(self):
        version = run(TESSERA, "--version").split()[1]
        self.assertEqual(package.name, f"tessera_{version}_amd64.deb")
        self.assertEqual((field("Package"), field("Version"), field("Architecture")), ("tessera", version, "amd64"))

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
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
