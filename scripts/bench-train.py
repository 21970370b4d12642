#!/usr/bin/env python3
"""Compares Tessera's training with diffusers and PyTorch on one machine: images per second in bf16.

    scripts/bench-train.py [--model embedded|pixart-40m] [--network full|lora] [--recompute] [--rounds 3] [--steps 8]
                           [--threads 2] [--batch N] [--recomputation]

Models:
  embedded    the built-in model, 128 pictures of its data, 64x64 pixels (64 tokens), batches of 64
  pixart-40m  a PixArt of 40 million parameters with random weights: 512 wide, 8 heads, 9 blocks; random pictures of
              256x256 pixels (256 tokens), batches of 8

Tessera is `tessera train` as a user runs it, and the figure is that of its log.jsonl. The peer is a loop as diffusers'
training scripts write it: pictures and captions encoded before the first step, DDPM noise, the loss weighted by min-SNR,
clipping, AdamW (PyTorch's fused one, which is its fastest). It pads captions to the longest of the data and no further.
It runs twice a round, with fp32 weights under autocast to bf16 and with bf16 weights and fp32 master weights, and the
faster of the two counts. LoRA is PEFT's, of rank 16 for the attentions' projections, in both programs. --recompute
turns recomputation of activations (gradient checkpointing) on in both.

Both programs run in turn, several rounds, each in a fresh process; a figure is the median over the steps after the
first two. The last line is `ratio MODEL NETWORK VALUE`: the median over the rounds of Tessera's images per second
divided by the peer's of the same round, so above 1 Tessera is faster. --model and --network may be given several times.

--recomputation compares Tessera with itself: `recomputation MODEL NETWORK VALUE` is the time of a step with
recomputation divided by that of one without, in turn.

Needs a release build (build/release). The peer lives in its own virtual environment, .deps/bench-venv, which the
script makes when it is missing (4.7 GB: LibTorch with all its libraries).
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import time

from bench_models import ROOT, ensure_environment

MODELS = {
    "embedded": {"folder": ROOT / "assets" / "emoji", "size": 64, "batch": 64},
    "pixart-40m": {"size": 256, "batch": 8},
}
PEERS = {"autocast": "fp32 weights under autocast", "bf16": "bf16 weights and fp32 master weights"}
RANK = 16
TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]
WARM_UP = 2
PICTURES = {"embedded": 128, "pixart-40m": 32}
SNR_GAMMA = 5
WORDS = "red green blue apple cat house tree tiger rocket snowman".split()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=sorted(MODELS), help="default: both")
    parser.add_argument("--network", action="append", choices=["full", "lora"], help="default: both")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--recomputation", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, help="default: the model's")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a process (default: 8)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tessera", type=pathlib.Path, default=ROOT / "build" / "release" / "bin" / "tessera")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "bench-train", help="for models and runs")
    parser.add_argument("--task", choices=["make", "peer"], help=argparse.SUPPRESS)
    parser.add_argument("--peer", choices=sorted(PEERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.model = arguments.model or sorted(MODELS)
    arguments.network = arguments.network or ["full", "lora"]
    return arguments


def model_folder(arguments, model):
    return MODELS[model].get("folder", arguments.folder / model)


def data_folder(arguments, model):
    return arguments.folder / f"{model}-data"


def batch_of(arguments, model):
    return arguments.batch or MODELS[model]["batch"]


def copy_emoji(folder):
    folder.mkdir(parents=True)
    (folder / "images").mkdir()
    lines = (ROOT / "examples" / "emoji" / "metadata.jsonl").read_text().splitlines(keepends=True)[: PICTURES["embedded"]]
    for line in lines:
        name = json.loads(line)["file_name"]
        shutil.copy(ROOT / "examples" / "emoji" / name, folder / name)
    (folder / "metadata.jsonl").write_text("".join(lines))


def draw_noise(folder, model):
    import numpy
    from PIL import Image

    folder.mkdir(parents=True)
    random = numpy.random.default_rng(0)
    size = MODELS[model]["size"]
    lines = []
    for number in range(PICTURES[model]):
        Image.fromarray(random.integers(0, 256, (size, size, 3), dtype=numpy.uint8)).save(folder / f"{number}.png")
        text = " ".join(random.choice(WORDS, random.integers(2, 8)))
        lines.append(json.dumps({"file_name": f"{number}.png", "text": text}) + "\n")
    (folder / "metadata.jsonl").write_text("".join(lines))


def make_model(arguments):
    """Runs inside the virtual environment."""
    import torch
    from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, PixArtTransformer2DModel
    from transformers import T5Config, T5EncoderModel

    model = arguments.model[0]
    folder = model_folder(arguments, model)
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(data_folder(arguments, model), ignore_errors=True)
    draw_noise(data_folder(arguments, model), model)
    torch.manual_seed(0)
    PixArtTransformer2DModel(
        num_attention_heads=8,
        attention_head_dim=64,
        in_channels=4,
        out_channels=8,
        num_layers=9,
        cross_attention_dim=512,
        attention_bias=True,
        sample_size=MODELS[model]["size"] // 8,
        patch_size=2,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
        caption_channels=512,
        use_additional_conditions=False,
    ).to(torch.bfloat16).save_pretrained(unfinished / "transformer")
    T5EncoderModel(
        T5Config(
            vocab_size=1000,
            d_model=512,
            d_kv=64,
            d_ff=64,
            num_layers=1,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            is_encoder_decoder=False,
            use_cache=False,
        )
    ).to(torch.bfloat16).save_pretrained(unfinished / "text_encoder")
    shutil.copytree(ROOT / "assets" / "emoji" / "tokenizer", unfinished / "tokenizer")
    AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[8, 8, 8, 8],
        norm_num_groups=4,
        layers_per_block=1,
        latent_channels=4,
        sample_size=MODELS[model]["size"],
    ).to(torch.bfloat16).save_pretrained(unfinished / "vae")
    scheduler = DPMSolverMultistepScheduler(beta_schedule="linear", beta_start=0.0001, beta_end=0.02)
    scheduler.save_pretrained(unfinished / "scheduler")
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


def encode_data(arguments, model):
    """The latents, text states and masks of the data, [samples, …] each."""
    import numpy
    import torch
    from diffusers import AutoencoderKL
    from PIL import Image
    from transformers import T5EncoderModel, T5Tokenizer

    folder, data = model_folder(arguments, model), data_folder(arguments, model)
    rows = [json.loads(line) for line in (data / "metadata.jsonl").read_text().splitlines()]
    autoencoder = AutoencoderKL.from_pretrained(folder / "vae", torch_dtype=torch.float32)
    encoder = T5EncoderModel.from_pretrained(folder / "text_encoder", torch_dtype=torch.float32)
    tokens = T5Tokenizer.from_pretrained(folder / "tokenizer")(
        [row["text"] for row in rows], padding="longest", return_tensors="pt"
    )
    size = (MODELS[model]["size"],) * 2
    pictures = [Image.open(data / row["file_name"]).convert("RGB").resize(size) for row in rows]
    with torch.no_grad():
        pixels = torch.from_numpy(numpy.stack([numpy.array(picture) for picture in pictures]))
        pixels = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
        latents = torch.cat([autoencoder.encode(part).latent_dist.sample() for part in pixels.split(8)])
        text = encoder(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask)[0]
    return latents * autoencoder.config.scaling_factor, text, tokens.attention_mask


class PeerWeights:
    """The weights that AdamW updates: the parameters, or fp32 copies of bf16 parameters."""

    def __init__(self, parameters):
        import torch

        self.parameters = parameters
        self.narrow = any(parameter.dtype == torch.bfloat16 for parameter in parameters)
        self.moved = [p.detach().float().requires_grad_() for p in parameters] if self.narrow else parameters
        self.optimizer = torch.optim.AdamW(self.moved, lr=1e-5, weight_decay=0.01, fused=True)

    def step(self):
        import torch

        if self.narrow:
            for moved, parameter in zip(self.moved, self.parameters):
                moved.grad = None if parameter.grad is None else parameter.grad.float()
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.moved, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.narrow:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.moved)


def load_peer(arguments, folder):
    import torch
    from diffusers import PixArtTransformer2DModel

    narrow = arguments.peer == "bf16"
    transformer = PixArtTransformer2DModel.from_pretrained(
        folder / "transformer", torch_dtype=torch.bfloat16 if narrow else torch.float32
    )
    transformer.train()
    if arguments.network[0] == "lora":
        from peft import LoraConfig, inject_adapter_in_model

        transformer.requires_grad_(False)
        config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=TARGETS, init_lora_weights="gaussian")
        transformer = inject_adapter_in_model(config, transformer)
    if arguments.recompute:
        transformer.enable_gradient_checkpointing()
    return transformer


def run_peer(arguments):
    """Runs inside the virtual environment; prints one JSON object."""
    import torch
    from diffusers import DDPMScheduler

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = arguments.model[0]
    latents, text, masks = encode_data(arguments, model)
    transformer = load_peer(arguments, model_folder(arguments, model))
    weights = PeerWeights([parameter for parameter in transformer.parameters() if parameter.requires_grad])
    scheduler = DDPMScheduler.from_pretrained(model_folder(arguments, model) / "scheduler")
    snr = scheduler.alphas_cumprod / (1 - scheduler.alphas_cumprod)
    loss_weights = snr.clamp(max=SNR_GAMMA) / snr
    if arguments.peer == "bf16":
        text = text.bfloat16()
    batch, seconds = batch_of(arguments, model), []
    for _ in range(WARM_UP + arguments.steps):
        begin = time.perf_counter()
        chosen = torch.randint(len(latents), (batch,))
        timesteps = torch.randint(scheduler.config.num_train_timesteps, (batch,))
        noise = torch.randn_like(latents[chosen])
        noisy = scheduler.add_noise(latents[chosen], noise, timesteps)
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.peer == "autocast"):
            output = transformer(
                noisy.to(text.dtype),
                encoder_hidden_states=text[chosen],
                encoder_attention_mask=masks[chosen],
                timestep=timesteps,
                added_cond_kwargs={"resolution": None, "aspect_ratio": None},
                return_dict=False,
            )[0]
        prediction = output.chunk(2, dim=1)[0].float()
        loss = (loss_weights[timesteps] * (prediction - noise).square().mean((1, 2, 3))).mean()
        loss.backward()
        weights.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"images_per_second": batch / statistics.median(seconds[WARM_UP:])}))


def options_of(arguments, model, network):
    options = [f"--model={model}", f"--network={network}", f"--folder={arguments.folder}"]
    options += [f"--{name}={getattr(arguments, name)}" for name in ("threads", "steps")]
    options += [f"--batch={batch_of(arguments, model)}"] + (["--recompute"] if arguments.recompute else [])
    return options


def speed_of_peer(python, arguments, model, network, peer):
    command = [python, __file__, "--task=peer", f"--peer={peer}", *options_of(arguments, model, network)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])["images_per_second"]


def speed_of_tessera(arguments, model, network, recompute):
    run = arguments.folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.parent.mkdir(parents=True, exist_ok=True)
    config = arguments.folder / "run.yaml"
    config.write_text(
        f"""model: {model_folder(arguments, model)}
