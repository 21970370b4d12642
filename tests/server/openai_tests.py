"""The real openai package, of whichever version is installed, against `tessera serve --fake-workers`.
scripts/client-tests.sh runs it with several.

openai_tests.py TESSERA
"""
import base64
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import typing
import unittest

import openai
import openai.types
from openai.types import image_generate_params

from fake_server import Server

# The HTTP library of this version: objects that are passed to it must come from the same one.
httpx = sys.modules.get("httpx2") or sys.modules["httpx"]

TESSERA = sys.argv[1]
PNG = b"\x89PNG\r\n\x1a\n"


def openai_client(server, **options):
    return openai.OpenAI(base_url=f"{server.url}/v1", **{"api_key": "none", "timeout": 60, **options})


class WithServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(TESSERA)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


# Of 19 x 13 pixels.
PICTURES = pathlib.Path(__file__).resolve().parent.parent / "pictures" / "edits"


class Edits(unittest.TestCase):
    """images.edit, with a model that edits by instruction and one that begins from a picture."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(TESSERA, script="step-time=5 pictures=reference", groups="groups: [{model: fake}]")
        cls.start = Server(TESSERA, script="step-time=5 pictures=start", groups="groups: [{model: fake}]")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.start.stop()

    def test_a_picture_is_edited(self):
        images = openai_client(self.server).images
        with open(PICTURES / "rgb.png", "rb") as picture:
            answer = images.edit(image=picture, prompt="red apple", model="gpt-image-1", extra_body={"seed": 7})
        self.assertEqual((len(answer.data), answer.data[0].seed, answer.size), (1, 7, "72x48"))
        self.assertTrue(base64.b64decode(answer.data[0].b64_json).startswith(PNG))
        same = images.edit(image=(PICTURES / "rgb.png").read_bytes(), prompt="red apple", extra_body={"seed": 7})
        self.assertEqual(same.data[0].b64_json, answer.data[0].b64_json)

    def test_every_parameter_of_the_client_is_taken(self):
        answer = openai_client(self.server).images.edit(
            image=[PICTURES / "rgb.png"], prompt="red apple", model="gpt-image-1", n=2, size="64x64", quality="high",
            background="opaque", input_fidelity="high", output_format="webp", output_compression=80, user="someone",
            response_format="b64_json", extra_body={"seed": 7, "num_inference_steps": 3, "guidance_scale": 2.5})
        self.assertEqual([image.seed for image in answer.data], [7, 8])
        self.assertEqual(base64.b64decode(answer.data[0].b64_json)[8:12], b"WEBP")

    def test_several_pictures_are_refused_with_the_number_that_the_model_takes(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            openai_client(self.server).images.edit(image=[PICTURES / "rgb.png", PICTURES / "grey.png"], prompt="a")
        self.assertIn("are 2; this model takes one", raised.exception.message)

    def test_a_mask_is_the_transparency_of_its_picture(self):
        images = openai_client(self.start).images
        answer = images.edit(image=PICTURES / "rgb.png", mask=PICTURES / "rgba.png", prompt="a", model="fake")
        self.assertIn("strength: it is not given, so it is 0.6", answer.warnings[0])
        with self.assertRaises(openai.BadRequestError) as raised:
            images.edit(image=PICTURES / "rgb.png", mask=PICTURES / "rgb.png", prompt="a", model="fake")
        self.assertEqual(raised.exception.param, "mask")
        with self.assertRaises(openai.BadRequestError) as raised:
            images.edit(image=PICTURES / "rgb.png", prompt="a", model="gpt-image-1")
        self.assertEqual(raised.exception.param, "model")

    def test_a_stream_brings_partial_images_and_the_image(self):
        events = list(openai_client(self.server).images.edit(
            image=PICTURES / "animated.png", prompt="red apple", model="gpt-image-1", stream=True, partial_images=2))
        self.assertEqual(events[-1].type, "image_edit.completed")
        self.assertEqual({event.type for event in events[:-1]} - {"image_edit.partial_image"}, set())
        self.assertTrue(base64.b64decode(events[-1].b64_json).startswith(PNG))

    def test_a_file_that_is_no_picture_is_a_bad_request(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            openai_client(self.server).images.edit(image=("a.png", b"no picture"), prompt="a")
        self.assertEqual(raised.exception.param, "image")

    def test_an_uploaded_file_can_be_named(self):
        client = openai_client(self.server)
        file = client.files.create(file=PICTURES / "rgb.png", purpose="vision")
        self.assertEqual([other.id for other in client.files.list()], [file.id])
        answer = client.post("/images/edits", cast_to=openai.types.ImagesResponse,
                             body={"prompt": "a", "images": [{"file_id": file.id}]})
        self.assertEqual(len(answer.data), 1)
        self.assertTrue(client.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            client.files.retrieve(file.id)


class OpenAi(WithServer):
    def test_an_image_comes_as_base64(self):
        answer = openai_client(self.server).images.generate(prompt="red apple", model="gpt-image-1", size="auto")
        self.assertEqual(len(answer.data), 1)
        self.assertTrue(base64.b64decode(answer.data[0].b64_json).startswith(PNG))
        self.assertGreater(answer.created, 0)

    def test_every_parameter_of_the_client_is_taken(self):
        answer = openai_client(self.server).images.generate(
            prompt="red apple", model="gpt-image-1", n=2, size="64x64", quality="high", background="opaque",
            moderation="low", output_format="webp", output_compression=80, style="vivid", user="someone",
            response_format="b64_json", extra_body={"seed": 7, "num_inference_steps": 3, "guidance_scale": 2.5})
        self.assertEqual([image.seed for image in answer.data], [7, 8])
        self.assertEqual(base64.b64decode(answer.data[0].b64_json)[8:12], b"WEBP")
        self.assertEqual((answer.size, answer.quality, answer.output_format), ("64x64", "high", "webp"))

    def test_a_link_can_be_downloaded(self):
        answer = openai_client(self.server).images.generate(prompt="red apple", response_format="url")
        self.assertTrue(httpx.get(answer.data[0].url).content.startswith(PNG))

    def test_a_stream_brings_partial_images_and_the_image(self):
        stream = openai_client(self.server).images.generate(prompt="red apple", model="gpt-image-1", stream=True,
                                                      partial_images=2)
        events = list(stream)
        for event in events:
            self.assertTrue(base64.b64decode(event.b64_json).startswith(PNG))
        # A partial image that was superseded by the image may be missing.
        self.assertEqual(events[-1].type, "image_generation.completed")
        self.assertEqual({event.type for event in events[:-1]} - {"image_generation.partial_image"}, set())
        indices = [event.partial_image_index for event in events[:-1]]
        self.assertEqual(indices, sorted(set(indices)))
        usage = events[-1].usage
        self.assertEqual((usage.total_tokens, usage.input_tokens, usage.output_tokens,
                          usage.input_tokens_details.image_tokens, usage.input_tokens_details.text_tokens), (0,) * 5)

    def test_a_stream_brings_each_of_several_images(self):
        stream = openai_client(self.server).images.generate(prompt="red apple", model="gpt-image-1", stream=True, n=3,
                                                      extra_body={"seed": 7})
        events = [event for event in stream if event.type == "image_generation.completed"]
        self.assertEqual(sorted(event.image_index for event in events), [0, 1, 2])
        self.assertEqual([event.seed - event.image_index for event in events], [7] * 3)

    def test_a_failure_in_a_stream_is_raised(self):
        with self.assertRaises(openai.APIError) as raised:
            list(openai_client(self.server).images.generate(prompt="[fail]", model="gpt-image-1", stream=True))
        self.assertIn("fails as its script says", str(raised.exception))

    def test_a_bad_value_is_a_bad_request_that_names_the_field(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            openai_client(self.server).images.generate(prompt="red apple", size="100x100")
        self.assertEqual(raised.exception.param, "size")
        self.assertEqual(raised.exception.code, "invalid_value")
        self.assertIn("the nearest are 96 and 104", raised.exception.message)

    def test_an_unknown_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            openai_client(self.server).images.generate(prompt="red apple", model="gpt-5")
        self.assertEqual(raised.exception.code, "model_not_found")

    def test_a_failed_job_is_an_internal_server_error_and_not_tried_again(self):
        calls = []
        transport = httpx.Client(event_hooks={"request": [lambda request: calls.append(request)]})
        with self.assertRaises(openai.InternalServerError):
            openai_client(self.server, max_retries=3, http_client=transport).images.generate(prompt="[fail]")
        self.assertEqual(len(calls), 1)

    def test_a_full_queue_is_a_rate_limit_error_and_tried_again(self):
        calls = []
        transport = httpx.Client(event_hooks={"request": [lambda request: calls.append(request)]})
        server = Server(TESSERA, "limits: {queued_jobs: 1}")
        try:
            with self.assertRaises(openai.RateLimitError) as raised:
                openai_client(server, max_retries=1, http_client=transport).images.generate(prompt="red apple", n=2)
        finally:
            server.stop()
        self.assertEqual(len(calls), 2)
        self.assertGreaterEqual(int(raised.exception.response.headers["retry-after"]), 1)

    def test_a_request_that_is_tried_again_succeeds_once_there_is_room(self):
        server = Server(TESSERA, "limits: {queued_jobs: 1}", "step-time=100")
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
            client = openai_client(server, max_retries=2, http_client=transport)
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
            server = Server(TESSERA, f"keys_file: {keys.name}\n")
            try:
                with self.assertRaises(openai.AuthenticationError) as raised:
                    openai_client(server, api_key="wrong").images.generate(prompt="red apple")
                self.assertEqual(raised.exception.code, "invalid_api_key")
                self.assertEqual(len(openai_client(server, api_key=made["secret"]).images.generate(prompt="red apple").data), 1)
            finally:
                server.stop()

    def test_a_script_of_another_origin_is_denied(self):
        with self.assertRaises(openai.PermissionDeniedError):
            openai_client(self.server).images.generate(prompt="red apple", extra_headers={"Origin": "https://other.example"})

    def test_a_model_that_no_group_can_load_is_unavailable_and_tried_again(self):
        calls = []
        transport = httpx.Client(event_hooks={"request": [lambda request: calls.append(request)]})
        server = Server(TESSERA, script="load=error", becomes_ready=False)
        try:
            while httpx.get(f"{server.url}/v1/server").json()["groups"][0]["state"] != "refused":
                time.sleep(0.01)
            with self.assertRaises(openai.InternalServerError) as raised:
                openai_client(server, max_retries=1, http_client=transport).images.generate(prompt="red apple")
        finally:
            server.stop()
        self.assertEqual((raised.exception.status_code, raised.exception.code), (503, "no_group"))
        self.assertEqual(len(calls), 2)

    def test_a_client_that_does_not_wait_long_enough_gets_an_error_and_its_job_is_cancelled(self):
        with self.assertRaises(openai.APITimeoutError):
            openai_client(self.server, timeout=0.2, max_retries=0).images.generate(
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
        client = openai_client(self.server, max_retries=0)
        header = {"Idempotency-Key": "one"}
        client.images.generate(prompt="red apple", extra_headers=header)
        with self.assertRaises(openai.ConflictError):
            client.images.generate(prompt="green apple", extra_headers=header)

    def test_models_are_listed_and_retrieved(self):
        client = openai_client(self.server)
        self.assertEqual([model.id for model in client.models.list()], ["fake", "gpt-image-1", "dall-e-3"])
        self.assertEqual(client.models.retrieve("dall-e-3").id, "dall-e-3")

    def test_request_ids_are_returned(self):
        answer = openai_client(self.server).images.with_raw_response.generate(prompt="a")
        self.assertTrue(answer.headers["x-request-id"].startswith("req_"))

    def test_many_at_once(self):
        failures = []

        def generate(seed):
            try:
                answer = openai_client(self.server).images.generate(prompt="a", extra_body={"seed": seed})
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


def literals(hint):
    """The values of all Literals in a type."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return [value for inner in typing.get_args(hint) for value in literals(inner)]


