#!/usr/bin/env python3
"""Measures `tessera batch` against `tessera generate` and against the work itself, and reports which figures miss their bound.

    scripts/bench-batch.py [--rounds N] [--images N] [--json] [--tessera build/release/bin/tessera]

What is compared is measured in turn, round after round, because the machine's speed drifts; a figure is the median over
the rounds. Ends with status 1 if one misses its bound.

  to generate       images/s of a batch of the embedded model, to those of `tessera generate` making the same images with
                    the same threads, from the start of the process to its end; the images must be the same to the byte
  two replicas      images/s of two replicas of one thread each, to one of one thread
  decoding overlap  images/s with fake workers whose images take 4 steps of 5 ms and 15 ms of decoding, to 1 / 15 ms
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 20
PROMPT = "a red apple on a wooden table"
DECODING = 0.015
FAKE_ITEMS = 1000
BOUNDS = {"to generate": 0.97, "two replicas": 1.8, "decoding overlap": 0.95}
DEADLINE = 3600


class Bench:
    def __init__(self, options, folder):
        self.tessera, self.images, self.folder = options.tessera, options.images, folder
        items = ({"prompt": PROMPT, "seed": 1 + i, "num_inference_steps": STEPS} for i in range(self.images))
        self.items = self.write("items.jsonl", items)
        fakes = ({"prompt": f"item {i}", "size": "64x64", "num_inference_steps": 4} for i in range(FAKE_ITEMS))
        self.fake_items = self.write("fakes.jsonl", fakes)
        (folder / "fake").mkdir()
        (folder / "fake/model_index.json").write_text("{}")

    def write(self, name, items):
        path = self.folder / name
        path.write_text("".join(json.dumps(item) + "\n" for item in items))
        return path

    def run(self, *arguments, **environment):
        """Runs the command; returns its seconds and its output."""
        began = time.monotonic()
        done = subprocess.run([self.tessera, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE, env=os.environ | environment)
        if done.returncode != 0:
            sys.exit(f"bench-batch.py: tessera {arguments[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
        return time.monotonic() - began, done.stderr

    def batch(self, items, *arguments, **environment):
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        seconds, said = self.run("batch", items, "--out", out, *arguments, **environment)
        # The rate excludes the start of the workers.
        rate = float(re.findall(r"items, ([0-9.]+) images/s", said)[-1])
        return seconds, rate, sorted(path.read_bytes() for path in out.rglob("*.png"))

    def generate(self):
        out = self.folder / "generated"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        pattern = out / "{seed}.png"
        seconds, _ = self.run("generate", PROMPT, "--count", self.images, "--seed", 1, "--steps", STEPS, "--output", pattern, "--quiet")
        return seconds, sorted(path.read_bytes() for path in out.iterdir())

    def round(self):
        batch, _, made = self.batch(self.items)
        generate, expected = self.generate()
        if made != expected:
            sys.exit("bench-batch.py: the batch made other images than `tessera generate`")
        one = self.batch(self.items, "--threads", 1)[1]
        two = self.batch(self.items, "--threads", 1, "--replicas", 2)[1]
        script = f"step-time=5 decode-time={DECODING * 1000:.0f}"
        worker = pathlib.Path(self.tessera).with_name("tessera-fake-worker")
        fake = self.batch(self.fake_items, "--model", self.folder / "fake", TESSERA_WORKER=str(worker), TESSERA_FAKE_WORKER=script)[1]
        return {"to generate": generate / batch, "two replicas": two / one, "decoding overlap": fake * DECODING}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tessera", default=str(ROOT / "build/release/bin/tessera"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        bench = Bench(options, pathlib.Path(folder))
        rounds = [bench.round() for _ in range(options.rounds)]
    figures = {name: statistics.median(of[name] for of in rounds) for name in BOUNDS}
    if options.json:
        print(json.dumps({"figures": figures, "bounds": BOUNDS, "rounds": rounds}))
    else:
        for name, figure in figures.items():
            print(f"{name:16} {figure:6.3f}  wanted {BOUNDS[name]:.2f}  ({', '.join(f'{of[name]:.3f}' for of in rounds)})")
    return 0 if all(figures[name] >= bound for name, bound in BOUNDS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
