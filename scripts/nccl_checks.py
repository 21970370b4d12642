"""Proofs and measurements of scripts/first-card.sh on two or more GPUs that exchange tensors through NCCL."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time
import urllib.request

import full_size_models

# Every axis and some combinations, for the embedded model, which has four heads.
LAYOUTS = ("cfg=2", "ulysses=2", "ring=2", "tensor=2", "pipe=2", "pipe=2,patches=2,warmup=1", "cfg=2,ulysses=2",
           "ulysses=4", "ulysses=2,ring=2", "pipe=2,tensor=2", "cfg=2,ulysses=2,ring=2", "cfg=2,ulysses=4")
# For FLUX.1-dev at 1024x1024: number of GPUs, and the minimum speed-up over one GPU.
ULYSSES_SPEEDUPS = ((2, 1.7), (4, 2.8), (8, 4.2))
CFG_SPEEDUP = 1.9
# Seconds, in addition to a start from nothing, until a group serves again after a rank was killed.
BACK_AFTER_LOAD = 5


def cards_of(layout):
    """The number of ranks of a layout."""
    cards = 1
    for axis in layout.split(","):
        name, _, size = axis.partition("=")
        if name not in ("patches", "warmup"):
            cards *= int(size)
    return cards


def certified_over_nccl(_suite, done):
    """A judge of `tessera verify`."""
    if done.returncode != 0:
        return False, last_line(done.stderr or done.stdout), {}
    verdict = report_of(done)
    return verdict["communicator"] == "nccl", f"certified over {verdict['communicator']}", {}


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def report_of(done, event=None):
    """The last JSON object of a command's output, or the last one of that event."""
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{") and (event is None or json.loads(line).get("event") == event):
            return json.loads(line)
    raise ValueError("no JSON in the output" + (f" of the event {event}" if event else ""))


def step_seconds(model, layout):
    """A judge of `tessera bench`, which keeps the seconds of a step."""

    def judge(suite, done):
        if done.returncode != 0:
            return False, last_line(done.stderr), {}
        seconds = report_of(done)["step_seconds_median"]
        suite.figures[model, layout] = seconds
        return True, f"step {1e3 * seconds:.1f} ms", {"milliseconds": 1e3 * seconds}

    return judge


def speedup(model, layout, least):
    """A layout's speed-up over one GPU, from earlier measurements; None if either is missing."""

    def judge(suite):
        one, several = (suite.figures.get((model, of)) for of in ("serial", layout))
        if one is None or several is None:
            return None
        times = one / several if several > 0 else 0
        return times >= least, f"{times:.2f}x, at least {least}x", {"speedup": times}

    return judge


class Server:
    """`tessera serve` with one group, until the block ends."""

    def __init__(self, suite, model, layout, deadline):
        self.deadline = deadline
        devices = ", ".join(f'"cuda:{i}"' for i in range(cards_of(layout)))
        folder = suite.work / "killed-rank"
        folder.mkdir()
        (folder / "tessera.yaml").write_text(
            f"data_folder: {folder / 'data'}\ncertify: off\n"
            "listen: {http: {port: 0}, grpc: off, admin: off}\n"
            f'groups: [{{model: {model}, dtype: bf16, devices: [{devices}], layout: "{layout}"}}]\n')
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen([suite.program("tessera"), "serve", "--config", folder / "tessera.yaml"],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=suite.work,
                                        env=suite.environment)

    def __enter__(self):
        # Limits the wait for a line that never comes.
        self.end = threading.Timer(max(0, self.deadline - time.monotonic()), self.process.kill)
        self.end.start()
        for line in self.process.stdout:
            if line.startswith("{") and (ports := json.loads(line)).get("event") == "listening":
                self.port = ports["http"]
                return self
        self.log.seek(0)
        said = last_line(self.log.read())
        self.__exit__()
        raise ValueError(f"the server did not start: {said}")

    def __exit__(self, *_):
        self.end.cancel()
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.stdout.close()
        self.log.close()

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data,
                                         {"Content-Type": "application/json"} if data else {})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def wait(self, what, is_so):
        while True:
            if found := is_so():
                return found
            if time.monotonic() > self.deadline:
                raise ValueError(f"{what} did not come in time")
            time.sleep(0.02)

    def group(self):
        return self.call("/v1/server")["groups"][0]

    def workers(self):
        """Process ids of the workers, which the server or the process that it supervises has started."""
        parents, names = {}, {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = (entry / "cmdline").read_text()
            except (OSError, IndexError):
                continue  # it has ended
        def below(pid):
            while pid in parents and pid != self.process.pid:
                pid = parents[pid]
            return pid == self.process.pid
        return sorted(pid for pid, name in names.items() if "tessera-worker" in name and below(pid))


def kill_a_rank(suite, model, layout, seconds):
    """Kills a rank while steps run; judges the time until its group serves again against a start from nothing."""
    deadline = time.monotonic() + seconds
    begin = time.monotonic()
    with Server(suite, model, layout, deadline) as server:
        server.wait("a group that is ready", lambda: server.group()["state"] == "ready")
        load = time.monotonic() - begin
        job = server.call("/v1/jobs", {"prompt": "red apple", "num_inference_steps": 50, "size": "1024x1024"})["id"]
        running = lambda: server.call(f"/v1/jobs/{job}")["status"] in ("running", "done")
        server.wait("a job that runs", running)
        # A process that is executing another program has no name for a moment.
        workers = server.wait(f"a worker for each of the {cards_of(layout)} cards",
                              lambda: len(found := server.workers()) == cards_of(layout) and found)
        os.kill(workers[-1], signal.SIGKILL)
        killed = time.monotonic()
        server.wait("a group that is back",
                    lambda: (group := server.group())["restarts"] >= 1 and group["state"] in ("ready", "refused"))
        back = time.monotonic() - killed
        if server.group()["state"] == "refused":
            return False, "the server has given up the group of the killed rank", {}
        server.wait("the job of the killed rank", lambda: server.call(f"/v1/jobs/{job}")["status"] == "done")
    return (back <= load + BACK_AFTER_LOAD,
            f"back after {back:.1f} s, at most {load:.1f} s to load and {BACK_AFTER_LOAD} s; its job was made",
            {"seconds": back, "load_seconds": load})


class Models:
    """Folders of models by name: the user's own FLUX.1-dev if there is one, otherwise a model of full size that is made
    during set-up."""

    def __init__(self, flux, golden, work, random):
        self.flux, self.golden, self.work, self.random = flux, golden, work, random
        self.reasons = {}

    def folder(self, name):
        return self.flux if name == "flux_dev" and self.flux else str(self.work / f"full-size-{name}")

    def made(self, name):
        return pathlib.Path(self.folder(name), "model_index.json").exists() and name not in self.reasons

    def why_not(self, name):
        return self.reasons.get(name, "its model of full size was not made")

    def make_in_time(self, name):
        """Makes the model, or keeps the reason why that failed."""
        if self.made(name):
            return
        needed = full_size_models.BYTES[name] * 11 // 10 if self.random else 0
        if self.golden is None:
            self.reasons[name] = "its small parts are in a clone: git clone, cd there, and give --golden tests/golden; or --flux DIR"
        elif shutil.disk_usage(self.work).free < needed:
            self.reasons[name] = f"it takes {needed >> 30} GiB, and {self.work} has less; --weights zeros, or --flux DIR"
        else:
            full_size_models.write_model(name, self.golden, pathlib.Path(self.folder(name)), self.random)


def bus_bandwidth(_run, done):
    """A judge of scripts/nccl_bandwidth.py."""
    if done.returncode != 0:
        return {"outcome": "failed", "detail": last_line(done.stderr)}
    found = report_of(done)
    return {"outcome": "passed", "detail": ", ".join(f"{name} {value:.0f} GB/s" for name, value in found.items()), **found}
