"""The backup of docs/operations.md, taken by its commands from a server under load and restored elsewhere.

    operations_test.py TESSERA     from the repository's root
"""
import json
import pathlib
import re
import subprocess
import sys
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
    """The commands that the page shows below a heading. The data of fake workers is in the folder of that name."""
    text = PAGE.read_text().partition(f"\n### {section}\n")[2].partition("\n##")[0]
    lines = re.findall(r"(?m)^    (.*)$", text)
    assert lines, f"{section} shows no command"
    return [re.sub(r"\b(tessera-data|restored)\b(?!\.yaml)", r"\1-fake", line) for line in lines]


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
        subprocess.run(["sh", "-euc", "\n".join(commands)], cwd=self.place.name, check=True, timeout=DEADLINE)

    def test_what_was_accepted_before_the_backup_is_there_after_a_restore_elsewhere(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        place = pathlib.Path(self.place.name)
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
        self.server.process.kill()
        self.server.process.wait(60)
        self.server.process.stdout.close()
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
        self.assertEqual(words, {"mkdir", "sqlite3", "cp", "if", "chmod", "tessera"})


if __name__ == "__main__":
    TESSERA = pathlib.Path(sys.argv[1]).resolve()
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
