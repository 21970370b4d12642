#!/usr/bin/env python3
"""Proves and measures Tessera on a machine with an NVIDIA GPU, and packs all results into one file to send.

It runs from an unpacked bundle (scripts/bundle.sh makes it) or from a clone that is built, on a machine with driver 580 or
newer. Set-up comes first; the measurements take at most eight minutes (--full: 40). Whatever fails, the end is an archive
with the facts of the machine, each row's whole output and exit code, clocks and power during the run, and a page of
results. Rows that failed run again in the order of what they are worth while time is left: without graphs, without NCCL's
registration of buffers, without expandable memory, and with every launch waited for. Where there are several GPUs, what
they do together is proven and measured too.

LibTorch with its CUDA libraries is taken from TESSERA_LIBTORCH, or else from the torch that python3 imports.
Exit status: 0 when everything that was measured passed, 1 when something failed, 2 when nothing can run here.
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
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import full_size_models  # noqa: E402: in this folder
import nccl_checks  # noqa: E402
from first_card_report import Deadline, Report, page  # noqa: E402
from nccl_checks import last_line, report_of  # noqa: E402

GOLDENS = ("tests/golden", "tests/emoji")
# The parts of tests/golden that compute on a device; the others are not sent.
GOLDEN_PARTS = ("functions/", "transformers/", "vae/", "text_encoders/")
# The axes on which several ranks make one image, with two to four ranks on the one GPU.
LAYOUTS = ("cfg=2", "ulysses=2", "ring=2", "tensor=2", "pipe=2", "pipe=2,patches=2,warmup=1", "cfg=2,ulysses=2")
MEASURE_SECONDS, FULL_SECONDS = 480, 2400
# Tracked files that a GPU machine does not need: large test data that only the tests of a release read, the pictures of
# examples, the inputs of the fuzzers, tests in browsers and of clusters, and what made the goldens.
STAYS = (
    "tests/golden/tokenizers/", "tests/golden/saved_tokenizers/", "tests/golden/schedulers/",
    "tests/golden/trajectories/", "tests/golden/training/", "tests/golden/generator/", "tests/golden-inputs/",
    "tests/golden-exports/", "tests/golden-newer/", "tests/golden-edit/", "tests/golden-adapters/", "tests/golden-files/",
    "tests/fuzz/", "tests/web/", "tests/deploy/crds/", "examples/emoji/images/", "docs/images/", "deploy/",
    "bench/results/", "tests/deploy/chart_test.py", "tests/deploy/rules.py", "tests/deploy/package_test.py")
# Variations with which a failed row runs again, so that one visit finds the cause.
RETRIES = (
    ("without graphs", {"TESSERA_GRAPHS": "off"}),
    ("without registration", {"NCCL_GRAPH_REGISTER": "0", "NCCL_LOCAL_REGISTER": "0"}),
    ("without expandable segments", {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}),
    ("with blocking launches", {"CUDA_LAUNCH_BLOCKING": "1"}),
)

NOT_MEASURED, PASSED, FAILED = "not measured", "passed", "failed"
# The result of rows that completed on the fake CUDA, whose times are meaningless.
NOT_A_MEASUREMENT = "not a measurement"


class CannotRun(Exception):
    """A reason for status 2."""


def travelling_files(root=ROOT):
    """The tracked files that go to a GPU machine."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and not name.startswith(STAYS)]


class Row:
    """A command, and the judge of its output. `timed`: judged by a time, which is meaningless on the fake CUDA. `missing`: what
    it needs and lacks here, and how to get it; it is then not measured. `compute`: called instead of a command."""

    def __init__(self, name, command, judge, seconds=60, cards=1, timed=False, missing="", environment=None, compute=None,
                 again=True):
        self.name, self.command, self.judge, self.seconds, self.cards = name, command, judge, seconds, cards
        self.timed, self.missing, self.environment, self.compute, self.again = timed, missing, environment or {}, compute, again


def result(passed, detail, **figures):
    return {"outcome": PASSED if passed else FAILED, "detail": detail, **figures}