class EveryField(unittest.TestCase):
    """Every parameter that this version of the client has for images.generate, with every value that its types name."""

    # Values for parameters whose types name none, or that require other fields.
    VALUES = {"n": [2], "output_compression": [80], "partial_images": [2], "user": ["someone"],
              "safety_identifier": ["someone"], "frame_count": [4], "frame_duration_ms": [100],
              "svg": [{"model": "a"}, {"model": "a", "reasoning": {"effort": "low"}}]}
    REQUIRED_WITH = {"output_compression": {"output_format": "webp"}, "partial_images": {"stream": True}}
    # A value that cannot be served is refused by the name of its field.
    REFUSED = [("background", "transparent"), ("output_format", "gif"), ("output_format", "svg"), ("frame_count", 4),
               ("frame_duration_ms", 100)] + [("svg", value) for value in VALUES["svg"]]

    @classmethod
    def setUpClass(cls):
        cls.server = Server(TESSERA, script="step-time=0", groups="")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def fields(self):
        for name, hint in typing.get_type_hints(image_generate_params.ImageGenerateParamsBase).items():
            if name == "prompt":
                continue
            values = self.VALUES.get(name, []) + literals(hint)
            self.assertTrue(values, f"{name} is new: is it taken, or refused by name?")
            yield from ((name, value) for value in values)

    def test_it_is_taken_or_refused_by_its_name(self):
        api = openai_client(self.server, max_retries=0)
        for name, value in self.fields():
            with self.subTest(name, value=value):
                arguments = {"prompt": "red apple", name: value, **self.REQUIRED_WITH.get(name, {})}
                if (name, value) in self.REFUSED:
                    with self.assertRaises(openai.BadRequestError) as raised:
                        api.images.generate(**arguments)
                    self.assertEqual(raised.exception.param, name)
                    self.assertIn(name, raised.exception.message)
                    continue
                answer = api.images.generate(**arguments)
                data = list(answer)[-1:] if arguments.get("stream") else answer.data
                self.assertTrue(all(image.b64_json or image.url for image in data))
                self.assertEqual(len(data), arguments.get("n", 1))

    def test_none_is_as_if_it_were_not_there(self):
        api = openai_client(self.server, max_retries=0)
        for name in {name for name, _ in self.fields()}:
            with self.subTest(name):
                self.assertEqual(len(api.images.generate(prompt="red apple", extra_body={name: None}).data), 1)

    def test_the_default_model_answers_to_every_name_that_the_client_offers(self):
        api = openai_client(self.server, max_retries=0)
        names = literals(openai.types.ImageModel)
        self.assertGreaterEqual(len(names), 3)
        for name in names:
            with self.subTest(name):
                answer = api.images.generate(prompt="red apple", model=name)
                self.assertEqual(answer.model_extra["model"], "fake")
                self.assertEqual(api.models.retrieve(name).id, name)

    def test_the_effective_identifier_of_the_user_is_returned(self):
        api = openai_client(self.server, max_retries=0)
        for given, expected in (({"user": "a"}, "a"), ({"user": "a", "safety_identifier": "b"}, "b"),
                            ({"user": "a", "safety_identifier": ""}, "a"), ({"safety_identifier": "b"}, "b")):
            with self.subTest(given):
                answer = api.images.generate(prompt="red apple", extra_body=given)
                self.assertEqual(json.loads(answer.to_json())["safety_identifier"], expected)

    def test_what_no_model_does_is_refused_in_words(self):
        api = openai_client(self.server, max_retries=0)
        with self.assertRaises(openai.BadRequestError) as raised:
            api.images.edit(image=("a.png", PNG, "image/png"), prompt="red apple")
        self.assertIn("no model of this server edits pictures by instruction", str(raised.exception))
        with self.assertRaises(openai.NotFoundError) as raised:
            api.post("/images/variations", cast_to=object, body={})
        self.assertIn("does not make variations", str(raised.exception))


class Names(unittest.TestCase):
    """Tests the configuration of the names of OpenAI's models."""

    def ask(self, name, groups, more=""):
        server = Server(TESSERA, more, script="step-time=0", groups=groups)
        try:
            return openai_client(server, max_retries=0).images.generate(prompt="red apple", model=name).model_extra["model"]
        finally:
            server.stop()

    def test_an_alias_of_another_model_wins(self):
        groups = "groups: [{model: first}, {model: second, aliases: [dall-e-3]}]"
        self.assertEqual(self.ask("dall-e-3", groups), "second")
        self.assertEqual(self.ask("dall-e-2", groups), "first")

    def test_they_can_be_left_to_the_aliases(self):
        groups = "groups: [{model: first, aliases: [dall-e-3]}]"
        self.assertEqual(self.ask("dall-e-3", groups, "openai_names: false"), "first")
        with self.assertRaises(openai.NotFoundError):
            self.ask("dall-e-2", groups, "openai_names: false")


if __name__ == "__main__":
    print("openai", openai.__version__)
    unittest.main(argv=sys.argv[:1])
