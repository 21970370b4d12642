#!/usr/bin/env python3
"""Measures the time from the request to load an adapter's new version until requests use it.

    scripts/bench-publish.py [--rounds N] [--json] [--tessera build/release/bin/tessera]

Starts `tessera serve` of a tiny model on loopback, which makes pictures all the while, replaces an adapter of each size
round after round, each time by other bytes, and takes the seconds that the server reports, and the processor time that it
spends. Ends with status 1 if a median misses its bound: 50 ms for an adapter of rank 16 for the attentions' products of PixArt-Sigma (33 MB in fp32), 1 s for
one of 300 MB.
"""

import argparse
import array
import json
import os
import pathlib
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "tests/golden/pipelines/pixart_sigma"
LIKE = ROOT / "tests/golden-inputs/adapters/pixart_sigma_metadata.safetensors"
BOUNDS = {33: 0.05, 300: 1.0}  # seconds, by MB
TIMEOUT = 120


def header_of(path):
    with path.open("rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def shapes(megabytes):
    """The shapes of LIKE's factors with the rank that gives a file of this size."""
    factors = {name: tensor["shape"] for name, tensor in header_of(LIKE).items() if name != "__metadata__"}
    is_down = {name: name.endswith("lora_A.weight") for name in factors}
    rank = int(megabytes * 1e6 / 4 / sum(shape[1] if is_down[name] else shape[0] for name, shape in factors.items()))
    return {name: [rank, shape[1]] if is_down[name] else [shape[0], rank] for name, shape in factors.items()}


def write_adapter(path, megabytes, version):
    header, end = {}, 0
    for name, shape in shapes(megabytes).items():
        size = 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    partial = path.with_name(f".{path.name}")
    with partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(array.array("f", [version + 1]).tobytes() * (end // 4))
    os.replace(partial, path)


class Server:
    def __init__(self, tessera, folder):
        self.adapters = folder / "adapters"
        self.adapters.mkdir()
        (folder / "tessera.yaml").write_text(
            f"data_folder: {folder}/data\nadapter_folder: {self.adapters}\ncertify: off\n"
            f"listen: {{http: {{port: 0}}, grpc: off, admin: {{port: 0}}}}\ngroups: [{{model: {MODEL}}}]\n"
        )
        self.process = subprocess.Popen(
            [tessera, "serve", "-c", folder / "tessera.yaml"],
            stdout=subprocess.PIPE,
            stderr=(folder / "log").open("w"),
            text=True,
        )
        ports = json.loads(self.process.stdout.readline())
        self.port, self.admin = ports["http"], ports["admin"]
        end = time.monotonic() + TIMEOUT
        while not self.is_ready():
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError("the server does not become ready: " + (folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    def is_ready(self):
        try:
            return urllib.request.urlopen(f"http://localhost:{self.admin}/readyz").status == 200
        except OSError:
            return False

    def post(self, port, path, body):
        request = urllib.request.Request(f"http://localhost:{port}{path}", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.loads(answer.read())

    def processor_seconds(self):
        """Processor time of the serving process, which the started process supervises."""
        pid = self.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        fields = pathlib.Path(f"/proc/{children[0]}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def measure(server, rounds):
    ended = threading.Event()
    pictures = []

    def make_pictures():
        body = {"prompt": "red apple", "size": "64x64", "num_inference_steps": 4}
        while not ended.is_set():
            pictures.append(server.post(server.port, "/v1/images/generations", body)["model"])

    load = threading.Thread(target=make_pictures)
    load.start()
    seconds, processor = {size: [] for size in BOUNDS}, dict.fromkeys(BOUNDS, 0)
    try:
        for version in range(rounds):
            for size in BOUNDS:
                write_adapter(server.adapters / f"mb{size}.safetensors", size, version)
                begin = server.processor_seconds()
                answer = server.post(server.admin, "/v1/load_lora_adapter", {"lora_name": f"mb{size}"})
                processor[size] += (server.processor_seconds() - begin) / rounds
                seconds[size].append(answer["seconds"])
    finally:
        ended.set()
        load.join()
    return seconds, processor, len(pictures)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tessera", default=str(ROOT / "build/release/bin/tessera"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options.tessera, pathlib.Path(folder))
        try:
            seconds, processor, pictures = measure(server, options.rounds)
        finally:
            server.stop()
    missed = 0
    for size, values in seconds.items():
        median = statistics.median(values)
        missed += median > BOUNDS[size]
        if options.json:
            figures = {"median": median, "most": max(values), "processor": processor[size], "bound": BOUNDS[size]}
            print(json.dumps({"megabytes": size, **figures}))
        else:
            print(
                f"{size} MB: {1e3 * median:.1f} ms, at most {1e3 * max(values):.1f} (median of {len(values)}, bound "
                f"{1e3 * BOUNDS[size]:.0f}), {1e3 * processor[size]:.0f} ms of processor time"
            )
    print(f"{pictures} pictures meanwhile, none failed", file=sys.stderr)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
