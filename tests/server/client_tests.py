"""The real grpcio client and the example in Python against `tessera serve --fake-workers`. scripts/client-tests.sh runs it.

client_tests.py TESSERA GENERATED_STUBS
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import grpc

import fake_server

TESSERA, STUBS = sys.argv[1:3]
sys.path.insert(0, STUBS)
from tessera.v1 import image_service_pb2 as pb  # noqa: E402
from tessera.v1 import image_service_pb2_grpc as rpc  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"


class WithServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = fake_server.Server(TESSERA)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


class Grpc(WithServer):
    def setUp(self):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.server.ports['grpc']}")
        self.stub = rpc.ImageServiceStub(self.channel)

    def tearDown(self):
        self.channel.close()

    def test_generate_streams_to_the_image(self):
        request = pb.GenerateRequest(image=pb.ImageRequest(prompt="red apple", seed=3, partial_images=1))
        events = list(self.stub.Generate(request, timeout=60))
        self.assertEqual(events[0].WhichOneof("event"), "accepted")
        self.assertEqual(events[-1].WhichOneof("event"), "ended")
        image = [event.image for event in events if event.WhichOneof("event") == "image"][0]
        self.assertTrue(image.file.startswith(PNG))
        self.assertEqual(image.seed, 3)

    def test_jobs_are_submitted_watched_and_fetched(self):
        job = self.stub.Submit(pb.SubmitRequest(image=pb.ImageRequest(prompt="red apple")), timeout=60)
        ended = list(self.stub.WatchJob(pb.WatchJobRequest(id=job.id), timeout=60))[-1].ended
        self.assertEqual(ended.state, pb.JOB_STATE_DONE)
        answers = self.stub.GetImage(pb.GetImageRequest(id=ended.images[0].id), timeout=60)
        file = b"".join(answer.file for answer in answers)
        self.assertTrue(file.startswith(PNG))

    def test_errors_have_codes_and_fields(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.stub.Submit(pb.SubmitRequest(image=pb.ImageRequest(prompt="")), timeout=60)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        metadata = dict(raised.exception.trailing_metadata())
        self.assertEqual((metadata["tessera-field"], metadata["tessera-error-code"]), ("prompt", "invalid_value"))


class Example(unittest.TestCase):
    """examples/python, as its readers run it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        pathlib.Path(cls.folder.name, "tessera.yaml").write_text(
            "listen: {http: {port: 0}, grpc: {port: 0}, admin: {port: 0}}\ngroups: [{model: emoji}]\n")
        cls.log = open(os.path.join(cls.folder.name, "log"), "w")
        cls.process = subprocess.Popen(
            [os.path.abspath(TESSERA), "serve", "--fake-workers", "--fake-script", "step-time=10 pictures=start", "--config", "tessera.yaml"],
            cwd=cls.folder.name, stdout=subprocess.PIPE, stderr=cls.log)
        cls.port = json.loads(cls.process.stdout.readline())["grpc"]

    @classmethod
    def tearDownClass(cls):
        cls.process.terminate()
        cls.process.wait(60)
        cls.process.stdout.close()
        cls.log.close()
        cls.folder.cleanup()

    def run_example(self, *arguments):
        script = os.path.abspath("examples/python/tessera_example.py")
        return subprocess.run([sys.executable, script, f"127.0.0.1:{self.port}", *arguments], cwd=self.folder.name,
                              env={**os.environ, "PYTHONPATH": STUBS}, capture_output=True, text=True, timeout=60)

    def test_it_generates_with_progress(self):
        done = self.run_example("generate", "red apple", "generated.png")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"accepted as job-[-\w]+\n(.*\n)*step \d+ of \d+\n(.*\n)*wrote generated.png\n$")
        self.assertTrue(pathlib.Path(self.folder.name, "generated.png").read_bytes().startswith(PNG))

    def test_it_edits_a_picture(self):
        done = self.run_example("edit", "red apple", "edited.png", os.path.abspath("tests/pictures/uploads/rgb.png"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(pathlib.Path(self.folder.name, "edited.png").read_bytes().startswith(PNG))
        done = self.run_example("edit", "red apple", "none.png", "tessera.yaml")
        self.assertEqual(done.returncode, 1)
        self.assertIn("image", done.stderr)

    def test_it_submits_and_watches(self):
        done = self.run_example("submit", "red apple", "submitted.png")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(pathlib.Path(self.folder.name, "submitted.png").read_bytes().startswith(PNG))

    def test_it_cancels(self):
        done = self.run_example("cancel", "red apple")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"job-[-\w]+ ended as JOB_STATE_CANCELLED\n$")

    def test_it_says_what_the_server_refuses(self):
        done = self.run_example("generate", "", "none.png")
        self.assertEqual(done.returncode, 1)
        self.assertIn("prompt", done.stderr)


class Document(unittest.TestCase):
    """The commands that docs/clients.md shows for Python, word for word but for the folder, the port and the picture."""

    def test_they_run_from_a_clone_and_leave_nothing_in_it(self):
        text = pathlib.Path("docs/clients.md").read_text()
        section = text.split("## Python over gRPC")[1].split("\n## ")[0]
        commands = [line[4:] for line in section.splitlines() if line.startswith("    ")]
        self.assertIn("tessera_example.py", commands[-1])
        server = fake_server.Server(TESSERA)
        try:
            with tempfile.TemporaryDirectory() as folder:
                clone = pathlib.Path(folder, "clone")
                for tracked in ("examples", "proto"):
                    shutil.copytree(tracked, clone / tracked, ignore=shutil.ignore_patterns("__pycache__"))
                before = sorted(clone.rglob("*"))
                # The versions that are tested with.
                pins = os.path.abspath("scripts/client-test-requirements.txt")
                environment = {**os.environ, "PIP_CONSTRAINT": pins, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
                environment.pop("PYTHONPATH", None)
                for command in commands:
                    command = command.replace("/tmp/", f"{folder}/")
                    command = command.replace("localhost:8081", f"localhost:{server.ports['grpc']}")
                    done = subprocess.run(command, shell=True, cwd=clone, env=environment, capture_output=True, text=True,
                                          timeout=600)
                    self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")
                self.assertTrue(pathlib.Path(folder, "apple.png").read_bytes().startswith(PNG))
                self.assertEqual(sorted(clone.rglob("*")), before)
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
