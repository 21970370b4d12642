#!/usr/bin/env python3
"""Proves and measures Tessera on a machine with an NVIDIA GPU, in at most eight minutes: scripts/gpu-suite.sh.

It runs from an unpacked bundle (scripts/bundle.sh --preset cuda makes it) or from a clone that is built, and writes a
table in the form of docs/performance.md and the same as JSON. What is not here or has no time left is "not measured".

With --nccl it proves and measures what two or more GPUs do together instead: every axis over NCCL, how much faster several
cards are than one, and how soon a group is back whose rank was killed. What needs more cards than there are is "not measured".

LibTorch with its CUDA libraries is taken from TESSERA_LIBTORCH, or else from the torch that python3 imports.
Exit status: 0 when everything that was measured passed, 1 when something failed, 2 when it cannot run here.
"""

import argparse
import datetime
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import nccl_checks  # noqa: E402: beside this file
from nccl_checks import last_line, report_of  # noqa: E402
PROGRAMS = ("tessera", "tessera-golden", "bench_shapes", "bench_operators")
GOLDENS = ("tests/golden", "tests/emoji")
# Of tests/golden, what computes on a device: the rest does not travel to one.
GOLDEN_PARTS = ("functions/", "transformers/", "vae/", "text_encoders/")
# The axes on which several ranks make one image, two to four of them on the one card.
LAYOUTS = ("cfg=2", "ulysses=2", "ring=2", "tensor=2", "pipe=2", "pipe=2,patches=2,warmup=1", "cfg=2,ulysses=2")

# What of the tracked files need not travel to a GPU machine: large test data that is only read where the tests of a
# release run, the pictures of examples, and the inputs of the fuzzers.
STAYS = (
    "tests/golden/tokenizers/", "tests/golden/saved_tokenizers/", "tests/golden/schedulers/",
    "tests/golden/trajectories/", "tests/golden/training/", "tests/golden-inputs/", "tests/golden-exports/",
    "tests/fuzz/", "examples/emoji/images/", "docs/images/", "deploy/")

NOT_MEASURED, PASSED, FAILED = "not measured", "passed", "failed"
# What ran to its end on the fake CUDA, whose times say nothing.
NOT_A_MEASUREMENT = "not a measurement"


class CannotRun(Exception):
    """A reason for status 2."""