def by_status(_suite, done):
    return result(done.returncode == 0, last_line(done.stdout if done.returncode == 0 else done.stderr or done.stdout))


def certified(_suite, done):
    if done.returncode != 0:
        return result(False, last_line(done.stderr or done.stdout))
    return result(True, "certified")


def measured(most=None, each=1):
    """A judge of bench_shapes: milliseconds, times `each`, compared with the expected time of an H200. Times of other cards
    are not judged."""

    def judge(suite, done):
        if done.returncode != 0:
            return result(False, last_line(done.stderr))
        figures = report_of(done)
        suite.figures[figures["shape"]] = figures
        milliseconds = figures["milliseconds"] * each
        detail = f"{milliseconds:.1f} ms" + (f" ({most} expected of an H200)" if most else "")
        if "teraflops_per_second" in figures:
            detail += f", {figures['teraflops_per_second']:.0f} TFLOP/s"
        for step in ("first", "second", "third"):
            if f"{step}_milliseconds" in figures:
                detail += f", {step} {figures[f'{step}_milliseconds']:.1f} ms"
        return result(True, detail, **figures, total_milliseconds=milliseconds)

    return judge


def benched(_suite, done):
    """A judge of `tessera bench`."""
    if done.returncode != 0:
        return result(False, last_line(done.stderr))
    figures = report_of(done)
    names = (("step", "step_seconds_median"), ("decode", "decode_seconds"), ("text", "text_seconds"), ("load", "load_seconds"))
    milliseconds = {name: 1e3 * figures[field] for name, field in names}
    memory = f", {figures['weight_bytes'] / 2**30:.1f} GiB of weights" if "weight_bytes" in figures else ""
    return result(True, ", ".join(f"{name} {value:.1f} ms" for name, value in milliseconds.items()) + memory,
                  milliseconds=milliseconds["step"], **milliseconds)


def trained(_suite, done):
    """A judge of `tessera train --json`: the seconds of the last step, and that losses are finite."""
    steps = [json.loads(line) for line in done.stdout.splitlines() if '"event":"step"' in line]
    if done.returncode != 0 or not steps:
        return result(False, last_line(done.stderr or done.stdout))
    finite = all(math.isfinite(step["loss"]) for step in steps)
    seconds = steps[-1].get("seconds", 0)
    return result(finite, f"{len(steps)} steps, the last {seconds:.2f} s, loss {steps[-1]['loss']:.4f}", milliseconds=1e3 * seconds)


def operators(_suite, done):
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    wrong = [line["operator"] + " " + line["dtype"] for line in lines if line["error"] > line["tolerance"]]
    if done.returncode != 0 or not lines:
        return result(False, last_line(done.stderr))
    return result(not wrong, f"{len(lines)} cases" + (f"; beyond their tolerance: {', '.join(wrong)}" if wrong else ""))


def pixels(path):
    """The compressed pixels of a PNG file, without its other chunks."""
    data, at, found = path.read_bytes(), 8, b""
    while at + 8 <= len(data):
        length = int.from_bytes(data[at:at + 4], "big")
        if data[at + 4:at + 8] == b"IDAT":
            found += data[at + 8:at + 8 + length]
        at += 12 + length
    return found


def same_pixels(first, second):
    """A judge that compares pictures of earlier commands, pair by pair."""

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
        squared = report_of(done, "replay")["mean_squared_difference"]
        ratio = math.inf if squared == 0 else 10 * math.log10(255 * 255 / squared)
        return result(ratio >= least, f"PSNR {ratio:.1f} dB, at least {least} dB")

    return judge


