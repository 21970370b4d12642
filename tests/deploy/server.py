"""A real `tessera serve` with the configuration of a rendered pod, on ports that are free and with fake workers."""

import json
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import yaml

import manifests


class Server:
    """Ends with the block of its `with`. `address` is where it listens, `keys` the content of its keys_file."""

    def __init__(self, configuration, keys, address):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        (self.folder / "keys.txt").write_text(keys)
        own = {
            "listen": {name: place if place == "off" else {"address": address, "port": 0}
                       for name, place in configuration["listen"].items()},
            "keys_file": str(self.folder / "keys.txt"),
            "data_folder": str(self.folder / "data"),
        }
        (self.folder / "tessera.yaml").write_text(yaml.safe_dump({**configuration, **own}))

    def __enter__(self):
        command = [manifests.program(), "serve", "--config", str(self.folder / "tessera.yaml"), "--fake-workers"]
        with open(self.folder / "log", "w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.folder)
        line = self.process.stdout.readline()
        if not line:
            log = (self.folder / "log").read_text()
            self.__exit__()
            raise AssertionError(f"the server does not listen: {log}")
        self.ports = json.loads(line)
        return self

    def end(self, timeout):
        """Exit status after SIGTERM, as a kubelet sends it."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.folder)


def wait_until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
