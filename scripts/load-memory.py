#!/usr/bin/env python3
"""Compares the anonymous memory that loading a model takes with its bound: weights + the largest tensor + 64 MiB.

    scripts/load-memory.py MODEL [--dtype fp32|bf16] [--tessera build/release/bin/tessera]

Watches the worker's RssAnon while `tessera bench` loads the model. Ends with `load-memory PEAK of BOUND MiB` and status 0
if the peak above the worker's own baseline stays within the bound.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20


def anonymous_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def children(pid):
    return [int(c) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]


def largest_tensor(model, element_bytes):
    largest = 0
    for file in model.glob("*/*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        for name, tensor in header.items():
            if name != "__metadata__":
                count = 1
                for size in tensor["shape"]:
                    count *= size
                largest = max(largest, count * element_bytes)
    return largest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--tessera", type=pathlib.Path, default=ROOT / "build/release/bin/tessera")
    arguments = parser.parse_args()

    command = [arguments.tessera, "generate", "", "--model", arguments.model, "--dtype", arguments.dtype, "--json"]
    command += ["--steps", "1", "--output", "/dev/shm/tessera-load-memory.png", "--overwrite"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    samples, stop = [], threading.Event()

    def watch():
        while not stop.is_set():
            try:
                for child in children(process.pid):
                    samples.append((time.monotonic(), anonymous_bytes(child)))
            except (OSError, ProcessLookupError):
                pass
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    loaded = json.loads(process.stdout.readline())
    loaded_at = time.monotonic()
    stop.set()
    watcher.join()
    process.kill()
    process.wait()
    if loaded.get("event") != "loaded":
        sys.exit(f"load-memory: {loaded}")

    # Loading begins `seconds` before its reply; the memory that the worker holds until then is the baseline.
    begin = loaded_at - loaded["seconds"]
    baseline = max((b for t, b in samples if t < begin), default=0)
    peak = max(b for t, b in samples if t >= begin) - baseline
    largest = largest_tensor(arguments.model, {"fp32": 4, "bf16": 2}[arguments.dtype])
    bound = loaded["weight_bytes"] + largest + 64 * MIB
    print(f"baseline {baseline / MIB:.0f} MiB, weights {loaded['weight_bytes'] / MIB:.0f} MiB, "
          f"largest tensor {largest / MIB:.0f} MiB, {len(samples)} samples, {loaded['seconds']:.2f} s")
    print(f"load-memory {peak / MIB:.0f} of {bound / MIB:.0f} MiB")
    sys.exit(0 if peak <= bound else 1)


if __name__ == "__main__":
    main()
