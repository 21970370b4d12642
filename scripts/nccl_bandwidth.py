#!/usr/bin/env python3
"""Measures the bandwidth between N GPUs with NCCL alone, through torch.distributed: nccl_bandwidth.py N.

Prints one JSON object: bus bandwidth in GB/s, as nccl-tests define it, of three calls with 1, 21 and 256 MiB a rank; 21 MiB
is what a rank sends in an exchange of FLUX.1 at 1024x1024 on two cards.
"""

import json
import os
import socket
import sys
import time

REPEATS = 20


def rank(number, ranks, port):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(number)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=ranks)
    found = {}
    for mib in (1, 21, 256):
        own = torch.randn(mib << 19, device="cuda").bfloat16()
        exchanged = torch.empty_like(own)
        gathered = torch.empty(ranks * own.numel(), dtype=own.dtype, device="cuda")
        # The factor is the number of bytes over a link, as a multiple of `own`.
        calls = {"all_reduce": (lambda: dist.all_reduce(own), 2 * (ranks - 1) / ranks),
                 "all_to_all": (lambda: dist.all_to_all_single(exchanged, own), (ranks - 1) / ranks),
                 "all_gather": (lambda: dist.all_gather_into_tensor(gathered, own), ranks - 1)}
        for name, (call, share) in calls.items():
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(REPEATS):
                call()
            torch.cuda.synchronize()
            seconds = (time.perf_counter() - begin) / REPEATS
            found[f"{name} {mib} MiB"] = own.numel() * own.element_size() * share / seconds / 1e9
    if number == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def main(ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for number in range(ranks):
        if os.fork() == 0:
            rank(number, ranks, port)
            os._exit(0)
    return int(any([os.wait()[1] for _ in range(ranks)]))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
