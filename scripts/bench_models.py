"""Code that the comparisons of one denoising step share: models with random weights in the diffusers layout, at the full
width of a published model, the environment of the peers, and Tessera's side of a comparison.

  pixart      PixArt-Sigma XL/2: 1152 wide, 16 heads of 72, text of 300 tokens, 28 blocks
  flux        FLUX.1-dev: 3072 wide, 24 heads of 128, text of 512 tokens, cut to 2 double and 4 single blocks
  hunyuandit  HunyuanDiT 1.1: 1408 wide, 16 heads of 88, text of 77 + 256 tokens, cut to 8 blocks
  sd3         Stable Diffusion 3 medium: 1536 wide, 24 heads of 64, text of 77 + 256 tokens, cut to 6 blocks
  z_image     Z-Image Turbo: 3840 wide, 30 heads of 128, the prompt's own tokens, cut to 4 blocks after the refiners' 4
  flux2       FLUX.2 klein 4B: 3072 wide, 24 heads of 128, text of 512 tokens, cut to 1 double and 4 single blocks
  qwen_image  Qwen-Image: 3072 wide, 24 heads of 128, the prompt's own tokens, cut to 4 blocks
  decode      one thin block of a PixArt before the autoencoder of Stable Diffusion XL in full: 128, 256, 512 and 512 channels

The text encoders have the real widths but one thin layer, and except for the last the autoencoder is tiny, because neither
is part of a denoising step. The peers run in a virtual environment, .deps/bench-venv, which is created if missing (4.8 GB:
LibTorch with all its libraries).
"""

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "scripts" / "bench-requirements.txt"
ENVIRONMENT = "bench-venv"
PROMPT = "a red apple on a wooden table"  # as in `tessera bench`
DEFAULT_BLOCKS = {
    "pixart": 28,
    "flux": 6,
    "hunyuandit": 8,
    "sd3": 6,
    "z_image": 4,
    "flux2": 5,
    "qwen_image": 4,
    "decode": 1,
}
TORCH_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def parse_arguments(description, families, tasks, blocks=DEFAULT_BLOCKS):
    """Options of a comparison. A script passes --task to itself when it runs inside the environment."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(families), default="pixart")
    parser.add_argument("--dtype", action="append", choices=sorted(TORCH_DTYPES), help="default: both")
    parser.add_argument(
        "--size", action="append", type=int, choices=[256, 512, 1024, 2048], help="image side, default: 512 and 1024"
    )
    parser.add_argument("--blocks", type=int, help="transformer blocks; of flux a third is double, of flux2 a fifth")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="denoising steps of an image (default: 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tessera", type=pathlib.Path, help="the program (default: build/release/bin/tessera)")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "bench-models", help="for the models")
    parser.add_argument("--task", choices=["make", *tasks], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.blocks = arguments.blocks or blocks[arguments.family]
    arguments.dtype = arguments.dtype or ["bf16", "fp32"]
    arguments.size = arguments.size or [512, 1024]
    return arguments


def ensure_environment():
    """Returns the Python of the peers' environment, which is created if missing."""
    command = [ROOT / "scripts" / "python-environment.sh", ENVIRONMENT, REQUIREMENTS.read_text().strip(), "-r", REQUIREMENTS]
    subprocess.run(command, check=True)
    return ROOT / ".deps" / ENVIRONMENT / "bin" / "python"


def model_folder(arguments, dtype):
    names = {
        "pixart": "pixart-sigma-xl",
        "flux": "flux-dev",
        "hunyuandit": "hunyuandit-1.1",
        "sd3": "sd3-medium",
        "z_image": "z-image-turbo",
        "flux2": "flux2-klein-4b",
        "qwen_image": "qwen-image",
        "decode": "decode",
    }
    name = names[arguments.family]
    return arguments.folder / f"{name}-{arguments.blocks}-{dtype}"


def set_native_size(arguments, dtype, size):
    """Makes `size` PixArt's own: a folder for another size would round the request to that one's sizes."""
    if arguments.family in ("pixart", "decode"):
        config = model_folder(arguments, dtype) / "transformer" / "config.json"
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


def save_autoencoder(folder, torch_dtype, channels, full=False):
    from diffusers import AutoencoderKL

    AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[128, 256, 512, 512] if full else [8, 8, 8, 8],
        norm_num_groups=32 if full else 4,
        layers_per_block=2 if full else 1,
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


def save_golden_part(folder, golden, goldens="golden"):
    import shutil

    shutil.copytree(ROOT / "tests" / goldens / "pipelines" / golden, folder)


def newer_golden_config(golden, component):
    return json.loads((ROOT / "tests" / "golden-newer" / "pipelines" / golden / component / "config.json").read_text())


def save_qwen3(folder, torch_dtype, golden, layers):
    """The golden's encoder with the width of Qwen3 4B."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = newer_golden_config(golden, "text_encoder") | {"hidden_size": 2560, "num_hidden_layers": layers}
    Qwen3ForCausalLM(Qwen3Config(**config | {"max_window_layers": layers})).to(torch_dtype).save_pretrained(folder)


def save_newer_golden_parts(folder, torch_dtype, golden, autoencoder):
    """The golden's tokenizer, and its autoencoder and scheduler by configuration."""
    for component in ("tokenizer", "scheduler"):
        save_golden_part(folder / component, f"{golden}/{component}", "golden-newer")
    autoencoder.from_config(newer_golden_config(golden, "vae")).to(torch_dtype).save_pretrained(folder / "vae")