class Run:
    """The rows of one visit to a machine, within its time limit."""

    def __init__(self, options, programs, work, report, cards):
        self.arguments, self.programs, self.work, self.report, self.cards = options, programs, work, report, cards
        self.fake = is_fake()
        self.seconds = options.seconds
        self.begin = time.monotonic()
        self.figures, self.rows = {}, []
        self.kept = set()  # names of files in a row's folder
        self.environment = dict(os.environ, TESSERA_CERTIFICATES=str(work / "certificates"))
        self.models = nccl_checks.Models(options.flux, self.pipelines(), work, options.weights == "random")

    def pipelines(self):
        return next((folder for folder in self.arguments.golden if pathlib.Path(folder, "pipelines").is_dir()), None)

    def program(self, name):
        return str(self.programs / name)

    def has(self, name):
        return (self.programs / name).exists() or shutil.which(name) is not None

    def seconds_left(self):
        return self.seconds - (time.monotonic() - self.begin)

    def execute(self, row, folder, environment):
        """Runs a row's command to its end or its time limit, keeps its output, and judges it."""
        limit = min(row.seconds, self.seconds_left())
        before = time.monotonic()
        try:
            process = subprocess.Popen(row.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       errors="replace", cwd=self.work, env=environment, start_new_session=True)
        except OSError as error:
            self.report.keep_row(folder, row.command, "-", 0, "", str(error))
            return result(False, f"cannot be started: {error.strerror}")
        deadline = Deadline(process, limit)
        try:
            output, errors = process.communicate()
        except KeyboardInterrupt:
            deadline.end()
            raise
        finally:
            deadline.cancel()
        seconds = time.monotonic() - before
        self.report.keep_row(folder, row.command, process.returncode, seconds, output, errors)
        if deadline.ended:
            return result(False, f"not done after {limit:.0f} s", seconds=seconds)
        done = subprocess.CompletedProcess(row.command, process.returncode, output, errors)
        try:
            outcome = row.judge(self, done)
        except (ValueError, KeyError, OSError, IndexError) as error:
            outcome = result(False, f"its output cannot be read: {error}")
        return {"seconds": round(seconds, 1), **outcome}

    def once(self, row, environment=None):
        if row.missing:
            return {"outcome": NOT_MEASURED, "detail": row.missing}
        if self.cards < row.cards:
            return {"outcome": NOT_MEASURED, "detail": f"it needs {row.cards} cards; {self.cards} are here"}
        if self.seconds_left() < 1:
            return {"outcome": NOT_MEASURED, "detail": "no time was left"}
        folder = self.report.row_folder(row.name)
        if row.compute is not None:
            try:
                outcome = row.compute(self)
            except (ValueError, KeyError, OSError) as error:
                outcome = (False, f"{error}", {})
            if outcome is None:
                return {"outcome": NOT_MEASURED, "detail": "what it is computed from was not measured"}
            outcome = result(outcome[0], outcome[1], **outcome[2])
            self.report.keep_row(folder, ["computed"], "-", 0, outcome["detail"] + "\n", "")
        else:
            outcome = self.execute(row, folder, {**self.environment, **row.environment, **(environment or {})})
        for made in (*self.work.glob("*.png"), *self.work.glob("*.tsv")):  # files that this row wrote
            if made.name not in self.kept:
                shutil.copy(made, folder)
                self.kept.add(made.name)
        if row.timed and self.fake and (outcome["outcome"] == PASSED or "milliseconds" in outcome or row.compute):
            outcome["outcome"] = NOT_A_MEASUREMENT
        return outcome

    def all(self):
        failed = []
        for row in self.plan():
            if self.arguments.only and not re.search(self.arguments.only, row.name):
                continue
            outcome = {"name": row.name, **self.once(row)}
            self.rows.append(outcome)
            self.say(outcome)
            if outcome["outcome"] == FAILED and row.compute is None and row.again:
                failed.append((row, outcome))
        for row, outcome in failed:
            for name, variables in RETRIES:
                if self.seconds_left() < 1:
                    break
                again = self.once(row, variables)
                outcome.setdefault("again", []).append({"name": name, **again})
                outcome["detail"] += f"; {name}: {again['outcome']}"
                self.say({"name": f"{row.name}, {name}", **again})

    @staticmethod
    def say(row):
        print(f"{row['outcome']:<13} {row['name']}: {row['detail']}", flush=True)

    def generate(self, *options):
        return [self.program("tessera"), "generate", "red apple", "--steps", str(self.arguments.steps), "--quiet",
                "--overwrite", *options]

    def on_device(self, dtype):
        return ["--device", self.arguments.device, "--dtype", dtype]

    def plan(self):
        """Plans the rows in the order of their value."""
        tessera, device = self.program("tessera"), self.arguments.device
        yield Row("doctor", [tessera, "doctor"], by_status, again=False)
        yield Row("first image", self.generate("--device", device, "--output", "first.png"), by_status)
        yield self.shape("flux_dev", measured(most=126), 50)
        yield from self.whole_flux()
        yield Row("values of operators against fp64", [self.program("bench_operators"), device], operators, seconds=90,
                  missing=self.without("bench_operators"))
        yield from self.pictures()
        yield self.shape("matmul", measured(), 100)
        yield Row("step of flux_dev against matmul", [], None, compute=share_of_matmul, timed=True)
        yield self.shape("sd3_medium", measured(most=950, each=28), 28)
        yield self.shape("pixart_sigma", measured(most=600, each=20), 20)
        yield self.shape("hunyuandit", measured(most=2600, each=50), 50)
        yield self.shape("autoencoder", measured(most=90), 10)
        for model in ("", *self.arguments.model):
            yield Row(f"bench of {pathlib.Path(model).name or 'the embedded model'}",
                      [tessera, "bench", "--json", *self.on_device("bf16"), "--steps", str(self.arguments.steps)]
                      + (["--model", model] if model else []), benched, timed=True)
        one_card = device if ":" in device else device + ":0"
        for layout in self.arguments.layouts:
            yield Row(f"certificate of {layout}",
                      [tessera, "verify", "--layout", layout, "--device", one_card, "--json"], certified)
        yield self.training()
        yield from self.together()
        yield from self.goldens()
        for tool in ("memcheck", "racecheck"):
            yield Row(f"compute-sanitizer {tool}",
                      ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1", self.program("bench_operators"), device],
                      by_status, seconds=90 if tool == "memcheck" else 600, again=False,
                      missing=self.without("compute-sanitizer", "bench_operators") or
                      ("" if tool == "memcheck" or self.arguments.full else "it takes minutes; --full runs it"))

    def without(self, *programs):
        missing = [program for program in programs if not self.has(program)]
        return f"{', '.join(missing)} is not here" if missing else ""

    def shape(self, name, judge, steps):
        return Row(f"{name}, {steps} in a row", [self.program("bench_shapes"), self.arguments.device, name, str(steps)], judge,
                   seconds=90, timed=True, missing=self.without("bench_shapes"),
                   environment={"TESSERA_KERNEL_TABLE": str(self.work / f"kernels-{name}.tsv")})

    def whole_flux(self):
        """The whole program on a model of full size: loading, steps as graphs, decoding, planned and used memory."""
        yield Row("FLUX.1-dev of full size",
                  [self.program("tessera"), "bench", "--json", "--model", self.models.folder("flux_dev"), "--device",
                   self.arguments.device, "--dtype", "bf16", "--size", "1024x1024", "--steps", "50", "--repeat", "1"],
                  benched, seconds=150, timed=True,
                  missing="" if self.models.made("flux_dev") else self.models.why_not("flux_dev"))

    def pictures(self):
        """Checks that pictures equal the CPU's, and each other in every run, with graphs and in a batch; and that none fails."""
        yield Row("picture of the CPU", self.generate("--seed", "1", "--device", "cpu", "--dtype", "fp32", "--output",
                                                      "cpu.png"), by_status, again=False)
        for dtype, least in (("fp32", 40), ("bf16", 20)):
            yield Row(f"picture against the CPU, {dtype}",
                      [self.program("tessera"), "replay", "cpu.png", *self.on_device(dtype), "--json"], like_the_cpu(least))
            for run in (1, 2):
                judge = by_status if run == 1 else same_pixels([f"{dtype}-1.png"], [f"{dtype}-2.png"])
                yield Row(f"run {run} of one seed, {dtype}",
                          self.generate("--seed", "1", *self.on_device(dtype), "--output", f"{dtype}-{run}.png"), judge)
        yield Row("graphs against the same work without",
                  self.generate("--seed", "1", *self.on_device("bf16"), "--output", "without-graphs.png"),
                  same_pixels(["bf16-1.png"], ["without-graphs.png"]), environment={"TESSERA_GRAPHS": "off"})
        yield Row("four images together", self.generate("--seed", "1", "--count", "4", *self.on_device("bf16"),
                                                        "--output", "together-{seed}.png"), by_status)
        for seed in range(1, 5):
            yield Row(f"batch contract, image {seed}",
                      self.generate("--seed", str(seed), *self.on_device("bf16"), "--output", f"alone-{seed}.png"),
                      same_pixels([f"together-{seed}.png"], [f"alone-{seed}.png"]))
        # A threading fault may appear only in some starts.
        for start in range(1, 11 if self.arguments.full else 5):
            yield Row(f"start {start} of the same",
                      self.generate("--seed", "1", *self.on_device("bf16"), "--output", "again.png"),
                      same_pixels(["bf16-1.png"], ["again.png"]))

    def training(self):
        """Steps of a low-rank adapter of FLUX.1 at full size, with their time and memory."""
        missing = "" if self.models.made("flux_dev") else self.models.why_not("flux_dev")
        images = self.work / "train-images"
        if not missing:
            images.mkdir(exist_ok=True)
            for number in (1, 2):
                (images / f"{number}.txt").write_text("red apple")
            (self.work / "train.yaml").write_text(
                f"model: {self.models.folder('flux_dev')}\noutput: {self.work / 'trained'}\nseed: 7\ndatasets:\n"
                f"  - folder_path: {images}\n    resolution: 512\nnetwork:\n  type: lora\n  linear: 16\n"
                "train:\n  batch_size: 1\n  lr: 0.0001\n  steps: 4\n  dtype: bf16\n  gradient_checkpointing: true\n")
            for number in (1, 2):  # of an earlier row, if it wrote them
                made = next((self.work / name for name in (f"together-{number}.png", "cpu.png") if (self.work / name).exists()), None)
                if made:
                    shutil.copy(made, images / f"{number}.png")
        return Row("LoRA steps of FLUX.1-dev at 512x512", [self.program("tessera"), "train", str(self.work / "train.yaml"), "--json",
                                                          "--device", self.arguments.device], trained, seconds=120, timed=True,
                   missing=missing)

    def together(self):
        """Rows for several GPUs together over NCCL."""
        tessera = self.program("tessera")
        if self.cards < 2:
            yield Row("several cards over NCCL", [], by_status, cards=2)
            return
        yield Row("NCCL's own bus bandwidth", [sys.executable, str(ROOT / "scripts/nccl_bandwidth.py"), str(self.cards)],
                  nccl_checks.bus_bandwidth, cards=2, timed=True, again=False,
                  missing="" if importlib.util.find_spec("torch") else "python3 has no torch")
        for layout in nccl_checks.LAYOUTS:
            yield Row(f"certificate of {layout} over NCCL",
                      [tessera, "verify", "--layout", layout, "--device", "cuda", "--json"],
                      of_nccl(nccl_checks.certified_over_nccl), seconds=120, cards=nccl_checks.cards_of(layout))

        def bench(model, layout):
            cards = 1 if layout == "serial" else nccl_checks.cards_of(layout)
            missing = "" if self.cards < cards or self.models.made(model) else self.models.why_not(model)
            return Row(f"{model} at 1024x1024, {layout}",
                       [tessera, "bench", "--json", "--model", self.models.folder(model), "--device", "cuda", "--dtype", "bf16",
                        "--size", "1024x1024", "--steps", str(self.arguments.steps), "--repeat", "1", "--certify", "off",
                        "--layout", layout], of_nccl(nccl_checks.step_seconds(model, layout)), seconds=120, cards=cards,
                       timed=True, missing=missing)

        def times(model, layout, least):
            return Row(f"{layout} of {model} against one card", [], None, cards=nccl_checks.cards_of(layout), timed=True,
                       compute=nccl_checks.speedup(model, layout, least))

        yield bench("flux_dev", "serial")
        for cards, least in nccl_checks.ULYSSES_SPEEDUPS:
            yield bench("flux_dev", f"ulysses={cards}")
            yield times("flux_dev", f"ulysses={cards}", least)
        yield bench("sd3_medium", "serial")
        yield bench("sd3_medium", "cfg=2")
        yield times("sd3_medium", "cfg=2", nccl_checks.CFG_SPEEDUP)
        killed = f"ulysses={8 if self.cards >= 8 else 4 if self.cards >= 4 else 2}"
        yield Row(f"a rank of {killed} is killed", [], None, cards=2, timed=True,
                  missing="" if self.models.made("flux_dev") else self.models.why_not("flux_dev"),
                  compute=lambda run: nccl_checks.kill_a_rank(run, run.models.folder("flux_dev"), killed,
                                                              min(max(240, self.arguments.seconds / 4), run.seconds_left())))

    def goldens(self):
        if not self.arguments.golden:
            yield Row("goldens", [], by_status,
                      missing="they are in a clone: git clone, cd there, and give --golden tests/golden")
        for folder in self.arguments.golden:
            for part in GOLDEN_PARTS if pathlib.Path(folder).name == "golden" else ("",):
                yield Row(f"goldens of {pathlib.Path(folder).name} {part}".strip(" /"),
                          [self.program("tessera-golden"), folder, "--device", self.arguments.device]
                          + (["--only", part] if part else []), by_status, seconds=120,
                          missing=self.without("tessera-golden"))


