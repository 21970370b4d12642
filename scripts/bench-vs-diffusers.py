#!/usr/bin/env python3
"""Compares Tessera with diffusers on one machine: seconds per denoising step and peak memory.

    scripts/bench-vs-diffusers.py [--dtype bf16|fp32] [--size 512|1024] [--blocks 28] [--threads 2] [--rounds 3]

Makes a PixArt-Sigma XL/2 folder with random weights in the diffusers layout (width 1152, 16 heads of 72, text of 300
tokens with 4096 channels; the text encoder has the real width but one thin layer, and the autoencoder is tiny, because
neither is part of a denoising step), then runs both programs in turn, several rounds, each in a fresh process, with
classifier-free guidance and the same prompt. A process makes one image that does not count and then the timed one.

The last line is `ratio DTYPE SIZE VALUE`: the median over the rounds of diffusers' seconds per step divided by
Tessera's of the same round, so above 1 Tessera is faster. --dtype and --size may be given several times.

Needs a release build (build/release). The peer lives in its own virtual environment, .deps/bench-venv, which the
script makes when it is missing (4.7 GB: LibTorch with all its libraries).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".deps" / "bench-venv"
PINS = [
    "torch==2.11.0",
    "diffusers==0.42.1",
    "transformers==5.23.0",
    "accelerate==1.15.0",
    "safetensors==0.8.0",
    "sentencepiece==0.2.3",
    "protobuf==7.36.2",
    "numpy==2.4.6",
]
PROMPT = "a red apple on a wooden table"  # what `tessera bench` draws
NEGATIVE_PROMPT = ""
GUIDANCE = 4.5
TORCH_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", action="append", choices=sorted(TORCH_DTYPES), help="default: both")
    parser.add_argument(
        "--size", action="append", type=int, choices=[256, 512, 1024, 2048], help="image side, default: 512 and 1024"
    )
    parser.add_argument("--blocks", type=int, default=28, help="transformer blocks (default: 28)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="denoising steps of an image (default: 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tessera", type=pathlib.Path, help="the program (default: build/release/bin/tessera)")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "bench-models", help="for the models")
    parser.add_argument("--task", choices=["make", "peer"], help=argparse.SUPPRESS)
    return parser.parse_args()


def ensure_environment():
    """Makes the virtual environment once; the marker names what is in it."""
    marker = VENV / "pins"
    wanted = "\n".join(PINS)
    python = VENV / "bin" / "python"
    if not marker.exists() or marker.read_text() != wanted:
        print(f"making {VENV.relative_to(ROOT)} (once, several minutes) …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINS], check=True)
        marker.write_text(wanted)
    return python


def model_folder(arguments, dtype):
    return arguments.folder / f"pixart-sigma-xl-{arguments.blocks}-{dtype}"


def set_native_size(folder, size):
    """Makes `size` the model's own: a folder for another size would round the request to that one's sizes."""
    config = folder / "transformer" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"sample_size": size // 8}, indent=2))


def make_model(arguments, dtype):
    """Runs inside the virtual environment."""
    import shutil

    import torch
    from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, PixArtTransformer2DModel
    from transformers import T5Config, T5EncoderModel

    folder = model_folder(arguments, dtype)
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    torch.manual_seed(0)
    torch_dtype = getattr(torch, TORCH_DTYPES[dtype])
    torch.set_default_dtype(torch_dtype)
    PixArtTransformer2DModel(
        num_attention_heads=16,
        attention_head_dim=72,
        in_channels=4,
        out_channels=8,
        num_layers=arguments.blocks,
        cross_attention_dim=1152,
        attention_bias=True,
        sample_size=128,
        patch_size=2,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
        caption_channels=4096,
        use_additional_conditions=False,
    ).to(torch_dtype).save_pretrained(unfinished / "transformer")
    T5EncoderModel(
        T5Config(
            vocab_size=1000,
            d_model=4096,
            d_kv=64,
            d_ff=64,
            num_layers=1,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            is_encoder_decoder=False,
            use_cache=False,
        )
    ).to(torch_dtype).save_pretrained(unfinished / "text_encoder")
    AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[8, 8, 8, 8],
        norm_num_groups=4,
        layers_per_block=1,
        latent_channels=4,
        sample_size=1024,
        scaling_factor=0.13025,
    ).to(torch_dtype).save_pretrained(unfinished / "vae")
    DPMSolverMultistepScheduler(beta_schedule="linear", beta_start=0.0001, beta_end=0.02).save_pretrained(
        unfinished / "scheduler"
    )
    shutil.copytree(ROOT / "assets" / "emoji" / "tokenizer", unfinished / "tokenizer")
    tokenizer = unfinished / "tokenizer" / "tokenizer_config.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"model_max_length": 300}, indent=2))
    index = {
        "_class_name": "PixArtSigmaPipeline",
        "_diffusers_version": "0.36.0",
        "scheduler": ["diffusers", "DPMSolverMultistepScheduler"],
        "text_encoder": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "T5Tokenizer"],
        "transformer": ["diffusers", "PixArtTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    (unfinished / "model_index.json").write_text(json.dumps(index, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def run_peer(arguments, dtype, size):
    """Runs inside the virtual environment; prints one JSON object."""
    import resource

    import torch
    from diffusers import PixArtSigmaPipeline

    torch.set_num_threads(arguments.threads)
    pipeline = PixArtSigmaPipeline.from_pretrained(
        model_folder(arguments, dtype), torch_dtype=getattr(torch, TORCH_DTYPES[dtype])
    )
    pipeline.set_progress_bar_config(disable=True)
    ends = []

    def step_ended(step, timestep, latents):
        ends.append(time.perf_counter())

    seconds = []
    for image in range(2):
        ends.clear()
        pipeline(
            PROMPT,
            negative_prompt=NEGATIVE_PROMPT,
            width=size,
            height=size,
            num_inference_steps=arguments.steps + 1,
            guidance_scale=GUIDANCE,
            clean_caption=False,
            use_resolution_binning=False,
            output_type="latent",
            generator=torch.Generator().manual_seed(1),
            callback=step_ended,
        )
        # Differences between ends, so that neither the text encoder nor the set-up counts; hence one step more.
        seconds = [later - earlier for earlier, later in zip(ends, ends[1:])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"step_seconds": statistics.median(seconds), "peak_memory_bytes": peak}))


def last_json(output):
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


def run_peer_process(python, arguments, dtype, size):
    command = [python, __file__, "--task=peer", f"--dtype={dtype}", f"--size={size}", f"--folder={arguments.folder}"]
    command += [f"--{name}={getattr(arguments, name)}" for name in ("blocks", "threads", "steps")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"TQDM_DISABLE": "1"})
    return last_json(done.stdout)


def run_tessera(arguments, dtype, size):
    program = arguments.tessera or ROOT / "build" / "release" / "bin" / "tessera"
    command = [program, "bench", "--json", f"--model={model_folder(arguments, dtype)}", f"--dtype={dtype}"]
    command += [f"--size={size}x{size}", f"--steps={arguments.steps}", f"--threads={arguments.threads}", "--repeat=1"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures = last_json(done.stdout)
    return {"step_seconds": figures["step_seconds_median"], "peak_memory_bytes": figures["peak_memory_bytes"]}


def compare(python, arguments, dtype, size):
    ratios, peer_peaks, own_peaks = [], [], []
    for number in range(arguments.rounds):
        peer = run_peer_process(python, arguments, dtype, size)
        own = run_tessera(arguments, dtype, size)
        ratios.append(peer["step_seconds"] / own["step_seconds"])
        peer_peaks.append(peer["peak_memory_bytes"])
        own_peaks.append(own["peak_memory_bytes"])
        print(
            f"round {number + 1}: diffusers {peer['step_seconds']:.3f} s, tessera {own['step_seconds']:.3f} s per step, "
            f"ratio {ratios[-1]:.3f}",
            flush=True,
        )
    gib = 1 << 30
    print(f"peak memory {dtype} {size}: diffusers {max(peer_peaks) / gib:.2f} GiB, tessera {max(own_peaks) / gib:.2f} GiB")
    print(f"ratios {dtype} {size}: {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"ratio {dtype} {size} {statistics.median(ratios):.3f}", flush=True)


def main():
    arguments = parse_arguments()
    dtypes = arguments.dtype or ["bf16", "fp32"]
    sizes = arguments.size or [512, 1024]
    if arguments.task == "make":
        return make_model(arguments, dtypes[0])
    if arguments.task == "peer":
        return run_peer(arguments, dtypes[0], sizes[0])
    python = ensure_environment()
    for dtype in dtypes:
        if not model_folder(arguments, dtype).exists():
            print(f"making {model_folder(arguments, dtype)} …", flush=True)
            command = [python, __file__, "--task=make", f"--dtype={dtype}", f"--blocks={arguments.blocks}"]
            subprocess.run([*command, f"--folder={arguments.folder}"], check=True)
        for size in sizes:
            set_native_size(model_folder(arguments, dtype), size)
            compare(python, arguments, dtype, size)


if __name__ == "__main__":
    main()