def travelling_files(root=ROOT):
    """The tracked files that go to a GPU machine."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and not name.startswith(STAYS)]


class Check:
    """One line of the table: a command, and what its output says."""

    def __init__(self, name, command, judge, needs=(), seconds=60, cards=1):
        self.name, self.command, self.judge, self.needs, self.seconds = name, command, judge, needs, seconds
        self.cards = cards

    def run(self, suite):
        if suite.cards < self.cards:
            return {"outcome": NOT_MEASURED, "detail": f"it needs {self.cards} cards; {suite.cards} are here"}
        missing = [program for program in self.needs if not suite.has(program)]
        if missing:
            return {"outcome": NOT_MEASURED, "detail": f"{', '.join(missing)} is not here"}
        left = suite.seconds_left()
        if left < 1:
            return {"outcome": NOT_MEASURED, "detail": "no time was left"}
        try:
            done = subprocess.run(self.command, capture_output=True, text=True, timeout=min(self.seconds, left),
                                  cwd=suite.work, env=suite.environment)
        except subprocess.TimeoutExpired:
            return {"outcome": FAILED, "detail": f"not done after {min(self.seconds, left):.0f} s"}
        return self.judge(suite, done)


class NcclCheck(Check):
    """One whose judge tells whether it passed, a detail and figures; `timed`: by a time. `prepare` is called before."""

    def __init__(self, name, command, judge, cards, timed=False, seconds=120, prepare=lambda: None):
        self.prepare = prepare

        def judged(suite, done):
            passed, detail, figures = judge(suite, done)
            if timed and suite.fake and done.returncode == 0:
                return {"outcome": NOT_A_MEASUREMENT, "detail": detail, **figures}
            return result(passed, detail, **figures)

        super().__init__(name, command, judged, seconds=seconds, cards=cards)

    def run(self, suite):
        if suite.cards >= self.cards:
            self.prepare()
        return super().run(suite)


class Computed:
    """One that is computed from the figures of others, or does its work itself."""

    def __init__(self, name, compute, command, cards):
        self.name, self.compute, self.command, self.cards = name, compute, command, cards

    def run(self, suite):
        if suite.cards < self.cards:
            return {"outcome": NOT_MEASURED, "detail": f"it needs {self.cards} cards; {suite.cards} are here"}
        if suite.seconds_left() < 1:
            return {"outcome": NOT_MEASURED, "detail": "no time was left"}
        outcome = self.compute(suite)
        if outcome is None:
            return {"outcome": NOT_MEASURED, "detail": "what it is computed from was not measured"}
        passed, detail, figures = outcome
        if suite.fake:
            return {"outcome": NOT_A_MEASUREMENT, "detail": detail, **figures}
        return result(passed, detail, **figures)


def result(passed, detail, **figures):
    return {"outcome": PASSED if passed else FAILED, "detail": detail, **figures}


def by_status(_suite, done):
    return result(done.returncode == 0, last_line(done.stdout if done.returncode == 0 else done.stderr or done.stdout))


def certified(_suite, done):
    if done.returncode != 0:
        return result(False, last_line(done.stderr or done.stdout))
    return result(True, "certified")


def measured(most=None, each=1):
    """A judge of bench_shapes: milliseconds, times `each`, and at most so many of them."""

    def judge(suite, done):
        if done.returncode != 0:
            return result(False, last_line(done.stderr))
        figures = report_of(done)
        suite.figures[figures["shape"]] = figures
        milliseconds = figures["milliseconds"] * each
        detail = f"{milliseconds:.1f} ms" + (f", at most {most} ms" if most else "")
        if "teraflops_per_second" in figures:
            detail += f", {figures['teraflops_per_second']:.0f} TFLOP/s"
        return result(most is None or milliseconds <= most, detail, milliseconds=milliseconds)

    return judge


def benched(_suite, done):
    """A judge of `tessera bench`."""
    if done.returncode != 0:
        return result(False, last_line(done.stderr))
    figures = report_of(done)
    names = (("step", "step_seconds_median"), ("decode", "decode_seconds"), ("text", "text_seconds"), ("load", "load_seconds"))
    milliseconds = {name: 1e3 * figures[field] for name, field in names}
    return result(True, ", ".join(f"{name} {value:.1f} ms" for name, value in milliseconds.items()), **milliseconds)


def operators(_suite, done):
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    wrong = [line["operator"] + " " + line["dtype"] for line in lines if line["error"] > line["tolerance"]]
    if done.returncode != 0 or not lines:
        return result(False, last_line(done.stderr))
    return result(not wrong, f"{len(lines)} cases" + (f"; beyond their tolerance: {', '.join(wrong)}" if wrong else ""))


def pixels(path):
    """The compressed pixels of a PNG file, without what is written beside them."""
    data, at, found = path.read_bytes(), 8, b""
    while at + 8 <= len(data):
        length = int.from_bytes(data[at:at + 4], "big")
        if data[at + 4:at + 8] == b"IDAT":
            found += data[at + 8:at + 8 + length]
        at += 12 + length
    return found


def same_pixels(first, second):
    """A judge: pictures that earlier commands wrote, pair by pair."""

    def judge(suite, done):
        if done.returncode != 0:
            return result(False, last_line(done.stderr))
        for one, other in zip(first, second):
            if not pixels(suite.work / one) or pixels(suite.work / one) != pixels(suite.work / other):
                return result(False, f"{one} and {other} differ")
        return result(True, f"{len(first)} of {len(first)} equal, bit for bit")

    return judge


def like_the_cpu(least):
    """A judge of `tessera replay`: the signal-to-noise ratio to the CPU's picture."""

    def judge(_suite, done):
        if done.returncode not in (0, 7):
            return result(False, last_line(done.stderr))
        squared = report_of(done)["mean_squared_difference"]
        ratio = math.inf if squared == 0 else 10 * math.log10(255 * 255 / squared)
        return result(ratio >= least, f"PSNR {ratio:.1f} dB, at least {least} dB")

    return judge