def share_of_matmul(run):
    """The share of the device's matrix multiplication rate that a step of FLUX.1 reaches."""
    rate = [run.figures.get(shape, {}).get("teraflops_per_second") for shape in ("flux_dev", "matmul")]
    if None in rate:
        return None
    share = rate[0] / rate[1]
    return True, f"{share:.2f} (0.88 expected)", {"share": share}


def of_nccl(judge):
    def judged(run, done):
        passed, detail, figures = judge(run, done)
        return result(passed, detail, **figures)

    return judged


def parse(arguments):
    parser = argparse.ArgumentParser(prog="first-card.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help=f"{FULL_SECONDS // 60} minutes in place of {MEASURE_SECONDS // 60}")
    parser.add_argument("--golden", action="append", metavar="DIR",
                        help="folder of golden cases (default: tests/golden and tests/emoji of the current folder)")
    parser.add_argument("--model", action="append", default=[], metavar="DIR",
                        help="model folder to measure in addition to the embedded model")
    parser.add_argument("--only", metavar="REGEX", help="only rows whose names it is found in")
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS), help="to certify, all ranks on the one card")
    parser.add_argument("--flux", metavar="DIR", help="FLUX.1-dev (default: one of its size with random weights)")
    parser.add_argument("--weights", choices=("random", "zeros"), default="random",
                        help="of models of full size that are made: zeros take no room on the disk, and flatter a card")
    parser.add_argument("--steps", type=int, default=20, help="of a picture of the embedded model (20)")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--seconds", type=float, help="for the measurements")
    parser.add_argument("--output", metavar="STEM", help="writes STEM.tar.gz, STEM.md and STEM.json (default: first-card-DATE)")
    parser.add_argument("--keep-names", action="store_true", help="leave names, serial numbers and addresses in the archive")
    parser.add_argument("--dry-run", action="store_true", help="list the commands and run none")
    parser.add_argument("--files", action="store_true", help="list the tracked files that travel to a GPU machine")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"cuda(:\d+)?", options.device):
        raise CannotRun(f"--device is {options.device}; valid values are cuda and cuda:N")
    if options.seconds is None:
        options.seconds = FULL_SECONDS if options.full else MEASURE_SECONDS
    if options.output is None:
        options.output = f"first-card-{datetime.datetime.now(datetime.timezone.utc):%Y%m%d-%H%M%S}"
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
    if given := os.environ.get("TESSERA_FIRST_CARD_PROGRAMS"):
        return pathlib.Path(given).resolve()
    for folder in (ROOT / "bin", ROOT / "build/cuda/bin", ROOT / "build/release/bin"):
        if (folder / "tessera").exists():
            return folder
    return None


