"""A headless Chromium, driven over WebDriver with nothing but Python's own library."""

import base64
import json
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
DEADLINE_S = 120
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Control": "\ue009", "Shift": "\ue008", "Space": " "}


class WebDriverError(Exception):
    pass


def wait_until(what, holds, deadline_s=DEADLINE_S):
    """Calls `holds` until it returns a value; an error after the timeout."""
    end = time.monotonic() + deadline_s
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.02)


class Browser:
    def __init__(self, width=1440, height=900):
        driver = shutil.which("chromedriver")
        if driver is None:
            raise WebDriverError("chromedriver is missing: scripts/setup.sh --checks installs chromium-driver")
        self.folder = tempfile.mkdtemp(prefix="tessera-browser-")
        self.log = open(pathlib.Path(self.folder) / "chromedriver.log", "wb")
        self.process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=self.log, cwd=self.folder)
        for line in self.process.stdout:
            if b"started successfully on port" in line:
                port = int(line.rstrip(b". \n").rsplit(b" ", 1)[1])
                self.url = f"http://127.0.0.1:{port}"
                break
        else:
            raise WebDriverError("chromedriver does not start")
        options = {
            "args": [
                "--headless=new",
                "--no-sandbox",  # which containers do not allow
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--no-proxy-server",
                "--hide-scrollbars",
                "--force-color-profile=srgb",
                f"--window-size={width},{height}",
                f"--user-data-dir={self.folder}/profile",
            ]
        }
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.session = f"/session/{session['sessionId']}"

    def close(self):
        try:
            self._call("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait(DEADLINE_S)
            self.process.stdout.close()
            self.log.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _call(self, method, path, body=None):
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise WebDriverError(f"{value['error']}: {value['message'].splitlines()[0]}") from None

    def command(self, method, path, body=None):
        return self._call(method, self.session + path, body)

    def devtools(self, method, **parameters):
        return self.command("POST", "/goog/cdp/execute", {"cmd": method, "params": parameters})

    def open(self, url):
        self.command("POST", "/url", {"url": url})

    def reload(self):
        self.command("POST", "/refresh")

    def run(self, script, *arguments):
        """The value of a script, which is the body of a function."""
        return self.command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script, *arguments):
        """Returns the value that the promise of a script resolves to."""
        body = f"const done = arguments[arguments.length - 1]; (async () => {{ {script} }})().then(done, (e) => done(String(e)));"
        return self.command("POST", "/execute/async", {"script": body, "args": list(arguments)})

    def find(self, selector):
        """The first element that is there, waited for."""

        def found():
            try:
                return self.command("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]
            except WebDriverError as error:
                if "no such element" not in str(error):
                    raise
                return None

        return wait_until(f"an element {selector}", found)

    def click(self, selector):
        """Clicks like a user, after scrolling to the element: an error if another element covers it."""
        element = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", {ELEMENT: element})
        self.command("POST", f"/element/{element}/click")

    def type(self, selector, text, clear=True):
        element = self.find(selector)
        if clear:
            self.command("POST", f"/element/{element}/clear")
        self.command("POST", f"/element/{element}/value", {"text": text})

    def choose(self, selector, value):
        self.run(
            "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event('change', {bubbles: true}));",
            selector,
            value,
        )

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.textContent ?? null", selector)

    def value(self, selector):
        return self.run("return document.querySelector(arguments[0])?.value ?? null", selector)

    def shown(self, selector):
        return self.run("const e = document.querySelector(arguments[0]); return !!e && e.checkVisibility();", selector)

    def wait_for_text(self, selector, part):
        return wait_until(f"{selector} says {part!r}", lambda: part in (self.text(selector) or ""))

    def press(self, *keys):
        """Keys one after another; the modifiers among them are held until the end."""
        actions = []
        held = []
        for key in keys:
            code = KEYS.get(key, key)
            actions.append({"type": "keyDown", "value": code})
            if key in ("Control", "Shift"):
                held.append(code)
            else:
                actions.append({"type": "keyUp", "value": code})
        actions += [{"type": "keyUp", "value": code} for code in reversed(held)]
        self.command("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def drop(self, path, x=400, y=400):
        """A file that is dragged in from outside the browser."""
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.devtools("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def prefer(self, scheme):
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def be_a_phone(self, width=390, height=844):
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=True
        )

    def be_a_desktop(self):
        self.devtools("Emulation.clearDeviceMetricsOverride")

    def screenshot(self, path, whole=False):
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def messages(self):
        """Warnings and errors on the console since the last call: of scripts, and violations of the policy."""
        log = self.command("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("WARNING", "SEVERE")]
