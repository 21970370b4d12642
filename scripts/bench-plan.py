#!/usr/bin/env python3
"""Compares the planner with this machine: predicted and measured seconds of a denoising step, for every layout of two
ranks on the CPU and for one rank.

    scripts/bench-plan.py [--family pixart|flux ...] [--rounds 3] [--bound 15]

Makes the models of scripts/bench-vs-diffusers.py, with random weights at the full width of published ones and few blocks.
Each round measures the machine by `tessera plan --calibrate`, which times operators and exchanges and no layout, and then
every layout by `tessera bench`. Both figures are the least over the rounds, because other programs can only make them longer.
Exits with 1 when one is off by more than the bound, in percent.

Needs a release build (build/release) and, to make a model, the environment of scripts/bench-vs-diffusers.py.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESSERA = ROOT / "build" / "release" / "bin" / "tessera"
MODELS = ROOT / "build" / "bench-models"
# Tokens of the probe prompt, which `tessera bench` draws: PixArt reads no padding, FLUX all of it.
FAMILIES = {
    "pixart": {"folder": "pixart-sigma-xl", "blocks": 4, "text": ["--text-tokens=16"]},
    "flux": {"folder": "flux-dev", "blocks": 3, "text": []},
}


def last_json(command, environment=None):
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def model_of(family):
    wanted = FAMILIES[family]
    folder = MODELS / f"{wanted['folder']}-{wanted['blocks']}-fp32"
    if not folder.exists():
        python = ROOT / ".deps" / "bench-venv" / "bin" / "python"
        command = [python, ROOT / "scripts" / "bench-vs-diffusers.py", "--task=make", f"--family={family}", "--dtype=fp32"]
        subprocess.run([*command, f"--blocks={wanted['blocks']}", f"--folder={MODELS}"], check=True)
    return folder


def set_native_size(family, side):
    """Makes `side` PixArt's own: a folder for another size would round the request to that one's sizes."""
    if family == "pixart":
        config = model_of(family) / "transformer" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"sample_size": side // 8}, indent=2))


def predict(arguments, family):
    """Predicted seconds of a step by layout, from figures that are measured now and not stored."""
    with tempfile.TemporaryDirectory() as cache:
        command = [TESSERA, "plan", "--calibrate", "--json", f"--model={model_of(family)}", f"--size={arguments.size}x{arguments.size}"]
        command += [f"--steps={arguments.steps}", *FAMILIES[family]["text"]]
        plans = last_json(command, os.environ | {"XDG_CACHE_HOME": cache})["plans"]
    return {plan["layout"]: plan["step_seconds"] for plan in plans}


def measure(arguments, family, layout):
    command = [TESSERA, "bench", "--json", f"--model={model_of(family)}", f"--size={arguments.size}x{arguments.size}", "--repeat=1"]
    command += [f"--steps={arguments.steps}", f"--layout={layout}", "--certify=off"]
    return last_json(command)["step_seconds_least"]


def hold(arguments, family):
    set_native_size(family, arguments.size)
    rounds = []
    for number in range(arguments.rounds):
        predicted = predict(arguments, family)
        layouts = arguments.layout or list(predicted)
        rounds.append({layout: (predicted[layout], measure(arguments, family, layout)) for layout in layouts})
        print(f"{family}: round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    rows = []
    for layout in sorted(rounds[0], key=lambda one: (one != "serial", one)):
        predicted, measured = zip(*(of_round[layout] for of_round in rounds))
        rows.append((layout, min(predicted), min(measured), min(predicted) / min(measured) - 1))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES), help="default: both")
    parser.add_argument("--layout", action="append", help="default: all of one and two ranks")
    parser.add_argument("--size", type=int, default=256, help="image side in pixels (default: 256)")
    parser.add_argument("--steps", type=int, default=4, help="of an image; the fastest counts (default: 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bound", type=float, default=15, help="percent that a layout may be off (default: 15)")
    arguments = parser.parse_args()
    print("| model | layout | predicted s a step | measured s a step | error % |\n|---|---|---|---|---|")
    worst = 0.0
    for family in arguments.family or sorted(FAMILIES, reverse=True):
        for layout, predicted, measured, error in hold(arguments, family):
            print(f"| {family} | `{layout}` | {predicted:.3f} | {measured:.3f} | {100 * error:+.0f} |", flush=True)
            worst = max(worst, abs(100 * error))
    print(f"largest error: {worst:.1f} %")
    return 0 if worst <= arguments.bound else 1


if __name__ == "__main__":
    sys.exit(main())
