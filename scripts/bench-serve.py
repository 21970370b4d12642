#!/usr/bin/env python3
"""Measures a server of the embedded model against the same model without one, and says which figures miss their bound.

    scripts/bench-serve.py [--rounds N] [--seconds S] [--json] [--tessera build/release/bin/tessera]

Starts `tessera serve` of its own on loopback. What is compared is measured in turn, round after round, because the machine's
speed drifts; a figure is the median over the rounds. Ends with status 1 if one misses its bound.
"""

import argparse
import base64
import http.client
import itertools
import json
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 20
PROMPT = "a red apple on a wooden table"  # of `tessera bench`
CLIENTS = {"one": 24, "two": 8}  # by key: equal shares must not depend on who asks more
OVERLOAD = 10  # times the peak rate
QUEUE = 40  # jobs that may wait
WARM_UP = 5  # seconds before a rate is measured
PATIENCE = 300


class Server:
    def __init__(self, tessera, folder):
        keys = []
        self.secrets = {}
        for name in CLIENTS:
            made = subprocess.run([tessera, "keys", name], check=True, capture_output=True, text=True).stdout
            self.secrets[name] = re.search(r"sk-tessera-\w+", made)[0]
            keys.append(re.search(rf"{name} sha256:.*", made)[0] + "\n")
        (folder / "keys.txt").write_text("".join(keys))
        (folder / "keys.txt").chmod(0o600)
        (folder / "tessera.yaml").write_text(
            f"data_folder: {folder}/data\nkeys_file: {folder}/keys.txt\nlimits: {{queued_jobs: {QUEUE}}}\n"
            "listen: {http: {port: 0}, grpc: off, admin: {port: 0}}\ngroups: [{model: emoji}]\n"
        )
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [tessera, "serve", "-c", folder / "tessera.yaml"], stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        ports = json.loads(self.process.stdout.readline())
        self.port, self.admin = ports["http"], ports["admin"]
        end = time.monotonic() + PATIENCE
        while self.get("/readyz") != 200:
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError("the server does not become ready: " + (folder / "log").read_text()[-2000:])
            time.sleep(0.1)

    def get(self, path):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=PATIENCE).status
        except OSError:
            return 0

    def worker_seconds(self):
        """What the worker itself has worked so far."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=PATIENCE).read().decode()
        sums = dict(re.findall(r'tessera_stage_seconds_sum\{stage="(\w+)"\} (\S+)', text))
        return sum(float(sums.get(stage, 0)) for stage in ("encode", "step", "decode"))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        self.log.close()


class Client:
    """One connection that asks for images."""

    seeds = itertools.count(1)

    def __init__(self, server, key):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self.connection.connect()
        self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.headers = {"Authorization": "Bearer " + server.secrets[key], "Content-Type": "application/json"}

    def image(self):
        """The status of one request; 200 only with a picture."""
        body = {"prompt": PROMPT, "size": "64x64", "num_inference_steps": STEPS, "seed": next(self.seeds)}
        self.connection.request("POST", "/v1/images/generations", json.dumps(body), self.headers)
        response = self.connection.getresponse()
        answer = response.read()
        if response.status == 200:
            picture = base64.b64decode(json.loads(answer)["data"][0]["b64_json"], validate=True)
            if not picture.startswith(b"\x89PNG"):
                raise RuntimeError("an answer without a picture")
        return response.status

    def hang_up(self):
        """Also ends what another thread waits for here; the server cancels the job."""
        if self.connection.sock is not None:
            try:
                self.connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Load:
    """Clients on threads of their own, and what became of their requests."""

    def __init__(self, server):
        self.server = server
        self.lock = threading.Lock()
        self.stopping = False
        self.clients, self.threads = [], []
        self.done = []  # (time, key)
        self.refusals = []  # seconds until the answer
        self.errors = []

    def ask(self, client, key):
        begin = time.monotonic()
        status = client.image()
        end = time.monotonic()
        with self.lock:
            if status == 200:
                self.done.append((end, key))
            elif status == 429:
                self.refusals.append(end - begin)
            elif not self.stopping:
                self.errors.append(f"status {status}")

    def run(self, key, times):
        try:
            client = Client(self.server, key)
            with self.lock:
                self.clients.append(client)
            for _ in times:
                if self.stopping:
                    break
                self.ask(client, key)
            client.connection.close()
        except (OSError, http.client.HTTPException) as error:
            if not self.stopping:
                self.errors.append(repr(error))

    def start(self, key, times):
        thread = threading.Thread(target=self.run, args=(key, times))
        thread.start()
        self.threads.append(thread)

    def stop(self):
        self.stopping = True
        with self.lock:
            for client in self.clients:
                client.hang_up()
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise RuntimeError(f"{len(self.errors)} requests failed, the first: {self.errors[0]}")

    def rate(self, begin, end):
        """Images per second: the slope of their number over time, which does not depend on where batches begin and end."""
        times = [done for done, _ in self.done if begin <= done <= end]
        if len(times) < 8:
            raise RuntimeError(f"only {len(times)} images in {end - begin:.0f} s: use more --seconds")
        return statistics.linear_regression(times, range(len(times))).slope

    def shares(self, begin, end):
        keys = [key for done, key in self.done if begin <= done <= end]
        return {key: keys.count(key) for key in CLIENTS}


def closed_loop(server, seconds, clients):
    load = Load(server)
    for key, count in clients.items():
        for _ in range(count):
            load.start(key, itertools.repeat(None))
    begin = time.monotonic() + WARM_UP
    time.sleep(WARM_UP + seconds)
    load.stop()
    return load.rate(begin, begin + seconds), load.shares(begin, begin + seconds)


def open_loop(server, seconds, rate):
    load = Load(server)
    keys = itertools.cycle(CLIENTS)
    start = time.monotonic()
    # Until the queue is full nothing is refused.
    for number in range(int(rate * (WARM_UP + seconds))):
        time.sleep(max(0, start + number / rate - time.monotonic()))
        load.start(next(keys), range(1))
    end = time.monotonic()
    load.stop()
    sent = len(load.threads)
    return load.rate(start + WARM_UP, end), sorted(load.refusals), sent


def bench(tessera, batch, seconds):
    """Without a server: images per second of one fixed batch, and seconds of one image where the batch is one."""
    repeat = max(2, round(seconds / (0.4 * batch)))
    command = [tessera, "bench", "--json", "--steps", str(STEPS), "--batch", str(batch), "--repeat", str(repeat)]
    made = subprocess.run(command + ["--prompt-cache", "64"], check=True, capture_output=True, text=True)
    return json.loads(made.stdout)["images_per_minute"] / 60


def one_by_one(server, seconds):
    """Seconds of each request with nothing beside it, and seconds that the worker took for each."""
    client = Client(server, "one")
    client.image()
    before = server.worker_seconds()
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        status = client.image()
        times.append(time.monotonic() - begin)
        if status != 200:
            raise RuntimeError(f"status {status}")
    return statistics.mean(times), (server.worker_seconds() - before) / len(times)


def measure(tessera, server, rounds, seconds):
    values = {}

    def add(name, value):
        values.setdefault(name, []).append(value)
        print(f"  {name}: {value:.4g}", file=sys.stderr)

    sizes = (1, 2, 4, 8)
    offline = {batch: bench(tessera, batch, seconds / 2) for batch in sizes}
    best = max(offline, key=offline.get)
    for batch in sizes:
        add(f"offline_{batch}", offline[batch])
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        alone = 1 / bench(tessera, 1, seconds / 2)
        served, worked = one_by_one(server, seconds / 2)
        add("alone_seconds", alone)
        add("served_seconds", served)
        add("overhead_ms", (served - worked) * 1000)
        add("overhead_share", (served - worked) / worked)
        add("served_to_alone", served / alone)
        before = bench(tessera, best, seconds)
        rate, shares = closed_loop(server, seconds, CLIENTS)
        useful, refusals, sent = open_loop(server, seconds, OVERLOAD * rate)
        again, _ = closed_loop(server, seconds, CLIENTS)
        after = bench(tessera, best, seconds)
        add("offline_best", (before + after) / 2)
        add("clients_32", (rate + again) / 2)
        add("to_offline", (rate + again) / (before + after))
        add("to_one_client", (rate + again) / 2 * served)
        add("larger_share", max(shares.values()) / max(1, min(shares.values())))
        add("overload_rate", useful)
        add("overload_to_peak", 2 * useful / (rate + again))
        add("overload_refused", len(refusals) / sent)
        add("refusal_ms", refusals[int(0.99 * len(refusals))] * 1000 if refusals else float("inf"))
    return best, {name: statistics.median(of) for name, of in values.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30, help="of each load")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tessera", type=pathlib.Path, default=ROOT / "build/release/bin/tessera")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        server = Server(arguments.tessera, pathlib.Path(folder))
        try:
            best, figure = measure(arguments.tessera, server, arguments.rounds, arguments.seconds)
        finally:
            server.stop()
    offline = ", ".join(f"{batch}: {figure[f'offline_{batch}']:.2f}" for batch in (1, 2, 4, 8))
    table = [
        ("overhead at one client", f"{figure['overhead_ms']:.1f} ms, {figure['overhead_share']:.1%} of the worker's time",
         "3 % or 10 ms", figure["overhead_share"] <= 0.03 or figure["overhead_ms"] <= 10),
        ("one client to `tessera bench`", f"{figure['served_to_alone']:.3f} ({figure['alone_seconds']:.3f} s)", "", None),
        ("offline images/s by batch", offline, "", None),
        ("images/s of 32 clients", f"{figure['clients_32']:.2f}", "", None),
        (f"32 clients to offline batches of {best}", f"{figure['to_offline']:.3f}", "at least 0.95", figure["to_offline"] >= 0.95),
        ("32 clients to one client", f"{figure['to_one_client']:.2f}", "", None),
        ("24 and 8 clients of two keys, larger share", f"{figure['larger_share']:.3f}", "at most 1.2", figure["larger_share"] <= 1.2),
        (f"useful rate under {OVERLOAD} times the load", f"{figure['overload_to_peak']:.3f} of the peak", "at least 0.95",
         figure["overload_to_peak"] >= 0.95),
        ("refusal under overload, p99", f"{figure['refusal_ms']:.1f} ms, {figure['overload_refused']:.0%} refused",
         "at most 50 ms", figure["refusal_ms"] <= 50),
    ]
    passed = all(row[3] is not False for row in table)
    if arguments.json:
        print(json.dumps({"batch": best, "passed": passed, **figure}))
    else:
        for name, value, bound, holds in table:
            print(f"{name:44} {value:42} {bound:14} {'' if holds is None else 'pass' if holds else 'FAIL'}".rstrip())
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
