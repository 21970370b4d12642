"""The real openai and grpcio clients and the example in Python against `tessera serve --fake-workers`.
scripts/client-tests.sh runs it.

client_tests.py TESSERA GENERATED_STUBS
"""
import base64
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc
import httpx
import openai

TESSERA, STUBS = sys.argv[1:3]
sys.path.insert(0, STUBS)
from tessera.v1 import image_service_pb2 as pb  # noqa: E402
from tessera.v1 import image_service_pb2_grpc as rpc  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"


CONFIG = """
listen: {http: {port: 0}, grpc: {port: 0}, admin: {port: 0}}
groups: [{model: fake, aliases: [gpt-image-1, dall-e-3]}]
"""


class Server:
    def __init__(self, more_config="", orders="step-time=5", becomes_ready=True):
        self.folder = tempfile.TemporaryDirectory()
        config = pathlib.Path(self.folder.name, "tessera.yaml")
        config.write_text(CONFIG + more_config)
        self.process = subprocess.Popen(
            [os.path.abspath(TESSERA), "serve", "--config", config, "--fake-workers", "--fake-orders", orders],
            cwd=self.folder.name, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.ports = json.loads(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.ports['http']}"
        deadline = time.monotonic() + 60
        while becomes_ready and httpx.get(f"{self.url}/readyz").status_code != 200:
            if time.monotonic() > deadline:
                raise TimeoutError("the server is not ready")
            time.sleep(0.01)

    def client(self, **options):
        options = {"api_key": "none", "timeout": 60, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", **options)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()
        self.folder.cleanup()


class WithServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


class OpenAi(WithServer):
    def test_an_image_comes_as_base64(self):
        answer = self.server.client().images.generate(prompt="red apple", model="gpt-image-1", size="auto")
        self.assertEqual(len(answer.data), 1)
        self.assertTrue(base64.b64decode(answer.data[0].b64_json).startswith(PNG))
        self.assertGreater(answer.created, 0)

    def test_every_parameter_of_the_client_is_taken(self):
        answer = self.server.client().images.generate(
            prompt="red apple", model="gpt-image-1", n=2, size="64x64", quality="high", background="opaque",
            moderation="low", output_format="webp", output_compression=80, style="vivid", user="someone",
            response_format="b64_json", extra_body={"seed": 7, "num_inference_steps": 3, "guidance_scale": 2.5})
        self.assertEqual([image.seed for image in answer.data], [7, 8])
        self.assertEqual(base64.b64decode(answer.data[0].b64_json)[8:12], b"WEBP")
        self.assertEqual((answer.size, answer.quality, answer.output_format), ("64x64", "high", "webp"))

    def test_a_link_can_be_downloaded(self):
        answer = self.server.client().images.generate(prompt="red apple", response_format="url")
        self.assertTrue(httpx.get(answer.data[0].url).content.startswith(PNG))

    def test_a_stream_brings_partial_images_and_the_image(self):
        stream = self.server.client().images.generate(prompt="red apple", model="gpt-image-1", stream=True,
                                                      partial_images=2)
        events = list(stream)
        for event in events:
            self.assertTrue(base64.b64decode(event.b64_json).startswith(PNG))
        # A partial image that was overtaken by the image may be missing.
        self.assertEqual(events[-1].type, "image_generation.completed")
        self.assertEqual({event.type for event in events[:-1]} - {"image_generation.partial_image"}, set())
        indices = [event.partial_image_index for event in events[:-1]]
        self.assertEqual(indices, sorted(set(indices)))
        usage = events[-1].usage
        self.assertEqual((usage.total_tokens, usage.input_tokens, usage.output_tokens,
                          usage.input_tokens_details.image_tokens, usage.input_tokens_details.text_tokens), (0,) * 5)

    def test_a_stream_brings_each_of_several_images(self):
        stream = self.server.client().images.generate(prompt="red apple", model="gpt-image-1", stream=True, n=3,
                                                      extra_body={"seed": 7})
        events = [event for event in stream if event.type == "image_generation.completed"]
        self.assertEqual(sorted(event.image_index for event in events), [0, 1, 2])
        self.assertEqual([event.seed - event.image_index for event in events], [7] * 3)

    def test_a_failure_in_a_stream_is_raised(self):
        with self.assertRaises(openai.APIError) as raised:
            list(self.server.client().images.generate(prompt="[fail]", model="gpt-image-1", stream=True))
        self.assertIn("fails as it was told to", str(raised.exception))

    def test_a_bad_value_is_a_bad_request_that_names_the_field(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.server.client().images.generate(prompt="red apple", size="100x100")
        self.assertEqual(raised.exception.param, "size")
        self.assertEqual(raised.exception.code, "invalid_value")
        self.assertIn("the nearest are 96 and 104", raised.exception.message)

    def test_an_unknown_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            self.server.client().images.generate(prompt="red apple", model="gpt-5")
        self.assertEqual(raised.exception.code, "model_not_found")

    def test_a_failed_job_is_an_internal_server_error_and_not_tried_again(self):
        calls = []
        transport = httpx.Client(event_hooks={"request": [lambda request: calls.append(request)]})
        with self.assertRaises(openai.InternalServerError):
            self.server.client(max_retries=3, http_client=transport).images.generate(prompt="[fail]")
        self.assertEqual(len(calls), 1)

    def test_a_full_queue_is_a_rate_limit_error_and_tried_again(self):
        calls = []
        transport = httpx.Client(event_hooks={"request": [lambda request: calls.append(request)]})
        server = Server("limits: {queued_jobs: 1}")
        try:
            with self.assertRaises(openai.RateLimitError) as raised:
                server.client(max_retries=1, http_client=transport).images.generate(prompt="red apple", n=2)
        finally:
            server.stop()
        self.assertEqual(len(calls), 2)
        self.assertGreaterEqual(int(raised.exception.response.headers["retry-after"]), 1)

    def test_a_request_that_is_tried_again_succeeds_once_there_is_room(self):
        server = Server("limits: {queued_jobs: 1}", "step-time=100")
        jobs = []

        def make_room(response):
            if response.status_code == 429:
                for job in jobs:
                    httpx.delete(f"{server.url}{job}").raise_for_status()

        def submit(size):
            body = {"prompt": "slow", "size": size, "num_inference_steps": 600}
            answer = httpx.post(f"{server.url}/v1/jobs", json=body)
            jobs.append(answer.raise_for_status().headers["location"])

        try:
            submit("64x64")
            while httpx.get(f"{server.url}{jobs[0]}").json()["status"] == "queued":
                time.sleep(0.01)
            submit("128x128")  # waits: it shares no batch with the other
            answers = []
            transport = httpx.Client(event_hooks={"response": [make_room, answers.append]})
            client = server.client(max_retries=2, http_client=transport)
            answer = client.images.generate(prompt="red apple", extra_body={"num_inference_steps": 2})
        finally:
            server.stop()
        self.assertTrue(base64.b64decode(answer.data[0].b64_json).startswith(PNG))
        self.assertEqual([answer.status_code for answer in answers], [429, 200])

    def test_an_unknown_key_is_an_authentication_error(self):
        made = json.loads(subprocess.run([TESSERA, "keys", "one", "--json"], capture_output=True, check=True).stdout)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as keys:
            keys.write(made["line"] + "\n")
            keys.flush()
            server = Server(f"keys_file: {keys.name}\n")
            try:
                with self.assertRaises(openai.AuthenticationError) as raised:
                    server.client(api_key="wrong").images.generate(prompt="red apple")
                self.assertEqual(raised.exception.code, "invalid_api_key")
                self.assertEqual(len(server.client(api_key=made["secret"]).images.generate(prompt="red apple").data), 1)
            finally:
                server.stop()

    def test_a_script_of_another_origin_is_denied(self):
        with self.assertRaises(openai.PermissionDeniedError):
            self.server.client().images.generate(prompt="red apple", extra_headers={"Origin": "https://other.example"})

    def test_a_model_that_no_group_can_load_is_unavailable_and_tried_again(self):
        calls = []
        transport = httpx.Client(event_hooks={"request": [lambda request: calls.append(request)]})
        server = Server(orders="load=error", becomes_ready=False)
        try:
            while httpx.get(f"{server.url}/v1/server").json()["groups"][0]["state"] != "refused":
                time.sleep(0.01)
            with self.assertRaises(openai.InternalServerError) as raised:
                server.client(max_retries=1, http_client=transport).images.generate(prompt="red apple")
        finally:
            server.stop()
        self.assertEqual((raised.exception.status_code, raised.exception.code), (503, "no_group"))
        self.assertEqual(len(calls), 2)

    def test_a_client_that_does_not_wait_long_enough_is_told_and_its_job_is_cancelled(self):
        with self.assertRaises(openai.APITimeoutError):
            self.server.client(timeout=0.2, max_retries=0).images.generate(
                prompt="red apple", user="impatient", extra_body={"num_inference_steps": 1000})
        deadline = time.monotonic() + 60
        while True:
            jobs = httpx.get(f"{self.server.url}/v1/jobs?limit=100").json()["data"]
            states = [job["status"] for job in jobs if job["user"] == "impatient"]
            if states == ["cancelled"] or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self.assertEqual(states, ["cancelled"])

    def test_a_repeated_idempotency_key_with_another_body_is_a_conflict(self):
        client = self.server.client(max_retries=0)
        header = {"Idempotency-Key": "one"}
        client.images.generate(prompt="red apple", extra_headers=header)
        with self.assertRaises(openai.ConflictError):
            client.images.generate(prompt="green apple", extra_headers=header)

    def test_models_are_listed_and_retrieved(self):
        client = self.server.client()
        self.assertEqual([model.id for model in client.models.list()], ["fake", "gpt-image-1", "dall-e-3"])
        self.assertEqual(client.models.retrieve("dall-e-3").id, "dall-e-3")

    def test_request_ids_are_told(self):
        answer = self.server.client().images.with_raw_response.generate(prompt="a")
        self.assertTrue(answer.headers["x-request-id"].startswith("req_"))

    def test_many_at_once(self):
        failures = []

        def generate(seed):
            try:
                answer = self.server.client().images.generate(prompt="a", extra_body={"seed": seed})
                if answer.data[0].seed != seed:
                    failures.append(seed)
            except Exception as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=generate, args=(seed,)) for seed in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


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
        file = self.stub.GetImage(pb.GetImageRequest(id=ended.images[0].id), timeout=60).file
        self.assertTrue(file.startswith(PNG))

    def test_errors_have_codes_and_fields(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.stub.Submit(pb.SubmitRequest(image=pb.ImageRequest(prompt="")), timeout=60)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(dict(raised.exception.trailing_metadata())["tessera-field"], "prompt")


class Example(unittest.TestCase):
    """examples/python, as its readers run it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        pathlib.Path(cls.folder.name, "tessera.yaml").write_text(
            "listen: {http: {port: 0}, grpc: {port: 0}, admin: {port: 0}}\ngroups: [{model: emoji}]\n")
        cls.log = open(os.path.join(cls.folder.name, "log"), "w")
        cls.process = subprocess.Popen(
            [os.path.abspath(TESSERA), "serve", "--fake-workers", "--fake-orders", "step-time=10", "--config", "tessera.yaml"],
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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
