#!/usr/bin/env python3
"""Converts weights that Tessera does not read to a model folder that it reads.

    python3 scripts/convert-model.py MODEL NEW_FOLDER
    python3 scripts/convert-model.py FILE NEW_FOLDER --base MODEL

MODEL is a folder in the diffusers layout whose weights are PyTorch pickles (.bin), quantized (nf4, fp4 or int8 of
bitsandbytes) or fp8, with scales or without. Weights that are packed become bf16; all else is copied as it is.

FILE is one checkpoint file of a transformer of FLUX.1 or Stable Diffusion 3 (safetensors, also in fp8, .ckpt, or GGUF), or
a LoRA. NEW_FOLDER becomes a copy of the model that it was made from, a folder or a name on the hub, with that
transformer, or with the LoRA merged into it.

Needs torch and safetensors; for files also diffusers, transformers, accelerate and sentencepiece; for GGUF the package
gguf, for LoRA peft. Pickles are read without running code that is in them.
"""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
FP8_SCALES = (".scale_weight", ".weight_scale", ".weight_scale_inv")
FP8_REST = (".scale_input", ".input_scale")
LORA_NAMES = (".lora_A.", ".lora_B.", ".lora_up.", ".lora_down.", ".lora.up.", ".lora.down.", "lora_unet_", "lora_transformer_")


def fail(message):
    sys.exit(f"convert-model.py: {message}")


def wanted(module):
    """Imports a module, or exits with how to install it."""
    try:
        return __import__(module, fromlist=["x"])
    except ImportError as error:
        fail(f"{error}; install what is missing with: python3 -m pip install {module.split('.')[0]}")


def blockwise(values, scales, block):
    """Multiplies values [n] by the scales of their blocks of `block` values."""
    torch = wanted("torch")
    return values * torch.repeat_interleave(scales, block)[: values.numel()]


def unpack_4bit(tensors, name, form):
    """A 4-bit weight of bitsandbytes: two codes per byte, the high one first; each block has its largest value, which
    itself may be packed into 8 bits."""
    torch = wanted("torch")
    state = json.loads(bytes(tensors[f"{name}.quant_state.bitsandbytes__{form}"].tolist()))
    scales = tensors[f"{name}.absmax"]
    if f"{name}.nested_absmax" in tensors:
        codes = tensors[f"{name}.nested_quant_map"].float()[scales.flatten().long()]
        nested = tensors[f"{name}.nested_absmax"].float()
        scales = blockwise(codes, nested, state["nested_blocksize"]) + state["nested_offset"]
    packed = tensors[name].flatten()
    codes = torch.stack([packed >> 4, packed & 15], dim=1).flatten().long()
    values = blockwise(tensors[f"{name}.quant_map"].float()[codes], scales.float().flatten(), state["blocksize"])
    count = 1
    for size in state["shape"]:
        count *= size
    return values[:count].reshape(state["shape"])


def unpack(tensors):
    """The tensors with every weight as the model's own code would compute with it, and whether any was packed."""
    torch = wanted("torch")
    result, packed = {}, False
    belongs = set()  # tensors that belong to a packed weight
    for name, tensor in tensors.items():
        form = next((f for f in ("nf4", "fp4") if f"{name}.quant_state.bitsandbytes__{f}" in tensors), None)
        scope = name.rsplit(".", 1)[0]
        if form:
            value = unpack_4bit(tensors, name, form)
            belongs |= {n for n in tensors if n.startswith(name + ".")}
        elif tensor.dtype == torch.int8 and f"{scope}.SCB" in tensors:
            value = tensor.float() * tensors[f"{scope}.SCB"].float().unsqueeze(1) / 127
            belongs |= {f"{scope}.SCB", f"{scope}.weight_format"}
        elif tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            value = tensor.float()
            for scale in (tensors[scope + s].float() for s in FP8_SCALES if scope + s in tensors):
                if scale.numel() == 1:
                    value = value * scale.item()
                elif scale.numel() == value.shape[0]:
                    value = value * scale.reshape(-1, *[1] * (value.dim() - 1))
                else:
                    fail(f"{name} has scales of shape {list(scale.shape)}, a form that is not known here")
            belongs |= {scope + s for s in FP8_SCALES + FP8_REST} | {"scaled_fp8"}
        elif tensor.dtype == torch.int8:
            fail(f"{name} is int8 in a form that is not known here; get the model's own weights in bf16 or fp16")
        else:
            result[name] = tensor
            continue
        packed = True
        result[name] = value.to(torch.bfloat16)
    # safetensors needs copies of tensors that share memory.
    return {n: t.clone().contiguous() for n, t in result.items() if n not in belongs}, packed


def read_pickle(path):
    torch = wanted("torch")
    content = torch.load(path, map_location="cpu", weights_only=True)
    content = content.get("state_dict", content)
    return {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}


def read_gguf(path):
    torch, gguf = wanted("torch"), wanted("gguf")
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(size) for size in reversed(tensor.shape)]
        tensors[tensor.name] = torch.tensor(values).reshape(shape).to(torch.bfloat16)
    return tensors