class Suite:
    def __init__(self, arguments, programs, work, cards=1):
        self.arguments, self.programs, self.work, self.cards = arguments, programs, work, cards
        self.fake = is_fake()
        self.begin = time.monotonic()
        self.figures = {}
        self.environment = dict(os.environ, TESSERA_CERTIFICATES=str(work / "certificates"))

    def program(self, name):
        return str(self.programs / name)

    def has(self, name):
        return (self.programs / name).exists() or shutil.which(name) is not None

    def seconds_left(self):
        return self.arguments.seconds - (time.monotonic() - self.begin)

    def generate(self, *options):
        return [self.program("tessera"), "generate", "red apple", "--steps", str(self.arguments.steps), "--quiet",
                "--overwrite", *options]

    def on_device(self, dtype):
        return ["--device", self.arguments.device, "--dtype", dtype]

    def checks(self):
        """In the order of what is worth most."""
        device = self.arguments.device
        one_card = device if ":" in device else device + ":0"
        yield Check("first image", self.generate("--device", device, "--output", "first.png"), by_status)
        yield Check("operators against fp64", [self.program("bench_operators"), device], operators,
                    needs=("bench_operators",))
        for folder in self.arguments.golden:
            for part in GOLDEN_PARTS if pathlib.Path(folder).name == "golden" else ("",):
                yield Check(f"goldens of {pathlib.Path(folder).name} {part}".strip(" /"),
                            [self.program("tessera-golden"), folder, "--device", device]
                            + (["--only", part] if part else []),
                            by_status, needs=("tessera-golden",), seconds=120)
        yield Check("picture of the CPU", self.generate("--seed", "1", "--device", "cpu", "--dtype", "fp32",
                                                        "--output", "cpu.png"), by_status)
        for dtype, least in (("fp32", 40), ("bf16", 20)):
            yield Check(f"picture against the CPU, {dtype}",
                        [self.program("tessera"), "replay", "cpu.png", *self.on_device(dtype), "--json"],
                        like_the_cpu(least))
            for run in (1, 2):
                judge = by_status if run == 1 else same_pixels([f"{dtype}-1.png"], [f"{dtype}-2.png"])
                yield Check(f"run {run} of one seed, {dtype}",
                            self.generate("--seed", "1", *self.on_device(dtype), "--output", f"{dtype}-{run}.png"), judge)
        without = ["env", "TESSERA_GRAPHS=off"]
        yield Check("graphs against the same work without",
                    without + self.generate("--seed", "1", *self.on_device("bf16"), "--output", "without-graphs.png"),
                    same_pixels(["bf16-1.png"], ["without-graphs.png"]))
        yield Check("four images together", self.generate("--seed", "1", "--count", "4", *self.on_device("bf16"),
                                                          "--output", "together-{seed}.png"), by_status)
        for seed in range(1, 5):
            yield Check(f"batch contract, image {seed}",
                        self.generate("--seed", str(seed), *self.on_device("bf16"), "--output", f"alone-{seed}.png"),
                        same_pixels([f"together-{seed}.png"], [f"alone-{seed}.png"]))
        for layout in self.arguments.layouts:
            yield Check(f"certificate of {layout}",
                        [self.program("tessera"), "verify", "--layout", layout, "--device", one_card, "--json"],
                        certified)
        yield from self.speed(device)
        for tool in ("memcheck", "racecheck"):
            yield Check(f"compute-sanitizer {tool}",
                        ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1",
                         self.program("bench_operators"), device],
                        by_status, needs=("compute-sanitizer", "bench_operators"), seconds=90)

    def speed(self, device):
        def shape(name, judge, steps, seconds=90):
            return Check(f"{name}, {steps} in a row", [self.program("bench_shapes"), device, name, str(steps)], judge,
                         needs=("bench_shapes",), seconds=seconds)

        yield shape("matmul", measured(), 100)
        yield shape("flux_dev", measured(most=126), 50)
        yield shape("pixart_sigma", measured(most=600, each=20), 20)
        yield shape("hunyuandit", measured(most=2600, each=50), 50)
        yield shape("autoencoder", measured(most=90), 10)
        for model in ("", *self.arguments.model):
            yield Check(f"bench of {pathlib.Path(model).name or 'the embedded model'}",
                        [self.program("tessera"), "bench", "--json", *self.on_device("bf16"),
                         "--steps", str(self.arguments.steps)] + (["--model", model] if model else []), benched)

    def share_of_matmul(self):
        """Of what the device multiplies, what a step of FLUX.1 reaches."""
        rate = [self.figures.get(shape, {}).get("teraflops_per_second") for shape in ("flux_dev", "matmul")]
        if None in rate:
            return {"outcome": NOT_MEASURED, "detail": "one of the two was not measured"}
        share = rate[0] / rate[1]
        return result(share >= 0.88, f"{share:.2f}, at least 0.88", share=share)

    def nccl_checks(self):
        """In the order of what is worth most."""
        golden = next((folder for folder in self.arguments.golden if pathlib.Path(folder, "pipelines").is_dir()), None)
        models = nccl_checks.Models(self.arguments.flux, golden, self.work)
        for layout in nccl_checks.LAYOUTS:
            yield NcclCheck(f"certificate of {layout} over NCCL",
                            [self.program("tessera"), "verify", "--layout", layout, "--device", "cuda", "--json"],
                            nccl_checks.certified_over_nccl, cards=nccl_checks.cards_of(layout))

        def bench(model, layout):
            cards = 1 if layout == "serial" else nccl_checks.cards_of(layout)
            return NcclCheck(f"{model} at 1024x1024, {layout}",
                             [self.program("tessera"), "bench", "--json", "--model", models.folder(model), "--device",
                              "cuda", "--dtype", "bf16", "--size", "1024x1024", "--steps", str(self.arguments.steps),
                              "--repeat", "1", "--certify", "off", "--layout", layout],
                             nccl_checks.step_seconds(model, layout), cards=cards, timed=True,
                             prepare=lambda: models.make(model))

        def times(model, layout, least):
            return Computed(f"{layout} of {model} against one card", nccl_checks.speedup(model, layout, least),
                            [f"at least {least}x"], nccl_checks.cards_of(layout))

        yield bench("flux_dev", "serial")
        for cards, least in nccl_checks.ULYSSES_SPEEDUPS:
            yield bench("flux_dev", f"ulysses={cards}")
            yield times("flux_dev", f"ulysses={cards}", least)
        yield bench("sd3_medium", "serial")
        yield bench("sd3_medium", "cfg=2")
        yield times("sd3_medium", "cfg=2", nccl_checks.CFG_SPEEDUP)
        def kill(suite):
            models.make("flux_dev")
            return nccl_checks.kill_a_rank(suite, models.folder("flux_dev"), killed, min(240, suite.seconds_left()))

        killed = f"ulysses={8 if self.cards >= 8 else 4 if self.cards >= 4 else 2}"
        yield Computed(f"a rank of {killed} is killed", kill, ["kill -9"], cards=2)

    def run(self):
        rows = []
        for check in self.nccl_checks() if self.arguments.nccl else self.checks():
            try:
                row = check.run(self)
            except (ValueError, KeyError, OSError) as error:
                row = result(False, f"its output cannot be read: {error}")
            rows.append({"name": check.name, **row})
            print(f"{row['outcome']:<13} {check.name}: {row['detail']}", flush=True)
            if check.name == "first image" and row["outcome"] == FAILED:
                raise CannotRun(f"a first image on {self.arguments.device} failed: {row['detail']}")
        if not self.arguments.nccl:
            rows.append({"name": "step of flux_dev against matmul", **self.share_of_matmul()})
        return rows