output: {run}
datasets: [{{folder_path: {data_folder(arguments, model)}, resolution: {MODELS[model]["size"]}}}]
network: {{type: {network}, linear: {RANK}, target_modules: [{", ".join(TARGETS)}]}}
train: {{steps: {WARM_UP + arguments.steps}, batch_size: {batch_of(arguments, model)}, lr: 1e-5, dtype: bf16,
        gradient_checkpointing: {str(recompute).lower()}, snr_gamma: {SNR_GAMMA}}}
save: {{save_every: 0}}
"""
    )
    command = [arguments.tessera, "train", config, "--threads", str(arguments.threads)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    speeds = [line["images_per_second"] for line in lines if "images_per_second" in line]
    return statistics.median(speeds[WARM_UP:])


def compare(python, arguments, model, network):
    ratios = []
    for number in range(arguments.rounds):
        peers = {peer: speed_of_peer(python, arguments, model, network, peer) for peer in PEERS}
        own = speed_of_tessera(arguments, model, network, arguments.recompute)
        faster = max(peers, key=peers.get)
        ratios.append(own / peers[faster])
        shown = ", ".join(f"{speed:.2f} with {PEERS[peer]}" for peer, speed in peers.items())
        print(
            f"round {number + 1}: diffusers {shown}; tessera {own:.2f} images per second, ratio {ratios[-1]:.3f}, "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    print(f"ratios {model} {network}: {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"ratio {model} {network} {statistics.median(ratios):.3f}", flush=True)


def compare_recomputation(arguments, model, network):
    ratios = []
    for number in range(arguments.rounds):
        kept, recomputed = (speed_of_tessera(arguments, model, network, recompute) for recompute in (False, True))
        ratios.append(kept / recomputed)
        print(
            f"round {number + 1}: {kept:.2f} images per second, {recomputed:.2f} with recomputation, "
            f"ratio {ratios[-1]:.3f}, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    print(f"ratios {model} {network}: {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"recomputation {model} {network} {statistics.median(ratios):.3f}", flush=True)


def main():
    arguments = parse_arguments()
    if arguments.task == "make":
        return make_model(arguments)
    if arguments.task == "peer":
        return run_peer(arguments)
    python = ensure_environment()
    for model in arguments.model:
        if model == "embedded" and not data_folder(arguments, model).exists():
            copy_emoji(data_folder(arguments, model))
        if not model_folder(arguments, model).exists():
            command = [python, __file__, "--task=make", f"--model={model}", f"--folder={arguments.folder}"]
            subprocess.run(command, check=True)
        for network in arguments.network:
            if arguments.recomputation:
                compare_recomputation(arguments, model, network)
            else:
                compare(python, arguments, model, network)


if __name__ == "__main__":
    main()
