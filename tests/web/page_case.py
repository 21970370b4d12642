"""A page of a real server with fake workers, in a real browser; the base of the page's tests."""

import json
import os
import pathlib
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
from browser import Browser, wait_until  # noqa: E402
from fake_server import Server  # noqa: E402

TESSERA = sys.argv[1]


class PageCase(unittest.TestCase):
    """Opens a new page for each test, in one browser and of one server."""

    config = ""
    script = "step-time=5"

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.gate = pathlib.Path(cls.folder.name, "gate")
        cls.server = Server(TESSERA, cls.config, f"{cls.script} gate={cls.gate}")
        cls.addClassCleanup(cls.server.stop)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.gate.unlink(missing_ok=True)
        self.browser.be_a_desktop()
        self.browser.open(f"{self.server.url}/web/icon.svg")
        self.browser.run("localStorage.clear(); sessionStorage.clear();")
        self.browser.messages()
        self.open()

    def tearDown(self):
        self.gate.touch()
        # No script fails, and nothing goes against the policy.
        self.assertEqual(self.complaints(), [])

    def complaints(self):
        # A refused call is the server's answer, not a fault of the page.
        return [text for text in self.browser.messages() if "Failed to load resource" not in text]

    def open(self):
        self.browser.open(self.server.url)
        self.wait_for_form()

    def wait_for_form(self):
        ready = "return !document.querySelector('#composer').hasAttribute('aria-busy')"
        wait_until("the form is there", lambda: self.browser.run(ready))

    def call(self, path, body=None, key=None):
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.server.url + path, body and json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read()

    def jobs(self):
        return json.loads(self.call("/v1/jobs?limit=100"))["data"]

    def finished(self, **request):
        """A job of another client, when it is done."""
        job = json.loads(self.call("/v1/jobs", request))["id"]
        return wait_until(
            "the job is done",
            lambda: (now := json.loads(self.call(f"/v1/jobs/{job}")))["status"] == "done" and now,
        )

    def kill_the_server(self):
        """Kills the process that serves; the one that supervises it starts another."""
        children = pathlib.Path(f"/proc/{self.server.process.pid}/task/{self.server.process.pid}/children")
        os.kill(int(children.read_text().split()[0]), 9)

    def submit(self, **fields):
        for name, value in fields.items():
            self.browser.type(f"#field-{name}", str(value))
        self.browser.click("#submit")

    def wait_for_image(self, prompt):
        """Waits until the stage shows a finished image of the prompt, and it is loaded."""
        wait_until(
            f"an image of {prompt}",
            lambda: self.browser.run(
                "const p = document.querySelector('#pictures [data-kind=finished] img');"
                "return document.querySelector('#about .state.done') !== null && p !== null && p.naturalWidth > 0"
                " && document.getElementById('stage-title').textContent === arguments[0];",
                prompt,
            ),
        )

    def make(self, prompt, **fields):
        self.submit(prompt=prompt, **fields)
        self.wait_for_image(prompt)

    def tiles(self):
        return self.browser.run("return document.querySelectorAll('#tiles .tile').length")
