#!/usr/bin/env python3
"""Compares Tessera with diffusers on one machine: seconds per denoising step, or of decoding, and peak memory.

    scripts/bench-vs-diffusers.py [--family pixart|flux|hunyuandit|sd3|z_image|flux2|qwen_image|decode] [--dtype bf16|fp32] [--size 512|1024]
                                  [--blocks N] [--threads 2] [--rounds 3]

The models have random weights (bench_models.py says which); both programs run in turn, several rounds, each in a fresh process, with
the model's own guidance and the same prompt. A process makes one image that does not count and then the timed one.

Of `decode` what is timed is the autoencoder's decoding of an image, in place of a step.

The last line is `ratio DTYPE SIZE VALUE` (of other families than pixart `ratio FAMILY DTYPE SIZE VALUE`): the median over the rounds of diffusers' seconds divided by
Tessera's of the same round, so above 1 Tessera is faster. --dtype and --size may be given several times.

Needs a release build (build/release).
"""

import json
import os
import resource
import statistics
import subprocess
import time

import bench_models
from bench_models import PROMPT, TORCH_DTYPES, last_json, model_folder, run_tessera


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def decoding_seconds(autoencoder, size):
    """Seconds of decoding the second of two images."""
    import torch

    latents = torch.randn(1, 4, size // 8, size // 8, generator=torch.Generator().manual_seed(1)).to(autoencoder.dtype)
    with torch.no_grad():
        for _ in range(2):
            begun = time.perf_counter()
            autoencoder.decode(latents)
            seconds = time.perf_counter() - begun
    return seconds


def run_peer(arguments, dtype, size):
    """Runs inside the virtual environment; prints one JSON object."""
    import diffusers
    import torch

    torch.set_num_threads(arguments.threads)
    pipelines = {
        "pixart": "PixArtSigmaPipeline",
        "decode": "PixArtSigmaPipeline",
        "flux": "FluxPipeline",
        "hunyuandit": "HunyuanDiTPipeline",
        "sd3": "StableDiffusion3Pipeline",
        "z_image": "ZImagePipeline",
        "flux2": "Flux2KleinPipeline",
        "qwen_image": "QwenImagePipeline",
    }
    pipeline = getattr(diffusers, pipelines[arguments.family]).from_pretrained(
        model_folder(arguments, dtype), torch_dtype=getattr(torch, TORCH_DTYPES[dtype])
    )
    pipeline.set_progress_bar_config(disable=True)
    if arguments.family == "decode":
        return print(json.dumps({"seconds": decoding_seconds(pipeline.vae, size), "peak_memory_bytes": peak_memory()}))
    ends = []

    def step_ended(*_):
        ends.append(time.perf_counter())
        return {}

    options = {
        "pixart": {
            "negative_prompt": "",
            "guidance_scale": 4.5,
            "clean_caption": False,
            "use_resolution_binning": False,
            "callback": step_ended,
        },
        "flux": {"guidance_scale": 3.5, "max_sequence_length": 512, "callback_on_step_end": step_ended},
        "hunyuandit": {
            "negative_prompt": "",
            "guidance_scale": 5.0,
            "use_resolution_binning": False,
            "callback_on_step_end": step_ended,
        },
        "sd3": {"negative_prompt": "", "guidance_scale": 7.0, "callback_on_step_end": step_ended},
        "z_image": {"guidance_scale": 0.0, "callback_on_step_end": step_ended},
        "flux2": {"callback_on_step_end": step_ended},
        "qwen_image": {"callback_on_step_end": step_ended},
    }[arguments.family]
    seconds = []
    for image in range(2):
        ends.clear()
        pipeline(
            prompt=PROMPT,
            width=size,
            height=size,
            num_inference_steps=arguments.steps + 1,
            output_type="latent",
            generator=torch.Generator().manual_seed(1),
            **options,
        )
        # Differences between ends exclude the text encoder and the set-up, so one more step is needed.
        seconds = [later - earlier for earlier, later in zip(ends, ends[1:])]
    print(json.dumps({"seconds": statistics.median(seconds), "peak_memory_bytes": peak_memory()}))


def run_peer_process(python, arguments, dtype, size):
    command = [python, __file__, "--task=peer", f"--dtype={dtype}", f"--size={size}", f"--folder={arguments.folder}"]
    command += [f"--{name}={getattr(arguments, name)}" for name in ("family", "blocks", "threads", "steps")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"TQDM_DISABLE": "1"})
    return last_json(done.stdout)


def compare(python, arguments, dtype, size):
    ratios, peer_peaks, own_peaks = [], [], []
    for number in range(arguments.rounds):
        peer = run_peer_process(python, arguments, dtype, size)
        own = run_tessera(arguments, dtype, size)
        ratios.append(peer["seconds"] / own["seconds"])
        peer_peaks.append(peer["peak_memory_bytes"])
        own_peaks.append(own["peak_memory_bytes"])
        print(
            f"round {number + 1}: diffusers {peer['seconds']:.3f} s, tessera {own['seconds']:.3f} s, "
            f"ratio {ratios[-1]:.3f}",
            flush=True,
        )
    gib = 1 << 30
    print(f"peak memory {dtype} {size}: diffusers {max(peer_peaks) / gib:.2f} GiB, tessera {max(own_peaks) / gib:.2f} GiB")
    print(f"ratios {dtype} {size}: {min(ratios):.3f} to {max(ratios):.3f}")
    family = "" if arguments.family == "pixart" else f"{arguments.family} "
    print(f"ratio {family}{dtype} {size} {statistics.median(ratios):.3f}", flush=True)


def main():
    arguments = bench_models.parse_arguments(__doc__, bench_models.DEFAULT_BLOCKS, ["peer"])
    if arguments.task == "make":
        return bench_models.make_model(arguments, arguments.dtype[0])
    if arguments.task == "peer":
        return run_peer(arguments, arguments.dtype[0], arguments.size[0])
    python = bench_models.ensure_environment()
    for dtype in arguments.dtype:
        bench_models.ensure_model(python, __file__, arguments, dtype)
        for size in arguments.size:
            bench_models.set_native_size(arguments, dtype, size)
            compare(python, arguments, dtype, size)


if __name__ == "__main__":
    main()