def is_fake():
    return "libtessera_fake_cuda.so" in os.environ.get("LD_PRELOAD", "")


def find_gpus(device):
    """The driver's name of each GPU."""
    if is_fake():
        return ["a fake GPU"] * int(os.environ.get("FAKE_CUDA_DEVICES", 1))
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                                capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        raise CannotRun("no NVIDIA driver is running on this machine: nvidia-smi does not run") from None
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


def commit():
    """The commit of a clone, or the name of a bundle."""
    try:
        done = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=30)
        return done.stdout.strip() if done.returncode == 0 else ROOT.name
    except (OSError, subprocess.TimeoutExpired):
        return ROOT.name


def place_for_models(weights):
    """A folder with space for models of full size, preferably in memory, which is read fastest."""
    needed = full_size_models.BYTES["flux_dev"] * 5 // 4 if weights == "random" else 1 << 30
    for place in ("/dev/shm", tempfile.gettempdir(), "."):
        if os.path.isdir(place) and os.access(place, os.W_OK) and shutil.disk_usage(place).free >= needed:
            return place
    return tempfile.gettempdir()


def interrupted(*_):
    raise KeyboardInterrupt


def visit(options, report, work):
    """The rows, the facts for the page, and how long the measurements took; CannotRun where there is no GPU."""
    facts = {"commit": commit(), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    run, reason, seconds = None, "", 0
    try:
        report.facts()
        programs = find_programs()
        if programs is None:
            raise CannotRun(f"tessera is neither in {ROOT / 'bin'} nor built")
        gpus = find_gpus(options.device)
        facts["GPU"] = f"{len(gpus)} times {gpus[0]}" if len(gpus) > 1 else gpus[0]
        find_libtorch(programs)
        begin = time.monotonic()
        run = Run(options, programs, work, report, len(gpus))
        if not run.fake:
            report.sample()
        run.models.make_in_time("flux_dev")
        if len(gpus) > 1:
            run.models.make_in_time("sd3_medium")
        facts["set-up"] = f"{time.monotonic() - begin:.0f} s"
        run.begin = time.monotonic()
        run.all()
    except CannotRun as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = "it was interrupted"
    if run is not None:
        seconds = time.monotonic() - run.begin
    if reason:
        facts["ended early"] = reason
    return facts, run.rows if run is not None else [], seconds, reason


def main(arguments):
    options = parse(arguments)
    if options.files:
        print("\n".join(travelling_files()))
        return 0
    if options.dry_run:
        with tempfile.TemporaryDirectory() as work:
            run = Run(options, find_programs() or pathlib.Path("bin"), pathlib.Path(work), None, 8)
            for row in run.plan():
                print(f"{row.name}: {' '.join(row.command)}")
        return 0
    signal.signal(signal.SIGTERM, interrupted)
    archive = pathlib.Path(options.output + ".tar.gz").resolve()
    with tempfile.TemporaryDirectory(dir=place_for_models(options.weights)) as work:
        report = Report(pathlib.Path(work, "results"), redacts=not options.keep_names)
        (pathlib.Path(work) / "work").mkdir()
        facts, rows, seconds, reason = visit(options, report, pathlib.Path(work) / "work")
        text = page(f"Tessera on {facts.get('GPU', 'a machine without a GPU')}", facts, rows, seconds)
        report.write("results.md", text)
        report.write("results.json", json.dumps({"facts": facts, "seconds": round(seconds, 1), "rows": rows}, indent=1) + "\n")
        for suffix in ("md", "json"):
            shutil.copy(report.folder / f"results.{suffix}", f"{options.output}.{suffix}")
        report.pack(archive)
    print(f"{archive} is the file to send; {options.output}.md is its page; {seconds:.0f} s of measurements")
    if reason:
        print(f"first-card.sh: {reason}", file=sys.stderr)
        return 2
    return 1 if any(row["outcome"] == FAILED for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CannotRun as reason:
        print(f"first-card.sh: {reason}", file=sys.stderr)
        sys.exit(2)