def parse(arguments):
    parser = argparse.ArgumentParser(prog="gpu-suite.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", action="append", metavar="DIR",
                        help="folder of golden cases (default: tests/golden and tests/emoji of the current folder)")
    parser.add_argument("--model", action="append", default=[], metavar="DIR",
                        help="model folder to measure beside the embedded model")
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS), help="to certify, all ranks on the one card")
    parser.add_argument("--nccl", action="store_true", help="what two or more GPUs do together, in place of all else")
    parser.add_argument("--flux", metavar="DIR", help="FLUX.1-dev for --nccl (default: its shapes, with weights of zero)")
    parser.add_argument("--steps", type=int, default=20, help="of a picture of the embedded model (20)")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--seconds", type=float, default=480, help="for everything (480)")
    parser.add_argument("--output", default="gpu-suite", metavar="STEM", help="writes STEM.md and STEM.json")
    parser.add_argument("--dry-run", action="store_true", help="list the commands and run none")
    parser.add_argument("--files", action="store_true", help="list the tracked files that travel to a GPU machine")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"cuda(:\d+)?", options.device):
        raise CannotRun(f"--device is {options.device}; valid values are cuda and cuda:N")
    if options.golden is None:
        options.golden = [folder for folder in GOLDENS if pathlib.Path(folder, "cases.json").exists()]
    for folder in options.golden:
        if not pathlib.Path(folder, "cases.json").exists():
            raise CannotRun(f"--golden is {folder}, which holds no cases.json")
    options.golden = [str(pathlib.Path(folder).resolve()) for folder in options.golden]
    for model in options.model + ([options.flux] if options.flux else []):
        if not pathlib.Path(model, "model_index.json").exists():
            raise CannotRun(f"--model is {model}, which holds no model_index.json")
    if options.flux:
        options.flux = str(pathlib.Path(options.flux).resolve())
    options.model = [str(pathlib.Path(model).resolve()) for model in options.model]
    return options


