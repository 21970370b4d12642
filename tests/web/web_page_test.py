#!/usr/bin/env python3
"""web_page_test.py TESSERA [TEST …]: the page of a real server with fake workers, in a real browser."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from accessibility import CONTRASTS, LEAST_CONTRAST, LEAST_TARGET, STOPS, wide_elements
from browser import Browser, wait_until
from page_case import TESSERA, PageCase, Server
from sites import EmptySite, PathProxy

# Words of OpenAI's clients that the page leaves out (server/web/form.js).
LEFT_OUT = {"complexity", "style", "moderation", "background", "safety_identifier", "input_fidelity"}
# Fields of pictures (tests/web/web_page_inputs_test.py).
OF_PICTURES = {"images", "mask", "strength"}
LARGEST_SEED = 2**64 - 1


class FormTest(PageCase):
    def test_nothing_moves_when_the_focus_does(self):
        """Otherwise a pointer would press one button and release another."""
        places = "return [...document.querySelectorAll('#composer [name], #composer button')].map((e) => e.getBoundingClientRect().top)"
        self.browser.run("document.getElementById('field-prompt').focus({preventScroll: true})")
        before = self.browser.run(places)
        self.browser.run("document.getElementById('field-seed').focus({preventScroll: true})")
        self.assertEqual(self.browser.run(places), before)

    def test_each_field_of_the_schema_is_there_with_its_words(self):
        schema = json.loads(self.call("/v1/schema"))
        model = json.loads(self.call("/v1/models"))["data"][0]
        self.assertGreater(len(schema["properties"]), 20)
        shown = 0
        for name, field in schema["properties"].items():
            if name in OF_PICTURES:
                continue
            with self.subTest(name):
                row = self.browser.run(
                    "const e = document.getElementById('field-' + arguments[0]); if (!e) return null;"
                    "return {label: e.closest('.field').querySelector('label')?.htmlFor, hidden: e.closest('.field').hidden,"
                    " hint: document.getElementById('hint-' + arguments[0]).textContent,"
                    " words: e.tagName === 'SELECT' ? [...e.options].map((o) => o.textContent) : null};",
                    name,
                )
                if name in LEFT_OUT:
                    self.assertIsNone(row)
                    continue
                self.assertEqual(row["label"], f"field-{name}")
                self.assertEqual(row["hint"], field.get("description", ""))
                read = field.get("x-read-with") in (None, *model["options"])
                self.assertEqual(row["hidden"], not read)
                shown += not row["hidden"]
                if "enum" in field:
                    self.assertLessEqual({w for w in field["enum"] if w}, set(row["words"]))
        self.assertGreater(shown, 15)

    def test_a_field_that_the_page_has_never_heard_of_appears_and_is_sent(self):
        script = self.browser.devtools("Page.addScriptToEvaluateOnNewDocument", source="""
            const plain = window.fetch;
            window.fetch = async (path, options) => {
              const response = await plain(path, options);
              if (path !== 'v1/schema') return response;
              const schema = await response.json();
              schema.properties.sharpness_of_edges = {type: ['integer', 'null'], minimum: 1, maximum: 9, description: 'How sharp.', 'x-metadata-key': 'Sharpness'};
              return new Response(JSON.stringify(schema));
            };""")["identifier"]
        self.addCleanup(self.browser.devtools, "Page.removeScriptToEvaluateOnNewDocument", identifier=script)
        self.open()
        self.browser.click("#more summary")
        row = "[data-field=sharpness_of_edges]"
        self.assertEqual(self.browser.text(f"{row} label"), "Sharpness of edges")
        self.assertEqual(self.browser.text(f"{row} .hint"), "How sharp.")
        self.submit(prompt="an apple", sharpness_of_edges=7)
        # This server does not know it, and the page shows that at the field.
        self.browser.wait_for_text("#error-sharpness_of_edges", "sharpness_of_edges")

    def test_an_error_is_shown_at_its_field(self):
        self.submit(prompt="an apple", n=99)
        self.browser.wait_for_text("#error-n", "Images is 99; valid values are 1 to 10")
        self.assertEqual(self.browser.run("return document.activeElement.id"), "field-n")
        self.assertEqual(self.browser.run("return document.getElementById('field-n').ariaInvalid"), "true")
        # It is read with the field, and goes when the request is right.
        self.assertIn("error-n", self.browser.run("return document.getElementById('field-n').getAttribute('aria-describedby')"))
        self.make("an apple", n=1)
        self.assertEqual(self.browser.text("#error-n"), "")

    def test_an_error_of_a_field_under_more_options_opens_them(self):
        self.browser.click("#more summary")
        self.browser.type("#field-priority", "1000")
        self.browser.click("#more summary")
        self.assertFalse(self.browser.shown("#field-priority"))
        self.submit(prompt="an apple")
        self.browser.wait_for_text("#error-priority", "Priority is 1000")
        self.assertTrue(self.browser.shown("#field-priority"))

    def test_an_empty_prompt_is_refused_by_the_server_and_shown_at_the_field(self):
        self.browser.click("#submit")
        self.browser.wait_for_text("#error-prompt", "Prompt is empty")

    def test_what_a_user_types_for_a_number_or_a_size_is_understood(self):
        self.make("an apple", size="64 x 64", guidance_scale="4,5", num_inference_steps=" 3 ", seed="-1")
        job = self.jobs()[0]
        self.assertEqual((job["size"], job["guidance_scale"], job["num_inference_steps"]), ("64x64", 4.5, 3))
        self.assertGreater(job["seed"], 0)  # any
        self.assertEqual(self.browser.run("return document.querySelector('[aria-label=Square]').ariaPressed"), "true")

    def test_errors_have_the_words_of_the_page(self):
        self.submit(prompt="an apple", num_inference_steps="many")
        self.browser.wait_for_text("#error-num_inference_steps", "Steps is 'many'; it must be a whole number from 1 to")
        self.assertEqual(self.browser.run("return document.activeElement.id"), "field-num_inference_steps")
        self.submit(num_inference_steps=0)
        self.browser.wait_for_text("#error-num_inference_steps", "Steps is 0; valid values are")
        # What was typed stays as it is.
        self.submit(num_inference_steps=1, size="guidance_scale")
        self.browser.wait_for_text("#error-size", "Size is 'guidance_scale'; valid values are")

    def test_the_shapes_give_sizes_that_the_model_takes(self):
        for name in ("Square", "Portrait", "Landscape", "Wide"):
            self.browser.click(f"[aria-label={name}]")
            size = self.browser.value("#field-size")
            with self.subTest(name, size=size):
                self.assertEqual(self.finished(prompt="an apple", size=size)["size"], size)


class AdapterTest(PageCase):
    """Low-rank adapters of the model."""

    NAMES = ["grain", "style"]

    @classmethod
    def setUpClass(cls):
        files = tempfile.TemporaryDirectory()
        cls.addClassCleanup(files.cleanup)
        for name in cls.NAMES:
            cls.write(pathlib.Path(files.name), name)
        cls.config = f"adapter_folder: {files.name}"
        super().setUpClass()

    @staticmethod
    def write(folder, name):
        """A safetensors file with one tensor of one value."""
        header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (folder / f"{name}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))

    def pick(self, name, scale=None):
        self.browser.click(f"[data-adapter={name}]")
        if scale is not None:
            self.browser.type(f"[aria-label='Scale of {name}']", scale)

    def used(self):
        return [(each["name"], each["scale"]) for each in self.jobs()[0]["loras"]]

    def test_adapters_are_picked_with_their_scales_and_shown_with_the_image(self):
        self.assertTrue(self.browser.shown("[data-adapter=style]"))
        self.assertFalse(self.browser.shown("#field-loras"))  # two need no search
        self.assertTrue(self.browser.run("return document.querySelector('[aria-label=\"Scale of style\"]').disabled"))
        self.pick("style", "0,8")
        self.pick("grain")
        self.make("an apple")
        self.assertEqual(self.used(), [("style", 0.8), ("grain", 1)])
        self.assertIn("style × 0.8, grain × 1", self.browser.text(".parameters"))
        # Again with them, and without them.
        self.browser.click("#again")
        wait_until("there are two", lambda: self.tiles() == 2)
        self.wait_for_image("an apple")
        self.assertEqual(self.used(), [("style", 0.8), ("grain", 1)])
        self.browser.click("#reset")
        self.make("a plain apple")
        self.assertEqual(self.used(), [])
        self.browser.click("#tiles li:last-child .tile")
        self.browser.click("#edit")
        picked = "return [...document.querySelectorAll('.adapters li')].map((e) => [e.textContent, e.firstChild.firstChild.checked, e.lastChild.value])"
        self.assertEqual(self.browser.run(picked), [["grain", True, "1"], ["style", True, "0.8"]])

    def test_a_wrong_scale_is_shown_at_the_adapters(self):
        self.pick("style", "much")
        self.submit(prompt="an apple")
        self.browser.wait_for_text("#error-loras", "The scale of style is 'much'; it must be a number from -16 to 16")
        self.assertEqual(self.browser.run("return document.activeElement.dataset.adapter"), "style")
        self.browser.type("[aria-label='Scale of style']", "99")
        self.browser.click("#submit")
        self.browser.wait_for_text("#error-loras", "'style': scale is 99; it must be a number from -16 to 16")
        self.assertEqual(self.tiles(), 0)

    def test_the_list_of_models_marks_adapters(self):
        options = self.browser.run("return [...document.querySelectorAll('#field-model option')].map((o) => [o.textContent, o.parentElement.label ?? ''])")
        self.assertEqual(options, [["fake", ""], ["grain, adapter of fake", "Adapters"], ["style, adapter of fake", "Adapters"]])
        self.browser.choose("#field-model", "style")
        self.assertEqual(self.browser.run("return [...document.querySelectorAll('.adapters li')].map((e) => e.textContent)"), ["grain"])
        self.pick("grain", "0.5")
        self.make("an apple")
        self.assertEqual(self.used(), [("style", 1), ("grain", 0.5)])

    def test_a_tag_in_the_prompt_is_an_adapter_or_is_refused(self):
        self.submit(prompt="an apple <lora:stile:0.8>")
        self.browser.wait_for_text("#error-prompt", "Prompt has '<lora:stile:0.8>': the adapter 'stile' is unknown; valid values are grain, style")
        self.browser.type("#field-prompt", "an apple <lora:style:0.8>")
        self.browser.click("#submit")
        self.wait_for_image("an apple")
        self.assertEqual(self.used(), [("style", 0.8)])

    def test_adapters_are_picked_by_keyboard_and_on_a_phone(self):
        self.browser.be_a_phone(320)
        self.browser.run("document.getElementById('field-model').focus()")
        self.browser.press("Tab", "Tab")
        self.assertEqual(self.browser.run("return document.activeElement.dataset.adapter"), "style")
        self.browser.press("Space", "Tab", "Control", "a")
        self.browser.press(*"0.25")
        self.browser.type("#field-prompt", "a small apple")
        self.browser.press("Control", "Enter")
        self.wait_for_image("a small apple")
        self.assertEqual(self.used(), [("style", 0.25)])
        self.assertTrue(self.browser.run("return document.documentElement.scrollWidth <= innerWidth"))
        small = "return [...document.querySelectorAll('.adapters input')].filter((e) => Math.min(e.offsetWidth, e.offsetHeight) < arguments[0]).length"
        self.assertEqual(self.browser.run(small, LEAST_TARGET), 0)

    def test_a_picture_gives_back_its_adapters_and_names_those_that_are_not_served(self):
        image = self.finished(prompt="an apple", loras=[{"name": "style", "scale": -0.5}])["images"][0]
        made = self.call(f"/v1/images/{image['id']}")
        path = pathlib.Path(self.folder.name, "made.png")
        path.write_bytes(made)
        self.browser.drop(path)
        self.browser.wait_for_text("#notice-text", "The parameters of made.png are in the form.")
        self.browser.click("#submit")
        self.wait_for_image("an apple")
        self.assertEqual(self.used(), [("style", -0.5)])
        # A file of that digest may have another name here, and one of another digest is another adapter.
        digest = self.jobs()[0]["loras"][0]["digest"]
        for name, text, problem in (("renamed", b"stile:-0.5:" + digest.encode(), ""), ("other", b"alien:-0.5:" + b"0" * 64, "alien")):
            with self.subTest(name):
                path = pathlib.Path(self.folder.name, f"{name}.png")
                path.write_bytes(made.replace(b"style:-0.5:" + digest.encode(), text))
                self.browser.drop(path)
                self.browser.wait_for_text("#notice-text", f"The parameters of {name}.png are in the form.")
                self.browser.click("#submit")
                if problem:
                    self.browser.wait_for_text("#error-loras", "'alien' is unknown")
                else:
                    wait_until("there are two", lambda: self.tiles() == 2)
                    self.assertEqual(self.used(), [("style", -0.5)])

    def test_many_adapters_are_searched(self):
        script = self.browser.devtools("Page.addScriptToEvaluateOnNewDocument", source="""
            const plain = window.fetch;
            window.fetch = async (path, options) => {
              const response = await plain(path, options);
              if (path !== 'v1/models') return response;
              const models = await response.json();
              const style = models.data.find(({ id }) => id === 'style');
              for (let i = 0; i < 40; ++i) models.data.push({ ...style, id: `look-${i}` });
              return new Response(JSON.stringify(models));
            };""")["identifier"]
        self.addCleanup(self.browser.devtools, "Page.removeScriptToEvaluateOnNewDocument", identifier=script)
        self.open()
        self.pick("grain")
        self.browser.type("#field-loras", "LOOK-3")
        shown = "return [...document.querySelectorAll('.adapters li')].filter((e) => !e.hidden).map((e) => e.textContent)"
        found = ["grain", "look-3", *(f"look-{i}" for i in range(30, 40))]
        wait_until("they are found", lambda: self.browser.run(shown) == found)


class PictureTest(PageCase):
    REQUEST = {
        "prompt": "Crème brûlée, \"two\" spoons: 中文\nNegative prompt: of a second line",
        "negative_prompt": "salt",
        "true_cfg_scale": 2.5,
        "seed": LARGEST_SEED,
        "size": "72x64",
        "num_inference_steps": 3,
        "guidance_scale": 3.25,
        "sampler": "euler",
        "skip_layers": [1, 2],
        "original_width": 320,
        "original_height": 200,
        "crop_top": 8,
        "crop_left": 16,
    }

    def picture(self, **request):
        job = self.finished(**request)
        image = job["images"][0]
        path = pathlib.Path(self.folder.name, f"made.{image['output_format']}")
        path.write_bytes(self.call(f"/v1/images/{image['id']}"))
        return path

    @staticmethod
    def parameters(path):
        """As the command line reads them, all of which decide what the picture is."""
        output = subprocess.run([TESSERA, "inspect", path], check=True, capture_output=True, text=True).stdout
        _, text = output.split("parameters", 1)
        assert "Steps: " in text, output
        return text

    def test_a_picture_that_is_dragged_in_gives_the_request_that_makes_it_again(self):
        for output_format in ("png", "jpeg", "webp"):
            with self.subTest(output_format):
                path = self.picture(**self.REQUEST, output_format=output_format)
                self.open()
                self.browser.drop(path)
                self.browser.wait_for_text("#notice-text", f"The parameters of {path.name} are in the form.")
                self.assertEqual(self.browser.value("#field-prompt"), self.REQUEST["prompt"])
                self.assertEqual(self.browser.value("#field-negative_prompt"), "salt")
                self.assertEqual(self.browser.value("#field-seed"), str(LARGEST_SEED))
                self.assertEqual(self.browser.value("#field-size"), "72x64")
                self.assertEqual(self.browser.value("#field-crop_left"), "16")
                self.browser.choose("#field-output_format", "" if output_format == "png" else output_format)
                before = self.tiles()
                self.browser.click("#submit")
                wait_until("there is one more", lambda: self.tiles() == before + 1)
                self.wait_for_image(self.REQUEST["prompt"])
                image = self.jobs()[0]["images"][0]
                self.assertEqual(image["seed"], LARGEST_SEED)
                again = path.with_name(f"again.{output_format}")
                again.write_bytes(self.call(f"/v1/images/{image['id']}"))
                self.assertEqual(self.parameters(again), self.parameters(path))

    def test_a_picture_of_the_gallery_is_edited(self):
        self.make("an apple", num_inference_steps=3)
        self.browser.click("#reset")
        self.assertEqual(self.browser.value("#field-num_inference_steps"), "")
        self.browser.click("#edit")
        self.assertEqual(self.browser.value("#field-prompt"), "an apple")
        self.assertEqual(self.browser.value("#field-num_inference_steps"), "3")
        self.assertEqual(self.browser.value("#field-seed"), str(self.jobs()[0]["seed"]))

    def test_files_that_do_not_say_how_they_were_made_change_nothing(self):
        self.browser.type("#field-prompt", "mine")
        made = self.picture(prompt="an apple").read_bytes()
        for name, content in {
            "text.png": b"no picture",
            "empty.png": b"",
            "cut.png": made[:60],
            "other.png": made.replace(b"parameters", b"Parametern"),
            "broken.jpeg": b"\xff\xd8\xff\xe1\x00\x10Exif\0\0MM\0*\0\0\xff\xff",
            "cut.webp": b"RIFF\x10\0\0\0WEBPEXIF\xff\xff\0\0MM",
        }.items():
            with self.subTest(name):
                path = pathlib.Path(self.folder.name, name)
                path.write_bytes(content)
                self.browser.drop(path)
                self.browser.wait_for_text("#notice-text", name)
                self.assertIn("does not say how it was made", self.browser.text("#notice-text"))
                self.assertEqual(self.browser.value("#field-prompt"), "mine")
                self.assertEqual(self.browser.run("return document.getElementById('drop').hidden"), True)


class KeyTest(PageCase):
    @classmethod
    def setUpClass(cls):
        keys = tempfile.NamedTemporaryFile("w", suffix=".txt")
        cls.addClassCleanup(keys.close)
        cls.secrets = []
        for name in ("alice", "bob", "carol", "dave"):
            output = subprocess.run([TESSERA, "keys", name], check=True, capture_output=True, text=True).stdout
            cls.secrets.append(next(word for word in output.split() if word.startswith("sk-tessera-")))
            keys.write(output.strip().splitlines()[-1] + "\n")
        keys.flush()
        cls.config = f"keys_file: {keys.name}\n"
        super().setUpClass()

    def open(self):
        self.browser.open(self.server.url)
        wait_until("the key is asked for", lambda: self.browser.shown("#key-dialog"))

    def give(self, secret):
        self.browser.type("#key-input", secret)
        self.browser.press("Enter")

    def jobs(self):
        return json.loads(self.call("/v1/jobs", key=self.secrets[0]))["data"]

    def test_the_key_is_asked_for_once_and_kept_for_the_tab_alone(self):
        self.give("sk-tessera-wrong")
        self.browser.wait_for_text("#key-message", "does not know this key")
        self.give(self.secrets[0])
        self.wait_for_form()
        self.make("an apple of alice")
        self.browser.reload()
        self.wait_for_form()
        self.wait_for_image("an apple of alice")
        self.assertFalse(self.browser.shown("#key-dialog"))
        stored = self.browser.run("return JSON.stringify(localStorage) + document.cookie")
        self.assertIn("tessera.jobs", stored)
        self.assertNotIn(self.secrets[0], stored)
        # Another tab of the same browser does not have it.
        first = self.browser.command("GET", "/window")
        other = self.browser.command("POST", "/window/new", {"type": "tab"})["handle"]
        self.browser.command("POST", "/window", {"handle": other})
        self.addCleanup(self.browser.command, "POST", "/window", {"handle": first})
        self.addCleanup(self.browser.command, "DELETE", "/window")
        self.open()
        # Another key sees nothing of it, and leaves it in the storage.
        self.give(self.secrets[1])
        self.wait_for_form()
        self.assertEqual(self.tiles(), 0)
        self.make("an apple of bob")
        self.assertEqual(self.tiles(), 1)
        self.assertEqual(len(self.browser.run("return JSON.parse(localStorage['tessera.jobs'])")), 2)

    def test_jobs_that_another_client_sent_with_the_key_are_in_the_gallery(self):
        _, _, carol, dave = self.secrets
        for secret, prompt in ((carol, "of carol's program"), (dave, "of dave's program")):
            self.call("/v1/jobs", {"prompt": prompt, "num_inference_steps": 3, "guidance_scale": 2.5}, key=secret)
        self.give(carol)
        self.wait_for_form()
        self.wait_for_image("of carol's program")
        captions = "return [...document.querySelectorAll('#tiles .caption')].map((each) => each.textContent)"
        self.assertEqual(self.browser.run(captions), ["of carol's program"])
        self.browser.click("#again")
        wait_until("it is made again", lambda: self.tiles() == 2)
        again, first = json.loads(self.call("/v1/jobs", key=carol))["data"]
        self.assertEqual((again["num_inference_steps"], again["guidance_scale"]), (3, 2.5))
        self.assertNotEqual(again["seed"], first["seed"])
        # One that is removed does not come back from the server's list.
        self.browser.click("#tiles li:nth-child(2) .tile")
        self.browser.click("#remove")
        wait_until("one is gone", lambda: self.tiles() == 1)
        self.browser.reload()
        self.wait_for_form()
        self.wait_for_image("of carol's program")
        self.assertEqual(self.tiles(), 1)

    def test_a_key_is_forgotten_when_the_user_says_so(self):
        self.give(self.secrets[0])
        self.wait_for_form()
        self.browser.click("#key-button")
        self.browser.click("#key-forget")
        wait_until("the key is asked for", lambda: self.browser.shown("#key-dialog") and self.browser.shown("#key-use"))
        self.assertEqual(self.browser.run("return sessionStorage.length"), 0)


class NodesTest(PageCase):
    """A server with a node on the same host, whose worker is fake, too."""

    @classmethod
    def setUpClass(cls):
        files = tempfile.TemporaryDirectory()
        cls.addClassCleanup(files.cleanup)
        cls.files = pathlib.Path(files.name)
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        # One certificate is the authority's, the server's and the node's.
        subprocess.run(["openssl", "req", "-x509", *curve, "-keyout", cls.files / "tls.key", "-out", cls.files / "tls.crt", "-days", "2",
                        "-subj", "/CN=nodes", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        (cls.files / "ca.crt").write_bytes((cls.files / "tls.crt").read_bytes())
        (cls.files / "token").write_text("a token of twenty-six chars\n")
        cls.config = (f"nodes: {{listen: {{address: 127.0.0.1, port: 0}}, certificate_chain: {cls.files}/tls.crt, private_key: {cls.files}/tls.key,"
                      f" authority: {cls.files}/ca.crt, token_file: {cls.files}/token, beat: 100ms, lost_after: 60s}}")
        super().setUpClass()

    def test_nodes_are_shown_from_when_they_join_and_those_that_are_lost(self):
        self.browser.click("#to-status")
        wait_until("the groups are shown", lambda: self.browser.shown("#groups tr"))
        self.assertFalse(self.browser.shown("#nodes-title"))
        worker = pathlib.Path(TESSERA).resolve().parent / "tessera-fake-worker"
        with subprocess.Popen([os.path.abspath(TESSERA), "node", "--join", f"127.0.0.1:{self.server.ports['nodes']}", "--tls-dir", self.files,
                               "--token-file", self.files / "token", "--name", "node-1", "--devices", "cpu:2"],
                              env={**os.environ, "TESSERA_WORKER": str(worker)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as node:
            try:
                self.assertEqual(json.loads(node.stdout.readline())["event"], "joined")
                self.browser.wait_for_text("#nodes tr", "joined")
                self.assertTrue(self.browser.shown("#nodes-title"))
                cells = self.browser.run("return [...document.querySelectorAll('#nodes tr > *')].map((cell) => cell.textContent)")
                self.assertEqual(cells[:3], ["node-1", "joined", "cpu:0, cpu:1"])
                self.assertRegex(cells[3], r"^[0-9.]+ (s|min) ago$")
                changed_at = json.loads(self.call("/v1/server"))["nodes"][0]["changed_at"]
                shown = self.browser.run("return Date.parse(document.querySelector('#nodes time').dateTime)")
                self.assertEqual(shown, 1000 * changed_at)
            finally:
                node.kill()
        self.browser.wait_for_text("#nodes tr", "lost")
        self.assertEqual(self.browser.run("return document.querySelectorAll('#nodes tr').length"), 1)
        self.browser.be_a_phone(320)
        self.assertTrue(self.browser.run("return document.documentElement.scrollWidth <= innerWidth"))

    def test_what_a_node_says_is_never_read_as_markup(self):
        hostile = "<img src=x onerror=alert(1)>"
        script = self.browser.devtools("Page.addScriptToEvaluateOnNewDocument", source="""
            const plain = window.fetch;
            window.fetch = async (path, options) => {
              const response = await plain(path, options);
              if (path !== 'v1/server') return response;
              const info = await response.json();
              info.nodes = [{name: HOSTILE, state: HOSTILE, devices: [HOSTILE, HOSTILE], epoch: 1, changed_at: 0}];
              return new Response(JSON.stringify(info));
            };""".replace("HOSTILE", json.dumps(hostile)))["identifier"]
        self.addCleanup(self.browser.devtools, "Page.removeScriptToEvaluateOnNewDocument", identifier=script)
        self.open()
        self.browser.click("#to-status")
        self.browser.wait_for_text("#nodes tr", hostile)
        cells = self.browser.run("return [...document.querySelectorAll('#nodes tr > *')].map((cell) => cell.textContent)")
        self.assertEqual(cells[:3], [hostile, hostile, f"{hostile}, {hostile}"])
        self.assertEqual(self.browser.run("return document.querySelectorAll('#nodes img').length"), 0)


class EveryoneTest(PageCase):
    script = "step-time=20"

    def fill(self):
        self.make("a red apple on a plate, in the light of the morning", num_inference_steps=4)

    def assert_no_sideways_scrolling(self):
        self.assertEqual(wide_elements(self.browser), [])
        self.assertTrue(self.browser.run("return document.documentElement.scrollWidth <= innerWidth"))

    def test_it_fits_a_phone(self):
        self.fill()
        for width in (320, 390):
            self.browser.be_a_phone(width)
            self.browser.run("document.getElementById('more').open = true")
            with self.subTest("create", width=width):
                self.assert_no_sideways_scrolling()
                small = self.browser.run(
                    "return [...document.querySelectorAll('button, input, select, textarea, nav a, .chip, summary')]"
                    ".filter((e) => e.checkVisibility() && !e.matches('.link')).map((e) => [e.id || e.outerHTML.slice(0, 60), e.getBoundingClientRect()])"
                    ".filter(([, box]) => Math.min(box.width, box.height) < arguments[0]).map(([name]) => name)",
                    LEAST_TARGET,
                )
                self.assertEqual(small, [])
            self.browser.run("location.hash = 'status'")
            wait_until("the view is there", lambda: self.browser.shown("#groups tr"))
            with self.subTest("status", width=width):
                self.assert_no_sideways_scrolling()
            self.browser.run("location.hash = 'create'")
        # The form is used there: the new image scrolls into view.
        self.submit(prompt="from a phone")
        self.wait_for_image("from a phone")
        top = self.browser.run("return document.getElementById('stage').getBoundingClientRect().top")
        self.assertLess(top, 844 / 2)

    def test_text_can_be_read_in_the_dark_and_in_the_light_scheme(self):
        self.fill()
        self.submit(prompt="an apple", n=99)
        self.browser.wait_for_text("#error-n", "valid values")
        self.browser.run("document.getElementById('more').open = true")
        self.addCleanup(self.browser.prefer, "light")
        grounds = set()
        for scheme in ("light", "dark"):
            self.browser.prefer(scheme)
            grounds.add(self.browser.run("return getComputedStyle(document.body).backgroundColor"))
            for view in ("create", "status"):
                self.browser.run("location.hash = arguments[0]", view)
                wait_until("the view is there", lambda: self.browser.shown(f"#{view}"))
                self.browser.run_async("await Promise.all(document.getAnimations().filter((a) => a instanceof CSSTransition).map((a) => a.finished.catch(() => 0)));")
                contrasts = self.browser.run(CONTRASTS)
                self.assertGreater(len(contrasts), 10)
                with self.subTest(scheme, view=view):
                    self.assertEqual([each for each in contrasts if each[0] < LEAST_CONTRAST], [])
        self.assertEqual(len(grounds), 2)

    def test_it_is_used_by_keyboard_alone(self):
        self.browser.press("Tab")
        self.assertEqual(self.browser.run("return document.activeElement.className"), "skip")
        for _ in range(20):
            self.browser.press("Tab")
            if self.browser.run("return document.activeElement.id") == "field-prompt":
                break
        self.browser.press(*"plum")
        self.browser.press("Control", "Enter")
        self.wait_for_image("plum")
        for _ in range(60):
            self.browser.press("Tab")
            if self.browser.run("return document.activeElement.id") == "again":
                break
        # The focus is visible.
        self.assertNotEqual(self.browser.run("return getComputedStyle(document.activeElement).outlineStyle"), "none")
        self.browser.press("Enter")
        wait_until("there are two", lambda: self.tiles() == 2)
        self.wait_for_image("plum")
        for _ in range(60):
            self.browser.press("Tab")
            if self.browser.run("return document.activeElement.matches('#tiles li:last-child .tile')"):
                break
        self.browser.press("Space")
        self.assertEqual(
            self.browser.run("return document.querySelector('#tiles li:last-child .tile').ariaPressed"), "true"
        )

    def test_whatever_a_screen_reader_stops_at_has_a_name(self):
        self.fill()
        self.browser.run("document.getElementById('more').open = true")
        for view in ("create", "status"):
            self.browser.run("location.hash = arguments[0]", view)
            wait_until("the view is there", lambda: self.browser.shown(f"#{view}"))
            nodes = self.browser.devtools("Accessibility.getFullAXTree")["nodes"]
            stops = [node for node in nodes if not node["ignored"] and node["role"]["value"] in STOPS]
            self.assertGreater(len(stops), 4)
            unnamed = [node["role"]["value"] for node in stops if not node.get("name", {}).get("value", "").strip()]
            self.assertEqual(unnamed, [])

    def test_the_status_shows_what_the_server_says(self):
        self.fill()
        self.browser.click("#to-status")
        info = json.loads(self.call("/v1/server"))
        self.assertGreater(info["images_done"], 0)
        wait_until(
            "the count is shown",
            lambda: self.browser.run("return [...document.querySelectorAll('.figure-card')].map((c) => [c.querySelector('dt').textContent, c.querySelector('strong').textContent])")
            [-1:] == [["Finished", str(info["images_done"])]],
        )
        group = info["groups"][0]
        row = self.browser.text("#groups tr")
        for value in (group["name"], group["model"], group["layout"], group["state"], group["dtype"]):
            self.assertIn(value, row)
        self.browser.wait_for_text("#server-chip-text", "1 group ready")
        self.assertEqual(self.browser.run("return document.getElementById('to-status').getAttribute('aria-current')"), "page")

    def test_a_violation_of_the_policy_would_be_seen(self):
        self.browser.run("document.body.setAttribute('style', 'color: red')")
        self.assertTrue(any("Content Security Policy" in text for text in self.complaints()))


class OtherOriginTest(unittest.TestCase):
    """Scripts of another origin, as the browser lets them call the server and read its answers."""

    # The headers of OpenAI's client, of a tracer, and of the API.
    CALL = """
    const headers = {};
    for (const name of ['x-stainless-lang', 'x-stainless-os', 'x-stainless-retry-count', 'traceparent', 'tracestate',
                        'baggage', 'Idempotency-Key', 'Authorization']) headers[name] = 'a=b';
    headers['Content-Type'] = 'application/json';
    const answer = await fetch(arguments[0] + '/v1/jobs', {method: 'POST', headers, body: arguments[1]});
    return {status: answer.status, location: answer.headers.get('Location'),
            retry: answer.headers.get('x-should-retry'), id: answer.headers.get('x-request-id')};
    """

    @classmethod
    def setUpClass(cls):
        cls.allowed, cls.other = EmptySite(), EmptySite()
        for site in (cls.allowed, cls.other):
            cls.addClassCleanup(site.stop)
        cls.server = Server(TESSERA, f'origins: ["{cls.allowed.url}"]')
        cls.addClassCleanup(cls.server.stop)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def call_from(self, site, body):
        self.browser.open(site.url)
        return self.browser.run_async(self.CALL, self.server.url, json.dumps(body))

    def test_a_client_of_an_allowed_origin_calls_and_reads_the_headers_that_are_promised(self):
        answer = self.call_from(self.allowed, {"prompt": "a"})
        self.assertEqual(answer["status"], 202, answer)
        self.assertRegex(answer["location"], "^/v1/jobs/job[-_][0-9a-f]+$")
        self.assertTrue(answer["id"])

    def test_a_client_of_an_allowed_origin_reads_whether_to_try_again(self):
        answer = self.call_from(self.allowed, {"prompt": 1})
        self.assertEqual((answer["status"], answer["retry"]), (400, "false"))

    def test_a_client_of_another_origin_does_not_call(self):
        self.assertIn("Failed to fetch", str(self.call_from(self.other, {"prompt": "a"})))


class PathTest(unittest.TestCase):
    """The page that a proxy serves under a path, on another port."""

    def test_the_page_makes_an_image_at_a_public_url_with_a_path_and_a_port(self):
        proxy = PathProxy("/studio")
        self.addCleanup(proxy.stop)
        server = Server(TESSERA, f"public_url: {proxy.url}")
        self.addCleanup(server.stop)
        proxy.upstream = server.ports["http"]
        browser = Browser()
        self.addCleanup(browser.close)
        browser.open(f"{proxy.url}/")
        ready = "return !document.querySelector('#composer').hasAttribute('aria-busy')"
        wait_until("the form is there", lambda: browser.run(ready))
        browser.type("#field-prompt", "plum")
        browser.click("#submit")
        finished = "const p = document.querySelector('#pictures [data-kind=finished] img'); return !!p && p.naturalWidth > 0"
        wait_until("the image is there", lambda: browser.run(finished))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