def make_pixart(arguments, folder, torch_dtype):
    from diffusers import DPMSolverMultistepScheduler, PixArtTransformer2DModel

    thin = arguments.family == "decode"
    PixArtTransformer2DModel(
        num_attention_heads=2 if thin else 16,
        attention_head_dim=72,
        in_channels=4,
        out_channels=8,
        num_layers=arguments.blocks,
        cross_attention_dim=144 if thin else 1152,
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
    save_autoencoder(folder / "vae", torch_dtype, 4, full=thin)
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
    save_golden_part(folder / "tokenizer", "flux_dev/tokenizer")
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
    save_golden_part(folder / "tokenizer", "hunyuan11/tokenizer")
    save_t5(folder / "text_encoder_2", torch_dtype, width=2048)
    save_golden_part(folder / "tokenizer_2", "hunyuan11/tokenizer_2")
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
        save_golden_part(folder / f"tokenizer{suffix}", f"sd3/tokenizer{suffix}")
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


def make_z_image(arguments, folder, torch_dtype):
    from diffusers import AutoencoderKL, ZImageTransformer2DModel

    ZImageTransformer2DModel(
        dim=3840,
        n_layers=arguments.blocks,
        n_refiner_layers=2,
        n_heads=30,
        n_kv_heads=30,
        cap_feat_dim=2560,
    ).to(torch_dtype).save_pretrained(folder / "transformer")
    save_qwen3(folder / "text_encoder", torch_dtype, "z_image_turbo", layers=3)
    save_newer_golden_parts(folder, torch_dtype, "z_image_turbo", AutoencoderKL)
    return "ZImagePipeline", {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3Model"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "ZImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }


def make_flux2(arguments, folder, torch_dtype):
    from diffusers import AutoencoderKLFlux2, Flux2Transformer2DModel

    Flux2Transformer2DModel(
        in_channels=128,
        num_layers=arguments.blocks // 5,
        num_single_layers=arguments.blocks - arguments.blocks // 5,
        attention_head_dim=128,
        num_attention_heads=24,
        joint_attention_dim=3 * 2560,
        guidance_embeds=False,
    ).to(torch_dtype).save_pretrained(folder / "transformer")
    save_qwen3(folder / "text_encoder", torch_dtype, "flux2_klein", layers=28)  # the states of the 27th are read
    save_newer_golden_parts(folder, torch_dtype, "flux2_klein", AutoencoderKLFlux2)
    return "Flux2KleinPipeline", {
        "is_distilled": True,
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3ForCausalLM"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "Flux2Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLFlux2"],
    }


def make_qwen_image(arguments, folder, torch_dtype):
    from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    QwenImageTransformer2DModel(
        num_layers=arguments.blocks,
        attention_head_dim=128,
        num_attention_heads=24,
        joint_attention_dim=3584,
    ).to(torch_dtype).save_pretrained(folder / "transformer")
    config = newer_golden_config("qwen_image", "text_encoder")
    config["text_config"] |= {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}
    config["text_config"]["rope_parameters"]["mrope_section"] = [16, 24, 24]  # the half of a head of 128
    config["vision_config"] |= {"out_hidden_size": 3584}
    encoder = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**config))
    encoder.to(torch_dtype).save_pretrained(folder / "text_encoder")
    save_newer_golden_parts(folder, torch_dtype, "qwen_image", AutoencoderKLQwenImage)
    return "QwenImagePipeline", {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLQwenImage"],
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
    makers = {
        "pixart": make_pixart,
        "flux": make_flux,
        "hunyuandit": make_hunyuandit,
        "sd3": make_sd3,
        "z_image": make_z_image,
        "flux2": make_flux2,
        "qwen_image": make_qwen_image,
        "decode": make_pixart,
    }
    pipeline, components = makers[arguments.family](arguments, unfinished, torch_dtype)
    index = {"_class_name": pipeline, "_diffusers_version": "0.36.0"} | components
    (unfinished / "model_index.json").write_text(json.dumps(index, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def ensure_model(python, script, arguments, dtype):
    """Makes the model if it is missing, by running `script` inside the environment with --task=make."""
    if model_folder(arguments, dtype).exists():
        return
    print(f"making {model_folder(arguments, dtype)} …", flush=True)
    command = [python, script, "--task=make", f"--family={arguments.family}", f"--dtype={dtype}"]
    command += [f"--blocks={arguments.blocks}", f"--folder={arguments.folder}"]
    subprocess.run(command, check=True)


def last_json(output):
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


def run_tessera(arguments, dtype, size):
    """Seconds of a step, or of decoding, and peak memory of a process."""
    program = arguments.tessera or ROOT / "build" / "release" / "bin" / "tessera"
    command = [program, "bench", "--json", f"--model={model_folder(arguments, dtype)}", f"--dtype={dtype}"]
    command += [f"--size={size}x{size}", f"--steps={arguments.steps}", f"--threads={arguments.threads}", "--repeat=1"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures = last_json(done.stdout)
    seconds = figures["decode_seconds" if arguments.family == "decode" else "step_seconds_median"]
    return {"seconds": seconds, "peak_memory_bytes": figures["peak_memory_bytes"]}