def find_programs():
    if given := os.environ.get("TESSERA_GPU_SUITE_PROGRAMS"):
        return pathlib.Path(given)
    for folder in (ROOT / "bin", ROOT / "build/cuda/bin", ROOT / "build/release/bin"):
        if (folder / "tessera").exists():
            return folder
    return None


def is_fake():
    return "libtessera_fake_cuda.so" in os.environ.get("LD_PRELOAD", "")


def find_gpus(device):
    """What the driver calls each GPU."""
    if is_fake():
        return ["a fake GPU"] * int(os.environ.get("FAKE_CUDA_DEVICES", 1))
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                                capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        raise CannotRun("no NVIDIA driver is at work on this machine: nvidia-smi does not run") from None
    gpus = listed.stdout.splitlines()
    if listed.returncode != 0 or not gpus:
        raise CannotRun("the NVIDIA driver finds no GPU on this machine")
    index = int(device.partition(":")[2] or 0)
    if index >= len(gpus):
        raise CannotRun(f"there is no GPU for {device}; nvidia-smi lists {len(gpus)}")
    return gpus


def find_libtorch(programs):
    if "TESSERA_LIBTORCH" in os.environ or programs != ROOT / "bin" or (ROOT / "lib/libtorch/torch/lib/libtorch_cuda.so").exists():
        return
    found = importlib.util.find_spec("torch")
    if found is None:
        raise CannotRun("TESSERA_LIBTORCH is not set, and python3 has no torch")
    os.environ["TESSERA_LIBTORCH"] = str(pathlib.Path(found.origin).parent.parent)


def write(options, gpu, rows, seconds):
    report = {"gpu": gpu, "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "seconds": round(seconds, 1),
              "rows": rows}
    pathlib.Path(options.output + ".json").write_text(json.dumps(report, indent=1) + "\n")
    table = [f"### {gpu}, {report['date']}", "", "| measurement | outcome | figure |", "|---|---|---|"]
    table += [f"| {row['name']} | {row['outcome']} | {row['detail']} |" for row in rows]
    pathlib.Path(options.output + ".md").write_text("\n".join(table) + "\n")
    print(f"{options.output}.md and {options.output}.json hold the table; {seconds:.0f} s")


def main(arguments):
    options = parse(arguments)
    if options.files:
        print("\n".join(travelling_files()))
        return 0
    programs = find_programs()
    if options.dry_run:
        suite = Suite(options, programs or pathlib.Path("bin"), pathlib.Path("."))
        for check in suite.nccl_checks() if options.nccl else suite.checks():
            print(f"{check.name}: {' '.join(check.command)}")
        return 0
    gpus = find_gpus(options.device)
    if options.nccl and len(gpus) < 2:
        raise CannotRun("--nccl needs two GPUs, and there is one")
    gpu = gpus[int(options.device.partition(":")[2] or 0)]
    if options.nccl:
        gpu = f"{len(gpus)} times {gpus[0]}"
    if programs is None:
        raise CannotRun(f"tessera is neither in {ROOT / 'bin'} nor built")
    find_libtorch(programs)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        rows = Suite(options, programs, pathlib.Path(work), len(gpus)).run()
    write(options, gpu, rows, time.monotonic() - begin)
    return 1 if any(row["outcome"] == FAILED for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CannotRun as reason:
        print(f"gpu-suite.sh: {reason}", file=sys.stderr)
        sys.exit(2)
