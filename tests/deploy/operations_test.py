"""The backups of docs/operations.md: taken by its commands from a server under load, killed, on a full disk, and restored elsewhere.

    operations_test.py TESSERA     from the repository's root
"""
import hashlib
import json
import os
import pathlib
import re
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "server"))
import fake_server  # noqa: E402

PAGE = pathlib.Path("docs/operations.md").resolve()
DEADLINE = 120


def commands_of(section):
    """The commands that the page shows below a heading, without the server that the test starts itself. The data of fake workers is in
    the folder of that name."""
    text = PAGE.read_text().partition(f"\n### {section}\n")[2].partition("\n##")[0]
    lines = re.findall(r"(?m)^    (.*)$", text)
    assert lines, f"{section} shows no command"
    lines = [line for line in lines if not line.endswith("&")]
    return [re.sub(r"\brestored\b(?!\.yaml)", "restored-fake", line) for line in lines]


class BackupTest(unittest.TestCase):
    def call(self, path, body=None):
        request = urllib.request.Request(self.server.url + path, None if body is None else json.dumps(body).encode(),
                                         {"Content-Type": "application/json"} if body is not None else {})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def job(self, identifier):
        return json.loads(self.call(f"/v1/jobs/{identifier}"))

    def submit(self, prompt, steps=2):
        return json.loads(self.call("/v1/jobs", {"prompt": prompt, "num_inference_steps": steps}))["id"]

    def wait_for_all(self, jobs):
        deadline = time.monotonic() + DEADLINE
        while (left := [job for job in jobs if self.job(job)["status"] != "done"]):
            self.assertLess(time.monotonic(), deadline, f"{len(left)} jobs do not end: {self.job(left[0])}")
            time.sleep(0.02)

    def images_of(self, job):
        return [self.call(f"/v1/images/{image['id']}") for image in self.job(job)["images"]]

    def start(self, more_config, script):
        self.server = fake_server.Server(TESSERA, more_config=more_config, script=script)

    def run_commands(self, commands):
        environment = {**os.environ, "PATH": f"{TESSERA.parent}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-euc", "\n".join(commands)], cwd=self.place.name, check=True, timeout=DEADLINE, env=environment)

    def make_place(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        place = pathlib.Path(self.place.name)
        (place / "tessera.yaml").write_text("data_folder: tessera-data-fake\n")
        return place

    def tessera(self, *arguments, **options):
        return subprocess.run([TESSERA, *arguments], cwd=self.place.name, capture_output=True, timeout=DEADLINE, **options)

    def kill_server(self):
        self.server.process.kill()
        self.server.process.wait(60)
        self.server.process.stdout.close()

    def test_what_was_accepted_before_the_backup_is_there_after_a_restore_elsewhere(self):
        place = self.make_place()
        self.start(f"data_folder: {place}/tessera-data", "step-time=5")
        done = [self.submit(f"apple {i}") for i in range(20)]
        self.wait_for_all(done)
        images = {job: self.images_of(job) for job in done}
        self.assertTrue(all(images.values()))
        waiting = [self.submit(f"pear {i}", steps=200) for i in range(20)]
        adapter = f"adapters/{'ad' * 32}.safetensors"
        (place / "tessera-data-fake/adapters").mkdir(exist_ok=True)
        (place / "tessera-data-fake" / adapter).write_bytes(b"an adapter")

        stop, failures = threading.Event(), []

        def go_on_submitting():
            try:
                while not stop.is_set():
                    self.submit("during the backup")
            except OSError as error:
                failures.append(error)

        load = threading.Thread(target=go_on_submitting)
        load.start()
        try:
            self.run_commands(commands_of("Backup"))
        finally:
            stop.set()
            load.join()
        self.assertEqual(failures, [])
        # The machine is lost with all its data.
        self.kill_server()
        (place / "tessera-data-fake").rename(place / "gone")

        *restore, serve = commands_of("Restore")
        self.assertRegex(serve, r"^tessera serve --config restored\.yaml")
        self.run_commands(restore)
        self.assertEqual((place / "restored-fake").stat().st_mode & 0o077, 0, "others can read prompts and pictures")
        self.assertEqual((place / "restored-fake" / adapter).read_bytes(), b"an adapter")
        self.start(f"data_folder: {place}/restored", "step-time=1")
        self.addCleanup(self.server.stop)
        for job in done:
            self.assertEqual(self.images_of(job), images[job], "a finished image has changed")
        self.wait_for_all(waiting)
        for job in waiting:
            self.assertEqual(len(self.images_of(job)), 1)

    def test_the_commands_are_those_that_the_page_explains(self):
        words = {line.split()[0] for section in ("Backup", "Restore") for line in commands_of(section)}
        self.assertEqual(words, {"tessera"})

    def test_no_backup_under_load_with_a_short_retention_lacks_an_image(self):
        place = self.make_place()
        self.start(f"data_folder: {place}/tessera-data\nretention: 1s\ncommitted_image_bytes: 0", "step-time=1")
        self.addCleanup(self.server.stop)
        stop, failures = threading.Event(), []

        def go_on_submitting():
            try:
                while not stop.is_set():
                    self.submit("an image that soon expires", steps=1)
            except OSError as error:
                failures.append(error)

        load = threading.Thread(target=go_on_submitting)
        load.start()
        try:
            for number in range(10):
                done = self.tessera("backup", "--config", "tessera.yaml", f"{number}.tar")
                self.assertEqual((done.returncode, done.stderr), (0, b""))
        finally:
            stop.set()
            load.join()
        self.assertEqual(failures, [])
        images = 0
        for number in range(10):
            with tarfile.open(place / f"{number}.tar") as archive:
                archive.extractall(place / str(number))
            jobs = sqlite3.connect(place / str(number) / "jobs.sqlite")
            self.addCleanup(jobs.close)
            for task, attempt in jobs.execute("SELECT number, attempt FROM tasks WHERE state = 2 AND number NOT IN (SELECT task FROM pictures)"):
                self.assertTrue((place / f"{number}/images/{task % 256:02x}/{task}-{attempt}").exists(), (number, task))
                images += 1
        self.assertGreater(images, 0)

    def make_backup(self):
        """A folder of a server that has ended, with images."""
        place = self.make_place()
        self.start(f"data_folder: {place}/tessera-data", "step-time=1")
        self.wait_for_all([self.submit(f"apple {i}") for i in range(5)])
        self.server.stop()
        return place

    def test_an_archive_that_goes_to_standard_output_is_that_of_a_file_for_every_tar(self):
        place = self.make_backup()
        piped = self.tessera("backup", "--config", "tessera.yaml", "-")
        self.assertEqual(piped.returncode, 0, piped.stderr)
        self.assertRegex(piped.stderr.decode(), r"^\d+ files, ")
        (place / "piped.tar").write_bytes(piped.stdout)
        listed = subprocess.run(["tar", "-tf", place / "piped.tar"], capture_output=True, text=True, check=True).stdout.split()
        self.assertIn("jobs.sqlite", listed)
        self.assertEqual(listed[-1], "MANIFEST")
        with tarfile.open(place / "piped.tar") as archive:
            lines = archive.extractfile("MANIFEST").read().decode().splitlines()[1:-1]
            for digest, size, name in map(str.split, lines):
                data = archive.extractfile(name).read()
                self.assertEqual((hashlib.sha256(data).hexdigest(), str(len(data))), (digest, size), name)
            self.assertEqual([line.split()[2] for line in lines], sorted(set(listed) - {"MANIFEST"}))
        restored = self.tessera("restore", "-", "--to", "restored", input=piped.stdout)
        self.assertEqual(restored.returncode, 0, restored.stderr)
        truncated = self.tessera("restore", "-", "--to", "other", input=piped.stdout[:-2000])
        self.assertEqual(truncated.returncode, 2)
        self.assertIn(b"truncated", truncated.stderr)
        self.assertFalse((place / "other").exists())

    def test_an_archive_is_private_and_replaced_only_on_demand(self):
        place = self.make_backup()
        for arguments, code in (((), 0), ((), 5), (("--overwrite",), 0)):
            done = self.tessera("backup", "--config", "tessera.yaml", "a.tar", *arguments)
            self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(stat.S_IMODE((place / "a.tar").stat().st_mode), 0o600)

    def test_a_full_disk_or_a_kill_leaves_nothing_that_has_the_archives_name(self):
        place = self.make_backup()
        (place / "out").mkdir()
        limits = (100, 3000, 20000)
        for limit in limits:
            done = self.tessera("backup", "--config", "tessera.yaml", "out/a.tar",
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertEqual(list((place / "out").iterdir()), [])
        (place / "tessera-data-fake/adapters").mkdir(exist_ok=True)
        (place / "tessera-data-fake/adapters/large").write_bytes(bytes(1 << 20))  # more than a pipe takes
        # The command waits in the middle for a reader of its pipe, and is killed there.
        with subprocess.Popen([TESSERA, "backup", "--config", "tessera.yaml", "-"], cwd=place, stdout=subprocess.PIPE) as process:
            begun = process.stdout.read(512)
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read()
        refused = self.tessera("restore", "-", "--to", "killed", input=begun + rest)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertEqual(self.tessera("backup", "--config", "tessera.yaml", "out/a.tar").returncode, 0)
        self.assertEqual(list((place / "tessera-data-fake/backup").iterdir()), [place / "tessera-data-fake/backup/lock"])

    def test_no_server_starts_on_a_folder_whose_restore_has_not_ended(self):
        place = self.make_backup()
        (place / "tessera-data-fake/.restore").mkdir()
        config = place / "interrupted.yaml"
        config.write_text(f"listen: {{http: {{port: 0}}, grpc: {{port: 0}}, admin: {{port: 0}}}}\ndata_folder: {place}/tessera-data\n")
        done = self.tessera("serve", "--config", config, "--fake-workers", "--no-supervisor")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"a restore of the data folder is running or was interrupted", done.stderr)

    def test_a_queue_in_postgresql_is_not_taken_for_a_backup(self):
        place = self.make_backup()
        (place / "shared.yaml").write_text("data_folder: tessera-data-fake\nstore: {dsn: 'host=/nowhere'}\n")
        refused = self.tessera("backup", "--config", "shared.yaml", "a.tar")
        self.assertEqual(refused.returncode, 2)
        self.assertIn(b"pg_dump", refused.stderr)
        files = json.loads(self.tessera("backup", "--config", "shared.yaml", "--files-only", "--json", "a.tar").stdout)
        self.assertEqual((files["event"], files["schema"]), ("backup", 0))
        self.assertGreaterEqual(files["files"], 5)


if __name__ == "__main__":
    TESSERA = pathlib.Path(sys.argv[1]).resolve()
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
