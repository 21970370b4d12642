"""`tessera serve --fake-workers` on free ports, for tests with clients of other makers. No other package is needed."""
import json
import os
import pathlib
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

GROUPS = "groups: [{model: fake, aliases: [gpt-image-1, dall-e-3]}]"


class Server:
    def __init__(self, tessera, more_config="", script="step-time=5", becomes_ready=True, groups=GROUPS,
                 has_config=True):
        self.folder = tempfile.TemporaryDirectory()
        config = pathlib.Path(self.folder.name, "tessera.yaml")
        config.write_text(f"listen: {{http: {{port: 0}}, grpc: {{port: 0}}, admin: {{port: 0}}}}\n{groups}\n{more_config}")
        self.process = subprocess.Popen(
            [os.path.abspath(tessera), "serve", *(["--config", config] if has_config else ["--port", "0"]), "--fake-workers",
             "--fake-script", script],
            cwd=self.folder.name, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.ports = json.loads(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.ports['http']}"
        deadline = time.monotonic() + 60
        while becomes_ready and not self.is_ready():
            if time.monotonic() > deadline:
                raise TimeoutError("the server is not ready")
            time.sleep(0.01)

    def is_ready(self):
        try:
            return urllib.request.urlopen(f"{self.url}/readyz", timeout=60).status == 200
        except urllib.error.HTTPError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()
        self.folder.cleanup()
