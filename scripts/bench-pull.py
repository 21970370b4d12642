#!/usr/bin/env python3
"""Compares the rates of `tessera pull` and `hf download` for one model on a hub of this machine (tests/pull/hub.py).

    scripts/bench-pull.py [--gigabytes 2] [--rounds 3] [--folder FOLDER] [--tessera build/release/bin/tessera]

The model has four shards of random bytes that both programs download completely, into a new cache each time. They run in
turn; a rate is the model's bytes over the whole time of the command, with its start and, of `tessera pull` alone, the
digests and the wait for the disk. Ends with status 1 if the median ratio is less than 0.8.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME, SHARDS, LEAST = "org/model", 4, 0.8


def serve(size):
    """Runs the hub in this process until standard input ends."""
    sys.path.insert(0, str(ROOT / "tests/pull"))
    import hub as hubs

    files = {"model_index.json": b'{"_class_name": "FluxPipeline", "transformer": ["diffusers", "T"]}',
             "transformer/config.json": b"{}", "transformer/diffusion_pytorch_model.safetensors.index.json": b"{}"}
    for shard in range(1, SHARDS + 1):
        files[f"transformer/diffusion_pytorch_model-{shard:05}-of-{SHARDS:05}.safetensors"] = os.urandom(size // SHARDS)
    hub = hubs.Hub(NAME, files)
    print(hub.url, flush=True)
    sys.stdin.read()


def seconds_of(command, url, folder):
    home = pathlib.Path(tempfile.mkdtemp(dir=folder))
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "HF_HOME": str(home), "HF_ENDPOINT": url,
                   "HF_HUB_DISABLE_TELEMETRY": "1"}
    start = time.monotonic()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    passed = time.monotonic() - start
    shutil.rmtree(home)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="of the caches (default: the system's for temporary files)")
    parser.add_argument("--tessera", default=ROOT / "build/release/bin/tessera")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve)
    size = int(arguments.gigabytes * 1e9) // SHARDS * SHARDS
    hub = subprocess.Popen([sys.executable, __file__, "--serve", str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    url = hub.stdout.readline().strip()
    commands = {"hf download": [ROOT / ".deps/pull-tests/bin/python", "-m", "huggingface_hub.cli.hf", "download", NAME],
                "tessera pull": [arguments.tessera, "pull", NAME]}
    rates = {name: [] for name in commands}
    try:
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                rates[name].append(round(size / seconds_of(command, url, arguments.folder) / 1e6, 1))
                print(json.dumps({"program": name, "megabytes_per_second": rates[name][-1]}), flush=True)
    finally:
        hub.stdin.close()
        hub.wait()
    ratios = [ours / theirs for ours, theirs in zip(rates["tessera pull"], rates["hf download"])]
    ratio = statistics.median(ratios)
    print(json.dumps({"gigabytes": size / 1e9, "ratios": [round(each, 2) for each in ratios], "ratio": round(ratio, 2)}))
    return ratio < LEAST


if __name__ == "__main__":
    sys.exit(main())