def read_safetensors(path):
    return wanted("safetensors.torch").load_file(path)


def is_gguf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"GGUF"


def read_file(path):
    if is_gguf(path):
        return read_gguf(path)
    return read_pickle(path) if path.suffix in PICKLES else read_safetensors(path)


def is_index(path):
    return path.name.endswith(".index.json")


def convert_component(component):
    """Converts a component's weights to plain safetensors, in place, unless they already are."""
    files = sorted(p for p in component.iterdir() if p.is_file())
    readable = [p for p in files if p.suffix == ".safetensors"]
    weights = readable or [p for p in files if p.suffix == ".bin"]
    pickles = [p for p in files if p.suffix in PICKLES]
    if not weights:
        return
    tensors = {}
    for path in weights:
        tensors.update(read_file(path))
    tensors, packed = unpack(tensors)
    for path in pickles + [p for p in files if is_index(p) and ".bin." in p.name]:
        path.unlink()
    if readable and not packed:
        return
    for path in readable + [p for p in files if is_index(p)]:
        path.unlink(missing_ok=True)
    config_path = component / "config.json"
    config = json.loads(config_path.read_text()) if config_path.exists() else {}
    name = "diffusion_pytorch_model" if "_diffusers_version" in config else "model"
    wanted("safetensors.torch").save_file(tensors, component / f"{name}.safetensors", metadata={"format": "pt"})
    if config.pop("quantization_config", None) is not None:
        config_path.write_text(json.dumps(config, indent=2) + "\n")
    print(f"{component.name}: {len(tensors)} tensors written as safetensors")


def convert_folder(model, output):
    if not (model / "model_index.json").is_file():
        fail(f"{model} has no model_index.json: it is not a folder in the diffusers layout")
    shutil.copytree(model, output)
    for component in sorted(p for p in output.iterdir() if p.is_dir()):
        convert_component(component)


def transformer_class(names):
    diffusers = wanted("diffusers")
    if any("joint_blocks." in name for name in names):
        return diffusers.SD3Transformer2DModel
    if any("double_blocks." in name for name in names):
        return diffusers.FluxTransformer2DModel
    fail("this is not a transformer of FLUX.1 or Stable Diffusion 3 as their authors publish it")


def replace_component(output, name, model):
    shutil.rmtree(output / name)
    model.save_pretrained(output / name, safe_serialization=True)
    print(f"{name}: replaced")


def merge_lora(file, base, output):
    diffusers = wanted("diffusers")
    wanted("peft")
    pipeline = diffusers.DiffusionPipeline.from_pretrained(base, torch_dtype="auto")
    pipeline.load_lora_weights(str(file.parent), weight_name=file.name)
    changed = [name for name, part in pipeline.components.items() if getattr(part, "peft_config", None)]
    if not changed:
        fail("the LoRA changes nothing in this model")
    pipeline.fuse_lora(components=changed)
    pipeline.unload_lora_weights()
    for name in changed:
        replace_component(output, name, getattr(pipeline, name))


def convert_file(file, base, output):
    if not base.is_dir():
        base = pathlib.Path(wanted("huggingface_hub").snapshot_download(str(base)))
    if not (base / "model_index.json").is_file():
        fail(f"{base} has no model_index.json: --base is a folder in the diffusers layout")
    tensors, _ = unpack(read_file(file))
    is_lora = any(part in name for name in tensors for part in LORA_NAMES)
    made = None if is_lora else transformer_class(tensors)
    shutil.copytree(base, output)
    if is_lora:
        return merge_lora(file, base, output)
    torch = wanted("torch")
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        plain = pathlib.Path(folder) / "transformer.safetensors"
        wanted("safetensors.torch").save_file(tensors, plain)
        del tensors
        model = made.from_single_file(
            str(plain),
            config=str(base),
            subfolder="transformer",
            torch_dtype=dtypes.pop() if len(dtypes) == 1 else torch.bfloat16,
            local_files_only=True,
        )
    replace_component(output, "transformer", model)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=pathlib.Path, metavar="MODEL|FILE")
    parser.add_argument("output", type=pathlib.Path, metavar="NEW_FOLDER")
    parser.add_argument("--base", type=pathlib.Path, metavar="MODEL", help="the model that FILE was made from")
    arguments = parser.parse_args()
    if arguments.output.exists():
        fail(f"{arguments.output} exists; name a new folder")
    if not arguments.input.exists():
        fail(f"there is no {arguments.input}")
    try:
        if arguments.input.is_dir():
            convert_folder(arguments.input, arguments.output)
        elif arguments.base is None:
            fail("a file needs --base MODEL, the model that it was made from")
        else:
            convert_file(arguments.input, arguments.base, arguments.output)
    except BaseException:
        shutil.rmtree(arguments.output, ignore_errors=True)
        raise
    print(f"{arguments.output} is ready")


if __name__ == "__main__":
    main()
