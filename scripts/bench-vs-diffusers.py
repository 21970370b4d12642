#!/usr/bin/env python3
"""Compares Tessera with diffusers on one machine: seconds per denoising step and peak memory.

    scripts/bench-vs-diffusers.py [--family pixart|flux|hunyuandit|sd3] [--dtype bf16|fp32] [--size 512|1024] [--blocks N]
                                  [--threads 2] [--rounds 3]

Makes a model folder with random weights in the diffusers layout, at the full width of a published model:
  pixart      PixArt-Sigma XL/2: 1152 wide, 16 heads of 72, text of 300 tokens, 28 blocks
  flux        FLUX.1-dev: 3072 wide, 24 heads of 128, text of 512 tokens, cut to 2 double and 4 single blocks
  hunyuandit  HunyuanDiT 1.1: 1408 wide, 16 heads of 88, text of 77 + 256 tokens, cut to 8 blocks
  sd3         Stable Diffusion 3 medium: 1536 wide, 24 heads of 64, text of 77 + 256 tokens, cut to 6 blocks
(the text encoders have the real widths but one thin layer, and the autoencoder is tiny, because neither is part of a
denoising step), then runs both programs in turn, several rounds, each in a fresh process, with the model's own guidance
and the same prompt. A process makes one image that does not count and then the timed one.

The last line is `ratio DTYPE SIZE VALUE` (of other families than pixart `ratio FAMILY DTYPE SIZE VALUE`): the median over the rounds of diffusers' seconds per step divided by
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
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "scripts" / "bench-requirements.txt"
ENVIRONMENT = "bench-venv"
PROMPT = "a red apple on a wooden table"  # what `tessera bench` draws
DEFAULT_BLOCKS = {"pixart": 28, "flux": 6, "hunyuandit": 8, "sd3": 6}
TORCH_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(DEFAULT_BLOCKS), default="pixart")
    parser.add_argument("--dtype", action="append", choices=sorted(TORCH_DTYPES), help="default: both")
    parser.add_argument(
        "--size", action="append", type=int, choices=[256, 512, 1024, 2048], help="image side, default: 512 and 1024"
    )
    parser.add_argument("--blocks", type=int, help="transformer blocks (default: 28, 6 and 6); of flux a third is double")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="denoising steps of an image (default: 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tessera", type=pathlib.Path, help="the program (default: build/release/bin/tessera)")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "bench-models", help="for the models")
    parser.add_argument("--task", choices=["make", "peer"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.blocks = arguments.blocks or DEFAULT_BLOCKS[arguments.family]
    return arguments


def ensure_environment():
    command = [ROOT / "scripts" / "python-environment.sh", ENVIRONMENT, REQUIREMENTS.read_text().strip(), "-r", REQUIREMENTS]
    subprocess.run(command, check=True)
    return ROOT / ".deps" / ENVIRONMENT / "bin" / "python"


def model_folder(arguments, dtype):
    names = {"pixart": "pixart-sigma-xl", "flux": "flux-dev", "hunyuandit": "hunyuandit-1.1", "sd3": "sd3-medium"}
    name = names[arguments.family]
    return arguments.folder / f"{name}-{arguments.blocks}-{dtype}"


def set_native_size(arguments, folder, size):
    """Makes `size` PixArt's own: a folder for another size would round the request to that one's sizes."""
    if arguments.family == "pixart":
        config = folder / "transformer" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"sample_size": size // 8}, indent=2))


def save_t5(folder, torch_dtype, width=4096):
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=1000,
        d_model=width,
        d_kv=64,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        is_encoder_decoder=False,
        use_cache=False,
    )
    T5EncoderModel(config).to(torch_dtype).save_pretrained(folder)


def save_clip(folder, torch_dtype, width, projected):
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=1514,
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=width,
        eos_token_id=2,
    )
    (CLIPTextModelWithProjection if projected else CLIPTextModel)(config).to(torch_dtype).save_pretrained(folder)


def save_autoencoder(folder, torch_dtype, channels):
    from diffusers import AutoencoderKL

    AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[8, 8, 8, 8],
        norm_num_groups=4,
        layers_per_block=1,
        latent_channels=channels,
        sample_size=1024,
        scaling_factor=0.13025,
        shift_factor=None if channels == 4 else 0.0609,
        use_quant_conv=channels == 4,
        use_post_quant_conv=channels == 4,
    ).to(torch_dtype).save_pretrained(folder)


def save_t5_tokenizer(folder, tokens):
    import shutil

    shutil.copytree(ROOT / "assets" / "emoji" / "tokenizer", folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_max_length": tokens}, indent=2))


def save_bert(folder, torch_dtype):
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=404,
        hidden_size=1024,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=96,
    )
    BertModel(config).to(torch_dtype).save_pretrained(folder)


def save_golden_tokenizer(folder, golden):
    import shutil

    shutil.copytree(ROOT / "tests" / "golden" / "pipelines" / golden, folder)


def make_pixart(arguments, folder, torch_dtype):
    from diffusers import DPMSolverMultistepScheduler, PixArtTransformer2DModel

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
    ).to(torch_dtype).save_pretrained(folder / "transformer")
    save_t5(folder / "text_encoder", torch_dtype)
    save_t5_tokenizer(folder / "tokenizer", 300)
    save_autoencoder(folder / "vae", torch_dtype, 4)
    scheduler = DPMSolverMultistepScheduler(beta_schedule="linear", beta_start=0.0001, beta_end=0.02)
    scheduler.save_pretrained(folder / "scheduler")
    return "PixArtSigmaPipeline", {
        "scheduler": ["diffusers", "DPMSolverMultistepScheduler"],
        "text_encoder": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "T5Tokenizer"],
        "transformer": ["diffusers", "PixArtTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }


def make_flux(arguments, folder, torch_dtype):
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel

    FluxTransformer2DModel(
        in_channels=64,
        num_layers=arguments.blocks // 3,
        num_single_layers=arguments.blocks - arguments.blocks // 3,
        attention_head_dim=128,
        num_attention_heads=24,
        joint_attention_dim=4096,
        pooled_projection_dim=768,
        guidance_embeds=True,
    ).to(torch_dtype).save_pretrained(folder / "transformer")
    save_clip(folder / "text_encoder", torch_dtype, 768, projected=False)
    save_golden_tokenizer(folder / "tokenizer", "flux_dev/tokenizer")
    save_t5(folder / "text_encoder_2", torch_dtype)
    save_t5_tokenizer(folder / "tokenizer_2", 512)
    save_autoencoder(folder / "vae", torch_dtype, 16)
    FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True).save_pretrained(folder / "scheduler")
    return "FluxPipeline", {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "T5Tokenizer"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }


def make_hunyuandit(arguments, folder, torch_dtype):
    from diffusers import DDPMScheduler, HunyuanDiT2DModel

    HunyuanDiT2DModel(
        num_attention_heads=16,
        attention_head_dim=88,
        in_channels=4,
        patch_size=2,
        activation_fn="gelu-approximate",
        sample_size=128,
        hidden_size=1408,
        num_layers=arguments.blocks,
        mlp_ratio=4.3637,
        learn_sigma=True,
        cross_attention_dim=1024,
        norm_type="layer_norm",
        cross_attention_dim_t5=2048,
        pooled_projection_dim=1024,
        text_len=77,
        text_len_t5=256,
        use_style_cond_and_image_meta_size=True,
    ).to(torch_dtype).save_pretrained(folder / "transformer")
    save_bert(folder / "text_encoder", torch_dtype)
    save_golden_tokenizer(folder / "tokenizer", "hunyuan11/tokenizer")
    save_t5(folder / "text_encoder_2", torch_dtype, width=2048)
    save_golden_tokenizer(folder / "tokenizer_2", "hunyuan11/tokenizer_2")
    save_autoencoder(folder / "vae", torch_dtype, 4)
    scheduler = DDPMScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.03,
        clip_sample=False,
        prediction_type="v_prediction",
        steps_offset=1,
        timestep_spacing="leading",
    )
    scheduler.save_pretrained(folder / "scheduler")
    return "HunyuanDiTPipeline", {
        "feature_extractor": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
        "scheduler": ["diffusers", "DDPMScheduler"],
        "text_encoder": ["transformers", "BertModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "BertTokenizer"],
        "tokenizer_2": ["transformers", "T5Tokenizer"],
        "transformer": ["diffusers", "HunyuanDiT2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }


def make_sd3(arguments, folder, torch_dtype):
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel

    SD3Transformer2DModel(
        sample_size=128,
        patch_size=2,
        in_channels=16,
        num_layers=arguments.blocks,
        attention_head_dim=64,
        num_attention_heads=24,
        joint_attention_dim=4096,
        caption_projection_dim=1536,
        pooled_projection_dim=2048,
        out_channels=16,
        pos_embed_max_size=192,
    ).to(torch_dtype).save_pretrained(folder / "transformer")
    for suffix, width in (("", 768), ("_2", 1280)):
        save_clip(folder / f"text_encoder{suffix}", torch_dtype, width, projected=True)
        save_golden_tokenizer(folder / f"tokenizer{suffix}", f"sd3/tokenizer{suffix}")
    save_t5(folder / "text_encoder_3", torch_dtype)
    save_t5_tokenizer(folder / "tokenizer_3", 256)
    save_autoencoder(folder / "vae", torch_dtype, 16)
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    return "StableDiffusion3Pipeline", {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "text_encoder_3": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"],
        "tokenizer_3": ["transformers", "T5Tokenizer"],
        "transformer": ["diffusers", "SD3Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }


def make_model(arguments, dtype):
    """Runs inside the virtual environment."""
    import shutil

    import torch

    folder = model_folder(arguments, dtype)
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    torch.manual_seed(0)
    torch_dtype = getattr(torch, TORCH_DTYPES[dtype])
    torch.set_default_dtype(torch_dtype)
    makers = {"pixart": make_pixart, "flux": make_flux, "hunyuandit": make_hunyuandit, "sd3": make_sd3}
    pipeline, components = makers[arguments.family](arguments, unfinished, torch_dtype)
    index = {"_class_name": pipeline, "_diffusers_version": "0.36.0"} | components
    (unfinished / "model_index.json").write_text(json.dumps(index, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def run_peer(arguments, dtype, size):
    """Runs inside the virtual environment; prints one JSON object."""
    import resource

    import diffusers
    import torch

    torch.set_num_threads(arguments.threads)
    pipelines = {
        "pixart": "PixArtSigmaPipeline",
        "flux": "FluxPipeline",
        "hunyuandit": "HunyuanDiTPipeline",
        "sd3": "StableDiffusion3Pipeline",
    }
    pipeline = getattr(diffusers, pipelines[arguments.family]).from_pretrained(
        model_folder(arguments, dtype), torch_dtype=getattr(torch, TORCH_DTYPES[dtype])
    )
    pipeline.set_progress_bar_config(disable=True)
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
    }[arguments.family]
    seconds = []
    for image in range(2):
        ends.clear()
        pipeline(
            PROMPT,
            width=size,
            height=size,
            num_inference_steps=arguments.steps + 1,
            output_type="latent",
            generator=torch.Generator().manual_seed(1),
            **options,
        )
        # Differences between ends, so that neither the text encoder nor the set-up counts; hence one step more.
        seconds = [later - earlier for earlier, later in zip(ends, ends[1:])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"step_seconds": statistics.median(seconds), "peak_memory_bytes": peak}))


def last_json(output):
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


def run_peer_process(python, arguments, dtype, size):
    command = [python, __file__, "--task=peer", f"--dtype={dtype}", f"--size={size}", f"--folder={arguments.folder}"]
    command += [f"--{name}={getattr(arguments, name)}" for name in ("family", "blocks", "threads", "steps")]
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
    family = "" if arguments.family == "pixart" else f"{arguments.family} "
    print(f"ratio {family}{dtype} {size} {statistics.median(ratios):.3f}", flush=True)


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
            command = [python, __file__, "--task=make", f"--family={arguments.family}", f"--dtype={dtype}"]
            command += [f"--blocks={arguments.blocks}", f"--folder={arguments.folder}"]
            subprocess.run(command, check=True)
        for size in sizes:
            set_native_size(arguments, model_folder(arguments, dtype), size)
            compare(python, arguments, dtype, size)


if __name__ == "__main__":
    main()
