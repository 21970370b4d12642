#!/usr/bin/env python3
"""Measures how often the ranks of a group read a model's weights from the disk: once together, for every layout. The first rank
that comes to a page reads it, and the others get it from the kernel's cache.

    scripts/load-reads.py MODEL [--dtype fp32|bf16] [--layout cfg=2 ...] [--tessera build/release/bin/tessera]

For each layout, and serial, takes the weight files out of the cache, loads the model, and counts the bytes that the
workers had to fetch (read_bytes of /proc/PID/io). Status 0 if no layout's ranks together fetched more than one rank alone
and a tenth. The machine's other programs do not count; a file system without a disk (tmpfs) shows nothing and fails.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20


def drop_from_cache(model):
    for file in model.glob("*/*.safetensors"):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def workers_below(pid):
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from workers_below(child)


def fetched(pid):
    for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


def bytes_fetched(arguments, layout):
    drop_from_cache(arguments.model)
    command = [arguments.tessera, "generate", "", "--model", arguments.model, "--dtype", arguments.dtype, "--json"]
    command += ["--layout", layout, "--certify", "off", "--steps", "1", "--output", "/dev/shm/tessera-load-reads.png", "--overwrite"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        events = (json.loads(line) for line in process.stdout)
        loaded = next((event for event in events if event["event"] in ("loaded", "error")), {"event": "none"})
        if loaded["event"] != "loaded":
            process.kill()
            sys.exit(f"load-reads: {layout}: {loaded}")
        ranks = list(workers_below(process.pid))
        total = sum(fetched(rank) for rank in ranks)
        process.kill()
    return len(ranks), total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--layout", action="append", default=None, help="default: cfg=2, ulysses=2, tensor=2 and pipe=2")
    parser.add_argument("--tessera", type=pathlib.Path, default=ROOT / "build/release/bin/tessera")
    arguments = parser.parse_args()
    _, alone = bytes_fetched(arguments, "serial")
    print(f"serial: {alone / MIB:.0f} MiB", flush=True)
    if alone == 0:
        sys.exit("load-reads: nothing was fetched: is the model on a disk?")
    most = alone
    for layout in arguments.layout or ["cfg=2", "ulysses=2", "tensor=2", "pipe=2"]:
        ranks, together = bytes_fetched(arguments, layout)
        most = max(most, together)
        print(f"{layout}: {together / MIB:.0f} MiB by {ranks} ranks together", flush=True)
    sys.exit(0 if most <= 1.1 * alone else 1)


if __name__ == "__main__":
    main()
